"""The market's rows: rate cards, the state of every bucket, its history, the index; and what a tick and a quote
count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from computepool.core.ids import AccountId, NodeId, ShapeId
from computepool.core.market.index import DealGroup, Level
from computepool.core.market.ppm import to_ppm
from computepool.core.market.rate_card import UNIT, Bucket, RateCard
from computepool.core.market.regions import DEFAULT_REGION
from computepool.core.market.spot import SpotState
from computepool.core.placement.scorers import DECLARED_SPEED_RATIO_MAX, TIER_TFLOPS
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.tier import UNKNOWN_TIER
from computepool.hub.store.connect import Connection
from computepool.hub.store.nodes import to_slot
from computepool.hub.store.offers import Closed
from computepool.hub.store.queries import load_queries

_q = load_queries("market")

# Any constant will do, as long as every hub uses the same one.
_ADVISORY_LOCK = 7_263_003
_NO_NODE = NodeId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class StoredCard:
    version: str
    # TOML.
    content: str
    first_used_at: datetime


@dataclass(frozen=True, slots=True)
class StoredSpot:
    """A bucket as of its last tick."""

    state: SpotState
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    rate_card_version: str
    # Lent for no more than spot; of them busy at that price; and slices that wait and would pay it.
    slot_count: int
    busy_count: int
    waiting_count: int
    # Somebody waits who pays spot, and there is no room: nobody starts for less.
    contested: bool
    # None while nothing runs there.
    seconds_mean: int | None
    # What those that ran would pay at most (None: any price), and their expected seconds.
    bids: tuple[tuple[int | None, int], ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class SpotPoint:
    """One row of the history."""

    at: datetime
    surge_ppm: int
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    rate_card_version: str
    slot_count: int
    busy_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class IndexPoint:
    """What an hour cost between strangers, over the time up to a moment."""

    bucket: Bucket
    at: datetime
    level: Level
    reference_microcredits_per_hour: int


@dataclass(frozen=True, slots=True)
class WaitingRun:
    account_id: AccountId
    shape_id: ShapeId
    slice_count: int


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Slots of one bucket that are used alike."""

    bucket: Bucket
    slot_count: int
    # Of them, lent for no more than spot.
    spot_count: int
    busy: bool
    # Busy with work of the slot's own owner, or of an account linked with it.
    own: bool
    # Of what runs there; None: any price, or nothing runs.
    ceiling_microcredits_per_hour: int | None
    # Of all that runs there.
    expected_seconds: int


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Slots of one bucket that are alike in name and place."""

    bucket: Bucket
    # With the most that any of them has of each thing.
    slot: Slot


@dataclass(frozen=True, slots=True)
class CountedFleet:
    """What is lent now, counted by bucket in three ways."""

    uses: list[SlotUse]
    classes: list[SlotClass]
    # Who lends there, among those who were asked for.
    owner_ids: Mapping[Bucket, frozenset[AccountId]]


@dataclass(frozen=True, slots=True)
class FittingBucket:
    """The public slots of a bucket that pass every gate of a shape, and those of them that its ceiling pays for."""

    bucket: Bucket
    slot_count: int
    free_count: int
    affordable_count: int
    affordable_free_count: int
    # Of the account that asks, public or not; it pays nothing for them.
    own_count: int
    own_free_count: int
    # The lowest.
    floor_microcredits_per_hour: int
    # Of other people's private pools that take the account for no more than its ceiling, and the least that they ask.
    pool_count: int
    pool_floor_microcredits_per_hour: int | None


# Rate cards


async def insert_rate_card(conn: Connection, *, version: str, content: str) -> None:
    await _q.insert_rate_card(conn, version=version, content=content)


async def find_rate_card(conn: Connection, version: str) -> StoredCard | None:
    row = await _q.find_rate_card(conn, version=version)
    return StoredCard(row["version"], row["content"], row["first_used_at"]) if row else None


# The tick


async def try_lock(conn: Connection) -> bool:
    """Until the end of the transaction. False: another hub is at it."""
    return bool(await _q.try_lock(conn, key=_ADVISORY_LOCK))


async def find_due(conn: Connection, *, seconds: float) -> datetime | None:
    """The database's time if the last tick is at least so long ago; else None."""
    due: datetime | None = await _q.find_due(conn, seconds=seconds)
    return due


