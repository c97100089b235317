"""Nodes that host VNodes, as their agents say when they enrol."""

from __future__ import annotations

from computepool.core.ids import NodeId
from computepool.hub.store import networks as network_store
from computepool.hub.store.connect import Connection, Pool
from computepool.wire.nodes import Hosting

CLASS_LENGTH_MAX = 200
MEMORY_BYTES_MAX = 1 << 50


def list_hosting_faults(hosting: Hosting | None) -> list[str]:
    if hosting is None:
        return []
    faults = []
    if not 1 <= len(hosting.numeric_class) <= CLASS_LENGTH_MAX or not hosting.numeric_class.isprintable():
        faults.append(f"hosting.numeric_class has 1 to {CLASS_LENGTH_MAX} printable characters")
    if not 1 <= hosting.memory_bytes <= MEMORY_BYTES_MAX:
        faults.append("hosting.memory_bytes is what VNodes may take of a slot, above 0")
    if not 0 < hosting.flops_per_second < 1e21:
        faults.append("hosting.flops_per_second is above 0, as measured")
    return faults


async def record_hosting(conn: Connection, node_id: NodeId, hosting: Hosting | None) -> None:
    """What was said before is forgotten. What a node hosts goes on, also if it says that it hosts nothing more."""
    if hosting is None:
        await network_store.delete_pnode(conn, node_id)
        return
    await network_store.upsert_pnode(
        conn,
        node_id=node_id,
        numeric_class=hosting.numeric_class,
        memory_bytes=hosting.memory_bytes,
        flops_per_second=hosting.flops_per_second,
    )


async def note_address(pool: Pool, node_id: NodeId, address: str) -> None:
    """Where a host of this node was dialled, or that it could not be: the next run counts on it."""
    async with pool.acquire() as conn:
        await network_store.set_address(conn, node_id=node_id, address=address)
