"""What the rooms of the dashboard show beside the nouns themselves. Looks only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.ids import JobId, NodeId
from computepool.core.jobs.state import SliceState
from computepool.core.market.rate_card import RateCard
from computepool.core.market.regions import DEFAULT_REGION
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import hub as hub_store
from computepool.hub.store import views as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.live import FeedEvent
from computepool.hub.store.views import DeskCounts, Hold, NodeDay, PlacedAttempt, Step

PAGE_MAX = 500
RANGES_MAX = 20_000
DAYS_MAX = 92
STEPS_MAX = 200
COUNTED_MAX = 100_000
# How many events one page of a search looks through.
SEARCHED_IDS_MAX = 50_000

_PLACE = re.compile(r"([0-9]{1,6})~([0-9]{1,6})\Z")


@dataclass(frozen=True, slots=True)
class Depth:
    asks: list[Step]
    bids: list[Step]


@dataclass(frozen=True, slots=True)
class Found:
    events: list[FeedEvent]
    # Where the search goes on; None at its end.
    before: int | None


async def list_job_attempts(
    pool: Pool, caller: AccountCaller, job_id: JobId, *, cursor: str | None, slice_index: int | None, limit: int
) -> tuple[list[PlacedAttempt], str | None]:
    """By slice and number."""
    await job_service.get_job(pool, caller, job_id)
    after = (-1, 0)
    if cursor is not None:
        place = _PLACE.match(cursor)
        if place is None:
            raise InvalidRequest("This is no cursor of ours. Leave it out to begin at the first attempt.")
        after = (int(place[1]), int(place[2]))
    async with pool.acquire() as conn:
        found = await store.list_job_attempts(conn, job_id, after=after, slice_index=slice_index, limit=limit)
    last = found[-1].attempt if len(found) == limit else None
    return found, f"{last.slice_index}~{last.number}" if last else None


async def list_node_attempts(
    pool: Pool, caller: AccountCaller, node_id: NodeId, *, before: UUID | None, limit: int
) -> tuple[list[PlacedAttempt], str | None]:
    """What runs there, then what has ended, newest first."""
    await node_service.get_node(pool, caller, node_id)
    async with pool.acquire() as conn:
        live = await store.list_node_live(conn, node_id) if before is None else []
        ended = await store.list_node_ended(conn, node_id, before=before, limit=limit)
    return live + ended, str(ended[-1].attempt.id) if len(ended) == limit else None


async def list_strip(
    pool: Pool, caller: AccountCaller, job_id: JobId
) -> tuple[int, list[tuple[int, int, SliceState]]]:
    """How many slices there are, and the states of them in ranges."""
    job = await job_service.get_job(pool, caller, job_id)
    async with pool.acquire() as conn:
        return job.slice_count, await store.list_strip(conn, job_id, limit=RANGES_MAX)


async def list_node_days(pool: Pool, caller: AccountCaller, node_id: NodeId, *, days: int) -> list[NodeDay]:
    await node_service.get_node(pool, caller, node_id)
    async with pool.acquire() as conn:
        return await store.list_node_days(conn, node_id, days=max(1, min(days, DAYS_MAX)))


async def list_holds(pool: Pool, caller: AccountCaller, *, before: UUID | None, limit: int) -> list[Hold]:
    async with pool.acquire() as conn:
        return await store.list_holds(conn, caller.account_id, before=before, limit=limit)


async def find_depth(pool: Pool, card: RateCard, *, tier: str, region: str, silence_seconds: float) -> Depth:
    if region not in card.regions:
        raise InvalidRequest(f"The rate card has no region {region!r}; it has {', '.join(sorted(card.regions))}.")
    is_default = region == DEFAULT_REGION
    # What is not listed belongs to the default.
    countries = {country for country, its in card.region_by_country.items() if is_default or its == region}
    async with pool.acquire() as conn:
        return Depth(
            asks=await store.list_asks(
                conn,
                tier=tier,
                countries=countries,
                is_default=is_default,
                silence_seconds=silence_seconds,
                limit=STEPS_MAX,
            ),
            bids=await store.list_bids(
                conn,
                tier=tier,
                countries=countries,
                is_default=is_default,
                count_max=COUNTED_MAX,
                limit=STEPS_MAX,
            ),
        )


async def search_events(
    pool: Pool,
    *,
    kind: str | None,
    account_id: UUID | None,
    job_id: UUID | None,
    node_id: UUID | None,
    before: int | None,
    limit: int,
) -> Found:
    """`kind` is one, or what several begin with, such as `payout`."""
    async with pool.acquire() as conn:
        if before is None:
            before = await store.find_newest_event(conn) + 1
        events = await store.search_events(
            conn,
            before=before,
            ids_max=SEARCHED_IDS_MAX,
            kind=kind,
            account_id=account_id,
            job_id=job_id,
            node_id=node_id,
            limit=limit,
        )
    following = events[-1].id if len(events) == limit else before - SEARCHED_IDS_MAX
    return Found(events, following if following > 1 else None)


async def count_desk(pool: Pool) -> tuple[DeskCounts, float]:
    """What waits for the operator, and how long the database took to say what time it is."""
    async with pool.acquire() as conn:
        started = clock.seconds()
        await hub_store.get_now(conn)
        seconds = clock.seconds() - started
        return await store.count_desk(conn), seconds