async def find_last_tick(conn: Connection) -> datetime | None:
    at: datetime | None = await _q.find_last_tick(conn)
    return at


async def set_clock(conn: Connection, at: datetime) -> None:
    await _q.set_clock(conn, at=at)


async def list_waiting(conn: Connection, *, runs_max: int, count_max: int) -> list[WaitingRun]:
    rows = _q.list_waiting(conn, runs_max=runs_max, count_max=count_max)
    return [WaitingRun(row["account_id"], ShapeId(row["shape_id"]), row["slice_count"]) async for row in rows]


async def list_linked(conn: Connection, *, limit: int) -> list[list[AccountId]]:
    """Accounts that are paid out to one place, together."""
    return [row["account_ids"] async for row in _q.list_linked(conn, limit_count=limit)]


async def count_fleet(
    conn: Connection,
    card: RateCard,
    spots: Mapping[Bucket, int],
    *,
    links: Mapping[AccountId, AccountId],
    watched_ids: Collection[AccountId],
    closed: Closed,
    silence_seconds: float,
    fleet_max: int,
) -> CountedFleet:
    """`spots` has a price for every bucket of the card; `watched_ids` are the owners that are told."""
    buckets = list(spots)
    rows = _q.count_fleet(
        conn,
        **to_card_arrays(card),
        **closed.to_arrays(),
        spot_tiers=[bucket.tier for bucket in buckets],
        spot_regions=[bucket.region for bucket in buckets],
        spots=list(spots.values()),
        multipliers=[card.multiplier(bucket) for bucket in spots],
        multiplier_unit=UNIT,
        linked_ids=list(links),
        group_ids=list(links.values()),
        watched_ids=list(watched_ids),
        silence_seconds=silence_seconds,
        fleet_max=fleet_max,
    )
    uses: list[SlotUse] = []
    classes: list[SlotClass] = []
    owner_ids: defaultdict[Bucket, set[AccountId]] = defaultdict(set)
    async for row in rows:
        bucket = buckets[row["place"] - 1]
        if row["by_use"]:
            uses.append(_to_slot_use(row, bucket))
        elif row["by_class"]:
            classes.append(SlotClass(bucket, to_slot(row, node_id=_NO_NODE, name="")))
        elif row["watched_id"] is not None:
            owner_ids[bucket].add(row["watched_id"])
    return CountedFleet(uses, classes, {bucket: frozenset(ids) for bucket, ids in owner_ids.items()})


def _to_slot_use(row: Any, bucket: Bucket) -> SlotUse:
    return SlotUse(
        bucket=bucket,
        slot_count=row["slot_count"],
        spot_count=row["spot_count"],
        busy=row["busy"],
        own=row["own"],
        ceiling_microcredits_per_hour=row["ceiling_microcredits_per_hour"],
        expected_seconds=row["expected_seconds"],
    )


async def list_deals(
    conn: Connection,
    card: RateCard,
    *,
    links: Mapping[AccountId, AccountId],
    since: datetime,
    until: datetime,
    silence_seconds: float,
    fleet_max: int,
) -> list[DealGroup]:
    """What ended after `since` and not after `until`, and was paid for."""
    rows = _q.list_deals(
        conn,
        **to_card_arrays(card),
        linked_ids=list(links),
        group_ids=list(links.values()),
        since=since,
        until=until,
        silence_seconds=silence_seconds,
        fleet_max=fleet_max,
    )
    return [
        DealGroup(
            bucket=_to_bucket(row),
            price_microcredits_per_hour=row["price_microcredits_per_hour"],
            deal_count=row["deal_count"],
            seconds=row["seconds"],
            is_linked=row["linked"],
            is_private=row["pooled"],
        )
        async for row in rows
    ]


