"""When each slot is next asked to show its speed, and what is known of a request that is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from computepool.core.ids import NodeId
from computepool.core.trust.sittings import Sitting
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("sittings")


@dataclass(frozen=True, slots=True)
class Asked:
    """A slot that is to show its speed now."""

    node_id: NodeId
    slot: str
    # It has a proof to lose.
    proven: bool


async def plan_sittings(conn: Connection, node_id: NodeId, due_at: Mapping[str, datetime]) -> None:
    """For the slots that have none; those of slots that are gone are forgotten."""
    await _q.delete_other_sittings(conn, node_id=node_id, slots=list(due_at))
    await _q.insert_sittings(conn, node_id=node_id, slots=list(due_at), due_at=list(due_at.values()))


async def list_turns(conn: Connection, *, within: timedelta, limit: int) -> list[tuple[NodeId, str]]:
    """Slots whose request is due, or was told and not answered within that time."""
    rows = _q.list_turns(conn, within_seconds=within.total_seconds(), limit_count=limit)
    return [(row["node_id"], row["slot"]) async for row in rows]


async def find_sitting(conn: Connection, node_id: NodeId, slot: str) -> Sitting | None:
    row = await _q.get_sitting(conn, node_id=node_id, slot=slot)
    return _to_sitting(row) if row else None


async def upsert_sitting(conn: Connection, node_id: NodeId, slot: str, sitting: Sitting) -> None:
    due_at, asked_at, told_at, missed_count, unsure_count = astuple(sitting)
    await _q.upsert_sitting(
        conn,
        node_id=node_id,
        slot=slot,
        due_at=due_at,
        asked_at=asked_at,
        told_at=told_at,
        missed_count=missed_count,
        unsure_count=unsure_count,
    )


async def delete_sitting(conn: Connection, node_id: NodeId, slot: str) -> None:
    await _q.delete_sitting(conn, node_id=node_id, slot=slot)


async def list_asked(conn: Connection) -> list[Asked]:
    return [Asked(row["node_id"], row["slot"], row["proven"]) async for row in _q.list_asked(conn)]


async def record_told(conn: Connection, told: Iterable[tuple[NodeId, str]]) -> None:
    pairs: Sequence[tuple[NodeId, str]] = sorted(told)
    await _q.record_told(conn, node_ids=[pair[0] for pair in pairs], slots=[pair[1] for pair in pairs])


def _to_sitting(row: Any) -> Sitting:
    return Sitting(row["due_at"], row["asked_at"], row["told_at"], row["missed_count"], row["unsure_count"])
