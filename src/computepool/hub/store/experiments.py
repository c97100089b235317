"""What became of jobs, for comparing the sets of weights that they were given."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from computepool.core.jobs.cause import Cause
from computepool.core.placement.experiment import JobOutcome
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("experiments")


async def list_outcomes(
    conn: Connection, *, first_id: UUID, faults: Iterable[Cause], jobs_max: int, attempts_max: int
) -> list[JobOutcome]:
    """Of the newest jobs from `first_id` on. `attempts_max` is how many of each job's attempts are looked at."""
    rows = _q.list_outcomes(
        conn, first_id=first_id, faults=sorted(faults), jobs_max=jobs_max, attempts_max=attempts_max
    )
    return [JobOutcome(**row) async for row in rows]
