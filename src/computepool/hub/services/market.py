"""The tick of the market: counts what is lent, waits and was paid, moves spot, keeps its history and the index. All
hubs follow it.

One hub ticks for all. What it counts is bounded: runs of the queue, slices of a run, nodes of the fleet; and it is
counted by the database, so that next to nothing of it passes through the loop that serves calls.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.ids import AccountId, ShapeId
from computepool.core.market.index import DealGroup, list_levels
from computepool.core.market.rate_card import CPU_TIER, Bucket, RateCard, parse_rate_card
from computepool.core.market.spot import (
    TICK_SECONDS,
    SpotState,
    Supply,
    Waiting,
    advance,
    list_buckets_with_backlog,
    measure_pressures,
    price_spot,
)
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.hub.services.links import load_links
from computepool.hub.services.offers import find_closed
from computepool.hub.services.prices import PriceBook, ceiling_of
from computepool.hub.store import hub as hub_store
from computepool.hub.store import market as store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.market import CountedFleet, IndexPoint, SpotPoint, StoredCard, StoredSpot, WaitingRun

HISTORY_DAYS = 90
HISTORY_DELETED_MAX = 10_000
HISTORY_POINTS_MAX = 1_000
# Of the index of all buckets at once: each of its ticks is looked at.
INDEX_HOURS_MAX = 48
# A first tick, or one after a long silence, looks no further back for deals.
DEALS_SPAN = timedelta(hours=1)
RUNS_MAX = 1_000
# Slices of one run that are counted. Beyond half of a bucket's slots an account's queue adds nothing anyway.
WAITING_MAX = 50_000
FLEET_NODES_MAX = 100_000
# What those that run would pay is kept by ceiling, the most seconds first.
BIDS_MAX = 64
# Slots that stand idle although somebody pays spot are of no use to whoever waits: beyond this part of them, spot has
# no force. Without it a slice that fits no slot after all would keep others waiting for ever.
IDLE_PARTS = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tick decides by."""

    states: Mapping[Bucket, StoredSpot]
    spots: Mapping[Bucket, int]
    fleet: CountedFleet
    waiting: Sequence[WaitingRun]
    shapes: Mapping[ShapeId, Shape]
    links: Mapping[AccountId, AccountId]
    # Since the last tick.
    deals: Sequence[DealGroup]


async def keep_rate_card(pool: Pool, card: RateCard, content: str) -> None:
    """Attempts name versions: what each of them said is kept for ever."""
    async with pool.acquire() as conn:
        await store.insert_rate_card(conn, version=card.version, content=content)


async def get_rate_card(pool: Pool, card: RateCard, version: str | None = None) -> tuple[RateCard, StoredCard]:
    """The card in force, or an earlier version of it, and how it is kept."""
    version = version or card.version
    async with pool.acquire() as conn:
        found = await store.find_rate_card(conn, version)
    if found is None:
        raise NotFound(f"No rate card of this hub ever had the version {version!r}.")
    return (card if version == card.version else _read_again(found)), found


def _read_again(kept: StoredCard) -> RateCard:
    """Never with other figures than it had: what it derives, such as purchasing power, may have changed since."""
    try:
        card = parse_rate_card(kept.content)
    except ValueError:
        card = None
    if card is None or card.version != kept.version:
        raise Conflict(f"The rate card {kept.version} is kept, but was written for an earlier form of the hub.")
    return card


async def tick(
    pool: Pool, card: RateCard, *, silence_seconds: float, every_seconds: float = TICK_SECONDS
) -> Mapping[Bucket, StoredSpot] | None:
    """None: it is not time yet, or another hub is at it."""
    # Under the lock each statement must see what the hub before has committed.
    async with pool.acquire() as conn, conn.transaction(isolation="read_committed"):
        if await store.find_due(conn, seconds=every_seconds) is None or not await store.try_lock(conn):
            return None
        at = await store.find_due(conn, seconds=every_seconds)
        if at is None:
            return None
        seen = await _load(conn, card, at=at, silence_seconds=silence_seconds)
        # Many shapes against many groups of slots: the loop goes on serving others meanwhile.
        moved = await asyncio.to_thread(decide_tick, card, seen, at)
        await store.upsert_states(conn, moved, rate_card_version=card.version, at=at)
        await store.record_history(conn, at=at)
        await store.record_index(conn, list_levels(seen.deals, card.reference), card, at=at)
        for delete in (store.delete_history, store.delete_index):
            await delete(conn, before=at - timedelta(days=HISTORY_DAYS), limit=HISTORY_DELETED_MAX)
        await store.set_clock(conn, at)
    return moved


