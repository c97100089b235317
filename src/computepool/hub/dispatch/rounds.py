"""The round: greets calls that have come, gives out what fits, and tells nodes what to let go of.

One round runs at a time in a hub; between hubs SKIP LOCKED and the unique indexes keep them apart. A round is
started by a submit, a parked call, a freed lease or a NOTIFY, and by a timer in case one of those was missed.
A call is looked up in the database once, when it arrives; looking around among all of them is for the timer and
for news about running attempts, so that a round costs what is new and not what is parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from computepool.core.ids import NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, is_to_be_stopped
from computepool.core.jobs.state import AttemptState
from computepool.core.nodes.state import NodeState
from computepool.hub.dispatch.parked import ParkedCall, ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.services.leases import Leases
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool
from computepool.wire.attempts import Controls

log = logging.getLogger("computepool.dispatch")

TIMER_SECONDS = 1.0


class Rounds:
    def __init__(self, pool: Pool, parked: ParkedCalls, leases: Leases, registry: Registry) -> None:
        self._pool = pool
        self._parked = parked
        self._leases = leases
        self._registry = registry
        self._wake = asyncio.Event()
        self._look_around = False

    def wake(self, *, look_around: bool = False) -> None:
        """`look_around`: something may have changed for attempts that run or nodes that wait."""
        self._look_around = self._look_around or look_around
        self._wake.set()

    async def run(self) -> None:
        while True:
            look_around = False
            try:
                await asyncio.wait_for(self._wake.wait(), TIMER_SECONDS)
            except TimeoutError:
                look_around = True
            self._wake.clear()
            look_around, self._look_around = look_around or self._look_around, False
            try:
                await self.run_once(look_around=look_around)
            except Exception:
                # The database may be away; the parked calls stay, and the timer comes round again.
                log.exception("round_failed")
                self._look_around = True
                await asyncio.sleep(TIMER_SECONDS / 2)

    async def run_once(self, *, look_around: bool = True) -> None:
        calls = {call.node_id: call for call in self._parked}
        if not calls:
            return
        arrived = {id: call for id, call in calls.items() if not call.greeted}
        redelivered = await self._greet(arrived)
        if look_around:
            await self._look_at_states(calls)
        # What a newcomer runs is looked at in any case: word to stop it may have come while it was not parked.
        stops = await self._list_stops(calls if look_around else arrived)
        free = [slot for call in calls.values() if call.open for slot in call.open_slots]
        granted = await self._leases.grant(free) if free else []
        await self._answer(calls, [*redelivered, *granted], stops)

    async def _greet(self, arrived: dict[NodeId, ParkedCall]) -> list[Attempt]:
        """Learns what the record says of nodes that have just called. Returns what is to be delivered to them again.

        The hub does the accounting; what a node says of its free slots can only lower it.
        """
        if not arrived:
            return []
        async with self._pool.acquire() as conn:
            live = await attempt_store.list_live_by_nodes(conn, arrived)
            states = await node_store.list_states(conn, arrived)
            await self._registry.load(conn, arrived)
        taken = {(attempt.node_id, attempt.slot) for attempt in live}
        for node_id, call in arrived.items():
            call.state = states.get(node_id, NodeState.REMOVED)
            offered = [slot for slot in self._registry.list_slots(node_id) if slot.name in call.free_slots]
            call.offer([slot for slot in offered if (node_id, slot.name) not in taken])
        return [a for a in live if a.state is AttemptState.LEASED and a.id not in arrived[a.node_id].running]

    async def _look_at_states(self, calls: dict[NodeId, ParkedCall]) -> None:
        async with self._pool.acquire() as conn:
            states = await node_store.list_states(conn, calls)
        for node_id, call in calls.items():
            call.state = states.get(node_id, NodeState.REMOVED)

    async def _list_stops(self, calls: dict[NodeId, ParkedCall]) -> dict[NodeId, dict[UUID, Cause]]:
        """What nodes run that they should let go of: derived from the record, so no message can be lost."""
        holder = {id: call.node_id for call in calls.values() for id in call.running}
        stops: dict[NodeId, dict[UUID, Cause]] = defaultdict(dict)
        if holder:
            async with self._pool.acquire() as conn:
                standing = await attempt_store.list_standing(conn, holder)
            for attempt in standing:
                if attempt.node_id != holder[attempt.id]:
                    continue
                if is_to_be_stopped(attempt.state, attempt.slice_state):
                    stops[attempt.node_id][attempt.id] = attempt.cause or Cause.SUPERSEDED
        return stops

    async def _answer(
        self,
        calls: dict[NodeId, ParkedCall],
        leased: Sequence[Grant | Attempt],
        stops: dict[NodeId, dict[UUID, Cause]],
    ) -> None:
        assignments = defaultdict(list)
        if leased:
            for lease, assignment in zip(leased, await self._leases.make_assignments(leased), strict=True):
                assignments[lease.node_id].append(assignment)
        for node_id, call in calls.items():
            # Told only while it makes a difference, or an obedient node would be answered at once for ever.
            controls = Controls(
                stop=stops.get(node_id, {}),
                drain=call.state is NodeState.DRAINING and (bool(call.free_slots) or not call.running),
                pause=call.state is NodeState.PAUSED and bool(call.free_slots),
            )
            call.give(assignments[node_id], controls)
            if call.hurried:
                call.settle(None)
