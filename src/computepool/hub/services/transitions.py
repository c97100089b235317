"""Locks slices and attempts, lets core decide item by item, and writes the outcome with its events at once.

The order of locks is the same everywhere (slices, then attempts, then jobs, then accounts of the ledger, each
sorted), so that hubs never wait for each other in a circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, Decision, Slice
from computepool.core.jobs.ranges import to_ranges
from computepool.core.jobs.retry import is_job_poisonous
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    JOB_TERMINAL,
    AttemptState,
    JobState,
    SliceState,
    derive_job_state,
)
from computepool.core.ledger.charging import Charge
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import billing
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Changes, JobCounts, Locked, ReceiptRow, ReportRow
from computepool.hub.store.connect import Connection
from computepool.hub.store.events import NewEvent
from computepool.hub.store.slices import SliceKey

_ENDS = (SliceState.SUCCEEDED, SliceState.FAILED, SliceState.CANCELLED)


class EndedAttempt(NamedTuple):
    """An attempt that has left its slot: what fair shares and reputations are counted by."""

    attempt_id: AttemptId
    account_id: AccountId
    node_id: NodeId
    slot: SlotName
    # None: it delivered.
    cause: Cause | None
    expected_seconds: float
    # How long it held the slot, by the database's clock.
    held_seconds: float


# Told after the commit, outside of any transaction.
OnEnd = Callable[[Sequence[EndedAttempt]], None]


def ignore_end(_: Sequence[EndedAttempt]) -> None:
    """For callers that count nothing."""


class Snapshot:
    """Locked rows and what has been decided about them so far. Decisions see the ones before them."""

    def __init__(self, slices: dict[SliceKey, Slice], locked: Locked) -> None:
        self._slices_before = dict(slices)
        self._locked = locked
        self._attempts_before = {id: found.attempt for id, found in locked.attempts.items()}
        self.slices = slices
        self.attempts = dict(self._attempts_before)
        self._by_slice: dict[SliceKey, list[AttemptId]] = defaultdict(list)
        for attempt in self.attempts.values():
            self._by_slice[attempt.job_id, attempt.slice_index].append(attempt.id)
        self._changed: dict[AttemptId, Attempt] = {}
        self._accepted: dict[SliceKey, AttemptId] = {}
        self._reports: dict[AttemptId, ReportRow] = {}
        self._receipts: list[ReceiptRow] = []
        self._postings: list[Posting] = []

    @property
    def now(self) -> datetime | None:
        return self._locked.now

    def expires_at(self, attempt_id: AttemptId) -> datetime:
        return self._locked.attempts[attempt_id].expires_at

    def is_seat(self, attempt_id: AttemptId) -> bool:
        """Whether it fills a seat of a run."""
        return self._locked.attempts[attempt_id].checkpoint_seconds is not None

    def get_account_id(self, job_id: JobId) -> AccountId:
        return self._locked.jobs[job_id].account_id

    def list_live(self, key: SliceKey, *, but: AttemptId | None = None) -> list[Attempt]:
        found = (self.attempts[id] for id in self._by_slice[key] if id != but)
        return [attempt for attempt in found if attempt.state in ATTEMPT_LIVE]

    @property
    def has_stopped(self) -> bool:
        """Whether some node may have to be told to let go of an attempt."""
        stopped = any(a.state is AttemptState.CANCELLED for a in self._changed.values())
        # A slice that was tried more than once has ended: a lost attempt may be at work on it still.
        return stopped or any(self.slices[key].attempt_count > 1 for key in self._accepted)

    def take(self, decision: Decision, *, report: ReportRow | None = None) -> None:
        key = (decision.slice.job_id, decision.slice.index)
        self.slices[key] = decision.slice
        for attempt in decision.attempts:
            self.attempts[attempt.id] = attempt
            self._changed[attempt.id] = attempt
            if attempt.state is AttemptState.SUCCEEDED and decision.slice.state is SliceState.SUCCEEDED:
                self._accepted[key] = attempt.id
        if report is not None:
            self._reports[decision.attempts[0].id] = report

    def keep_receipt(self, receipt: ReceiptRow) -> None:
        self._receipts.append(receipt)

    def list_requeued(self) -> list[Slice]:
        return [s for s in self._list_changed() if s.state is SliceState.QUEUED]

    def list_poisonous_jobs(self) -> list[JobId]:
        """Jobs that are stopped as a whole, because of what one of their slices has come to."""
        poisoned = Counter(s.job_id for s in self._list_changed() if s.cause is Cause.POISONOUS)
        return [
            job_id
            for job_id, count in poisoned.items()
            if is_job_poisonous(count, self._locked.jobs[job_id].succeeded_count)
        ]

    def list_ended(self) -> list[EndedAttempt]:
        """Attempts that were live and are not any more."""
        return [
            self._to_ended(id, attempt)
            for id, attempt in self._changed.items()
            if attempt.state not in ATTEMPT_LIVE and self._attempts_before[id].state in ATTEMPT_LIVE
        ]

    def _to_ended(self, id: AttemptId, attempt: Attempt) -> EndedAttempt:
        before = self._locked.attempts[id]
        assert self.now is not None
        return EndedAttempt(
            id,
            self.get_account_id(attempt.job_id),
            attempt.node_id,
            attempt.slot,
            attempt.cause,
            before.expected_seconds,
            max(0.0, (self.now - before.leased_at).total_seconds()),
        )

    def _list_changed(self) -> list[Slice]:
        return [s for key, s in sorted(self.slices.items()) if s != self._slices_before[key]]

    def price(self, attempt: Attempt, report: ReportRow | None) -> int:
        """What the submitter would pay for an attempt that ends like this."""
        charge = self._charge(attempt, report)
        return charge.total_microcredits if charge is not None else 0

    def find_slack(self, job_id: JobId) -> int:
        """What the job holds beyond the reserves of its unfinished slices, before anything that is decided here."""
        job = self._locked.jobs[job_id]
        return job.held_remaining - job.open_count * job.reserve_microcredits

    async def write(self, conn: Connection) -> None:
        await self.apply(conn)
        await self.post(conn)

    async def post(self, conn: Connection) -> None:
        """Moves the money for what was applied, after everything else in the transaction."""
        await billing.post(conn, self._postings)

    async def apply(self, conn: Connection) -> None:
        changed = self._list_changed()
        if not (changed or self._changed):
            return
        assert self.now is not None
        charges = self._list_charges()
        jobs, events = self._count_jobs(changed, charges)
        await attempt_store.apply_changes(
            conn,
            Changes(
                attempts=list(self._changed.values()),
                reports=self._reports,
                charges=charges,
                slices=[(s, self._accepted.get((s.job_id, s.index))) for s in changed],
                jobs=jobs,
                receipts=self._receipts,
                events=events,
                now=self.now,
            ),
        )

    def _list_charges(self) -> dict[AttemptId, Charge]:
        found = (
            (id, self._charge(attempt, self._reports.get(id)))
            for id, attempt in self._changed.items()
            if not self._is_withheld(attempt)
        )
        return {id: charge for id, charge in found if charge is not None}

    def _is_withheld(self, attempt: Attempt) -> bool:
        """Its result is paid for when it is known to be right; until then its slice stays covered."""
        withheld = self.slices[attempt.job_id, attempt.slice_index].state is SliceState.VERIFYING
        return withheld and attempt.state is AttemptState.SUCCEEDED

    def _charge(self, attempt: Attempt, report: ReportRow | None) -> Charge | None:
        assert self.now is not None
        job = self._locked.jobs[attempt.job_id]
        return billing.price_end(self._locked.attempts[attempt.id], attempt, report, job, self.now)

    def _count_jobs(
        self, changed: Sequence[Slice], charges: Mapping[AttemptId, Charge]
    ) -> tuple[list[JobCounts], list[NewEvent]]:
        """The jobs whose counts or holds change, and an event for each transition of each job's set of slices."""
        assert self.now is not None
        events, updated = [], []
        owed = billing.group_by_owner(charges, self._locked.attempts)
        shard = billing.choose_fee_shard(self.now)
        for job_id, by_state in _group(changed).items():
            job = self._locked.jobs[job_id]
            events += [_to_event(job, state, group) for state, group in by_state.items()]
            counted, postings = billing.settle_job(self._count_job(job, by_state), owed.get(job_id, {}), shard=shard)
            self._postings += postings
            if counted != job:
                updated.append(counted)
                if counted.state in JOB_TERMINAL and job.state not in JOB_TERMINAL:
                    kind = f"job_{counted.state.value}"
                    events.append(NewEvent(kind=kind, account_id=job.account_id, job_id=job.id))
        return updated, events

    def _count_job(self, job: JobCounts, by_state: dict[SliceState, list[Slice]]) -> JobCounts:
        succeeded, failed, cancelled = (len(by_state.get(state, ())) for state in _ENDS)
        if not succeeded + failed + cancelled:
            return job
        counted = job._replace(
            succeeded_count=job.succeeded_count + succeeded,
            failed_count=job.failed_count + failed,
            cancelled_count=job.cancelled_count + cancelled,
            run_seconds_sum=job.run_seconds_sum + self._sum_run_seconds(by_state),
        )
        return counted._replace(state=_derive_state(counted))

    def _sum_run_seconds(self, by_state: dict[SliceState, list[Slice]]) -> float:
        ids = [self._accepted.get((s.job_id, s.index)) for s in by_state.get(SliceState.SUCCEEDED, ())]
        return sum(self._clamp_run_seconds(id) for id in ids if id in self._reports)

    def _clamp_run_seconds(self, id: AttemptId) -> float:
        """What a node claims is never more than the time that it held the slot."""
        held = (self.now - self._locked.attempts[id].leased_at).total_seconds() if self.now else 0.0
        return max(0.0, min(self._reports[id].run_seconds or 0.0, held))


