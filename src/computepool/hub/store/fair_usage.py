"""What accounts have had, by all hubs' counts."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId
from computepool.core.placement.fair_share import HALF_LIFE_SECONDS, Delta, Total
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("fair_usage")

# Jobs of one account that are looked at for how long its slices run.
JOBS_MAX = 50


async def add_usage(conn: Connection, deltas: Sequence[Delta]) -> list[Total]:
    """Adds to the totals and returns them; accounts that are gone are left out."""
    rows = _q.add_usage(
        conn,
        account_ids=[d.account_id for d in deltas],
        seconds=[d.seconds for d in deltas],
        asks_mean=[d.asks_mean for d in deltas],
        half_life_seconds=HALF_LIFE_SECONDS,
        jobs_max=JOBS_MAX,
    )
    return [Total(**row) async for row in rows]


async def list_hubs(conn: Connection, *, seconds: float) -> list[UUID]:
    """Hub processes that were heard of lately."""
    return [row["hub_process_id"] async for row in _q.list_hubs(conn, seconds=seconds)]


async def list_live(conn: Connection, ids: Sequence[AttemptId]) -> set[AttemptId]:
    return {row["id"] async for row in _q.list_live(conn, ids=ids)}


async def list_usage(conn: Connection, *, limit: int) -> dict[AccountId, float]:
    """Slot-seconds, faded to now, of those who have had most."""
    rows = _q.list_usage(conn, half_life_seconds=HALF_LIFE_SECONDS, limit_count=limit)
    return {row["account_id"]: row["slot_seconds"] async for row in rows}
