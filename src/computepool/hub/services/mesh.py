"""What strangers may read of jobs, and where the hub stands on the map."""

from __future__ import annotations

from uuid import UUID

from computepool.core.live.pseudonyms import to_point
from computepool.hub.store import live as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.live import RecentJob, Sample

SAMPLES_KEPT_DAYS = 90.0
COUNTED_MAX = 100_000
POINTS_MAX = 500


async def list_recent_jobs(pool: Pool, *, limit: int) -> list[RecentJob]:
    async with pool.acquire() as conn:
        return await store.list_recent_jobs(conn, limit=limit)


def find_hub_point(key: bytes, hub_id: UUID, country: str) -> tuple[float, float] | None:
    return to_point(key, hub_id, country)


async def sample_grid(pool: Pool, *, silence_seconds: float) -> None:
    """Once a minute, by whichever hub comes first."""
    async with pool.acquire() as conn:
        await store.record_sample(conn, silence_seconds=silence_seconds, count_max=COUNTED_MAX)
        await store.delete_samples(conn, days=SAMPLES_KEPT_DAYS)


async def list_samples(pool: Pool, *, hours: float) -> list[Sample]:
    """Thinned out to a few hundred, oldest first."""
    every_minutes = max(1, -(-round(hours * 60) // POINTS_MAX))
    async with pool.acquire() as conn:
        return await store.list_samples(conn, hours=hours, every_minutes=every_minutes, limit=POINTS_MAX + 1)