async def list_fitting_buckets(
    conn: Connection,
    card: RateCard,
    shape: Shape,
    ceilings: Mapping[Bucket, int],
    *,
    account_id: AccountId,
    closed: Closed,
    silence_seconds: float,
    fleet_max: int,
) -> list[FittingBucket]:
    """`ceilings` has what the shape pays at most in every bucket of the card."""
    rows = _q.list_fitting_buckets(
        conn,
        **to_card_arrays(card),
        **closed.to_arrays(),
        job_kind=shape.job_kind,
        slice_seconds=shape.slice_seconds,
        gpu=shape.gpu,
        vram_bytes=shape.vram_bytes,
        cores=shape.cores,
        ram_bytes=shape.ram_bytes,
        disk_bytes=shape.disk_bytes,
        tiers=list(shape.tiers),
        regions=list(shape.regions),
        isolation=shape.isolation,
        ceiling_tiers=[bucket.tier for bucket in ceilings],
        ceiling_regions=[bucket.region for bucket in ceilings],
        ceilings=list(ceilings.values()),
        account_id=account_id,
        silence_seconds=silence_seconds,
        fleet_max=fleet_max,
    )
    return [
        FittingBucket(
            bucket=_to_bucket(row),
            slot_count=row["slot_count"],
            free_count=row["free_count"],
            affordable_count=row["affordable_count"],
            affordable_free_count=row["affordable_free_count"],
            own_count=row["own_count"],
            own_free_count=row["own_free_count"],
            floor_microcredits_per_hour=row["floor_microcredits_per_hour"],
            pool_count=row["pool_count"],
            pool_floor_microcredits_per_hour=row["pool_floor_microcredits_per_hour"],
        )
        async for row in rows
    ]


# States and history


async def list_states(conn: Connection) -> dict[Bucket, StoredSpot]:
    return {
        Bucket(row["tier"], row["region"]): StoredSpot(
            state=SpotState(row["surge_ppm"], row["target_ppm"], row["step_ppm"], row["direction"]),
            spot_microcredits_per_hour=row["spot_microcredits_per_hour"],
            reference_microcredits_per_hour=row["reference_microcredits_per_hour"],
            rate_card_version=row["rate_card_version"],
            slot_count=row["slot_count"],
            busy_count=row["busy_count"],
            waiting_count=row["waiting_count"],
            contested=row["contested"],
            seconds_mean=row["seconds_mean"],
            bids=tuple((ceiling, seconds) for ceiling, seconds in row["bids"]),
            at=row["at"],
        )
        async for row in _q.list_states(conn)
    }


async def upsert_states(
    conn: Connection, states: Mapping[Bucket, StoredSpot], *, rate_card_version: str, at: datetime
) -> None:
    found = list(states.values())
    await _q.upsert_states(
        conn,
        tiers=[bucket.tier for bucket in states],
        regions=[bucket.region for bucket in states],
        surges=[each.state.surge_ppm for each in found],
        targets=[each.state.target_ppm for each in found],
        steps=[each.state.step_ppm for each in found],
        directions=[each.state.direction for each in found],
        spots=[each.spot_microcredits_per_hour for each in found],
        reference_prices=[each.reference_microcredits_per_hour for each in found],
        slot_counts=[each.slot_count for each in found],
        busy_counts=[each.busy_count for each in found],
        waiting_counts=[each.waiting_count for each in found],
        contested=[each.contested for each in found],
        seconds_means=[each.seconds_mean for each in found],
        bids=[msgspec.json.encode(each.bids).decode() for each in found],
        rate_card_version=rate_card_version,
        at=at,
    )


async def record_history(conn: Connection, *, at: datetime) -> None:
    await _q.record_history(conn, at=at)


async def delete_history(conn: Connection, *, before: datetime, limit: int) -> None:
    await _q.delete_history(conn, before=before, limit_count=limit)


async def record_index(conn: Connection, levels: Mapping[Bucket, Level], card: RateCard, *, at: datetime) -> None:
    found = list(levels.values())
    await _q.record_index(
        conn,
        **_to_bucket_arrays(levels),
        prices=[each.price_microcredits_per_hour for each in found],
        reference_prices=[card.reference(bucket) for bucket in levels],
        deal_counts=[each.deal_count for each in found],
        seconds=[each.seconds for each in found],
        rate_card_version=card.version,
        at=at,
    )


