"""Quotes for submitters and forecasts for owners, from the market as it is now. Looks only: nothing is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ids import AccountId
from computepool.core.ledger.amount import Microcredits
from computepool.core.market.earnings import (
    Bid,
    FloorEarnings,
    TierEarnings,
    find_best_floor,
    list_floor_earnings,
    list_tier_earnings,
)
from computepool.core.market.ppm import to_ppm
from computepool.core.market.price import price_slice
from computepool.core.market.quote import BucketDay, BucketView, Quote, QuoteAsk, Range, make_quote
from computepool.core.market.rate_card import Bucket, RateCard
from computepool.core.market.regions import DEFAULT_REGION
from computepool.core.placement.scorers import to_speed
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.market import check_bucket, list_buckets, list_spots
from computepool.hub.services.offers import find_closed
from computepool.hub.services.prices import PriceBook, ceiling_of
from computepool.hub.services.submissions import Submission, check_submission
from computepool.hub.store import hub as hub_store
from computepool.hub.store import market as store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.market import FittingBucket, SpotPoint, StoredSpot
from computepool.wire import jobs as wire_jobs
from computepool.wire import market as wire

FLEET_NODES_MAX = 100_000
OWN_NODES_MAX = 1_000
# "Yesterday" is the last tick that is a day old, if it is not much older.
DAY = timedelta(days=1)
YESTERDAY_SPAN = timedelta(hours=3)
# How long a slice is taken to hold a slot where none runs to learn it from.
SECONDS_USUAL = 600
# Without a word from the submitter: parts of the wall limit.
LOW_PARTS, LIKELY_PARTS = 10, 2


@dataclass(frozen=True, slots=True)
class JobQuote:
    quote: Quote
    ask: QuoteAsk
    # As a submit would have it.
    submission: Submission
    states: dict[Bucket, StoredSpot]
    spots: dict[Bucket, int]
    # Slots of the caller's own that could run it, where it costs nothing.
    own_slot_count: int
    # Of other people's private pools that take the caller, and the least that they ask.
    pool_slot_count: int
    pool_price_microcredits_per_hour: int | None
    quoted_at: datetime


@dataclass(frozen=True, slots=True)
class BucketEarnings:
    bucket: Bucket
    # Slots of the caller's own in this bucket.
    own_slot_count: int
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    # How much of the time slots of this bucket were in use, over the last day.
    busy_ppm: int
    seconds_per_job: int
    floors: list[FloorEarnings]
    best: FloorEarnings


@dataclass(frozen=True, slots=True)
class Earnings:
    region: str
    buckets: list[BucketEarnings]
    tiers: list[TierEarnings]


async def quote_job(
    pool: Pool, settings: HubSettings, prices: PriceBook, caller: AccountCaller, request: wire.QuoteRequest
) -> JobQuote:
    spec = wire_jobs.JobSpec(
        command=("true",),
        requirements=request.requirements,
        kind=request.kind,
        slice_count=request.slice_count,
        wall_seconds=request.wall_seconds,
        price=request.price,
    )
    # The very words and sums of a submit: what is quoted as held is what is held.
    submission = check_submission(caller, spec, prices, idempotency_key=None)
    ask = _to_ask(request, submission)
    async with pool.acquire() as conn:
        now = await hub_store.get_now(conn)
        fitting = await store.list_fitting_buckets(
            conn,
            prices.card,
            submission.shape,
            {bucket: ceiling_of(prices.card, submission.shape, bucket) or 0 for bucket in list_buckets(prices.card)},
            account_id=caller.account_id,
            closed=await find_closed(conn, now),
            silence_seconds=settings.lease_seconds,
            fleet_max=FLEET_NODES_MAX,
        )
        states = await store.list_states(conn)
        buckets = [each.bucket for each in fitting]
        yesterday = await store.list_points(conn, buckets, since=now - DAY - YESTERDAY_SPAN, until=now - DAY)
    spots = list_spots(prices.card, states)
    views = [_to_view(prices.card, submission, each, states, spots, yesterday.get(each.bucket)) for each in fitting]
    pool_prices = [each.pool_floor_microcredits_per_hour for each in fitting]
    quote = make_quote(ask, views, fee_ppm=prices.card.fee_ppm)
    if any(each.own_free_count for each in fitting):
        quote = replace(quote, starts_in_seconds=0)
    return JobQuote(
        quote=_keep_within(quote, submission.hold_microcredits),
        ask=ask,
        submission=submission,
        states=states,
        spots=spots,
        own_slot_count=sum(each.own_count for each in fitting),
        pool_slot_count=sum(each.pool_count for each in fitting),
        pool_price_microcredits_per_hour=min((price for price in pool_prices if price is not None), default=None),
        quoted_at=now,
    )


def _to_ask(request: wire.QuoteRequest, submission: Submission) -> QuoteAsk:
    wall, expected = request.wall_seconds, request.expected_seconds
    if expected is not None and not 1 <= expected <= wall:
        raise InvalidRequest("expected_seconds is at least 1 and at most the wall limit.")
    return QuoteAsk(
        slice_count=request.slice_count,
        seconds_low=max(1, wall // LOW_PARTS if expected is None else expected // 2),
        seconds_likely=max(1, wall // LIKELY_PARTS) if expected is None else expected,
        seconds_high=wall,
        ceiling_microcredits_per_hour=submission.shape.ceiling_microcredits_per_hour,
        is_fixed=submission.slice_price is not None,
    )


def _to_view(
    card: RateCard,
    submission: Submission,
    fitting: FittingBucket,
    states: dict[Bucket, StoredSpot],
    spots: dict[Bucket, int],
    yesterday: SpotPoint | None,
) -> BucketView:
    """Slots beyond the ceiling count only where there are no others: then they say why it would not start."""
    bucket, state = fitting.bucket, states.get(fitting.bucket)
    reference = card.reference(bucket)
    affordable = fitting.affordable_count > 0
    return BucketView(
        bucket=bucket,
        reference_microcredits_per_hour=reference,
        today=BucketDay(
            spot_microcredits_per_hour=spots.get(bucket, reference),
            slot_count=state.slot_count if state else fitting.slot_count,
            busy_count=state.busy_count if state else 0,
            waiting_count=state.waiting_count if state else 0,
            card_version=card.version,
        ),
        yesterday=_to_day(yesterday) if yesterday else None,
        slot_count=fitting.affordable_count if affordable else fitting.slot_count,
        free_count=fitting.affordable_free_count if affordable else fitting.free_count,
        floor_microcredits_per_hour=fitting.floor_microcredits_per_hour,
        seconds_mean=(state.seconds_mean if state else None) or SECONDS_USUAL,
        slice_price_microcredits=_price_slice(card, submission, bucket),
        is_below_floor=not affordable,
    )


def _price_slice(card: RateCard, submission: Submission, bucket: Bucket) -> int:
    fixed = submission.slice_price
    if fixed is None:
        return 0
    return price_slice(
        card, bucket, base_microcredits=fixed.base_microcredits, ceiling_microcredits=fixed.ceiling_microcredits
    )


def _to_day(point: SpotPoint) -> BucketDay:
    return BucketDay(
        spot_microcredits_per_hour=point.spot_microcredits_per_hour,
        slot_count=point.slot_count,
        busy_count=point.busy_count,
        waiting_count=point.waiting_count,
        card_version=point.rate_card_version,
    )


def _keep_within(quote: Quote, hold: int) -> Quote:
    """Nothing is ever charged beyond what is held for a try: the quote's last grain of rounding is cut off."""
    if quote.cost is None:
        return quote
    cost = quote.cost
    return replace(
        quote,
        cost=Range(
            Microcredits(min(cost.low_microcredits, hold)),
            Microcredits(min(cost.likely_microcredits, hold)),
            Microcredits(min(cost.high_microcredits, hold)),
        ),
    )


