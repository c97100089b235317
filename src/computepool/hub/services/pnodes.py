"""Nodes that host VNodes, as their agents say when they enrol."""

from __future__ import annotations

from computepool.core.ids import NodeId
from computepool.hub.store import networks as network_store
from computepool.hub.store.connect import Connection, Pool
from computepool.wire.nodes import Hosting

CLASS_LENGTH_MAX = 200
MEMORY_BYTES_MAX = 1 << 50
BYTES_PER_SECOND_MAX = 1e12
LATENCY_SECONDS_MAX = 10.0
# A smaller content comes in the time that its first byte takes, and says nothing about the line.
MEASURED_BYTES_MIN = 1_000_000


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
    if hosting.bytes_per_second is not None and not 0 < hosting.bytes_per_second <= BYTES_PER_SECOND_MAX:
        faults.append("hosting.bytes_per_second is above 0; leave it out if it is not known")
    if hosting.latency_seconds is not None and not 0 <= hosting.latency_seconds <= LATENCY_SECONDS_MAX:
        faults.append(f"hosting.latency_seconds is 0 to {LATENCY_SECONDS_MAX:.0f}; leave it out if it is not known")
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
        bytes_per_second=hosting.bytes_per_second,
        latency_seconds=hosting.latency_seconds,
    )


async def note_address(pool: Pool, node_id: NodeId, address: str) -> None:
    """Where a host of this node was dialled, or that it could not be: the next run counts on it."""
    async with pool.acquire() as conn:
        await network_store.set_address(conn, node_id=node_id, address=address)


async def note_rate(pool: Pool, node_id: NodeId, *, size_bytes: int, seconds: float) -> None:
    """A host has stored a content: how fast that came is how fast its machine can send, at least."""
    if size_bytes < MEASURED_BYTES_MIN or seconds <= 0:
        return
    async with pool.acquire() as conn:
        rate = min(size_bytes / seconds, BYTES_PER_SECOND_MAX)
        await network_store.set_measured_rate(conn, node_id=node_id, bytes_per_second=rate)