async def follow(pool: Pool, prices: PriceBook, waiting_shapes: Iterable[Shape]) -> bool:
    """Takes over what the last tick said. `waiting_shapes` is what this hub knows of the queue: where nobody is left
    who pays spot, it has no force, and nobody waits for the next tick. True: what slots ask, or are scored by, has
    changed."""
    async with pool.acquire() as conn:
        states = await store.list_states(conn)
    spots = list_spots(prices.card, states)
    told = {bucket for bucket, each in states.items() if each.contested and bucket in spots}
    contested = keep_contested(prices.card, spots, told, waiting_shapes)
    return prices.follow(spots, contested)


async def list_states(pool: Pool) -> dict[Bucket, StoredSpot]:
    async with pool.acquire() as conn:
        return await store.list_states(conn)


async def list_history(pool: Pool, card: RateCard, bucket: Bucket, *, hours: float) -> list[SpotPoint]:
    """Oldest first, thinned out to a bounded number."""
    check_bucket(card, bucket)
    if not 0 < hours <= HISTORY_DAYS * 24:
        raise InvalidRequest(f"hours is above 0, and {HISTORY_DAYS * 24:,} at most.")
    step_seconds = max(float(TICK_SECONDS), hours * 3_600 / HISTORY_POINTS_MAX)
    async with pool.acquire() as conn:
        since = await hub_store.get_now(conn) - timedelta(hours=hours)
        return await store.list_history(
            conn, bucket, since=since, step_seconds=step_seconds, limit=HISTORY_POINTS_MAX + 2
        )


async def find_index(
    pool: Pool, card: RateCard, bucket: Bucket | None, *, hours: float
) -> tuple[list[IndexPoint], list[IndexPoint]]:
    """Over all of these hours, of one bucket or of each that has an index; and, of one, its points, oldest first."""
    if bucket is not None:
        check_bucket(card, bucket)
    hours_max = INDEX_HOURS_MAX if bucket is None else HISTORY_DAYS * 24
    if not 0 < hours <= hours_max:
        which = "of all tiers at once" if bucket is None else "of one tier"
        raise InvalidRequest(f"hours is above 0, and {hours_max:,} at most for the index {which}.")
    wanted = [bucket] if bucket else list_buckets(card)
    whole, step = hours * 3_600 * 2, max(float(TICK_SECONDS), hours * 3_600 / HISTORY_POINTS_MAX)
    async with pool.acquire() as conn:
        since = await hub_store.get_now(conn) - timedelta(hours=hours)
        levels = await store.list_index(conn, wanted, since=since, step_seconds=whole, limit=len(wanted))
        if bucket is None:
            return levels, []
        limit = HISTORY_POINTS_MAX + 2
        return levels, await store.list_index(conn, wanted, since=since, step_seconds=step, limit=limit)


def check_bucket(card: RateCard, bucket: Bucket) -> None:
    if bucket.tier not in list_tiers(card):
        raise InvalidRequest(f"The rate card has no tier {bucket.tier!r}; there are {', '.join(list_tiers(card))}.")
    if bucket.region not in card.regions:
        raise InvalidRequest(
            f"The rate card has no region {bucket.region!r}; there are {', '.join(sorted(card.regions))}."
        )


def list_tiers(card: RateCard) -> list[str]:
    return [*card.tiers_ppm, *(step.tier for step in card.unknown_steps)]


def list_buckets(card: RateCard) -> list[Bucket]:
    return [Bucket(tier, region) for tier in list_tiers(card) for region in card.regions]