# Owners


async def forecast_earnings(
    pool: Pool, prices: PriceBook, caller: AccountCaller, *, tier: str | None, country: str | None
) -> Earnings:
    """Of a machine of this tier and country; without a tier, of the caller's own machines."""
    card = prices.card
    async with pool.acquire() as conn:
        if tier is not None:
            wanted = Counter({Bucket(tier, card.region_of(country)): 0})
            check_bucket(card, next(iter(wanted)))
        else:
            wanted = await _count_own(conn, prices, caller.account_id)
        states = await store.list_states(conn)
        since = await hub_store.get_now(conn) - DAY
        use = await store.list_use(conn, list(wanted), since=since)
    spots = list_spots(card, states)
    region = card.region_of(country) if country else next((each.region for each in wanted), DEFAULT_REGION)
    return Earnings(
        region=region,
        buckets=[
            _forecast(card, bucket, states.get(bucket), spots, use.get(bucket), own_slot_count=wanted[bucket])
            for bucket in sorted(wanted)
        ],
        tiers=list_tier_earnings(card, region, spots=spots),
    )


async def _count_own(conn: Connection, prices: PriceBook, account_id: AccountId) -> Counter[Bucket]:
    nodes = await node_store.list_nodes(conn, account_id=account_id, after=UUID(int=0), limit=OWN_NODES_MAX)
    found = Counter(
        prices.find_bucket(each.slot, to_speed(each.slot, each.declared_tflops))
        for each in await node_store.list_candidates(conn, [node.id for node in nodes])
    )
    if not found:
        raise NotFound("You lend no machine yet. Name a tier to see what one would earn, such as --tier rtx-3060.")
    return found


def _forecast(
    card: RateCard,
    bucket: Bucket,
    state: StoredSpot | None,
    spots: dict[Bucket, int],
    use: tuple[int, int] | None,
    *,
    own_slot_count: int,
) -> BucketEarnings:
    reference = card.reference(bucket)
    spot = spots.get(bucket, reference)
    busy_ppm = to_ppm(use[1], use[0]) if use and use[0] else 0
    seconds_per_job = (state.seconds_mean if state else None) or SECONDS_USUAL
    floors = list_floor_earnings(
        spot=spot,
        busy_ppm=busy_ppm,
        bids=_to_bids(state.bids if state else ()),
        seconds_per_job=seconds_per_job,
        fee_ppm=card.fee_ppm,
    )
    return BucketEarnings(
        bucket=bucket,
        own_slot_count=own_slot_count,
        spot_microcredits_per_hour=spot,
        reference_microcredits_per_hour=reference,
        busy_ppm=busy_ppm,
        seconds_per_job=seconds_per_job,
        floors=floors,
        best=find_best_floor(floors),
    )


def _to_bids(rows: Sequence[tuple[int | None, int]]) -> list[Bid]:
    return [Bid(ceiling, seconds) for ceiling, seconds in rows]
