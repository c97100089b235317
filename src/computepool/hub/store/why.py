"""What the answers to "why" are made of: the fleet in classes, a job's telling slices, the backlog in shapes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, ShapeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.core.placement.explain import SlotClass, Standing, Steps
from computepool.core.placement.idleness import Backlog
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.hub.store.connect import Connection
from computepool.hub.store.nodes import to_slot
from computepool.hub.store.queries import load_queries
from computepool.hub.store.shapes import to_shape

_q = load_queries("why")

_NO_NODE = NodeId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class SliceFacts:
    slice_index: int
    state: SliceState
    priority: int
    shape_id: ShapeId
    attempt_count: int
    failure_count: int
    cause: Cause | None
    accepted_attempt_id: AttemptId | None
    queued_at: datetime


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    id: AttemptId
    number: int
    node_id: NodeId
    # None: the viewer may not know it.
    node_name: str | None
    region: str | None
    slot_name: str
    # None: the node was enrolled anew and has no such slot any more.
    slot: Slot | None
    state: AttemptState
    leased_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_seconds: float | None
    exit_code: int | None
    cause: Cause | None
    message: str
    memory_bytes_peak: int | None


async def list_slot_classes(
    conn: Connection,
    shape: Shape,
    steps: Steps,
    *,
    viewer_id: AccountId | None,
    silence_seconds: float,
    limit: int | None,
) -> list[SlotClass]:
    """`viewer_id` is whose nodes may be named; None names all."""
    rows = _q.list_slot_classes(
        conn,
        isolation=shape.isolation,
        vram_bytes=shape.vram_bytes,
        vram_step=steps.vram_bytes,
        cores=shape.cores,
        cores_step=steps.cores,
        ram_bytes=shape.ram_bytes,
        ram_step=steps.ram_bytes,
        disk_bytes=shape.disk_bytes,
        disk_step=steps.disk_bytes,
        silence_seconds=silence_seconds,
        viewer_id=viewer_id,
        limit_count=limit,
    )
    return [
        SlotClass(
            slot=to_slot(row, node_id=_NO_NODE, name=""),
            standing=Standing(row["standing"]),
            slot_count=row["slot_count"],
            busy_count=row["busy_count"],
            node_name=row["node_name"],
            last_seen_at=row["last_seen_at"],
        )
        async for row in rows
    ]


async def list_first_slices(conn: Connection, *, job_id: JobId, slice_index: int | None) -> list[SliceFacts]:
    rows = _q.list_first_slices(conn, job_id=job_id, slice_index=slice_index)
    return [
        SliceFacts(
            **{
                **row,
                "state": SliceState(row["state"]),
                "cause": Cause(row["cause"]) if row["cause"] else None,
            }
        )
        async for row in rows
    ]


async def count_ahead(conn: Connection, *, job_id: JobId, slice_: SliceFacts, count_max: int) -> int:
    """Queued slices of the same shape that come before this one by priority and age; `count_max` at most."""
    counted = await _q.count_ahead(
        conn,
        shape_id=slice_.shape_id,
        priority=slice_.priority,
        queued_at=slice_.queued_at,
        job_id=job_id,
        slice_index=slice_.slice_index,
        count_max=count_max,
    )
    return min(int(counted), count_max)


async def list_attempts(
    conn: Connection, *, job_id: JobId, slice_index: int, viewer_id: AccountId | None, limit: int
) -> list[AttemptFacts]:
    rows = _q.list_attempts(conn, job_id=job_id, slice_index=slice_index, viewer_id=viewer_id, limit_count=limit)
    return [_to_attempt(row) async for row in rows]


async def list_backlog(conn: Connection, *, shapes_max: int, count_max: int) -> list[Backlog]:
    rows = _q.list_backlog(conn, shapes_max=shapes_max, count_max=count_max)
    return [Backlog(to_shape(row), row["slice_count"]) async for row in rows]


def _to_attempt(row: Any) -> AttemptFacts:
    return AttemptFacts(
        id=row["id"],
        number=row["number"],
        node_id=row["node_id"],
        node_name=row["node_name"],
        region=row["region"],
        slot_name=row["slot"],
        slot=to_slot(row, node_id=row["node_id"], name=row["slot"]) if row["kind"] else None,
        state=AttemptState(row["state"]),
        leased_at=row["leased_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        run_seconds=row["run_seconds"],
        exit_code=row["exit_code"],
        cause=Cause(row["cause"]) if row["cause"] else None,
        message=row["message"],
        memory_bytes_peak=row["memory_bytes_peak"],
    )