def list_spots(card: RateCard, states: Mapping[Bucket, StoredSpot]) -> dict[Bucket, int]:
    """By this hub's own card: a hub that was started with another one moves its prices, not its surges."""
    tiers = set(list_tiers(card))
    return {
        bucket: price_spot(card.reference(bucket), each.state)
        for bucket, each in states.items()
        if bucket.tier in tiers and bucket.region in card.regions
    }


# What a tick looks at


async def _load(conn: Connection, card: RateCard, *, at: datetime, silence_seconds: float) -> Seen:
    states = await store.list_states(conn)
    spots = {bucket: card.reference(bucket) for bucket in list_buckets(card)} | list_spots(card, states)
    waiting = await store.list_waiting(conn, runs_max=RUNS_MAX, count_max=WAITING_MAX)
    links = await load_links(conn)
    last_tick_at = await store.find_last_tick(conn) or at - DEALS_SPAN
    waiting_groups = {links.get(run.account_id, run.account_id) for run in waiting}
    return Seen(
        states=states,
        spots=spots,
        fleet=await store.count_fleet(
            conn,
            card,
            spots,
            links=links,
            watched_ids=waiting_groups | {id for id, group in links.items() if group in waiting_groups},
            closed=await find_closed(conn, at),
            silence_seconds=silence_seconds,
            fleet_max=FLEET_NODES_MAX,
        ),
        waiting=waiting,
        shapes=await shape_store.list_shapes(conn, {run.shape_id for run in waiting}),
        links=links,
        deals=await store.list_deals(
            conn,
            card,
            links=links,
            since=max(last_tick_at, at - DEALS_SPAN),
            until=at,
            silence_seconds=silence_seconds,
            fleet_max=FLEET_NODES_MAX,
        ),
    )


# What it decides


@dataclass(slots=True)
class _Count:
    """What is counted of one bucket."""

    slots: int = 0
    busy: int = 0
    # Lent for no more than spot, and nobody there.
    idle: int = 0
    running: int = 0
    seconds: int = 0
    bids: defaultdict[int | None, int] = field(default_factory=lambda: defaultdict(int))


