"""Jobs and the keys that make submitting them safe to repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, JobId, ShapeId
from computepool.core.jobs.state import JobState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("jobs")


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    account_id: AccountId
    name: str
    spec: dict[str, Any]
    shape_id: ShapeId
    priority: int
    slice_count: int
    retries: int
    wall_seconds: int
    state: JobState
    succeeded_count: int
    failed_count: int
    cancelled_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    leased_count: int
    running_count: int


@dataclass(frozen=True, slots=True)
class JobCounts:
    """A job's row while it is locked: what its slices have come to."""

    id: JobId
    account_id: AccountId
    name: str
    slice_count: int
    succeeded_count: int
    failed_count: int
    cancelled_count: int
    started_at: datetime | None
    state: JobState
    retries: int


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What an assignment needs to know of a job."""

    id: JobId
    account_id: AccountId
    spec: dict[str, Any]
    slice_count: int
    wall_seconds: int


async def insert_job(
    conn: Connection,
    *,
    id: JobId,
    account_id: AccountId,
    name: str,
    spec: dict[str, Any],
    shape_id: ShapeId,
    priority: int,
    slice_count: int,
    retries: int,
    wall_seconds: int,
    expires_at: datetime | None,
) -> None:
    await _q.insert_job(
        conn,
        id=id,
        account_id=account_id,
        name=name,
        spec=spec,
        shape_id=shape_id,
        priority=priority,
        slice_count=slice_count,
        retries=retries,
        wall_seconds=wall_seconds,
        expires_at=expires_at,
    )
    await _q.insert_slices(conn, job_id=id, shape_id=shape_id, priority=priority, slice_count=slice_count)


async def find_job(conn: Connection, id: JobId) -> Job | None:
    row = await _q.find_job(conn, id=id)
    return _to_job(row) if row else None


async def list_jobs(
    conn: Connection, *, account_id: AccountId | None, before: UUID | None, state: JobState | None, limit: int
) -> list[Job]:
    rows = _q.list_jobs(conn, account_id=account_id, before=before, state=state, limit_count=limit)
    return [_to_job(row) async for row in rows]


async def list_orders(conn: Connection, ids: Iterable[JobId]) -> dict[JobId, JobOrder]:
    return {row["id"]: JobOrder(**row) async for row in _q.list_specs(conn, ids=sorted(ids))}


async def count_open_slices(conn: Connection, account_id: AccountId) -> int:
    return int(await _q.count_open_slices(conn, account_id=account_id))


async def start_jobs(conn: Connection, ids: Iterable[JobId]) -> list[tuple[JobId, AccountId]]:
    """The jobs that this lease is the first of."""
    return [(row["id"], row["account_id"]) async for row in _q.start_jobs(conn, ids=sorted(ids))]


async def lock_jobs(conn: Connection, ids: Iterable[JobId]) -> dict[JobId, JobCounts]:
    rows = _q.lock_jobs(conn, ids=sorted(ids))
    return {row["id"]: JobCounts(**{**row, "state": JobState(row["state"])}) async for row in rows}


async def set_counts(conn: Connection, jobs: Sequence[JobCounts]) -> None:
    await _q.set_counts(
        conn,
        ids=[j.id for j in jobs],
        succeeded=[j.succeeded_count for j in jobs],
        failed=[j.failed_count for j in jobs],
        cancelled=[j.cancelled_count for j in jobs],
        states=[j.state for j in jobs],
    )


async def list_expired(conn: Connection, *, limit: int) -> list[JobId]:
    return [row["id"] async for row in _q.list_expired(conn, limit_count=limit)]


async def find_idempotent(conn: Connection, *, account_id: AccountId, key: str) -> tuple[bytes, JobId] | None:
    row = await _q.find_idempotent(conn, account_id=account_id, key=key)
    return (row["request_sha256"], row["job_id"]) if row else None


async def insert_idempotent(
    conn: Connection, *, account_id: AccountId, key: str, request_sha256: bytes, job_id: JobId
) -> bool:
    inserted = await _q.insert_idempotent(
        conn, account_id=account_id, key=key, request_sha256=request_sha256, job_id=job_id
    )
    return inserted is not None


def _to_job(row: Any) -> Job:
    return Job(**{**row, "state": JobState(row["state"])})