async def delete_index(conn: Connection, *, before: datetime, limit: int) -> None:
    await _q.delete_index(conn, before=before, limit_count=limit)


async def list_index(
    conn: Connection, buckets: Iterable[Bucket], *, since: datetime, step_seconds: float, limit: int
) -> list[IndexPoint]:
    """By bucket, oldest first."""
    rows = _q.list_index(
        conn, **_to_bucket_arrays(buckets), since=since, step_seconds=step_seconds, limit_count=limit
    )
    return [_to_index_point(row) async for row in rows]


async def list_history(
    conn: Connection, bucket: Bucket, *, since: datetime, step_seconds: float, limit: int
) -> list[SpotPoint]:
    """Oldest first."""
    rows = _q.list_history(
        conn, tier=bucket.tier, region=bucket.region, since=since, step_seconds=step_seconds, limit_count=limit
    )
    return [_to_point(row) async for row in rows]


async def list_points(
    conn: Connection, buckets: Sequence[Bucket], *, since: datetime, until: datetime
) -> dict[Bucket, SpotPoint]:
    """The last point of each bucket within this span."""
    rows = _q.list_points(conn, **_to_bucket_arrays(buckets), since=since, until=until)
    return {Bucket(row["tier"], row["region"]): _to_point(row) async for row in rows}


async def list_use(conn: Connection, buckets: Sequence[Bucket], *, since: datetime) -> dict[Bucket, tuple[int, int]]:
    """Slots lent, and slots busy, summed over the ticks since then."""
    rows = _q.list_use(conn, **_to_bucket_arrays(buckets), since=since)
    return {Bucket(row["tier"], row["region"]): (row["slot_sum"], row["busy_sum"]) async for row in rows}


def to_card_arrays(card: RateCard) -> dict[str, Any]:
    """The rules of `RateCard.bucket_of` as a query can follow them. Speeds as `make_candidate` takes them."""
    known = {tier: tflops for tier, tflops in TIER_TFLOPS.items() if tier != UNKNOWN_TIER}
    steps = sorted(card.unknown_steps, key=lambda step: step.tflops_min)
    return {
        "card_tiers": list(card.tiers_ppm),
        "step_tiers": [step.tier for step in steps],
        "step_tflops": [float(step.tflops_min) for step in steps],
        "tiers_known": list(known),
        "tiers_tflops": list(known.values()),
        "unknown_tflops": TIER_TFLOPS[UNKNOWN_TIER],
        "declared_ratio_max": DECLARED_SPEED_RATIO_MAX,
        "countries": list(card.region_by_country),
        "country_regions": list(card.region_by_country.values()),
        "default_region": DEFAULT_REGION,
    }


def _to_bucket_arrays(buckets: Iterable[Bucket]) -> dict[str, list[str]]:
    wanted = list(buckets)
    return {"tiers": [bucket.tier for bucket in wanted], "regions": [bucket.region for bucket in wanted]}


def _to_bucket(row: Any) -> Bucket:
    return Bucket(row["bucket_tier"], row["bucket_region"])


def _to_index_point(row: Any) -> IndexPoint:
    price, reference = row["price_microcredits_per_hour"], row["reference_microcredits_per_hour"]
    return IndexPoint(
        bucket=Bucket(row["tier"], row["region"]),
        at=row["at"],
        level=Level(price, to_ppm(price, max(reference, 1)), row["deal_count"], row["seconds"]),
        reference_microcredits_per_hour=reference,
    )


def _to_point(row: Any) -> SpotPoint:
    return SpotPoint(
        at=row["at"],
        surge_ppm=row["surge_ppm"],
        spot_microcredits_per_hour=row["spot_microcredits_per_hour"],
        reference_microcredits_per_hour=row["reference_microcredits_per_hour"],
        rate_card_version=row["rate_card_version"],
        slot_count=row["slot_count"],
        busy_count=row["busy_count"],
        waiting_count=row["waiting_count"],
    )
