"""Challenges of nodes, and what they have shown by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from computepool.core.ids import NodeId
from computepool.core.trust.challenge import ProofState, Round, Verdict
from computepool.core.trust.products import Work
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("challenges")


@dataclass(frozen=True, slots=True)
class Challenge:
    id: UUID
    node_id: NodeId
    slot: str
    claim: str
    work: Work
    memory_bytes: int
    issued_at: datetime
    expires_at: datetime
    committed_at: datetime | None
    root: bytes | None
    segments: tuple[int, ...]
    words: tuple[int, ...]
    opened_at: datetime | None


@dataclass(frozen=True, slots=True)
class Proof:
    node_id: NodeId
    slot: str
    claim: str
    claimed_tier: str
    state: ProofState
    tier: str
    shown_tflops: float | None
    spread_ratio: float
    reason: str
    decided_at: datetime


async def insert_challenge(
    conn: Connection,
    *,
    id: UUID,
    node_id: NodeId,
    slot: str,
    claim: str,
    work: Work,
    memory_bytes: int,
    seconds: float,
) -> Challenge:
    row = await _q.insert_challenge(
        conn,
        id=id,
        node_id=node_id,
        slot=slot,
        claim=claim,
        seed=work.seed,
        size=work.size,
        products=work.products,
        memory_bytes=memory_bytes,
        seconds=seconds,
    )
    return _to_challenge(row)


async def lock_challenge(conn: Connection, *, id: UUID, node_id: NodeId) -> tuple[Challenge, datetime] | None:
    """With the database's time."""
    row = await _q.lock_challenge(conn, id=id, node_id=node_id)
    return (_to_challenge(row), row["now"]) if row else None


async def record_commitment(
    conn: Connection, *, id: UUID, committed_at: datetime, root: bytes, segments: Sequence[int], words: Sequence[int]
) -> None:
    await _q.record_commitment(
        conn, id=id, committed_at=committed_at, root=root, segments=list(segments), words=list(words)
    )


async def record_opening(conn: Connection, *, id: UUID, is_right: bool) -> None:
    await _q.record_opening(conn, id=id, is_right=is_right)


async def count_issued(conn: Connection, *, node_id: NodeId, slot: str, window: timedelta) -> int:
    return int(await _q.count_issued(conn, node_id=node_id, slot=slot, seconds=window.total_seconds()))


async def list_rounds(conn: Connection, *, node_id: NodeId, slot: str, claim: str, limit: int) -> list[Round]:
    rows = _q.list_rounds(conn, node_id=node_id, slot=slot, claim=claim, limit_count=limit)
    return [
        Round(Work(b"", row["size"], row["products"]).flops, row["seconds"], row["is_right"]) async for row in rows
    ]


async def upsert_proof(
    conn: Connection, *, node_id: NodeId, slot: str, claim: str, claimed_tier: str, verdict: Verdict
) -> None:
    await _q.upsert_proof(
        conn,
        node_id=node_id,
        slot=slot,
        claim=claim,
        claimed_tier=claimed_tier,
        state=verdict.state,
        tier=verdict.tier,
        shown_tflops=verdict.tflops,
        spread_ratio=min(1.0, verdict.spread_ratio),
        reason=verdict.reason,
    )


async def list_proofs(conn: Connection, node_ids: Iterable[NodeId]) -> dict[tuple[NodeId, str], Proof]:
    rows = _q.list_proofs(conn, node_ids=sorted(node_ids))
    return {(row["node_id"], row["slot"]): _to_proof(row) async for row in rows}


async def set_slot_speeds(
    conn: Connection, *, node_id: NodeId, names: Sequence[str], tiers: Sequence[str], tflops: Sequence[float | None]
) -> None:
    await _q.set_slot_speeds(conn, node_id=node_id, names=list(names), tiers=list(tiers), tflops=list(tflops))


def _to_challenge(row: Any) -> Challenge:
    return Challenge(
        id=row["id"],
        node_id=row["node_id"],
        slot=row["slot"],
        claim=row["claim"],
        work=Work(row["seed"], row["size"], row["products"]),
        memory_bytes=row["memory_bytes"],
        issued_at=row["issued_at"],
        expires_at=row["expires_at"],
        committed_at=row["committed_at"],
        root=row["root"],
        segments=tuple(row["segments"] or ()),
        words=tuple(row["words"] or ()),
        opened_at=row["opened_at"],
    )


def _to_proof(row: Any) -> Proof:
    return Proof(**{**dict(row), "state": ProofState(row["state"])})