def decide_tick(card: RateCard, seen: Seen, at: datetime) -> dict[Bucket, StoredSpot]:
    """Every bucket that has slots, or ever had."""
    counts = _count(seen)
    owner_ids = seen.fleet.owner_ids
    supplies = {
        bucket: Supply(each.slots, each.busy, owner_ids.get(bucket, frozenset())) for bucket, each in counts.items()
    }
    waiting = _to_waiting(card, seen)
    pressures = measure_pressures(supplies, waiting, seen.spots, seen.links)
    buckets = {bucket for bucket in seen.states if bucket in seen.spots} | set(counts)
    states = {
        bucket: advance(seen.states[bucket].state if bucket in seen.states else SpotState(), pressures.get(bucket))
        for bucket in sorted(buckets)
    }
    spots = {bucket: price_spot(card.reference(bucket), state) for bucket, state in states.items()}
    queues = _count_queues(supplies, waiting, spots)
    with_backlog = list_buckets_with_backlog(waiting, spots)
    moved = {}
    for bucket, state in states.items():
        count = counts.get(bucket, _Count())
        moved[bucket] = StoredSpot(
            state=state,
            spot_microcredits_per_hour=spots[bucket],
            reference_microcredits_per_hour=card.reference(bucket),
            rate_card_version=card.version,
            slot_count=count.slots,
            busy_count=count.busy,
            waiting_count=queues[bucket],
            contested=bucket in with_backlog and count.slots > 0 and count.idle * IDLE_PARTS <= count.slots,
            seconds_mean=max(1, count.seconds // count.running) if count.running else None,
            bids=_list_bids(count),
            at=at,
        )
    return moved


def _count(seen: Seen) -> dict[Bucket, _Count]:
    counts: defaultdict[Bucket, _Count] = defaultdict(_Count)
    for use in seen.fleet.uses:
        count = counts[use.bucket]
        if use.own:
            continue
        count.slots += use.spot_count
        ceiling = use.ceiling_microcredits_per_hour
        if not use.busy:
            count.idle += use.spot_count
            continue
        if ceiling is None or ceiling >= seen.spots[use.bucket]:
            count.busy += use.spot_count
        count.running += use.slot_count
        count.seconds += use.expected_seconds
        count.bids[ceiling] += use.expected_seconds
    return dict(counts)


def _to_waiting(card: RateCard, seen: Seen) -> list[Waiting]:
    """A bucket is one of theirs if a slot of it would pass their gates, by the best that such slots have.

    What a fixed price comes to differs from bucket to bucket: those where it does not pay spot are left out.
    """
    by_bucket: defaultdict[Bucket, list[Slot]] = defaultdict(list)
    for each in seen.fleet.classes:
        by_bucket[each.bucket].append(each.slot)
    # Many shapes differ in what they pay alone, which is no gate here.
    fitting: dict[Shape, tuple[Bucket, ...]] = {}

    def find_buckets(shape: Shape) -> tuple[Bucket, ...]:
        gates = replace(shape, ceiling_microcredits_per_hour=None, base_ceiling_microcredits_per_hour=None)
        if gates not in fitting:
            fitting[gates] = tuple(
                bucket
                for bucket in sorted(by_bucket)
                if any(find_refusal(gates, slot) is None for slot in by_bucket[bucket])
            )
        if shape.base_ceiling_microcredits_per_hour is None:
            return fitting[gates]
        return tuple(bucket for bucket in fitting[gates] if _pays(card, shape, bucket, seen.spots[bucket]))

    buckets_of = {shape_id: find_buckets(shape) for shape_id, shape in seen.shapes.items()}
    return [
        Waiting(
            account_id=run.account_id,
            slice_count=run.slice_count,
            ceiling_microcredits_per_hour=seen.shapes[run.shape_id].ceiling_microcredits_per_hour,
            buckets=buckets_of[run.shape_id],
        )
        for run in seen.waiting
    ]


def _count_queues(
    supplies: Mapping[Bucket, Supply], waiting: Iterable[Waiting], spots: Mapping[Bucket, int]
) -> defaultdict[Bucket, int]:
    """Slices that wait and would pay spot; who could run in many buckets counts in each by its part of the slots."""
    queues: defaultdict[Bucket, int] = defaultdict(int)
    for each in waiting:
        ceiling = each.ceiling_microcredits_per_hour
        slots = {
            bucket: supplies[bucket].slot_count
            for bucket in each.buckets
            if supplies[bucket].slot_count and (ceiling is None or ceiling >= spots[bucket])
        }
        total = sum(slots.values())
        for bucket, count in slots.items():
            queues[bucket] += -(-each.slice_count * count // total)
    return queues


def _list_bids(count: _Count) -> tuple[tuple[int | None, int], ...]:
    rows = sorted(count.bids.items(), key=lambda bid: (-bid[1], bid[0] or 0))
    return tuple(rows[:BIDS_MAX])


def keep_contested(
    card: RateCard, spots: Mapping[Bucket, int], told: Collection[Bucket], waiting_shapes: Iterable[Shape]
) -> frozenset[Bucket]:
    """Of the buckets where spot had force at the tick, those where somebody may still wait who pays it."""
    left = set(told)
    kept: set[Bucket] = set()
    for shape in waiting_shapes if left else ():
        kept |= {bucket for bucket in left - kept if _may_pay(card, shape, bucket, spots[bucket])}
        if len(kept) == len(left):
            break
    return frozenset(kept)


def _pays(card: RateCard, shape: Shape, bucket: Bucket, price: int) -> bool:
    ceiling = ceiling_of(card, shape, bucket)
    return ceiling is None or ceiling >= price


def _may_pay(card: RateCard, shape: Shape, bucket: Bucket, spot: int) -> bool:
    if not _pays(card, shape, bucket, spot):
        return False
    if shape.gpu and bucket.tier == CPU_TIER:
        return False
    if shape.regions and bucket.region not in {card.region_of(country) for country in shape.regions}:
        return False
    # A card without a row of its own is in a bucket by its speed, whatever it is called.
    is_unnamed = bucket.tier not in card.tiers_ppm and any(tier not in card.tiers_ppm for tier in shape.tiers)
    return not shape.tiers or bucket.tier in shape.tiers or is_unnamed
