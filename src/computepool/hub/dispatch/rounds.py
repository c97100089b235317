"""The round: looks at every parked call and every queued shape, and gives out what fits.

One round runs at a time in a hub; between hubs SKIP LOCKED and the unique indexes keep them apart. A round is
started by a submit, a parked call, a freed lease or a NOTIFY, and by a timer in case one of those was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from computepool.core.ids import NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, is_to_be_stopped
from computepool.core.jobs.state import AttemptState
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import Slot
from computepool.hub.dispatch.parked import ParkedCall, ParkedCalls
from computepool.hub.services.leases import Leases
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool
from computepool.wire.attempts import Controls

log = logging.getLogger("computepool.dispatch")

TIMER_SECONDS = 1.0


class Rounds:
    def __init__(self, pool: Pool, parked: ParkedCalls, leases: Leases) -> None:
        self._pool = pool
        self._parked = parked
        self._leases = leases
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TIMER_SECONDS)
            self._wake.clear()
            try:
                await self.run_once()
            except Exception:
                # The database may be away; the parked calls stay, and the timer comes round again.
                log.exception("round_failed")
                await asyncio.sleep(TIMER_SECONDS / 2)

    async def run_once(self) -> None:
        calls = {call.node_id: call for call in self._parked}
        if not calls:
            return
        async with self._pool.acquire() as conn:
            live = await attempt_store.list_live_by_nodes(conn, calls)
            states = await node_store.list_states(conn, calls)
            slots = await node_store.list_slots(conn, [id for id, call in calls.items() if call.free_slots])
        stops = await self._list_stops(calls)
        redelivered = [a for a in live if a.state is AttemptState.LEASED and a.id not in calls[a.node_id].running]
        free = _list_free(calls, [s.slot for s in slots], live, states)
        granted = await self._leases.grant(free) if free else []
        await self._answer(calls, [*redelivered, *granted], stops, states)

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
        states: dict[NodeId, NodeState],
    ) -> None:
        assignments = defaultdict(list)
        if leased:
            for lease, assignment in zip(leased, await self._leases.make_assignments(leased), strict=True):
                assignments[lease.node_id].append(assignment)
        for node_id, call in calls.items():
            state = states.get(node_id, NodeState.REMOVED)
            controls = Controls(
                stop=stops.get(node_id, {}),
                # Told only while it makes a difference, or an obedient node would be answered at once for ever.
                drain=state is NodeState.DRAINING and (bool(call.free_slots) or not call.running),
                pause=state is NodeState.PAUSED and bool(call.free_slots),
            )
            call.give(assignments[node_id], controls)
            if call.hurried:
                call.settle(None)


def _list_free(
    calls: dict[NodeId, ParkedCall], slots: Sequence[Slot], live: Sequence[Attempt], states: dict[NodeId, NodeState]
) -> list[Slot]:
    """The hub does the accounting; what a node says of its free slots can only lower it."""
    taken = {(attempt.node_id, attempt.slot) for attempt in live}
    return [
        slot
        for slot in slots
        if slot.name in calls[slot.node_id].free_slots
        and (slot.node_id, slot.name) not in taken
        and states.get(slot.node_id) is NodeState.ACTIVE
    ]
