"""Slices and the queue of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from computepool.core.ids import AttemptId, JobId, ShapeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Slice
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import SliceState
from computepool.core.placement.rounds import Head, Run
from computepool.hub.store.arrays import to_array
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("slices")

SliceKey = tuple[JobId, int]


@dataclass(frozen=True, slots=True)
class SliceRow:
    slice_index: int
    state: SliceState
    attempt_count: int
    cause: Cause | None
    accepted_attempt_id: AttemptId | None


async def take_heads(
    conn: Connection, counts: Mapping[Run, int], *, lock: bool = True
) -> tuple[list[Head], datetime | None]:
    """The first slices of these runs, with the database's time. Locked ones stay so until the transaction ends."""
    query = _q.take_heads if lock else _q.list_heads
    rows = [
        row
        async for row in query(
            conn,
            shape_ids=to_array([run.shape_id for run in counts]),
            priority_classes=to_array([run.priority_class for run in counts]),
            account_ids=to_array([run.account_id for run in counts]),
            counts=to_array(list(counts.values())),
        )
    ]
    heads = [
        Head(
            job_id=row["job_id"],
            slice_index=row["slice_index"],
            run=Run(row["shape_id"], PriorityClass(row["priority_class"]), row["account_id"]),
            priority=row["priority"],
            queued_at=row["queued_at"],
            avoid_node_id=row["avoid_node_id"],
            attempt_count=row["attempt_count"],
        )
        for row in rows
    ]
    return heads, rows[0]["now"] if rows else None


async def list_runs(conn: Connection, *, limit: int) -> list[Run]:
    rows = _q.list_runs(conn, limit_count=limit)
    return [
        Run(ShapeId(row["shape_id"]), PriorityClass(row["priority_class"]), row["account_id"]) async for row in rows
    ]


async def lock_slices_of_attempts(conn: Connection, ids: Iterable[AttemptId]) -> dict[SliceKey, Slice]:
    rows = _q.lock_slices_of_attempts(conn, ids=to_array(sorted(ids)))
    return {(row["job_id"], row["slice_index"]): _to_slice(row) async for row in rows}


async def lock_open_slices(conn: Connection, *, job_id: JobId, limit: int) -> dict[SliceKey, Slice]:
    rows = _q.lock_open_slices(conn, job_id=job_id, limit_count=limit)
    return {(row["job_id"], row["slice_index"]): _to_slice(row) async for row in rows}


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
        killed_count=row["killed_count"],
        retries=row["retries"],
        cause=Cause(row["cause"]) if row["cause"] else None,
        avoid_node_id=row["avoid_node_id"],
    )
