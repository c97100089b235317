"""Prices: the rate card, spot, its history and the index for everybody; quotes and forecasts for accounts."""

from __future__ import annotations

import msgspec

from computepool.core.ledger.fee import PPM
from computepool.core.market import earnings as core
from computepool.core.market.price import PLAIN_WORDS
from computepool.core.market.quote import Place, Range
from computepool.core.market.rate_card import Bucket, RateCard
from computepool.core.market.spot import TICK_SECONDS
from computepool.core.placement.price import to_rate
from computepool.core.trust.confidence import LEVELS, Level, plan_level
from computepool.core.trust.validation import Verify
from computepool.hub.http.jobs import to_price
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import market as service
from computepool.hub.services import quotes
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.quotes import BucketEarnings, JobQuote
from computepool.hub.store.connect import Pool
from computepool.wire import market as wire

routes = Routes()


class RateCardQuery(msgspec.Struct, frozen=True, kw_only=True):
    # As attempts and statements name it. Absent: the one in force.
    version: str | None = None


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    # Of the rate card.
    region: str = "default"
    hours: float = 24.0


class IndexQuery(msgspec.Struct, frozen=True, kw_only=True):
    # Absent: all tiers and regions, without their history.
    tier: str | None = None
    # Of the rate card.
    region: str = "default"
    hours: float = 24.0


class EarningsQuery(msgspec.Struct, frozen=True, kw_only=True):
    # Absent: the caller's own machines.
    tier: str | None = None
    # A country, ISO-2.
    country: str | None = None


@routes.add("GET", "/v1/market/rate-card", Access.PUBLIC, query=RateCardQuery, answer=wire.RateCard)
async def get_rate_card(call: Call) -> wire.RateCard:
    """The rate card in force, or any version that ever was."""
    query: RateCardQuery = call.query
    card, kept = await service.get_rate_card(call.hub.pool, call.hub.prices.card, query.version)
    return wire.RateCard(
        version=card.version,
        first_used_at=kept.first_used_at,
        base_microcredits_per_hour=card.base_microcredits_per_hour,
        fee_ppm=card.fee_ppm,
        tiers_ppm=dict(card.tiers_ppm),
        unknown_cards=[
            wire.SpeedStep(tier=step.tier, tflops_min=float(step.tflops_min), multiplier_ppm=step.multiplier_ppm)
            for step in card.unknown_steps
        ],
        regions={
            name: wire.Region(
                multiplier_ppm=terms.multiplier_ppm,
                currency=terms.currency,
                cash_out_min_microcredits=terms.cash_out_min_microcredits,
                countries=list(terms.countries),
            )
            for name, terms in card.regions.items()
        },
        slice_bases_microcredits=dict(card.slice_bases_microcredits),
    )


@routes.add("GET", "/v1/market/spot", Access.PUBLIC, answer=wire.SpotPage)
async def list_spots(call: Call) -> wire.SpotPage:
    """What an hour of a slot costs now, by tier and region."""
    card = call.hub.prices.card
    return wire.SpotPage(
        rate_card_version=card.version,
        tick_seconds=TICK_SECONDS,
        spots=await load_spots(call.hub.pool, card),
    )


async def load_spots(pool: Pool, card: RateCard) -> list[wire.Spot]:
    states = await service.list_states(pool)
    spots = service.list_spots(card, states)
    return [
        wire.Spot(
            tier=bucket.tier,
            region=bucket.region,
            spot_microcredits_per_hour=spots[bucket],
            reference_microcredits_per_hour=card.reference(bucket),
            surge_ppm=states[bucket].state.surge_ppm,
            slot_count=states[bucket].slot_count,
            busy_count=states[bucket].busy_count,
            waiting_count=states[bucket].waiting_count,
            contested=states[bucket].contested,
            at=states[bucket].at,
        )
        for bucket in sorted(spots)
    ]


