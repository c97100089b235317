"""Slices: the queue, and the writing of what core decided about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from computepool.core.ids import AttemptId, JobId, ShapeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Slice
from computepool.core.jobs.state import SliceState
from computepool.core.placement.place import Head
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("slices")

SliceKey = tuple[JobId, int]


@dataclass(frozen=True, slots=True)
class TakenHead:
    head: Head
    attempt_count: int


@dataclass(frozen=True, slots=True)
class SliceRow:
    slice_index: int
    state: SliceState
    attempt_count: int
    cause: Cause | None
    accepted_attempt_id: AttemptId | None


async def take_heads(conn: Connection, counts: Mapping[ShapeId, int]) -> list[TakenHead]:
    rows = _q.take_heads(conn, shape_ids=list(counts), counts=list(counts.values()))
    return [
        TakenHead(
            Head(
                job_id=row["job_id"],
                slice_index=row["slice_index"],
                shape_id=row["shape_id"],
                priority=row["priority"],
                queued_at=row["queued_at"],
                avoid_node_id=row["avoid_node_id"],
            ),
            row["attempt_count"],
        )
        async for row in rows
    ]


async def lease_slices(conn: Connection, leased: Sequence[tuple[JobId, int, int]]) -> None:
    """Each item is job, slice index, and the number of the attempt that took it."""
    await _q.lease_slices(
        conn,
        job_ids=[job_id for job_id, _, _ in leased],
        slice_indexes=[index for _, index, _ in leased],
        numbers=[number for _, _, number in leased],
    )


async def lock_slices(conn: Connection, keys: Iterable[SliceKey]) -> dict[SliceKey, Slice]:
    ordered = sorted(set(keys))
    rows = _q.lock_slices(conn, job_ids=[k[0] for k in ordered], slice_indexes=[k[1] for k in ordered])
    return {(row["job_id"], row["slice_index"]): _to_slice(row) async for row in rows}


async def lock_open_slices(conn: Connection, *, job_id: JobId, limit: int) -> dict[SliceKey, Slice]:
    rows = _q.lock_open_slices(conn, job_id=job_id, limit_count=limit)
    return {(row["job_id"], row["slice_index"]): _to_slice(row) async for row in rows}


async def apply_slices(conn: Connection, changed: Sequence[tuple[Slice, AttemptId | None]]) -> None:
    """Each item is the slice as decided and, when it succeeded, the attempt whose result counts."""
    slices = [slice_ for slice_, _ in changed]
    await _q.apply_slices(
        conn,
        job_ids=[s.job_id for s in slices],
        slice_indexes=[s.index for s in slices],
        states=[s.state for s in slices],
        failure_counts=[s.failure_count for s in slices],
        causes=[s.cause for s in slices],
        avoid_node_ids=[s.avoid_node_id for s in slices],
        accepted_attempt_ids=[attempt_id for _, attempt_id in changed],
    )


async def list_slices(
    conn: Connection, *, job_id: JobId, after: int, limit: int, state: SliceState | None = None
) -> list[SliceRow]:
    rows = _q.list_slices(conn, job_id=job_id, after=after, limit_count=limit, state=state)
    return [
        SliceRow(
            slice_index=row["slice_index"],
            state=SliceState(row["state"]),
            attempt_count=row["attempt_count"],
            cause=Cause(row["cause"]) if row["cause"] else None,
            accepted_attempt_id=row["accepted_attempt_id"],
        )
        async for row in rows
    ]


def _to_slice(row: Any) -> Slice:
    return Slice(
        job_id=row["job_id"],
        index=row["slice_index"],
        state=SliceState(row["state"]),
        attempt_count=row["attempt_count"],
        failure_count=row["failure_count"],
        retries=row["retries"],
        cause=Cause(row["cause"]) if row["cause"] else None,
        avoid_node_id=row["avoid_node_id"],
    )
