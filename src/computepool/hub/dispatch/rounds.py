"""The round: gives out what fits. And the door: parks calls, and tells nodes what to let go of.

One round runs at a time in a hub; between hubs SKIP LOCKED and the unique indexes keep them apart. A round is started
by a submit, a parked call, a freed lease or a NOTIFY, and by a timer in case one of those was missed. It costs what
can be granted, not what is parked or queued. A submit that meets a free slot which nobody waits for does not need a
round at all: its slice is born leased.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, AttemptId, NodeId, ShapeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, is_to_be_stopped
from computepool.core.jobs.state import AttemptState
from computepool.core.nodes.state import NodeState
from computepool.core.placement.rounds import ELSEWHERE_SECONDS_MIN, Round, Run, Wish
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.hub.dispatch.backlog import RUNS_MAX, Backlog
from computepool.hub.dispatch.elsewhere import Elsewhere, Heard
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.dispatch.group_commit import GroupCommit
from computepool.hub.dispatch.parked import ParkedCall, ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.stubborn import Stubborn
from computepool.hub.dispatch.summaries import Ask
from computepool.hub.services.attempts import finish_attempts
from computepool.hub.services.leases import GRANTS_MAX, Granted, Leases
from computepool.hub.services.reports import Report
from computepool.hub.services.sittings import Sittings
from computepool.hub.services.submissions import Submission, Submissions
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.hub import Change, ChangeKind
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import CompleteOutcome, Controls

log = logging.getLogger("computepool.dispatch")

# Called with what has changed, at whichever hub; None: nobody knows what.
OnChanges = Callable[[Sequence[Change] | None], None]

TIMER_SECONDS = 1.0
# A call that is still parked after this long is looked up in the record: is there something to deliver again, has
# the node been paused, must it stop something? A node that gets work at once never costs that look.
GREET_SECONDS = 0.1
# Looking for runs of the queue takes at most this part of the time, but is not put off for longer than this.
LOOK_SHARE = 0.1
LOOK_PAUSE_SECONDS_MAX = 0.5
NODES_PER_LOOK = 5_000
# A run that was left to this hub is looked at again for so long, if nothing is to be seen of it.
ASKED_SECONDS = 0.2
LOOK_AGAIN_SECONDS = 0.03
# How far back changes are read each time, because they do not become visible in order.
CHANGES_SECONDS = 10.0
# A hub that is alone knows what was queued; it makes sure only now and then.
LOOK_ALONE_SECONDS = 5.0
SENT_REMEMBERED_SECONDS = 60.0
# The clocks of the world differ from each other by quarters of an hour: at no other time does one strike the hour.
QUARTER_SECONDS = 900
# Nodes whose hours are looked at before calls are served again.
TURNED_AT_ONCE = 200


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
        parked: ParkedCalls,
        leases: Leases,
        submissions: Submissions,
        registry: Registry,
        backlog: Backlog,
        share: FairShare,
        elsewhere: Elsewhere,
        *,
        on_end: OnEnd = ignore_end,
        now: Callable[[], datetime] = clock.now,
        sittings: Sittings | None = None,
    ) -> None:
        self._pool = pool
        self._now = now
        self._quarter = 0
        self._on_end = on_end
        self._sittings = sittings or Sittings()
        self._one_round = asyncio.Lock()
        self._parked = parked
        self._leases = leases
        self._submissions = submissions
        self._registry = registry
        self._backlog = backlog
        self._share = share
        self._elsewhere = elsewhere
        self._stubborn = Stubborn()
        self._wake = asyncio.Event()
        self._stale = True
        self._looked_at, self._look_seconds = 0.0, 0.0
        # Runs that were left to this hub a moment ago.
        self._asked_until: dict[Run, float] = {}
        self._alarm = asyncio.Event()
        self._changes_seen: set[int] = set()
        self._heard_at = clock.seconds()
        self._telling: asyncio.Task[None] | None = None
        self._newcomers: dict[NodeId, ParkedCall] = {}
        self._hurried: list[ParkedCall] = []
        # Calls that are held until leases for them are written, by the slot they are held for.
        self._holding: dict[tuple[NodeId, str], ParkedCall] = {}
        # When an attempt was sent to its node, as long as it may have to be sent again.
        self._sent_at: dict[AttemptId, float] = {}
        self._introductions: GroupCommit[NodeId, None] = GroupCommit(self._introduce, batch_max=1_000)

    # Nodes come and go

    async def park(self, call: ParkedCall) -> None:
        """The call is answered through its `answer` sooner or later; `leave` says that nobody waits any more."""
        await self.introduce(call.node_id)
        # It may have been answered meanwhile, because its time was up.
        if call.open:
            self.park_known(call)

    def park_known(self, call: ParkedCall) -> None:
        """The same for a node that is introduced already."""
        if call.hurried:
            self._hurried.append(call)
        elif not call.greeted:
            self._newcomers[call.node_id] = call
        self._admit(call)
        self.wake()

    def knows(self, node_id: NodeId) -> bool:
        return node_id in self._registry

    async def introduce(self, node_id: NodeId) -> None:
        """Its slots are known after this."""
        if node_id not in self._registry:
            await self._introductions.put(node_id)

    def _admit(self, call: ParkedCall) -> None:
        call.closed = self._registry.is_closed(call.node_id, self._now())
        self._parked.park(call)
        self._take_over(call)
        if call.takes_work:
            self._offer(call)
        else:
            self._tell(call, {})

    def _take_over(self, call: ParkedCall) -> None:
        """What is being written for a call that its node has given up, the new one waits for and delivers."""
        if call.claim:
            return
        for name in call.free_slots:
            earlier = self._holding.get((call.node_id, name))
            if earlier is not None:
                self._holding[call.node_id, name] = call
                call.hold()
                earlier.release()

    def _offer(self, call: ParkedCall) -> None:
        """But not what a lease is being written for: the node cannot know of it yet. Nor what must show its speed."""
        free = [
            name
            for name in call.free_slots
            if (call.node_id, name) not in self._holding and not self._sittings.is_withheld(call.node_id, name)
        ]
        self._registry.offer(call.node_id, free)
        if not call.claim:
            self._elsewhere.note_free(call.node_id, free)

    def leave(self, call: ParkedCall) -> None:
        call.close()
        left = self._parked.leave(call)
        self._registry.withdraw(call.node_id, left)
        self._elsewhere.note_gone(call.node_id, left)
        if self._newcomers.get(call.node_id) is call:
            del self._newcomers[call.node_id]

    async def _introduce(self, node_ids: Sequence[NodeId]) -> Sequence[None]:
        async with self._pool.acquire() as conn:
            await self._registry.load(conn, set(node_ids))
        return [None] * len(node_ids)

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

    def _note_asks(self, asks: Iterable[Ask]) -> None:
        """What another hub has the best slot for is left alone here for a moment, and unlocked."""
        ours: list[Run] = []
        others: list[Run] = []
        for run, hub_process_id in asks:
            left = hub_process_id not in (None, self._elsewhere.hub_process_id)
            (others if left else ours).append(run)
            if hub_process_id == self._elsewhere.hub_process_id:
                self._asked_until[run] = clock.seconds() + ASKED_SECONDS
        if ours or self._stale:
            self._note_runs(ours)
        if others:
            asyncio.get_running_loop().call_later(ELSEWHERE_SECONDS_MIN, self._note_runs, others)

    def _note_runs(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.shape_id in self._backlog.shapes:
                self._backlog.note(run)
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
        hurried, self._hurried = [call for call in self._hurried if call.open], []
        try:
            if self._stale:
                await self._look_at_queue()
            polls = {call.node_id: call for call in hurried if not call.greeted}
            if polls:
                await self._greet(polls)
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
        # Most wakes find nothing to do, and need not ask the database for that.
        if self._plan() is None:
            return
        turn, alone = _Turn(), self._elsewhere.alone
        try:
            async with self._leases.open(alone=alone) as conn:
                await self._grant_on(conn, (), turn, lock=not alone)
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
            on_pair=self._hold,
            is_aside=self._stubborn.is_aside,
        )
        return round_ if round_.list_takes() else None

    def _conclude(self, turn: _Turn) -> None:
        """After the commit."""
        round_, granted = turn.round, turn.granted
        if round_ is None or granted is None:
            return
        self._backlog.forget(round_.emptied, as_of=turn.as_of)
        self._look_again(round_.emptied.difference(pair.head.run for pair in round_.pairs))
        for grant in granted.grants:
            self._stubborn.note_granted((grant.job_id, grant.slice_index))
            self._deliver(grant)
        for pair in granted.refused:
            self._stubborn.note_refused((pair.head.job_id, pair.head.slice_index))
            # The record says otherwise than we thought: the node is looked up before it is offered again.
            self._look_up_soon(pair.candidate.slot.node_id)
        for pair in round_.pairs:
            self._release_slot(pair.candidate.slot.node_id, pair.candidate.slot.name)
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
        turn.round.undo()
        # What it had locked may have made a run look empty to others.
        self._stale = True
        for candidate in turn.round.undone:
            self.give_slot(candidate)

    def _hold(self, candidate: Candidate) -> None:
        self._elsewhere.note_gone(candidate.slot.node_id, (candidate.slot.name,))
        call = self._parked.find_offering(candidate.slot.node_id, candidate.slot.name)
        if call is not None:
            call.hold()
            self._holding[candidate.slot.node_id, candidate.slot.name] = call

    def _deliver(self, grant: Grant) -> None:
        self._share.note_granted(grant)
        call = self._parked.find_offering(grant.node_id, grant.slot)
        if call is not None:
            # Otherwise the node has gone in the meantime; it is told when it calls again.
            call.add_lease(grant)

    def note_sent(self, attempt_ids: Iterable[AttemptId]) -> None:
        now = clock.seconds()
        for attempt_id in attempt_ids:
            self._sent_at[attempt_id] = now

    def forget_sent(self, attempt_ids: Iterable[AttemptId]) -> None:
        for attempt_id in attempt_ids:
            self._sent_at.pop(attempt_id, None)

    def _look_up_soon(self, node_id: NodeId) -> None:
        call = self._parked.find(node_id)
        if call is not None and not call.hurried:
            call.greeted = False
            self._newcomers[node_id] = call

    # Completions, with the claims that they carry

    async def complete(self, endings: Sequence[Ending]) -> Sequence[CompleteOutcome | ComputePoolError]:
        """Ends attempts and fills their slots anew, in one transaction."""
        reports = [ending.report for ending in endings]
        claims = [ending.claim for ending in endings if ending.claim is not None and ending.claim.open]
        if not claims:
            return await finish_attempts(
                self._leases.pool, reports, on_end=self._on_end, audit_key=self._leases.audit_key
            )
        turn = _Turn()
        try:
            outcomes = await finish_attempts(
                self._leases.pool,
                reports,
                on_end=self._on_end,
                then=lambda conn: self._grant_on(conn, claims, turn, lock=True),
                audit_key=self._leases.audit_key,
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

    async def _grant_on(self, conn: Connection, claims: Sequence[ParkedCall], turn: _Turn, *, lock: bool) -> None:
        """Planned one after the other, while the commits of several may be on their way.

        Whoever waits for the turn holds a connection, so whoever has the turn must not wait for one.
        """
        async with self._one_round:
            for call in claims:
                self._admit(call)
            turn.as_of, turn.round = self._backlog.moment, self._plan()
            if turn.round is not None:
                turn.granted = await self._leases.grant_on(
                    conn, turn.round, expected_seconds=self._share.expected_seconds, lock=lock
                )

    async def complete_apart(self, endings: Sequence[Ending]) -> Sequence[CompleteOutcome | ComputePoolError]:
        """The same with a transaction for each, to measure what it is worth to share one."""
        reports = [ending.report for ending in endings]
        outcomes = await finish_attempts(
            self._leases.pool, reports, on_end=self._on_end, audit_key=self._leases.audit_key
        )
        for ending in endings:
            if ending.claim is not None and ending.claim.open:
                await self.park(ending.claim)
        return outcomes

    # Submits, and what they ask of dispatch

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[Job | ComputePoolError]:
        submitted = await self._submissions.submit(submissions, self)
        for grant in submitted.grants:
            self._deliver(grant)
            self._release_slot(grant.node_id, grant.slot)
        for run, shape in submitted.runs.items():
            self._backlog.shapes[run.shape_id] = shape
        if not self._elsewhere.alone:
            self._leave_runs(submissions, submitted.runs)
        elif submitted.runs:
            self._note_runs(submitted.runs)
        return submitted.answers

    def _leave_runs(self, submissions: Sequence[Submission], runs: Mapping[Run, Shape]) -> None:
        """Tells others. Of several slices some may be for us, whoever has the best slot."""
        counts = Counter[tuple[Shape, AccountId]]()
        for submission in submissions:
            counts[submission.shape, submission.account_id] += submission.spec.slice_count
        asks = []
        for run, shape in runs.items():
            left_to = self._elsewhere.pop_left((shape, run.account_id))
            asks.append(Ask(run, left_to if counts[shape, run.account_id] == 1 else None))
        for ask in asks:
            self._elsewhere.ask(*ask)
        self._note_asks(asks)

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
        self._hold(candidate)
        return candidate

    def give_slot(self, candidate: Candidate) -> None:
        node_id, name = candidate.slot.node_id, candidate.slot.name
        call = self._parked.find_offering(node_id, name)
        if call is not None and call.takes_work:
            self._registry.offer(node_id, (name,))
        self._release_slot(node_id, name)

    def _release_slot(self, node_id: NodeId, name: SlotName) -> None:
        call = self._holding.pop((node_id, name), None)
        if call is not None:
            call.release()

    # What else there is to say to nodes

    async def run_greeter(self) -> None:
        while True:
            await asyncio.sleep(GREET_SECONDS)
            if not self._newcomers:
                continue
            latest = clock.seconds() - GREET_SECONDS
            due = {id: call for id, call in self._newcomers.items() if call.parked_at <= latest}
            if due:
                try:
                    await self._greet(dict(list(due.items())[:NODES_PER_LOOK]))
                except Exception as error:
                    log.warning("greeting_failed error=%r", error)
                    await asyncio.sleep(TIMER_SECONDS / 2)

    async def _greet(self, calls: dict[NodeId, ParkedCall]) -> None:
        """Asks the record what these nodes should know: work whose delivery was lost, a changed state, stops."""
        for node_id, call in calls.items():
            call.greeted = True
            if self._newcomers.get(node_id) is call:
                del self._newcomers[node_id]
        try:
            async with self._pool.acquire() as conn:
                live = await attempt_store.list_live_by_nodes(conn, calls)
                states = await node_store.list_states(conn, calls)
                old = [id for id in calls if id in self._registry and self._registry.is_old(id)]
                if old:
                    await self._registry.load(conn, old)
            stops = await self._list_stops(calls.values())
        except BaseException:
            for call in calls.values():
                call.greeted = False
                if not call.hurried and call.open:
                    self._newcomers[call.node_id] = call
            raise
        by_node: dict[NodeId, list[Attempt]] = defaultdict(list)
        for attempt in live:
            by_node[attempt.node_id].append(attempt)
        for node_id, call in calls.items():
            if not call.open:
                continue
            self._set_state(call, states.get(node_id, NodeState.REMOVED))
            # The hub does the accounting; what a node says of its free slots can only lower it.
            self._registry.withdraw(node_id, [attempt.slot for attempt in by_node[node_id]])
            self._tell(call, stops.get(node_id, {}))
            for attempt in by_node[node_id]:
                if self._is_lost_on_the_way(attempt, call):
                    call.add_lease(attempt)

    def _is_lost_on_the_way(self, attempt: Attempt, call: ParkedCall) -> bool:
        if attempt.state is not AttemptState.LEASED or attempt.id in call.running:
            return False
        if (attempt.node_id, attempt.slot) in self._holding:
            # It is being written at this moment, and will be delivered by whoever writes it.
            return False
        offering = self._parked.find_offering(attempt.node_id, attempt.slot)
        if call.has_lease(attempt.id) or (offering is not None and offering.has_lease(attempt.id)):
            # It was delivered while we looked, to a call that waits for what is under way for its other slots.
            return False
        # Sent after this call was made: the node could not list it yet.
        return self._sent_at.get(attempt.id, 0.0) < call.parked_at

    def _set_state(self, call: ParkedCall, state: NodeState) -> None:
        took_work, call.state = call.takes_work, state
        call.closed = self._registry.is_closed(call.node_id, self._now())
        if took_work and not call.takes_work:
            self._registry.withdraw(call.node_id)
        elif call.takes_work and not took_work:
            self._offer(call)
            self.wake()

    async def _list_stops(self, calls: Iterable[ParkedCall]) -> dict[NodeId, dict[AttemptId, Cause]]:
        """What nodes run that they should let go of: derived from the record, so no message can be lost."""
        holder = {id: call.node_id for call in calls for id in call.running}
        stops: dict[NodeId, dict[AttemptId, Cause]] = defaultdict(dict)
        if holder:
            async with self._pool.acquire() as conn:
                standing = await attempt_store.list_standing(conn, holder)
            for attempt in standing:
                if attempt.node_id != holder[attempt.id]:
                    continue
                if is_to_be_stopped(attempt.state, attempt.slice_state):
                    stops[attempt.node_id][attempt.id] = attempt.cause or Cause.SUPERSEDED
        return stops

    def _tell(self, call: ParkedCall, stops: Mapping[AttemptId, Cause]) -> None:
        # Told only while it makes a difference, or an obedient node would be answered at once for ever.
        drain = call.state is NodeState.DRAINING and (bool(call.free_slots) or not call.running)
        pause = call.state is NodeState.PAUSED and bool(call.free_slots)
        prove: tuple[str, ...] = ()
        if call.takes_work:
            prove = self._sittings.list_to_tell(call.node_id, call.free_slots, idle=not call.running)
        if stops or drain or pause or prove:
            call.control(Controls(stop=dict(stops.items()), drain=drain, pause=pause, prove=prove))

    def note_sittings(self, node_id: NodeId) -> None:
        """What is asked of its slots has changed: those that are to show their speed take nothing, the others do."""
        call = self._parked.find(node_id)
        if call is None:
            return
        withheld = [name for name in call.free_slots if self._sittings.is_withheld(node_id, name)]
        self._registry.withdraw(node_id, withheld)
        if call.takes_work:
            self._offer(call)
            self.wake()
        self._tell(call, {})

    async def look_around(self, changes: Sequence[Change] | None) -> None:
        """Something has changed for attempts that run or for nodes themselves; None: perhaps for all."""
        nodes = {change.subject_id for change in changes or () if change.kind is ChangeKind.NODE}
        for change in changes or ():
            if change.kind is ChangeKind.LEASE and change.subject_id is not None:
                # What is in the record and was never sent is delivered as if it had been lost on its way.
                self._look_up_soon(NodeId(change.subject_id))
        stops = changes is None or any(change.kind is ChangeKind.CONTROLS for change in changes)
        calls = [
            call for call in self._parked if changes is None or call.node_id in nodes or (stops and call.running)
        ]
        for start in range(0, len(calls), NODES_PER_LOOK):
            await self._look_at({call.node_id: call for call in calls[start : start + NODES_PER_LOOK]})

    async def look_at_node(self, node_id: NodeId) -> None:
        """Its owner has changed something: it holds here once this returns."""
        call = self._parked.find(node_id)
        if call is not None:
            await self._look_at({node_id: call})
        elif node_id in self._registry:
            async with self._pool.acquire() as conn:
                await self._registry.load(conn, [node_id])

    async def _look_at(self, calls: dict[NodeId, ParkedCall]) -> None:
        async with self._pool.acquire() as conn:
            states = await node_store.list_states(conn, calls)
            await self._registry.load(conn, [id for id in calls if id in self._registry])
        stops = await self._list_stops(calls.values())
        for node_id, call in calls.items():
            if call.open:
                self._set_state(call, states.get(node_id, NodeState.REMOVED))
                self._tell(call, stops.get(node_id, {}))

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
        await self._keep_hours()
        self._forget_long_sent()
        now = clock.seconds()
        if now - self._looked_at > (LOOK_ALONE_SECONDS if self._elsewhere.alone else TIMER_SECONDS):
            self._stale = True
        if self._stale:
            self.wake()

    async def _keep_hours(self) -> None:
        """Nodes that are lent at some hours only close and open here, by this hub's own clock."""
        quarter = int(self._now().timestamp()) // QUARTER_SECONDS
        if quarter == self._quarter:
            return
        self._quarter = quarter
        for number, node_id in enumerate(self._registry.list_scheduled(), start=1):
            call = self._parked.find(node_id)
            if call is not None:
                self._set_state(call, call.state)
            if number % TURNED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _hear_changes(self, on_changes: OnChanges) -> None:
        started = clock.seconds()
        async with self._pool.acquire() as conn:
            changes = await hub_store.list_changes(conn, seconds=CHANGES_SECONDS)
        fresh = [change for change in changes if change.id not in self._changes_seen]
        if self._heard_at < started - CHANGES_SECONDS / 2:
            # We were away for too long to have heard of everything.
            on_changes(None)
            await self.look_around(None)
        elif fresh:
            on_changes(fresh)
            await self.look_around(fresh)
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

    def _forget_long_sent(self) -> None:
        """Whatever was lost on its way is sent again with the node's next call, at most a beat or two from now."""
        oldest = clock.seconds() - SENT_REMEMBERED_SECONDS
        if self._sent_at:
            self._sent_at = {id: at for id, at in self._sent_at.items() if at > oldest}
