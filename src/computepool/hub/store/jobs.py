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


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be written, with all its slices."""

    id: JobId
    account_id: AccountId
    name: str
    spec: dict[str, Any]
    shape_id: ShapeId
    priority: int
    slice_count: int
    retries: int
    wall_seconds: int
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    account_id: AccountId
    key: str
    request_sha256: bytes
    job_id: JobId


async def insert_jobs(conn: Connection, jobs: Sequence[NewJob], *, created_at: datetime) -> None:
    await _q.insert_jobs(
        conn,
        ids=[j.id for j in jobs],
        account_ids=[j.account_id for j in jobs],
        names=[j.name for j in jobs],
        specs=[j.spec for j in jobs],
        shape_ids=[j.shape_id for j in jobs],
        priorities=[j.priority for j in jobs],
        slice_counts=[j.slice_count for j in jobs],
        retries=[j.retries for j in jobs],
        wall_seconds=[j.wall_seconds for j in jobs],
        expires_at=[j.expires_at for j in jobs],
        created_at=created_at,
    )


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


async def insert_idempotent(conn: Connection, rows: Sequence[IdempotencyRow]) -> set[JobId]:
    """The jobs whose key was new; the others' keys were used before, or by a twin in the same batch."""
    inserted = _q.insert_idempotent(
        conn,
        account_ids=[r.account_id for r in rows],
        keys=[r.key for r in rows],
        request_sha256s=[r.request_sha256 for r in rows],
        job_ids=[r.job_id for r in rows],
    )
    return {row["job_id"] async for row in inserted}


async def list_idempotent(
    conn: Connection, keys: Sequence[tuple[AccountId, str]]
) -> dict[tuple[AccountId, str], IdempotencyRow]:
    rows = _q.list_idempotent(conn, account_ids=[k[0] for k in keys], keys=[k[1] for k in keys])
    return {(row["account_id"], row["key"]): IdempotencyRow(**row) async for row in rows}


async def delete_idempotent(conn: Connection, job_ids: Iterable[JobId]) -> None:
    await _q.delete_idempotent(conn, job_ids=sorted(job_ids))


async def find_jobs(conn: Connection, ids: Iterable[JobId]) -> dict[JobId, Job]:
    return {row["id"]: _to_job(row) async for row in _q.find_jobs(conn, ids=sorted(ids))}


def _to_job(row: Any) -> Job:
    return Job(**{**row, "state": JobState(row["state"])})
