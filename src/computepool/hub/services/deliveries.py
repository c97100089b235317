"""Deliveries: the usual end of an attempt. It is live, it is the newest of its slice, and it has a result.

Nearly every report is one, and none of what makes ends difficult (retries, siblings, causes, who pays for a failure)
touches it: so it takes a short way, two statements for a whole batch. Whatever is not exactly this is left to the
long way in transitions.py, which would come to the same here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.ranges import to_ranges
from computepool.core.jobs.state import JOB_TERMINAL, derive_job_state
from computepool.core.ledger.charging import Charge
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import billing
from computepool.hub.services.reports import Report, check_outputs, list_outputs, to_row
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import deliveries as store
from computepool.hub.store import events as event_store
from computepool.hub.store.attempts import JobCounts
from computepool.hub.store.connect import Connection
from computepool.hub.store.deliveries import Delivery, Held
from computepool.hub.store.events import NewEvent
from computepool.wire.attempts import CompleteOutcome

ACCEPTED = CompleteOutcome(accepted=True)


@dataclass(slots=True)
class Delivered:
    """What the short way has settled."""

    outcomes: dict[AttemptId, CompleteOutcome | ComputePoolError] = field(default_factory=dict)
    ended: list[EndedAttempt] = field(default_factory=list)
    postings: list[Posting] = field(default_factory=list)
    # A slice that was tried more than once has ended: a lost attempt may be at work on it still.
    has_stopped: bool = False


async def deliver(conn: Connection, plain: Mapping[AttemptId, Report]) -> Delivered:
    """Locks, judges and writes those of these reports that find their attempts as described above; the others are not
    in the outcomes."""
    held = await store.lock_held(conn, [(id, report.node_id) for id, report in plain.items()])
    delivered = Delivered()
    if held:
        present = await list_outputs(conn, [(row.account_id, plain[row.id]) for row in held])
        taken = [row for row in held if _is_complete(plain[row.id], row.account_id, present, delivered)]
        if taken:
            await _write(conn, taken, plain, delivered)
    return delivered


def list_plain(reports: Sequence[Report]) -> dict[AttemptId, Report]:
    """Results that are reported once in this batch: a repetition is judged by what the first has come to."""
    plain = {report.attempt_id: report for report in reports if report.completion.cause is None}
    if len(plain) < len(reports):
        told = Counter(report.attempt_id for report in reports)
        return {id: report for id, report in plain.items() if told[id] == 1}
    return plain


def _is_complete(
    report: Report, account_id: AccountId, present: Mapping[tuple[AccountId, bytes], int], delivered: Delivered
) -> bool:
    refusal = check_outputs(report.completion, account_id, present)
    delivered.outcomes[report.attempt_id] = refusal or ACCEPTED
    return refusal is None


async def _write(
    conn: Connection, taken: Sequence[Held], reports: Mapping[AttemptId, Report], delivered: Delivered
) -> None:
    now = taken[0].now
    rows: list[Delivery] = []
    jobs: dict[JobId, _Job] = {}
    for row in taken:
        report = reports[row.id]
        job = jobs.get(row.job_id)
        if job is None:
            job = jobs[row.job_id] = _Job(row)
        held_seconds = max(0.0, (now - row.leased_at).total_seconds())
        charge = _price(row, report.completion.usage.run_seconds, now)
        job.add(row, charge, min(report.completion.usage.run_seconds, held_seconds))
        rows.append(Delivery(row, report.sha256, to_row(report), charge))
        delivered.ended.append(
            EndedAttempt(row.id, row.account_id, row.node_id, row.slot, None, row.expected_seconds, held_seconds)
        )
    delivered.has_stopped = any(row.number > 1 for row in taken)
    shard = billing.choose_fee_shard(now)
    counts = [job.count(shard, delivered.postings) for job in jobs.values()]
    events = [event for job, counted in zip(jobs.values(), counts, strict=True) for event in job.list_events(counted)]
    receipts = {receipt.id: receipt for row in taken if (receipt := reports[row.id].receipt)}
    await store.record_deliveries(conn, rows, counts, list(receipts.values()), events, now=now)


async def accept_withheld(conn: Connection, attempt_id: AttemptId, *, right_id: AttemptId | None = None) -> bool:
    """A result that was kept back is delivered and paid, at the price of the moment at which it came.

    `right_id`: it was wrong, and the slice is delivered with the result of this attempt instead; then nothing is paid
    for it. False: it is not kept back any more.
    """
    found = await store.lock_withheld(conn, attempt_id)
    if found is None:
        return False
    row, run_seconds = found
    charge = _price(row, run_seconds, row.now) if right_id is None else None
    job = _Job(row)
    job.add(row, charge, min(run_seconds, max(0.0, (row.now - row.leased_at).total_seconds())))
    postings: list[Posting] = []
    counted = job.count(billing.choose_fee_shard(row.now), postings)
    await store.record_acceptance(conn, row, accepted_id=right_id or attempt_id, charge=charge, job=counted)
    await event_store.record_events(conn, job.list_events(counted))
    await billing.post(conn, postings)
    return True


def _price(row: Held, run_seconds: float, now: datetime) -> Charge | None:
    agreed = row.rate_microcredits_per_hour if row.slice_price_microcredits is None else row.slice_price_microcredits
    if agreed <= 0 or row.owner_id == row.account_id:
        return None
    return billing.price_delivery(row, run_seconds, now)


class _Job:
    """A job while some of its slices are delivered."""

    __slots__ = ("_charges", "_indexes", "_row", "_run_seconds")

    def __init__(self, row: Held) -> None:
        self._row = row
        self._indexes: list[int] = []
        self._run_seconds = 0.0
        self._charges: dict[AccountId, list[Charge]] = {}

    def add(self, row: Held, charge: Charge | None, run_seconds: float) -> None:
        self._indexes.append(row.slice_index)
        self._run_seconds += run_seconds
        if charge is not None:
            self._charges.setdefault(row.owner_id, []).append(charge)

    def count(self, shard: int, postings: list[Posting]) -> JobCounts:
        """Its row as it is from now on. What that moves is added to the postings."""
        row = self._row
        succeeded_count = row.succeeded_count + len(self._indexes)
        counts = JobCounts(
            id=row.job_id,
            account_id=row.account_id,
            slice_count=row.slice_count,
            succeeded_count=succeeded_count,
            failed_count=row.failed_count,
            cancelled_count=row.cancelled_count,
            started_at=row.started_at,
            state=derive_job_state(
                slice_count=row.slice_count,
                succeeded_count=succeeded_count,
                failed_count=row.failed_count,
                cancelled_count=row.cancelled_count,
                started=True,
            ),
            run_seconds_sum=row.run_seconds_sum + self._run_seconds,
            wall_seconds=row.wall_seconds,
            held_remaining=row.held_remaining,
            reserve_microcredits=row.reserve_microcredits,
            charged_microcredits=row.charged_microcredits,
        )
        if not (self._charges or row.held_remaining):
            return counts
        settled, moved = billing.settle_job(counts, self._charges, shard=shard)
        postings += moved
        return settled

    def list_events(self, counted: JobCounts) -> list[NewEvent]:
        """One for the slices, and one for the job if these were its last."""
        job_id, account_id = counted.id, counted.account_id
        events = [NewEvent("slices_succeeded", account_id, job_id, body={"slices": to_ranges(self._indexes)})]
        if counted.state in JOB_TERMINAL:
            events.append(NewEvent(f"job_{counted.state.value}", account_id, job_id))
        return events
