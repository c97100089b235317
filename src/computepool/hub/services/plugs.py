"""The plug of a synthetic node, in demos: while it is out, no hub answers that node or the hosts on it,
by HTTP or gRPC, as if its cable were pulled."""

from __future__ import annotations

from datetime import datetime

from computepool import clock
from computepool.core.errors import Forbidden, HubUnavailable, InvalidRequest, NotFound
from computepool.core.ids import NodeId
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import events as event_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import plugs as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.events import NewEvent

SECONDS_MIN, SECONDS_MAX = 1.0, 120.0


class Plugs:
    """Which nodes are not answered now, as it was known a second ago."""

    def __init__(self) -> None:
        self._until: dict[NodeId, float] = {}

    async def refresh(self, pool: Pool) -> None:
        async with pool.acquire() as conn:
            left = await store.list_unplugged(conn)
        self._until = {node_id: clock.seconds() + seconds for node_id, seconds in left.items()}

    def is_out(self, node_id: NodeId) -> bool:
        until = self._until.get(node_id)
        return until is not None and until > clock.seconds()

    def check(self, node_id: NodeId) -> None:
        if self.is_out(node_id):
            raise HubUnavailable("Somebody has pulled the plug of this node. It is a demo; try again.")


async def unplug_node(
    pool: Pool, settings: HubSettings, caller: AccountCaller, node_id: NodeId | None, *, seconds: float
) -> datetime:
    if not settings.demo:
        raise NotFound("Plugs are pulled in demos only.")
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise InvalidRequest(f"A plug is out for {SECONDS_MIN:g} to {SECONDS_MAX:g} seconds.")
    async with pool.acquire() as conn, conn.transaction():
        node = await node_store.find_node(conn, node_id) if node_id is not None else None
        if node is None:
            raise NotFound("There is no such node on the map.")
        if not node.synthetic:
            raise Forbidden("This is somebody's real machine. Only synthetic nodes have a plug to pull.")
        until = await store.set_plug(conn, node.id, seconds=seconds)
        body = {"seconds": seconds, "by": str(caller.account_id)}
        await event_store.record_events(
            conn, [NewEvent(kind="node_unplugged", account_id=node.account_id, node_id=node.id, body=body)]
        )
    return until
