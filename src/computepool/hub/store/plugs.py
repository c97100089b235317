"""Plugs that were pulled in a demo."""

from __future__ import annotations

from datetime import datetime

from computepool.core.ids import NodeId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("plugs")


async def set_plug(conn: Connection, node_id: NodeId, *, seconds: float) -> datetime:
    until: datetime = await _q.set_plug(conn, node_id=node_id, seconds=seconds)
    return until


async def list_unplugged(conn: Connection) -> dict[NodeId, float]:
    return {row["node_id"]: row["seconds"] async for row in _q.list_unplugged(conn)}
