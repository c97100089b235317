"""The round: gives out what fits. Nodes and their calls are the reception's.

One round runs at a time in a hub; between hubs SKIP LOCKED and the unique indexes keep them apart. A round is started
by a submit, a parked call, a freed lease or a NOTIFY, and by a timer in case one of those was missed. It costs what
can be granted, not what is parked or queued. A submit that meets a free slot which nobody waits for does not need a
round at all: its slice is born leased.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, AttemptId, ShapeId
from computepool.core.placement.fronts import Fronts
from computepool.core.placement.rounds import ELSEWHERE_SECONDS_MIN, Head, Round, Run, Wish
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.hub.dispatch.backlog import RUNS_MAX, Backlog
from computepool.hub.dispatch.elsewhere import Elsewhere, Heard
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.dispatch.parked import ParkedCall
from computepool.hub.dispatch.reception import Reception
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.stubborn import Stubborn
from computepool.hub.dispatch.summaries import Ask
from computepool.hub.services.attempts import finish_attempts
from computepool.hub.services.exchanges import Exchanges, First
from computepool.hub.services.leases import GRANTS_MAX, Granted, Leases, Session, sort_out
from computepool.hub.services.reports import Report
from computepool.hub.services.submissions import Submission, Submissions, Submitted
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store import hub as hub_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool
from computepool.hub.store.hub import Change
from computepool.hub.store.jobs import Job
from computepool.hub.store.ledger import OpenAccounts
from computepool.wire.attempts import CompleteOutcome

log = logging.getLogger("computepool.dispatch")

# Called with what has changed, at whichever hub; None: nobody knows what.
OnChanges = Callable[[Sequence[Change] | None], None]

TIMER_SECONDS = 1.0
# Looking for runs of the queue takes at most this part of the time, but is not put off for longer than this.
LOOK_SHARE = 0.1
LOOK_PAUSE_SECONDS_MAX = 0.5
# A run that was left to this hub is looked at again for so long, if nothing is to be seen of it.
ASKED_SECONDS = 0.2
LOOK_AGAIN_SECONDS = 0.03
# How far back changes are read each time, because they do not become visible in order.
CHANGES_SECONDS = 10.0
# A round that could go along with results looks after this long whether it has.
LEFT_TO_COMPLETIONS_SECONDS = 0.005
NOBODY_COUNTED: Mapping[Run, int] = {}
NOBODY_SEEN: Mapping[Run, Sequence[Head]] = {}
# A hub that is alone knows what was queued; it makes sure only now and then.
LOOK_ALONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """A report of an attempt's end and, with the last one of a call, what the node would run next."""

    report: Report
    claim: ParkedCall | None = None


@dataclass(slots=True)
class _Turn:
    """A round on its way through a transaction that is not its own."""

    as_of: int = 0
    round: Round | None = None
    granted: Granted | None = None


