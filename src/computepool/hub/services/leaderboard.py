"""Who lends the most to others. Counted by days, so that a year of attempts is never looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from computepool.core.ids import AccountId
from computepool.core.live.leaderboard import OPEN_DAYS, Measure, Period, find_due_day, first_day
from computepool.core.live.pseudonyms import to_name
from computepool.core.market.ppm import PPM
from computepool.core.trust.reputation import reliability_bound
from computepool.hub.services.links import load_links
from computepool.hub.store import hub as hub_store
from computepool.hub.store import leaderboard as store
from computepool.hub.store.connect import Pool

OWNERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Leader:
    account_id: AccountId
    pseudonym: str
    value: int


@dataclass(frozen=True, slots=True)
class Leaders:
    leaders: list[Leader]
    counted_at: datetime | None


async def count_days(pool: Pool) -> date | None:
    """Counts the day that is due, if there is one and no other hub is at it. Returns which."""
    async with pool.acquire() as conn, conn.transaction():
        now = await hub_store.get_now(conn)
        counted = await store.list_counted(conn, since=now.date() - timedelta(days=OPEN_DAYS))
        day = find_due_day(counted, now)
        if day is None or not await store.try_lock(conn):
            return None
        links = await load_links(conn)
        await store.count_day(conn, day, links=links, now=now)
    return day


async def list_leaders(pool: Pool, key: bytes, *, by: Measure, period: Period, limit: int) -> Leaders:
    async with pool.acquire() as conn:
        now = await hub_store.get_now(conn)
        since = first_day(period, now.date())
        counted_at = await store.find_counted_at(conn)
        if by is Measure.RELIABILITY:
            evidence = await store.list_evidence(conn, since=since, limit=OWNERS_MAX)
            ranked = sorted(
                ((each, reliability_bound(each.reliability, now=now)) for each in evidence),
                key=lambda pair: (-pair[1], pair[0].account_id),
            )
            rows = [store.LeaderRow(each.account_id, each.pseudonym, round(bound * PPM)) for each, bound in ranked]
        else:
            rows = await store.list_leaders(conn, measure=by, since=since, limit=limit)
    leaders = [Leader(row.account_id, row.pseudonym or to_name(key, row.account_id), row.value) for row in rows]
    return Leaders(leaders[:limit], counted_at)
