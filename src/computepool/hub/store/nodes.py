"""Nodes and their slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.market.offers import Schedule
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.trust.identities import BAD_MEMORY, WINDOW, Origin
from computepool.hub.store.arrays import to_array
from computepool.hub.store.connect import Connection
from computepool.hub.store.offers import to_schedule
from computepool.hub.store.queries import load_queries

_q = load_queries("nodes")
_ADVISORY_LOCK = 7_263_006


@dataclass(frozen=True, slots=True)
class Node:
    id: NodeId
    account_id: AccountId
    name: str
    public_key: bytes
    state: NodeState
    synthetic: bool
    isolation: IsolationLevel
    region: str | None
    hardware: dict[str, Any]
    agent_version: str
    boot_id: UUID | None
    past_boot_ids: tuple[UUID, ...]
    created_at: datetime
    last_seen_at: datetime | None
    # The least that the owner lends one slot for.
    floor_microcredits_per_hour: int
    # What jobs may have, in the words of core/jobs/wants.py.
    allows: tuple[str, ...]
    # That it last called from, such as 93.184.216.0/24; None: unknown.
    network: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node's call is judged by."""

    account_id: AccountId
    state: NodeState
    # Its owner's account.
    suspended_at: datetime | None


@dataclass(frozen=True, slots=True)
class OfferedSlot:
    """A slot with what placement chooses by, as far as its node and its owner have said it."""

    slot: Slot
    floor_microcredits_per_hour: int
    # None: the node has not measured.
    declared_tflops: float | None
    busy: bool
    # Of its node; None: lent at all hours.
    schedule: Schedule | None = None
    owner_id: AccountId | None = None
    # Its node gets no ordinary work, because of results that were wrong.
    is_out: bool = False
    # Since when its node's service is clean; None: it has not passed probation.
    serving_since: datetime | None = None


async def upsert_node(
    conn: Connection,
    *,
    id: NodeId,
    account_id: AccountId,
    name: str,
    public_key: bytes,
    synthetic: bool,
    isolation: IsolationLevel,
    region: str | None,
    hardware: dict[str, Any],
    agent_version: str,
    floor_microcredits_per_hour: int,
    allows: Sequence[str],
    network: str | None = None,
) -> NodeId | None:
    """The node's id (the earlier one when the key is known), or None when the key is another owner's."""
    row = await _q.upsert_node(
        conn,
        id=id,
        account_id=account_id,
        name=name,
        public_key=public_key,
        synthetic=synthetic,
        isolation=isolation,
        region=region,
        hardware=hardware,
        agent_version=agent_version,
        floor_microcredits_per_hour=floor_microcredits_per_hour,
        allows=list(allows),
        network=network,
    )
    return NodeId(row["id"]) if row else None


async def replace_slots(
    conn: Connection, *, node_id: NodeId, slots: Sequence[Slot], declared_tflops: Sequence[float | None]
) -> None:
    await _q.delete_slots(conn, node_id=node_id)
    await _q.insert_slots(
        conn,
        node_id=node_id,
        names=[s.name for s in slots],
        kinds=[s.kind for s in slots],
        tiers=[s.tier for s in slots],
        vram_bytes=[s.vram_bytes for s in slots],
        cores=[s.cores for s in slots],
        ram_bytes=[s.ram_bytes for s in slots],
        disk_bytes=[s.disk_bytes for s in slots],
        speed_tflops=list(declared_tflops),
    )


async def find_node(conn: Connection, id: NodeId) -> Node | None:
    return _to_node(await _q.get_node(conn, id=id))


async def find_nodes(conn: Connection, ids: Iterable[NodeId]) -> list[Node]:
    rows = _q.find_nodes(conn, ids=sorted(ids))
    return [node async for row in rows if (node := _to_node(row)) is not None]


async def find_standing(conn: Connection, id: NodeId) -> Standing | None:
    row = await _q.find_standing(conn, id=id)
    return Standing(row["account_id"], NodeState(row["state"]), row["suspended_at"]) if row else None


async def has_boot(conn: Connection, id: NodeId, boot_id: UUID) -> bool:
    return bool(await _q.has_boot(conn, id=id, boot_id=boot_id))


async def lock_node(conn: Connection, id: NodeId) -> Node | None:
    return _to_node(await _q.lock_node(conn, id=id))


async def list_nodes(
    conn: Connection,
    *,
    account_id: AccountId | None,
    after: UUID,
    limit: int,
    state: NodeState | None = None,
    name: str | None = None,
    online: bool | None = None,
    silence_seconds: float = 0.0,
) -> list[Node]:
    """`name`: a part of it. `online`: heard within the silence that is allowed."""
    rows = _q.list_nodes(
        conn,
        account_id=account_id,
        after=after,
        state=state,
        name=name,
        online=online,
        silence_seconds=silence_seconds,
        limit_count=limit,
    )
    return [node async for row in rows if (node := _to_node(row)) is not None]


