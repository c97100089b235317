"""What audits of runs came to, and what is known of nodes by them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, NodeId, RunId
from computepool.core.networks.audit import AuditOutcome
from computepool.core.networks.placement import SeatId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("run_audits")

VALIDATED_COUNTED_MAX = 200


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: UUID
    run_id: RunId
    epoch: int
    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    from_step: int
    until_step: int
    outcome: AuditOutcome
    witness_ids: tuple[NodeId, ...]
    message: str


@dataclass(frozen=True, slots=True)
class WrongSpan:
    """A span that others have replayed and got something else for."""

    node_id: NodeId
    run_id: RunId
    seat: SeatId
    from_step: int
    until_step: int
    witness_ids: list[NodeId]
    message: str
    decided_at: datetime


async def insert_audit(conn: Connection, row: AuditRow) -> None:
    await _q.insert_audit(
        conn,
        id=row.id,
        run_id=row.run_id,
        epoch=row.epoch,
        seat=row.seat,
        attempt_id=row.attempt_id,
        node_id=row.node_id,
        from_step=row.from_step,
        until_step=row.until_step,
        outcome=row.outcome,
        witness_ids=list(row.witness_ids),
        message=row.message,
    )


async def list_standings(conn: Connection, node_ids: Collection[NodeId]) -> dict[NodeId, tuple[AccountId, int]]:
    """By node its owner, and how many spans were found right since the last that was not."""
    rows = _q.list_standings(conn, node_ids=sorted(node_ids), limit_count=VALIDATED_COUNTED_MAX)
    return {row["node_id"]: (row["owner_id"], row["validated"]) async for row in rows}


async def list_outcomes(
    conn: Connection, node_id: NodeId, *, since: datetime | None, limit: int
) -> list[AuditOutcome]:
    rows = _q.list_outcomes(conn, node_id=node_id, since=since, limit_count=limit)
    return [AuditOutcome(row["outcome"]) async for row in rows]


async def list_wrong_spans(
    conn: Connection, node_ids: Collection[NodeId], *, limit: int
) -> dict[NodeId, list[WrongSpan]]:
    """By node, newest first, no more than so many of each."""
    found: dict[NodeId, list[WrongSpan]] = {id: [] for id in node_ids}
    async for row in _q.list_wrong_spans(conn, node_ids=sorted(node_ids), limit_count=limit):
        found[row["node_id"]].append(WrongSpan(**row))
    return found


async def count_outcomes(conn: Connection, run_id: RunId) -> Mapping[AuditOutcome, int]:
    return {AuditOutcome(row["outcome"]): row["count"] async for row in _q.count_outcomes(conn, run_id=run_id)}


async def mark_audited(conn: Connection, run_id: RunId, step: int) -> None:
    await _q.mark_audited(conn, run_id=run_id, step=step)


async def delete_checkpoints_after(conn: Connection, run_id: RunId, step: int) -> list[bytes]:
    """Contents that they were made of; an earlier one may need them still."""
    return [row["sha256"] async for row in _q.delete_checkpoints_after(conn, run_id=run_id, step=step)]


async def lower_pay(conn: Connection, attempt_id: AttemptId, *, run_id: RunId, step: int) -> bool:
    """False: the attempt is over, and what it was paid is settled."""
    return await _q.lower_pay(conn, attempt_id=attempt_id, run_id=run_id, step=step) is not None
