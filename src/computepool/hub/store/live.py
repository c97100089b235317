"""Events as they come, and what strangers see of the grid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, RunId
from computepool.core.jobs.state import JobState
from computepool.core.live.tail import Seen, Tail
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import SlotKind
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("live")


@dataclass(frozen=True, slots=True)
class FeedEvent:
    id: int
    at: datetime
    kind: str
    account_id: AccountId | None
    job_id: JobId | None
    node_id: NodeId | None
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node with its slots summed up."""

    id: NodeId
    account_id: AccountId
    state: NodeState
    region: str | None
    synthetic: bool
    created_at: datetime
    online: bool
    tier: str
    kind: SlotKind
    # As the node declares; None: it has not measured.
    speed_tflops: float | None
    # Of all slots together.
    cores: int
    slot_count: int


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    id: AttemptId
    job_id: JobId
    node_id: NodeId
    leased_at: datetime


@dataclass(frozen=True, slots=True)
class SeenEdge:
    run_id: RunId
    before_id: NodeId
    node_id: NodeId
    pair_count: int


@dataclass(frozen=True, slots=True)
class OpenCounts:
    jobs_queued: int
    jobs_running: int
    slices_queued: int
    networks_training: int


@dataclass(frozen=True, slots=True)
class RecentJob:
    id: JobId
    title: str | None
    kind: str | None
    state: JobState
    slice_count: int
    succeeded_count: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Sample:
    at: datetime
    nodes_online: int
    slot_count: int
    busy_count: int
    slices_queued: int


async def start_tail(conn: Connection) -> Tail[FeedEvent]:
    """One that begins now."""
    row = await _q.find_start(conn)
    tail: Tail[FeedEvent] = Tail(row["newest_id"], row["oldest"])
    return tail


async def look(conn: Connection, *, newest_id: int, gaps: Collection[int], limit: int) -> Seen[FeedEvent]:
    rows = [row async for row in _q.look(conn, newest_id=newest_id, gaps=list(gaps), limit_count=limit)]
    found = [to_event(row) for row in rows if row["id"] is not None]
    has_more = sum(event.id > newest_id for event in found) >= limit
    return Seen(found, rows[0]["oldest"], rows[0]["following"], has_more)


async def list_since(conn: Connection, *, watermark: int, limit: int) -> list[FeedEvent]:
    return [to_event(row) async for row in _q.list_since(conn, watermark=watermark, limit_count=limit)]


async def list_nodes(
    conn: Connection,
    *,
    silence_seconds: float,
    shown_seconds: float,
    limit: int,
    node_ids: Collection[NodeId] | None = None,
) -> list[SeenNode]:
    rows = _q.list_nodes(
        conn,
        node_ids=None if node_ids is None else list(node_ids),
        silence_seconds=silence_seconds,
        shown_seconds=shown_seconds,
        limit_count=limit,
    )
    return [
        SeenNode(**{**row, "state": NodeState(row["state"]), "kind": SlotKind(row["kind"])}) async for row in rows
    ]


async def list_live(conn: Connection, *, limit: int, job_ids: Collection[JobId] | None = None) -> list[LiveAttempt]:
    rows = _q.list_live(conn, job_ids=None if job_ids is None else list(job_ids), limit_count=limit)
    return [LiveAttempt(**row) async for row in rows]


async def list_edges(conn: Connection, *, limit: int) -> list[SeenEdge]:
    return [SeenEdge(**row) async for row in _q.list_edges(conn, limit_count=limit)]


async def count_open(conn: Connection, *, count_max: int) -> OpenCounts:
    return OpenCounts(**await _q.count_open(conn, count_max=count_max))


async def list_recent_jobs(conn: Connection, *, limit: int) -> list[RecentJob]:
    rows = _q.list_recent_jobs(conn, limit_count=limit)
    return [RecentJob(**{**row, "state": JobState(row["state"])}) async for row in rows]


async def find_newest_line(conn: Connection, run_id: RunId) -> int:
    return int(await _q.find_newest_line(conn, run_id=run_id))


async def get_pseudonym_key(conn: Connection) -> bytes:
    return bytes(await _q.get_pseudonym_key(conn))


async def record_sample(conn: Connection, *, silence_seconds: float, count_max: int) -> None:
    await _q.record_sample(conn, silence_seconds=silence_seconds, count_max=count_max)


async def delete_samples(conn: Connection, *, days: float) -> None:
    await _q.delete_samples(conn, days=days)


async def list_samples(conn: Connection, *, hours: float, every_minutes: int, limit: int) -> list[Sample]:
    rows = _q.list_samples(conn, hours=hours, every_minutes=every_minutes, limit_count=limit)
    return [Sample(**row) async for row in rows]


def to_event(row: Any) -> FeedEvent:
    return FeedEvent(
        row["id"], row["at"], row["kind"], row["account_id"], row["job_id"], row["node_id"], row["body"] or {}
    )
