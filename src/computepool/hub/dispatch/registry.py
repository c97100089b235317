"""The slots of the nodes that call here, remembered. A cache: the database is true, and what is old is read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from computepool import clock
from computepool.core.ids import NodeId
from computepool.core.placement.slot import Slot
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Connection

# A node that was enrolled anew at another hub has its new slots here after this long.
MEMORY_SECONDS = 30.0
REMEMBERED_MAX = 200_000


class Registry:
    def __init__(self) -> None:
        self._slots: dict[NodeId, tuple[float, list[Slot]]] = {}

    async def load(self, conn: Connection, node_ids: Iterable[NodeId]) -> None:
        """Reads the slots of those that are unknown or old, in one query."""
        now = clock.seconds()
        wanted = [id for id in node_ids if id not in self._slots or self._slots[id][0] < now]
        if not wanted:
            return
        if len(self._slots) + len(wanted) > REMEMBERED_MAX:
            self._slots.clear()
        found: dict[NodeId, list[Slot]] = defaultdict(list)
        for stored in await node_store.list_slots(conn, wanted):
            found[stored.slot.node_id].append(stored.slot)
        for node_id in wanted:
            self._slots[node_id] = (now + MEMORY_SECONDS, found[node_id])

    def list_slots(self, node_id: NodeId) -> list[Slot]:
        return self._slots[node_id][1] if node_id in self._slots else []

    def forget(self, node_id: NodeId) -> None:
        self._slots.pop(node_id, None)