@routes.add(
    "GET", "/v1/market/history", Access.PUBLIC, query=HistoryQuery, answer=wire.SpotHistory, public_per_minute=600
)
async def get_history(call: Call) -> wire.SpotHistory:
    """Spot of one tier and region over the last hours or days."""
    query: HistoryQuery = call.query
    bucket = Bucket(query.tier, query.region)
    points = await service.list_history(call.hub.pool, call.hub.prices.card, bucket, hours=query.hours)
    return wire.SpotHistory(
        tier=bucket.tier,
        region=bucket.region,
        points=[
            wire.SpotPoint(
                at=each.at,
                spot_microcredits_per_hour=each.spot_microcredits_per_hour,
                reference_microcredits_per_hour=each.reference_microcredits_per_hour,
                surge_ppm=each.surge_ppm,
                rate_card_version=each.rate_card_version,
                slot_count=each.slot_count,
                busy_count=each.busy_count,
                waiting_count=each.waiting_count,
            )
            for each in points
        ],
    )


@routes.add("GET", "/v1/market/index", Access.PUBLIC, query=IndexQuery, answer=wire.PriceIndex, public_per_minute=600)
async def get_index(call: Call) -> wire.PriceIndex:
    """What an hour really cost between strangers, by tier and region; of one tier, with its history."""
    query: IndexQuery = call.query
    bucket = Bucket(query.tier, query.region) if query.tier is not None else None
    levels, points = await service.find_index(call.hub.pool, call.hub.prices.card, bucket, hours=query.hours)
    return wire.PriceIndex(
        hours=query.hours,
        levels=[
            wire.IndexLevel(
                tier=each.bucket.tier,
                region=each.bucket.region,
                price_microcredits_per_hour=each.level.price_microcredits_per_hour,
                reference_microcredits_per_hour=each.reference_microcredits_per_hour,
                ratio_ppm=each.level.ratio_ppm,
                deal_count=each.level.deal_count,
                seconds=each.level.seconds,
                at=each.at,
            )
            for each in levels
        ],
        points=[
            wire.IndexPoint(
                at=each.at,
                price_microcredits_per_hour=each.level.price_microcredits_per_hour,
                ratio_ppm=each.level.ratio_ppm,
                deal_count=each.level.deal_count,
                seconds=each.level.seconds,
            )
            for each in points
        ],
    )


@routes.add("POST", "/v1/quotes", Access.ACCOUNT, body=wire.QuoteRequest, answer=wire.Quote)
async def quote_job(call: Call) -> wire.Quote:
    """What a job would cost, hold and wait, and where it could run. Nothing is held by it."""
    hub = call.hub
    found = await quotes.quote_job(hub.pool, hub.settings, hub.prices, call.account, call.body)
    return _to_quote(found, hub.prices)


@routes.add("GET", "/v1/market/earnings", Access.ACCOUNT, query=EarningsQuery, answer=wire.Earnings)
async def forecast_earnings(call: Call) -> wire.Earnings:
    """What one's own machines, or one of a given tier, would earn at which floor."""
    query: EarningsQuery = call.query
    found = await quotes.forecast_earnings(
        call.hub.pool, call.hub.prices, call.account, tier=query.tier, country=query.country
    )
    return wire.Earnings(
        region=found.region,
        buckets=[_to_bucket_earnings(each) for each in found.buckets],
        tiers=[
            wire.TierEarnings(
                tier=each.tier,
                multiplier_ppm=each.multiplier_ppm,
                reference_microcredits_per_hour=each.reference_microcredits_per_hour,
                owner_reference_microcredits_per_hour=each.owner_reference_microcredits_per_hour,
                price_microcredits_per_hour=each.price_microcredits_per_hour,
                owner_microcredits_per_hour=each.owner_microcredits_per_hour,
                owner_microcredits_per_slice=dict(each.owner_microcredits_per_slice),
            )
            for each in found.tiers
        ],
    )


