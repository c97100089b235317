"""Rows put straight into the database, for tests of one table that need others beside it."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import asyncpg

from computepool import entropy
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId

_numbers = itertools.count(1)


async def insert_account(conn: asyncpg.Connection, *, fair_weight: float = 1.0) -> AccountId:
    id = AccountId(entropy.new_id())
    await conn.execute(
        """INSERT INTO accounts (id, email, name, roles, queued_slices_max, stored_bytes_max, calls_per_minute_max,
                                 fair_weight)
           VALUES ($1, $2, 'person', '{submitter}', 1000, 1000, 1000, $3)""",
        id,
        f"rows{next(_numbers)}@example.org",
        fair_weight,
    )
    return id


async def insert_job(
    conn: asyncpg.Connection, account_id: AccountId, *, slice_count: int = 1, **columns: Any
) -> JobId:
    """A job whose slices are all queued; `columns` are its own."""
    id = JobId(entropy.new_id())
    values: dict[str, Any] = {"priority": 0, "retries": 2, "wall_seconds": 3_600, **columns}
    names = ", ".join(values)
    places = ", ".join(f"${n}" for n in range(5, 5 + len(values)))
    shape_id = await conn.fetchval(
        """INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation)
           VALUES ('any', false, 0, 1, 1, 1, '{}', '{}', 'sandboxed')
           ON CONFLICT (digest) DO UPDATE SET gpu = false RETURNING id"""
    )
    await conn.execute(
        f"""INSERT INTO jobs (id, account_id, name, spec, shape_id, slice_count, {names})
            VALUES ($1, $2, 'job', '{{}}', $3, $4, {places})""",
        id,
        account_id,
        shape_id,
        slice_count,
        *values.values(),
    )
    await conn.execute(
        """INSERT INTO slices (job_id, slice_index, shape_id, priority, account_id)
           SELECT $1, i, $2, $3, $4 FROM generate_series(0, $5 - 1) AS i""",
        id,
        shape_id,
        values["priority"],
        account_id,
        slice_count,
    )
    return id


async def insert_attempt(
    conn: asyncpg.Connection, job_id: JobId, slice_index: int, *, state: str = "running", cause: str | None = None
) -> AttemptId:
    id = AttemptId(entropy.new_id())
    ended = state not in ("leased", "running")
    await conn.execute(
        """INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, expires_at, finished_at,
                                 cause)
           VALUES ($1, $2, $3, 1, $4, 'cpu:0', $5, now(), CASE WHEN $6 THEN now() END, $7)""",
        id,
        job_id,
        slice_index,
        NodeId(entropy.new_id()),
        state,
        ended,
        cause,
    )
    return id


async def get_now(conn: asyncpg.Connection) -> datetime:
    now: datetime = await conn.fetchval("SELECT clock_timestamp()")
    return now
