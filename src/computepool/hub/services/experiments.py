"""Which set of placement weights serves jobs better, by what became of those that were given each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.placement.experiment import NODE_FAULTS, Comparison, compare
from computepool.core.placement.weights import WeightBook
from computepool.hub.store import experiments as experiment_store
from computepool.hub.store.connect import Pool

DAYS_MAX = 90.0
# The sample: the newest jobs, and of each its first attempts. More would tell little and cost the hub much.
JOBS_MAX = 10_000
ATTEMPTS_MAX = 32


@dataclass(frozen=True, slots=True)
class Experiment:
    book: WeightBook
    since: datetime
    comparison: Comparison
    # Jobs that were looked at, of these two sets and of others.
    job_count: int
    # There were more jobs in this time: only the newest were looked at.
    is_cut: bool


async def get_experiment(pool: Pool, book: WeightBook, *, days: float) -> Experiment:
    if not 0 < days <= DAYS_MAX:
        raise InvalidRequest(f"days is {days:g}; give more than 0 and at most {DAYS_MAX:g}.")
    since = clock.now() - timedelta(days=days)
    async with pool.acquire() as conn:
        outcomes = await experiment_store.list_outcomes(
            conn, first_id=_first_id(since), faults=NODE_FAULTS, jobs_max=JOBS_MAX, attempts_max=ATTEMPTS_MAX
        )
    split = book.split
    # Thousands of logarithms: the loop goes on serving others meanwhile.
    comparison = await asyncio.to_thread(compare, outcomes, first=split.first, second=split.second)
    return Experiment(book, since, comparison, len(outcomes), is_cut=len(outcomes) >= JOBS_MAX)


def _first_id(since: datetime) -> UUID:
    """The least id that a job of this time could have: ids begin with their milliseconds."""
    return UUID(int=int(since.timestamp() * 1_000) << 80)