def _to_quote(found: JobQuote, prices: PriceBook) -> wire.Quote:
    quote, ask, submission = found.quote, found.ask, found.submission
    return wire.Quote(
        cost=_to_range(quote.cost),
        owners_earn=_to_range(quote.owners_earn),
        hold_microcredits=submission.hold_microcredits,
        ceiling_microcredits_per_hour=submission.shape.ceiling_microcredits_per_hour or 0,
        seconds_low=ask.seconds_low,
        seconds_likely=ask.seconds_likely,
        seconds_high=ask.seconds_high,
        places=[_to_place(place, found, prices) for place in quote.places],
        starts_in_seconds=quote.starts_in_seconds,
        why=quote.why,
        own_slot_count=found.own_slot_count,
        pool_slot_count=found.pool_slot_count,
        pool_price_microcredits_per_hour=found.pool_price_microcredits_per_hour,
        rate_card_version=prices.card.version,
        quoted_at=found.quoted_at,
        price=to_price(submission.slice_price) if submission.slice_price else None,
        levels=[_to_level(plan_level(each), quote.cost) for each in LEVELS],
    )


def _to_level(level: Level, cost: Range | None) -> wire.QuoteLevel:
    return wire.QuoteLevel(
        confidence=level.confidence,
        runs=level.runs,
        verify=Verify.AUDIT if level.runs == 1 else Verify.QUORUM,
        surcharge_ppm=level.surcharge_ppm,
        surcharge_microcredits=None if cost is None else cost.likely_microcredits * level.surcharge_ppm // PPM,
    )


def _to_place(place: Place, found: JobQuote, prices: PriceBook) -> wire.QuotePlace:
    reference = prices.card.reference(place.bucket)
    fixed = found.submission.slice_price
    return wire.QuotePlace(
        tier=place.bucket.tier,
        region=place.bucket.region,
        price_microcredits_per_hour=(
            place.price_microcredits if fixed is None else to_rate(place.price_microcredits, fixed.seconds)
        ),
        spot_microcredits_per_hour=found.spots.get(place.bucket, reference),
        reference_microcredits_per_hour=reference,
        slot_count=place.slot_count,
        free_count=place.free_count,
        starts_in_seconds=place.starts_in_seconds,
        refusal=place.refusal,
        refusal_words=PLAIN_WORDS[place.refusal] if place.refusal else None,
        slice_price_microcredits=place.price_microcredits if fixed is not None else None,
    )


def _to_range(found: Range | None) -> wire.CostRange | None:
    if found is None:
        return None
    return wire.CostRange(
        low_microcredits=found.low_microcredits,
        likely_microcredits=found.likely_microcredits,
        high_microcredits=found.high_microcredits,
    )


def _to_bucket_earnings(found: BucketEarnings) -> wire.BucketEarnings:
    return wire.BucketEarnings(
        tier=found.bucket.tier,
        region=found.bucket.region,
        own_slot_count=found.own_slot_count,
        spot_microcredits_per_hour=found.spot_microcredits_per_hour,
        reference_microcredits_per_hour=found.reference_microcredits_per_hour,
        busy_ppm=found.busy_ppm,
        seconds_per_job=found.seconds_per_job,
        floors=[_to_floor(each) for each in found.floors],
        best=_to_floor(found.best),
    )


def _to_floor(row: core.FloorEarnings) -> wire.FloorEarnings:
    return wire.FloorEarnings(
        floor_microcredits_per_hour=row.floor_microcredits_per_hour,
        price_microcredits_per_hour=row.price_microcredits_per_hour,
        busy_ppm=row.busy_ppm,
        owner_microcredits_per_hour=row.owner_microcredits_per_hour,
        owner_microcredits_per_busy_hour=row.owner_microcredits_per_busy_hour,
        owner_microcredits_per_job=row.owner_microcredits_per_job,
    )
