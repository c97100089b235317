"""Networks, and the nodes that host VNodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, NetworkId, NodeId
from computepool.core.networks.partition import Host
from computepool.core.placement.slot import Slot
from computepool.core.trust.reputation import Reliability
from computepool.hub.store.connect import Connection
from computepool.hub.store.nodes import to_slot
from computepool.hub.store.offers import Closed
from computepool.hub.store.queries import load_queries

_q = load_queries("networks")


@dataclass(frozen=True, slots=True)
class Network:
    id: NetworkId
    account_id: AccountId
    name: str
    # Canonical JSON.
    spec: str
    digest: bytes
    vnode_count: int
    parameter_count: int
    idempotency_key: str | None
    created_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class FreePNode:
    """A free slot of a node that hosts VNodes."""

    slot: Slot
    account_id: AccountId
    node_name: str
    # Of the last start of its agent.
    boot_id: UUID | None
    floor_microcredits_per_hour: int
    declared_tflops: float | None
    numeric_class: str
    memory_bytes: int
    flops_per_second: float
    # What it sends to others, and how long the first byte of it takes; None: not known.
    bytes_per_second: float | None
    latency_seconds: float | None
    # How fast runs lately went with it against what these figures promise, and when the last step of them was.
    pace_ratio: float | None
    paced_at: datetime | None
    address: str
    # Of the data that was asked for.
    held_bytes: int
    reliability: Reliability
    # Since when its node's service is clean; None: it has not passed probation.
    serving_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class PacedPNode:
    """What a PNode's figures promise, and how runs lately went with it against that; None: not known."""

    node_id: NodeId
    flops_per_second: float
    bytes_per_second: float | None
    latency_seconds: float | None
    address: str
    pace_ratio: float | None
    paced_at: datetime | None


async def insert_network(
    conn: Connection,
    *,
    id: NetworkId,
    account_id: AccountId,
    name: str,
    spec: str,
    digest: bytes,
    vnode_count: int,
    parameter_count: int,
    idempotency_key: str | None,
) -> Network | None:
    """None if the key was used before."""
    row = await _q.insert_network(
        conn,
        id=id,
        account_id=account_id,
        name=name,
        spec=spec,
        digest=digest,
        vnode_count=vnode_count,
        parameter_count=parameter_count,
        idempotency_key=idempotency_key,
    )
    return _to_network(row)


async def find_network(conn: Connection, id: NetworkId) -> Network | None:
    return _to_network(await _q.find_network(conn, id=id))


async def find_by_key(conn: Connection, *, account_id: AccountId, idempotency_key: str) -> Network | None:
    return _to_network(await _q.find_by_key(conn, account_id=account_id, idempotency_key=idempotency_key))


async def lock_network(conn: Connection, id: NetworkId) -> Network | None:
    return _to_network(await _q.lock_network(conn, id=id))


async def list_networks(
    conn: Connection, *, account_id: AccountId | None, before: UUID | None, limit: int
) -> list[Network]:
    rows = _q.list_networks(conn, account_id=account_id, before=before, limit_count=limit)
    return [Network(**row) async for row in rows]


async def count_networks(conn: Connection, account_id: AccountId) -> int:
    return int(await _q.count_networks(conn, account_id=account_id))


async def delete_network(conn: Connection, id: NetworkId) -> None:
    await _q.delete_network(conn, id=id)


async def upsert_pnode(
    conn: Connection,
    *,
    node_id: NodeId,
    numeric_class: str,
    memory_bytes: int,
    flops_per_second: float,
    bytes_per_second: float | None,
    latency_seconds: float | None,
) -> None:
    await _q.upsert_pnode(
        conn,
        node_id=node_id,
        numeric_class=numeric_class,
        memory_bytes=memory_bytes,
        flops_per_second=flops_per_second,
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
    )


async def delete_pnode(conn: Connection, node_id: NodeId) -> None:
    await _q.delete_pnode(conn, node_id=node_id)