async def lock_snapshot(conn: Connection, attempt_ids: Iterable[AttemptId]) -> Snapshot:
    """The slices of these attempts with all that matters for judging them."""
    ids = set(attempt_ids)
    slices = await slice_store.lock_slices_of_attempts(conn, ids)
    return Snapshot(slices, await attempt_store.lock_attempts_and_jobs(conn, keys=slices, ids=ids))


async def lock_open_snapshot(conn: Connection, job_id: JobId, *, limit: int) -> Snapshot:
    """All that is unfinished of one job, up to a limit."""
    slices = await slice_store.lock_open_slices(conn, job_id=job_id, limit=limit)
    return Snapshot(slices, await attempt_store.lock_attempts_and_jobs(conn, keys=slices))


def _derive_state(job: JobCounts) -> JobState:
    return derive_job_state(
        slice_count=job.slice_count,
        succeeded_count=job.succeeded_count,
        failed_count=job.failed_count,
        cancelled_count=job.cancelled_count,
        started=job.started_at is not None,
    )


def _group(changed: Sequence[Slice]) -> dict[JobId, dict[SliceState, list[Slice]]]:
    groups: dict[JobId, dict[SliceState, list[Slice]]] = {}
    for slice_ in changed:
        groups.setdefault(slice_.job_id, {}).setdefault(slice_.state, []).append(slice_)
    return groups


def _to_event(job: JobCounts, state: SliceState, group: Sequence[Slice]) -> NewEvent:
    body: dict[str, object] = {"slices": to_ranges([s.index for s in group])}
    causes = sorted({s.cause.value for s in group if s.cause})
    if causes:
        body["causes"] = causes
    return NewEvent(kind=f"slices_{state.value}", account_id=job.account_id, job_id=job.id, body=body)