class Rounds:
    def __init__(
        self,
        pool: Pool,
        reception: Reception,
        leases: Leases,
        submissions: Submissions,
        registry: Registry,
        backlog: Backlog,
        share: FairShare,
        elsewhere: Elsewhere,
        *,
        on_end: OnEnd = ignore_end,
    ) -> None:
        self._pool = pool
        self._on_end = on_end
        self._one_round = asyncio.Lock()
        self._reception = reception
        reception.on_offer = self.wake
        self._leases = leases
        self._submissions = submissions
        self._registry = registry
        self._backlog = backlog
        self._share = share
        self._elsewhere = elsewhere
        self._stubborn = Stubborn()
        self._opened = OpenAccounts()
        self._exchanges = Exchanges(leases)
        # How many results wait to be written: with them slots are filled, too.
        self.count_completions: Callable[[], int] = lambda: 0
        self._wake = asyncio.Event()
        self._stale = True
        self._looked_at, self._look_seconds = 0.0, 0.0
        # Runs that were left to this hub a moment ago.
        self._asked_until: dict[Run, float] = {}
        self._alarm = asyncio.Event()
        self._changes_seen: set[int] = set()
        self._heard_at = clock.seconds()
        self._telling: asyncio.Task[None] | None = None

    # Rounds

    def wake(self) -> None:
        self._wake.set()

    def hear(self, topic: str) -> None:
        """Another hub, or this one, has committed a change of this kind."""
        if topic == "queue":
            self._stale = True
            self.wake()
        elif (heard := self._elsewhere.hear(topic)) is not None:
            self._hear_of_runs(heard)
        else:
            self._alarm.set()

    def _hear_of_runs(self, heard: Heard) -> None:
        """Slices are queued at other hubs."""
        self._stale = self._stale or heard.missed
        self._note_asks(heard.asks)

    def _note_asks(self, asks: Iterable[Ask], counts: Mapping[Run, int] = NOBODY_COUNTED) -> None:
        """What another hub has the best slot for is left alone here for a moment, and unlocked."""
        ours: list[Run] = []
        others: list[Run] = []
        for run, hub_process_id in asks:
            left = hub_process_id not in (None, self._elsewhere.hub_process_id)
            (others if left else ours).append(run)
            if hub_process_id == self._elsewhere.hub_process_id:
                self._asked_until[run] = clock.seconds() + ASKED_SECONDS
        if ours or self._stale:
            self._note_runs(ours, counts)
        if others:
            asyncio.get_running_loop().call_later(ELSEWHERE_SECONDS_MIN, self._note_runs, others, counts)

    def _note_runs(
        self,
        runs: Iterable[Run],
        counts: Mapping[Run, int] = NOBODY_COUNTED,
        heads: Mapping[Run, Sequence[Head]] = NOBODY_SEEN,
    ) -> None:
        for run in runs:
            if run.shape_id in self._backlog.shapes:
                self._backlog.note(run, counts.get(run), heads.get(run, ()))
            else:
                self._stale = True
        if len(self._registry.fleet) or self._stale:
            self.wake()

    def hear_of_queue(self) -> None:
        """This hub has put something back into the queue."""
        self.hear("queue")
        self._tell_others()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.run_once()
            except Exception:
                # The database may be away; the parked calls stay, and the timer comes round again.
                log.exception("round_failed")
                await asyncio.sleep(TIMER_SECONDS / 2)

    async def run_once(self) -> None:
        hurried = self._reception.take_hurried()
        try:
            if self._stale:
                await self._look_at_queue()
            polls = {call.node_id: call for call in hurried if not call.greeted}
            if polls:
                await self._reception.greet(polls)
            await self._grant()
        finally:
            for call in hurried:
                call.dismiss()

    async def _look_at_queue(self) -> None:
        started, as_of = clock.seconds(), self._backlog.moment
        early = self._looked_at + min(self._look_seconds / LOOK_SHARE, LOOK_PAUSE_SECONDS_MAX) - started
        if early > 0:
            asyncio.get_running_loop().call_later(early, self.wake)
            return
        self._stale = False
        async with self._pool.acquire() as conn:
            runs = await slice_store.list_runs(conn, limit=RUNS_MAX)
            unknown = {run.shape_id for run in runs if run.shape_id not in self._backlog.shapes}
            if unknown:
                self._backlog.shapes.update(await shape_store.list_shapes(conn, unknown))
        self._backlog.replace(runs, as_of=as_of)
        self._looked_at = clock.seconds()
        self._look_seconds = self._looked_at - started

    async def _grant(self) -> None:
        if not len(self._backlog) or not len(self._registry.fleet):
            return
        if self.count_completions():
            # They go next, and what can be leased goes with them. If it did not, we are back soon. Not even a plan is
            # made before: beside much that nobody can run, that is most of what a round costs.
            asyncio.get_running_loop().call_later(LEFT_TO_COMPLETIONS_SECONDS, self.wake)
            return
        # Most wakes find nothing to do, and need not ask the database for that.
        if self._plan() is None:
            return
        turn, alone = _Turn(), self._elsewhere.alone
        try:
            async with self._leases.open(alone=alone) as session:
                await self._grant_on(session, (), turn)
        except BaseException:
            self._undo(turn)
            raise
        self._conclude(turn)

    def _plan(self) -> Round | None:
        """A round, if there is something to do in it."""
        if not len(self._backlog) or not len(self._registry.fleet):
            return None
        round_ = Round(
            self._registry.fleet,
            self._backlog.shapes,
            self._backlog.runs,
            self._share,
            grants_max=GRANTS_MAX,
            gap_elsewhere=None if self._elsewhere.alone else self._elsewhere.find_gap,
            on_pair=self._reception.hold,
            is_aside=self._stubborn.is_aside,
            find_count=self._backlog.find_count,
            crowded=not self._elsewhere.alone,
            outlook=self._backlog.outlook,
        )
        return round_ if round_.list_takes() else None

    def _conclude(self, turn: _Turn) -> None:
        """After the commit."""
        round_, granted = turn.round, turn.granted
        if round_ is None or granted is None:
            return
        self._leases.let_go(granted.planned)
        self._backlog.forget(round_.emptied, as_of=turn.as_of)
        self._look_again(round_.emptied.difference(pair.head.run for pair in round_.pairs))
        self._backlog.doubt(pair.head.run for pair in granted.refused)
        for pair in granted.refused:
            self._stubborn.note_refused((pair.head.job_id, pair.head.slice_index))
            # The record says otherwise than we thought: the node is looked up before it is offered again.
            self._reception.look_up_soon(pair.candidate.slot.node_id)
        with self._reception.together():
            for grant in granted.grants:
                self._stubborn.note_granted((grant.job_id, grant.slice_index))
                self._deliver(grant)
            for pair in round_.pairs:
                self._reception.release(pair.candidate.slot.node_id, pair.candidate.slot.name)
        if not self._elsewhere.alone:
            for run in round_.spared:
                self._elsewhere.ask(run, None)
        for head in round_.postponed:
            hub_process_id = self._elsewhere.pop_left((head.job_id, head.slice_index))
            if hub_process_id is not None:
                # By now nothing is locked: whoever looks finds it.
                self._elsewhere.ask(head.run, hub_process_id)
        if round_.postponed_seconds is not None:
            asyncio.get_running_loop().call_later(round_.postponed_seconds, self.wake)
        # A round that is full asks for nothing more, whatever is left.
        if granted.grants and (len(round_.pairs) >= GRANTS_MAX or round_.list_takes()):
            self.wake()

    def _look_again(self, runs: Iterable[Run]) -> None:
        """What was left to this hub and is not to be seen may be locked by one that leaves it to us too."""
        now = clock.seconds()
        self._asked_until = {run: until for run, until in self._asked_until.items() if until > now}
        again = [run for run in runs if run in self._asked_until]
        if again:
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._note_runs, again)

    def _undo(self, turn: _Turn) -> None:
        """What it had planned was not written."""
        if turn.round is None:
            return
        if turn.granted is not None:
            self._leases.let_go(turn.granted.planned)
        self._backlog.doubt(pair.head.run for pair in turn.round.pairs)
        turn.round.undo()
        # What it had locked may have made a run look empty to others.
        self._stale = True
        for candidate in turn.round.undone:
            self._reception.give_back(candidate)

    def _deliver(self, grant: Grant) -> None:
        self._share.note_granted(grant)
        self._exchanges.note_granted(grant)
        self._reception.deliver(grant)

    # Completions, with the claims that they carry

    async def complete(self, endings: Sequence[Ending]) -> Sequence[CompleteOutcome | ComputePoolError]:
        """Ends attempts and fills their slots anew, in one transaction: what can be exchanged by one statement."""
        firsts = self._exchanges.take_ready([ending.report for ending in endings])
        if not firsts:
            return await self._complete_locked(endings)
        outcomes = await self._exchange([e for e in endings if e.report.attempt_id in firsts], firsts)
        rest = [ending for ending in endings if ending.report.attempt_id not in outcomes]
        judged = iter(await self._complete_locked(rest) if rest else ())
        return [outcomes.get(ending.report.attempt_id) or next(judged) for ending in endings]

    async def _exchange(
        self, endings: Sequence[Ending], firsts: Mapping[AttemptId, First]
    ) -> Mapping[AttemptId, CompleteOutcome | ComputePoolError]:
        """Without what was not as this hub believed."""
        reports = [ending.report for ending in endings]
        claims = [ending.claim for ending in endings if ending.claim is not None and ending.claim.open]
        # What moves money takes two statements.
        alone = self._elsewhere.alone and not any(first.costs for first in firsts.values())
        turn = _Turn()
        planned: Sequence[Grant] = ()
        try:
            async with self._leases.open(alone=alone) as session:
                async with self._one_round:
                    self._begin_turn(turn, claims)
                    if turn.round is not None:
                        planned = await self._leases.plan_on(
                            session,
                            turn.round,
                            expected_seconds=self._share.expected_seconds,
                            fronts=self._fronts,
                        )
                        self._backlog.note_planned(turn.round, as_of=turn.as_of)
                exchanged = await self._exchanges.write(
                    await session.ready(), reports, firsts, planned, opened=self._opened
                )
        except BaseException:
            self._undo(turn)
            raise
        else:
            self._opened.note(exchanged.postings)
            self._on_end(exchanged.ended)
            if turn.round is not None:
                turn.granted = sort_out(turn.round.pairs, planned, exchanged.granted)
            self._conclude(turn)
        finally:
            self._leases.let_go(planned)
            for call in claims:
                call.dismiss()
        return exchanged.outcomes

    async def _complete_locked(self, endings: Sequence[Ending]) -> Sequence[CompleteOutcome | ComputePoolError]:
        reports = [ending.report for ending in endings]
        claims = [ending.claim for ending in endings if ending.claim is not None and ending.claim.open]
        if not claims:
            return await finish_attempts(
                self._leases.pool, reports, on_end=self._on_end, audit_key=self._leases.audit_key, opened=self._opened
            )
        turn = _Turn()
        try:
            outcomes = await finish_attempts(
                self._leases.pool,
                reports,
                on_end=self._on_end,
                then=lambda conn: self._grant_on(Session(conn), claims, turn),
                audit_key=self._leases.audit_key,
                opened=self._opened,
            )
        except BaseException:
            self._undo(turn)
            raise
        else:
            self._conclude(turn)
        finally:
            for call in claims:
                call.dismiss()
        return outcomes

    async def _grant_on(self, session: Session, claims: Sequence[ParkedCall], turn: _Turn) -> None:
        """Planned one after the other, while the commits of several may be on their way.

        Whoever waits for the turn holds a connection, so whoever has the turn must not wait for one.
        """
        async with self._one_round:
            self._begin_turn(turn, claims)
            if turn.round is not None:
                turn.granted = await self._leases.grant_on(
                    session, turn.round, expected_seconds=self._share.expected_seconds, fronts=self._fronts
                )
                self._backlog.note_planned(turn.round, as_of=turn.as_of)

    @property
    def _fronts(self) -> Fronts | None:
        """What others may take at any moment is not remembered but locked."""
        return self._backlog.fronts if self._elsewhere.alone else None

    def _begin_turn(self, turn: _Turn, claims: Sequence[ParkedCall]) -> None:
        for call in claims:
            self._reception.admit(call)
        turn.as_of, turn.round = self._backlog.moment, self._plan()

    async def complete_apart(self, endings: Sequence[Ending]) -> Sequence[CompleteOutcome | ComputePoolError]:
        """The same with a transaction for each, to measure what it is worth to share one."""
        reports = [ending.report for ending in endings]
        outcomes = await finish_attempts(
            self._leases.pool, reports, on_end=self._on_end, audit_key=self._leases.audit_key, opened=self._opened
        )
        for ending in endings:
            if ending.claim is not None and ending.claim.open:
                await self._reception.park(ending.claim)
        return outcomes

    # Submits, and what they ask of dispatch

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[Job | ComputePoolError]:
        submitted = await self._submissions.submit(submissions, self)
        with self._reception.together():
            for grant in submitted.grants:
                self._deliver(grant)
                self._reception.release(grant.node_id, grant.slot)
        for run, shape in submitted.runs.items():
            self._backlog.shapes[run.shape_id] = shape
        if not self._elsewhere.alone:
            self._leave_runs(submissions, submitted)
        elif submitted.runs:
            self._note_runs(submitted.runs, submitted.counts, submitted.heads)
        return submitted.answers

    def _leave_runs(self, submissions: Sequence[Submission], submitted: Submitted) -> None:
        """Tells others. Of several slices some may be for us, whoever has the best slot."""
        counts = Counter[tuple[Shape, AccountId]]()
        for submission in submissions:
            counts[submission.shape, submission.account_id] += submission.spec.slice_count
        asks = []
        for run, shape in submitted.runs.items():
            left_to = self._elsewhere.pop_left((shape, run.account_id))
            asks.append(Ask(run, left_to if counts[shape, run.account_id] == 1 else None))
        for ask in asks:
            self._elsewhere.ask(*ask)
        self._note_asks(asks, submitted.counts)

    def is_waiting(self, account_id: AccountId, shape_id: ShapeId) -> bool:
        return self._backlog.waits(account_id, shape_id)

    def count_shapes(self, account_id: AccountId) -> int:
        return self._backlog.count_shapes(account_id)

    def expected_seconds(self, account_id: AccountId) -> float:
        return self._share.expected_seconds(account_id)

    def is_apart(self, account_id: AccountId) -> bool:
        return self._registry.fleet.is_apart(account_id)

    def take_slot(self, shape: Shape, wish: Wish, account_id: AccountId) -> Candidate | None:
        fleet = self._registry.fleet
        candidate = None
        if len(fleet):
            candidate = fleet.best(
                shape,
                wish.prefer,
                account_id=account_id,
                weights=wish.weight_set,
                ceiling=shape.ceiling_microcredits_per_hour,
            )
        may_wait = not self._elsewhere.alone and (candidate is None or candidate.slot.welcome is None)
        if may_wait and self._elsewhere.find_gap(shape, wish.prefer, candidate, account_id=account_id):
            return None
        if candidate is None:
            return None
        if self._backlog.could_use(candidate.slot):
            self._elsewhere.keep(shape, account_id)
            return None
        fleet.take(candidate.slot.node_id, candidate.slot.name)
        self._reception.hold(candidate)
        return candidate

    def give_slot(self, candidate: Candidate) -> None:
        self._reception.give_back(candidate)

    # The timer

    async def run_timer(self, on_changes: OnChanges) -> None:
        """What was missed is found here within a second; what others should know is told."""
        while True:
            await self._wait_for_tick()
            try:
                await self._tick(on_changes)
            except Exception as error:
                log.warning("timer_failed error=%r", error)
                await asyncio.sleep(TIMER_SECONDS / 2)

    async def _wait_for_tick(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMER_SECONDS):
                await self._alarm.wait()
        self._alarm.clear()

    async def _tick(self, on_changes: OnChanges) -> None:
        await self._hear_changes(on_changes)
        await self._reception.keep_hours()
        self._reception.forget_long_sent()
        now = clock.seconds()
        if now - self._looked_at > (LOOK_ALONE_SECONDS if self._elsewhere.alone else TIMER_SECONDS):
            self._stale = True
        if self._stale:
            self.wake()

    async def _hear_changes(self, on_changes: OnChanges) -> None:
        started = clock.seconds()
        async with self._pool.acquire() as conn:
            changes = await hub_store.list_changes(conn, seconds=CHANGES_SECONDS)
        fresh = [change for change in changes if change.id not in self._changes_seen]
        if self._heard_at < started - CHANGES_SECONDS / 2:
            # We were away for too long to have heard of everything.
            on_changes(None)
            await self._reception.look_around(None)
        elif fresh:
            on_changes(fresh)
            await self._reception.look_around(fresh)
        else:
            on_changes(())
        self._heard_at = started
        self._changes_seen = {change.id for change in changes}

    def _tell_others(self) -> None:
        """Slices are queued that another hub may have slots for. What is lost on its way, their timers find."""
        if self._elsewhere.alone or self._telling is not None:
            return
        self._telling = asyncio.create_task(self._notify_others())

    async def _notify_others(self) -> None:
        try:
            async with self._pool.acquire() as conn:
                await hub_store.notify(conn, "queue")
        except Exception as error:
            log.info("others_not_told error=%r", error)
        finally:
            self._telling = None