async def set_class(conn: Connection, *, node_id: NodeId, numeric_class: str) -> None:
    await _q.set_class(conn, node_id=node_id, numeric_class=numeric_class)


async def set_address(conn: Connection, *, node_id: NodeId, address: str) -> None:
    await _q.set_address(conn, node_id=node_id, address=address)


async def note_held(conn: Connection, *, node_id: NodeId, sha256s: Iterable[bytes]) -> None:
    await _q.note_held(conn, node_id=node_id, sha256s=list(sha256s))


async def set_measured_rate(conn: Connection, *, node_id: NodeId, bytes_per_second: float) -> None:
    await _q.set_measured_rate(conn, node_id=node_id, bytes_per_second=bytes_per_second)


async def list_hosts(conn: Connection, node_ids: Iterable[NodeId]) -> dict[NodeId, Host]:
    """What one slot of each node has for VNodes. A rate that nobody knows is taken for no limit."""
    rows = _q.list_hosts(conn, node_ids=sorted(node_ids))
    return {
        row["node_id"]: Host(row["memory_bytes"], row["flops_per_second"], row["bytes_per_second"] or inf)
        async for row in rows
    }


async def lock_pnodes(conn: Connection, node_ids: Iterable[NodeId]) -> dict[NodeId, PacedPNode]:
    """Until the end of the transaction nobody else sets their pace."""
    rows = _q.lock_pnodes(conn, node_ids=sorted(node_ids))
    return {row["node_id"]: PacedPNode(**row) async for row in rows}


async def set_pace(conn: Connection, *, node_id: NodeId, pace_ratio: float, paced_at: datetime) -> None:
    await _q.set_pace(conn, node_id=node_id, pace_ratio=pace_ratio, paced_at=paced_at)


async def list_free_pnodes(
    conn: Connection,
    *,
    account_id: AccountId,
    job_kind: str,
    wall_seconds: int,
    closed: Closed,
    ceiling: int,
    node_ids: Iterable[NodeId],
    avoided: Mapping[NodeId, UUID | None],
    data_bytes: Mapping[bytes, int],
    silence_seconds: float,
    limit: int,
) -> list[FreePNode]:
    """Online, free, lent to this account now and within the ceiling; of these nodes alone if any are named.

    A node that is avoided is left out for as long as its agent is of this start, or of any if none is named.
    """
    rows = _q.list_free_pnodes(
        conn,
        **closed.to_arrays(),
        account_id=account_id,
        job_kind=job_kind,
        wall_seconds=wall_seconds,
        ceiling=ceiling,
        node_ids=sorted(node_ids),
        avoided_ids=list(avoided),
        avoided_boots=list(avoided.values()),
        data_sha256s=list(data_bytes),
        data_sizes=list(data_bytes.values()),
        silence_seconds=silence_seconds,
        limit_count=limit,
    )
    return [_to_free(row) async for row in rows]


def _to_free(row: Any) -> FreePNode:
    known = Reliability()
    if row["finished"] is not None:
        known = Reliability(row["finished"], row["failed"], row["faults_running"], row["counted_at"])
    return FreePNode(
        slot=to_slot(row, node_id=row["node_id"], name=row["name"]),
        account_id=row["account_id"],
        node_name=row["node_name"],
        boot_id=row["boot_id"],
        floor_microcredits_per_hour=row["floor_microcredits_per_hour"],
        declared_tflops=row["speed_tflops"],
        numeric_class=row["numeric_class"],
        memory_bytes=row["memory_bytes"],
        flops_per_second=row["flops_per_second"],
        bytes_per_second=row["bytes_per_second"],
        latency_seconds=row["latency_seconds"],
        pace_ratio=row["pace_ratio"],
        paced_at=row["paced_at"],
        address=row["address"],
        held_bytes=row["held_bytes"],
        reliability=known,
        serving_since=row["serving_since"],
    )


def _to_network(row: Any) -> Network | None:
    return Network(**row) if row else None
