"""The reception: the calls that nodes keep open, from their coming to their answer.

It knows which call offers which slot, which slots a lease is being written for, and what there is to say to a node
besides work: what was lost on its way, what to stop, that it is paused. Which work a slot gets is the rounds' to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from computepool import clock
from computepool.core.ids import AttemptId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, is_to_be_stopped
from computepool.core.jobs.state import AttemptState
from computepool.core.nodes.state import NodeState
from computepool.core.placement.scorers import Candidate
from computepool.hub.dispatch.elsewhere import Elsewhere
from computepool.hub.dispatch.group_commit import GroupCommit
from computepool.hub.dispatch.parked import ParkedCall, ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.services.sittings import Sittings
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool
from computepool.hub.store.hub import Change, ChangeKind
from computepool.wire.attempts import Controls

log = logging.getLogger("computepool.dispatch")

# A call that is still parked after this long is looked up in the record: is there something to deliver again, has
# the node been paused, must it stop something? A node that gets work at once never costs that look.
GREET_SECONDS = 0.1
GREET_AGAIN_SECONDS = 0.5
NODES_PER_LOOK = 5_000
SENT_REMEMBERED_SECONDS = 60.0
# The clocks of the world differ from each other by quarters of an hour: at no other time does one strike the hour.
QUARTER_SECONDS = 900
# Nodes whose hours are looked at before calls are served again.
TURNED_AT_ONCE = 200


def _ignore_offer() -> None:
    """Until somebody gives out work."""


class Reception:
    def __init__(
        self,
        pool: Pool,
        parked: ParkedCalls,
        registry: Registry,
        elsewhere: Elsewhere,
        *,
        now: Callable[[], datetime] = clock.now,
        sittings: Sittings | None = None,
    ) -> None:
        self._pool = pool
        self._parked = parked
        self._registry = registry
        self._elsewhere = elsewhere
        self._now = now
        self._quarter = 0
        self._sittings = sittings or Sittings()
        # Called when slots may have become free.
        self.on_offer: Callable[[], None] = _ignore_offer
        # A block within which nodes are given work at the same moment; the door's, once there is one.
        self.together: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
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
        self.admit(call)
        self.on_offer()

    def knows(self, node_id: NodeId) -> bool:
        return node_id in self._registry

    async def introduce(self, node_id: NodeId) -> None:
        """Its slots are known after this."""
        if node_id not in self._registry:
            await self._introductions.put(node_id)

    async def _introduce(self, node_ids: Sequence[NodeId]) -> Sequence[None]:
        async with self._pool.acquire() as conn:
            await self._registry.load(conn, set(node_ids))
        return [None] * len(node_ids)

    def admit(self, call: ParkedCall) -> None:
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

    def take_hurried(self) -> list[ParkedCall]:
        """Calls of nodes that do not want to wait: they are dismissed after the next round, whatever it brings."""
        hurried, self._hurried = [call for call in self._hurried if call.open], []
        return hurried

    # Slots that leases are written for

    def hold(self, candidate: Candidate) -> None:
        self._elsewhere.note_gone(candidate.slot.node_id, (candidate.slot.name,))
        call = self._parked.find_offering(candidate.slot.node_id, candidate.slot.name)
        if call is not None:
            call.hold()
            self._holding[candidate.slot.node_id, candidate.slot.name] = call

    def release(self, node_id: NodeId, name: SlotName) -> None:
        """The lease is written, or will not be."""
        call = self._holding.pop((node_id, name), None)
        if call is not None:
            call.release()

    def give_back(self, candidate: Candidate) -> None:
        """The slot was not used after all."""
        node_id, name = candidate.slot.node_id, candidate.slot.name
        call = self._parked.find_offering(node_id, name)
        if call is not None and call.takes_work:
            self._registry.offer(node_id, (name,))
        self.release(node_id, name)

    def deliver(self, grant: Grant) -> None:
        """After the commit."""
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

    def forget_long_sent(self) -> None:
        """Whatever was lost on its way is sent again with the node's next call, at most a beat or two from now."""
        oldest = clock.seconds() - SENT_REMEMBERED_SECONDS
        if self._sent_at:
            self._sent_at = {id: at for id, at in self._sent_at.items() if at > oldest}

    # What else there is to say to nodes

    def look_up_soon(self, node_id: NodeId) -> None:
        call = self._parked.find(node_id)
        if call is not None and not call.hurried:
            call.greeted = False
            self._newcomers[node_id] = call

    async def run_greeter(self) -> None:
        while True:
            await asyncio.sleep(GREET_SECONDS)
            if not self._newcomers:
                continue
            latest = clock.seconds() - GREET_SECONDS
            due = {id: call for id, call in self._newcomers.items() if call.parked_at <= latest}
            if due:
                try:
                    await self.greet(dict(list(due.items())[:NODES_PER_LOOK]))
                except Exception as error:
                    log.warning("greeting_failed error=%r", error)
                    await asyncio.sleep(GREET_AGAIN_SECONDS)

    async def greet(self, calls: dict[NodeId, ParkedCall]) -> None:
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
            self.on_offer()

    async def keep_hours(self) -> None:
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
            self.on_offer()
        self._tell(call, {})

    async def look_around(self, changes: Sequence[Change] | None) -> None:
        """Something has changed for attempts that run or for nodes themselves; None: perhaps for all."""
        nodes = {change.subject_id for change in changes or () if change.kind is ChangeKind.NODE}
        for change in changes or ():
            if change.kind is ChangeKind.LEASE and change.subject_id is not None:
                # What is in the record and was never sent is delivered as if it had been lost on its way.
                self.look_up_soon(NodeId(change.subject_id))
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
