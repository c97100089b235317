"""Jobs whose deadline is near, and the raising of their slices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId, JobId
from computepool.core.jobs.deadline import EXPECTED_SECONDS, RAISED_PRIORITY, SLACK_RUNS, Deadline
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("deadlines")


@dataclass(frozen=True, slots=True)
class NearJob:
    job_id: JobId
    account_id: AccountId
    deadline: Deadline
    now: datetime


async def list_near(conn: Connection, *, limit: int) -> list[NearJob]:
    """Jobs whose deadline may be pressing and that have queued slices which were never raised."""
    rows = _q.list_near(conn, runs=1 + SLACK_RUNS, expected_seconds=EXPECTED_SECONDS, limit_count=limit)
    return [
        NearJob(
            row["job_id"],
            row["account_id"],
            Deadline(row["deadline_at"], row["wall_seconds"], row["succeeded_count"], row["run_seconds_sum"]),
            row["now"],
        )
        async for row in rows
    ]


async def raise_slices(conn: Connection, job_ids: Iterable[JobId], *, limit: int) -> dict[JobId, list[int]]:
    """The slices that were raised, by job. Each is raised once."""
    raised: dict[JobId, list[int]] = defaultdict(list)
    rows = _q.raise_slices(conn, job_ids=sorted(job_ids), priority=RAISED_PRIORITY, limit_count=limit)
    async for row in rows:
        raised[row["job_id"]].append(row["slice_index"])
    return dict(raised)