async def list_candidates(conn: Connection, node_ids: Iterable[NodeId]) -> list[OfferedSlot]:
    """The slots of these nodes with all that a round chooses by, except how reliable their nodes are."""
    rows = _q.list_candidates(conn, node_ids=sorted(node_ids))
    return [to_offered(row) async for row in rows]


def to_offered(row: Any) -> OfferedSlot:
    """Of the columns that list_candidates names."""
    return OfferedSlot(
        to_slot(row, node_id=row["node_id"], name=row["name"]),
        row["floor_microcredits_per_hour"],
        row["speed_tflops"],
        row["busy"],
        to_schedule(row["hours"], row["zone"]),
        row["owner_id"],
        row["is_out"],
        row["serving_since"],
    )


async def set_allows(conn: Connection, *, id: NodeId, allows: Sequence[str]) -> None:
    await _q.set_allows(conn, id=id, allows=list(allows))


async def set_network(conn: Connection, *, id: NodeId, network: str) -> None:
    await _q.set_network(conn, id=id, network=network)


async def has_key(conn: Connection, public_key: bytes) -> bool:
    return bool(await _q.has_key(conn, public_key=public_key))


async def lock_newcomers(conn: Connection) -> None:
    """Until the end of the transaction nobody else counts new nodes, or two would both be the last that may come."""
    await _q.lock_newcomers(conn, key=_ADVISORY_LOCK)


async def find_owner_origin(conn: Connection, account_id: AccountId) -> Origin:
    row = await _q.find_owner_origin(
        conn,
        account_id=account_id,
        window_seconds=WINDOW.total_seconds(),
        bad_seconds=BAD_MEMORY.total_seconds(),
    )
    return Origin(**row)


async def find_network_origin(conn: Connection, network: str | None, *, limit: int | None) -> Origin:
    """`limit` is that of the owner who asks, if the operator has set one. Of an unknown network nothing is known."""
    if network is None:
        return Origin(0)
    row = await _q.find_network_origin(
        conn, network=network, window_seconds=WINDOW.total_seconds(), bad_seconds=BAD_MEMORY.total_seconds()
    )
    return Origin(**row, limit=limit)


async def set_state(conn: Connection, *, id: NodeId, state: NodeState) -> None:
    await _q.set_state(conn, id=id, state=state)


async def set_boot(conn: Connection, *, id: NodeId, boot_id: UUID, past_boot_ids: Sequence[UUID]) -> None:
    await _q.set_boot(conn, id=id, boot_id=boot_id, past_boot_ids=list(past_boot_ids))


async def see_nodes(conn: Connection, ids: Iterable[NodeId]) -> None:
    await _q.see_nodes(conn, ids=to_array(list(ids)))


async def list_states(conn: Connection, ids: Iterable[NodeId]) -> dict[NodeId, NodeState]:
    return {row["id"]: NodeState(row["state"]) async for row in _q.list_states(conn, ids=sorted(ids))}


async def count_online(conn: Connection, *, seconds: float) -> int:
    return int(await _q.count_online(conn, seconds=seconds))


def _to_node(row: Any) -> Node | None:
    if row is None:
        return None
    values = dict(row)
    values["state"] = NodeState(values["state"])
    values["isolation"] = IsolationLevel(values["isolation"])
    values["past_boot_ids"] = tuple(values["past_boot_ids"])
    values["allows"] = tuple(values["allows"])
    return Node(**values)


def to_slot(row: Any, *, node_id: NodeId, name: str) -> Slot:
    """From any row that has the columns of `slots`, with its node's region, isolation and allows, and its offer's
    conditions.

    `welcome` is whom it is for, as far as the query tells; null: anybody, or whoever asks.
    """
    welcome = row["welcome"]
    return Slot(
        node_id=node_id,
        name=SlotName(name),
        kind=SlotKind(row["kind"]),
        tier=row["tier"],
        vram_bytes=row["vram_bytes"],
        cores=row["cores"],
        ram_bytes=row["ram_bytes"],
        disk_bytes=row["disk_bytes"],
        region=row["region"],
        isolation=IsolationLevel(row["isolation"]),
        slice_seconds_min=row["slice_seconds_min"],
        job_kinds=frozenset(row["job_kinds"]),
        welcome=None if welcome is None else frozenset(welcome),
        allows=frozenset(row["allows"]),
    )
