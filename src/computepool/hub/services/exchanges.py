"""Exchanges: a result for the next lease, the usual end of an attempt and the begin of another, in one statement.

A hub that has itself leased the first attempt of a slice knows all that its end needs: nothing of it was saved or
charged before, and nobody else is at work on it. So nothing is read and locked first; the statement that writes looks
whether everything is still so, counts its job, and says what it held. What is not so, and whatever else ends, takes
the ways of deliveries.py and transitions.py, which would come to the same here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.state import JobState
from computepool.core.ledger.charging import Charge
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import billing
from computepool.hub.services.deliveries import ACCEPTED, list_plain
from computepool.hub.services.leases import Leases
from computepool.hub.services.reports import Report, check_outputs, list_outputs, to_row
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import exchanges as store
from computepool.hub.store.attempts import Grant, JobCounts
from computepool.hub.store.connect import Connection
from computepool.hub.store.exchanges import Ended, WrittenEnd
from computepool.hub.store.ledger import OpenAccounts
from computepool.wire.attempts import CompleteOutcome

# Leases that are remembered until their results come; of older ones everything is read.
REMEMBERED_MAX = 100_000


class First(NamedTuple):
    """The lease of the first attempt of a slice, and what its end depends on."""

    grant: Grant
    wall_seconds: int
    reserve_microcredits: int

    @property
    def costs(self) -> bool:
        """Whether its end may move money."""
        return bool(
            self.reserve_microcredits or self.grant.rate_microcredits_per_hour or self.grant.slice_price_microcredits
        )


@dataclass(slots=True)
class Exchanged:
    """What a batch came to: the reports that it has settled, and the leases that it has written."""

    outcomes: dict[AttemptId, CompleteOutcome | ComputePoolError] = field(default_factory=dict)
    ended: list[EndedAttempt] = field(default_factory=list)
    postings: list[Posting] = field(default_factory=list)
    granted: Set[AttemptId] = frozenset()

    def note(self, end: _End, held_seconds: float) -> None:
        grant = end.row.grant
        self.outcomes[grant.id] = ACCEPTED
        self.ended.append(
            EndedAttempt(
                grant.id, grant.account_id, grant.node_id, grant.slot, None, grant.expected_seconds, held_seconds
            )
        )


class Exchanges:
    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._firsts: OrderedDict[AttemptId, First] = OrderedDict()

    def note_granted(self, grant: Grant) -> None:
        """After the commit."""
        order = self._leases.find_order(grant.job_id)
        if order is None or grant.number > 1 or order.run_id is not None:
            return
        self._firsts[grant.id] = First(grant, order.wall_seconds, order.reserve_microcredits)
        if len(self._firsts) > REMEMBERED_MAX:
            self._firsts.popitem(last=False)

    def take_ready(self, reports: Sequence[Report]) -> dict[AttemptId, First]:
        """Those of these reports that can be exchanged, with their leases, which are forgotten."""
        ready = {}
        for attempt_id, report in list_plain(reports).items():
            first = self._firsts.pop(attempt_id, None)
            if first is not None and first.grant.node_id == report.node_id:
                ready[attempt_id] = first
        return ready

    async def write(
        self,
        conn: Connection,
        reports: Sequence[Report],
        firsts: Mapping[AttemptId, First],
        planned: Sequence[Grant],
        *,
        opened: OpenAccounts,
    ) -> Exchanged:
        """Ends what these reports are about, and leases what was planned. What is not among the outcomes was not as
        it was believed to be. As part of a transaction, if anything costs anything."""
        exchanged = Exchanged()
        ends = await self._list_ends(conn, reports, firsts, exchanged)
        receipts = {report.receipt.id: report.receipt for report in reports if report.receipt is not None}
        written = await store.exchange(
            conn,
            [end.row for end in ends],
            list(receipts.values()),
            planned,
            rate_card_version=self._leases.prices.card.version,
            lease_seconds=self._leases.lease_seconds,
        )
        exchanged.granted = written.granted
        jobs: dict[JobId, _Job] = {}
        for end in ends:
            found = written.ends.get(end.row.grant.id)
            if found is not None:
                exchanged.note(end, found.held_seconds)
                if end.row.charge is not None or found.held_microcredits:
                    jobs.setdefault(end.row.grant.job_id, _Job(end, found)).add(end)
        shard = billing.choose_fee_shard(clock.now())
        for job in jobs.values():
            exchanged.postings += job.settle(shard)
        await billing.post(conn, exchanged.postings, opened=opened)
        return exchanged

    async def _list_ends(
        self,
        conn: Connection,
        reports: Sequence[Report],
        firsts: Mapping[AttemptId, First],
        exchanged: Exchanged,
    ) -> list[_End]:
        """Results whose files are there. Of the others the refusals are among the outcomes."""
        present = await list_outputs(conn, [(firsts[r.attempt_id].grant.account_id, r) for r in reports])
        ends = []
        for report in reports:
            first = firsts[report.attempt_id]
            refusal = check_outputs(report.completion, first.grant.account_id, present)
            if refusal is not None:
                exchanged.outcomes[report.attempt_id] = refusal
                continue
            charge = _price(first, report)
            row = Ended(first.grant, report.sha256, to_row(report), charge)
            ends.append(_End(row, first, report.owner_id))
        return ends


class _End(NamedTuple):
    row: Ended
    first: First
    owner_id: AccountId


class _Job:
    """A job while some of its slices are exchanged: who is paid for them, and what is left of its hold."""

    __slots__ = ("_charges", "_count", "_end", "_found")

    def __init__(self, end: _End, found: WrittenEnd) -> None:
        self._end = end
        self._found = found
        self._count = 0
        self._charges: dict[AccountId, list[Charge]] = {}

    def add(self, end: _End) -> None:
        self._count += 1
        if end.row.charge is not None:
            self._charges.setdefault(end.owner_id, []).append(end.row.charge)

    def settle(self, shard: int) -> list[Posting]:
        """As the statement has counted it. What had ended before need not be known: nothing is held for it."""
        grant, open_count = self._end.row.grant, self._found.open_count
        job = JobCounts(
            id=grant.job_id,
            account_id=grant.account_id,
            slice_count=open_count,
            succeeded_count=self._count,
            failed_count=0,
            cancelled_count=0,
            started_at=None,
            state=JobState.RUNNING if self._count < open_count else JobState.SUCCEEDED,
            run_seconds_sum=0.0,
            wall_seconds=self._end.first.wall_seconds,
            held_remaining=self._found.held_microcredits,
            reserve_microcredits=self._end.first.reserve_microcredits,
            charged_microcredits=0,
        )
        _, postings = billing.settle_job(job, self._charges, shard=shard)
        return postings


def _price(first: First, report: Report) -> Charge | None:
    """It is metered by what the node says: the statement looks whether it has held the slot for as long."""
    grant = first.grant
    if report.owner_id == grant.account_id:
        return None
    return billing.price_first(grant, report.completion.usage.run_seconds, wall_seconds=first.wall_seconds)
