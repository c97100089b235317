"""Moves slices to the front of their account's when the deadline of their job comes near."""

from __future__ import annotations

from computepool.core.jobs.deadline import is_pressing
from computepool.core.jobs.ranges import to_ranges
from computepool.hub.store import deadlines as deadline_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.events import NewEvent


async def raise_pressing(pool: Pool, *, jobs_max: int, slices_max: int) -> int:
    """Returns how many slices were raised. What does not fit comes next time."""
    async with pool.acquire() as conn:
        near = await deadline_store.list_near(conn, limit=jobs_max)
        pressing = {job.job_id: job.account_id for job in near if is_pressing(job.deadline, now=job.now)}
        if not pressing:
            return 0
        async with conn.transaction():
            raised = await deadline_store.raise_slices(conn, pressing, limit=slices_max)
            if raised:
                await event_store.record_events(
                    conn,
                    [
                        NewEvent(
                            kind="slices_raised",
                            account_id=pressing[job_id],
                            job_id=job_id,
                            body={"slices": to_ranges(indexes)},
                        )
                        for job_id, indexes in sorted(raised.items())
                    ],
                )
                await hub_store.notify(conn, "queue")
    return sum(map(len, raised.values()))
