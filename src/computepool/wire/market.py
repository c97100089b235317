"""Prices: the rate card, spot and its history, quotes for submitters, forecasts for owners."""

from __future__ import annotations

from datetime import datetime

import msgspec

from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.market.price import StartRefusal
from computepool.core.trust.validation import Verify
from computepool.wire.jobs import BY_THE_SECOND, JobPrice, Requirements


class SpeedStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a card without a row of its own counts as, from this speed on."""

    tier: str
    tflops_min: float
    multiplier_ppm: int


class Region(msgspec.Struct, frozen=True, kw_only=True):
    multiplier_ppm: int
    # Of a cash-out, ISO 4217.
    currency: str
    cash_out_min_microcredits: int
    # ISO-2. All others belong to the region `default`.
    countries: list[str]


class RateCard(msgspec.Struct, frozen=True, kw_only=True):
    """Reference price = base x tier x region. Multipliers and the fee are parts in a million."""

    # Attempts name the version that priced them.
    version: str
    first_used_at: datetime
    base_microcredits_per_hour: int
    fee_ppm: int
    tiers_ppm: dict[str, int]
    unknown_cards: list[SpeedStep]
    regions: dict[str, Region]
    # Per slice, by kind of job, for jobs with a fixed price.
    slice_bases_microcredits: dict[str, int]


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """The price of an hour of a slot in one bucket: a tier in a region of the rate card."""

    tier: str
    region: str
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    # Spot against the reference, in parts in a million.
    surge_ppm: int
    # Lent for no more than spot, busy at that price, and slices that wait and would pay it; as of `at`.
    slot_count: int
    busy_count: int
    waiting_count: int
    # Somebody waits who pays spot: nobody starts for less.
    contested: bool
    at: datetime


class SpotPage(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets that have had slots. All others stand at their reference."""

    rate_card_version: str
    tick_seconds: int
    spots: list[Spot]


class SpotPoint(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    surge_ppm: int
    rate_card_version: str
    slot_count: int
    busy_count: int
    waiting_count: int


class SpotHistory(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    region: str
    # Oldest first; long spans are thinned out.
    points: list[SpotPoint]


class IndexPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour cost between strangers: the median by seconds of what was paid for up to this moment."""

    at: datetime
    price_microcredits_per_hour: int
    # Of the reference price of that time, in parts in a million.
    ratio_ppm: int
    # What it stands on.
    deal_count: int
    seconds: int


class IndexLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The same of one tier in one region of the rate card, over all of the hours that were asked for."""

    tier: str
    region: str
    price_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    ratio_ppm: int
    deal_count: int
    seconds: int
    # The last tick that had deals.
    at: datetime


class PriceIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Deals with oneself and between linked accounts do not count."""

    hours: float
    # Where something was paid for in this time.
    levels: list[IndexLevel]
    # Of the one tier and region that was asked for, oldest first; long spans are thinned out.
    points: list[IndexPoint]


class QuoteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    requirements: Requirements = Requirements()
    kind: str = DEFAULT_KIND
    slice_count: int = 1
    wall_seconds: int = 3_600
    # How long one slice is expected to run; absent: the quote takes half of the wall limit for likely.
    expected_seconds: int | None = None
    price: JobPrice = BY_THE_SECOND


class CostRange(msgspec.Struct, frozen=True, kw_only=True):
    low_microcredits: int
    likely_microcredits: int
    high_microcredits: int


class QuotePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with slots that could run the job."""

    tier: str
    region: str
    # What an hour would cost the job there now; of a fixed price, what it comes to over the whole wall limit.
    price_microcredits_per_hour: int
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    # That could run it, and are free.
    slot_count: int
    free_count: int
    # Absent while it is refused.
    starts_in_seconds: int | None = None
    refusal: StartRefusal | None = None
    refusal_words: str | None = None
    # What a slice would cost there, for a job with a fixed price.
    slice_price_microcredits: int | None = None


class QuoteLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs to be so sure of the results, on top of the rest; for jobs that say how to compare them."""

    confidence: float
    # Agreeing runs of strangers for every slice; one: some are audited.
    runs: int
    verify: Verify
    surcharge_ppm: int
    # Of the likely cost; absent where that is.
    surcharge_microcredits: int | None = None


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast; what a slice costs is agreed when it starts."""

    # Absent: nothing that is lent now would run it.
    cost: CostRange | None
    # Of that, what those get who lend the slots.
    owners_earn: CostRange | None
    # What a submit sets aside until the job ends: the most that its slices can cost.
    hold_microcredits: int
    # The most that an hour may cost: as asked for, rounded down a little, or the hub's default.
    ceiling_microcredits_per_hour: int
    # Seconds of one slice that low, likely and high stand for.
    seconds_low: int
    seconds_likely: int
    seconds_high: int
    # The cheapest first.
    places: list[QuotePlace]
    # The earliest; absent: not while the market is as it is.
    starts_in_seconds: int | None
    # Dearer or cheaper than yesterday, and why.
    why: str
    # Of the caller's own, where it would cost nothing.
    own_slot_count: int
    rate_card_version: str
    quoted_at: datetime
    # In private pools of others that take the caller, beside the places; and the least that an hour costs there.
    pool_slot_count: int = 0
    pool_price_microcredits_per_hour: int | None = None
    # Of a fixed price: the base that would be agreed, and the most that a slice may cost.
    price: JobPrice | None = None
    levels: list[QuoteLevel] = []


class FloorEarnings(msgspec.Struct, frozen=True, kw_only=True):
    floor_microcredits_per_hour: int
    price_microcredits_per_hour: int
    # How much of the time the slot would be in use, in parts in a million.
    busy_ppm: int
    # After the fee: over an hour of being lent, idle minutes included; over an hour of work; and for one job of usual
    # length.
    owner_microcredits_per_hour: int
    owner_microcredits_per_busy_hour: int
    owner_microcredits_per_job: int


class BucketEarnings(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot of this kind would earn at which floor. A forecast from the last day, and no promise."""

    tier: str
    region: str
    own_slot_count: int
    spot_microcredits_per_hour: int
    reference_microcredits_per_hour: int
    busy_ppm: int
    seconds_per_job: int
    # Rising floors, and the one of them that earns most.
    floors: list[FloorEarnings]
    best: FloorEarnings


class TierEarnings(msgspec.Struct, frozen=True, kw_only=True):
    """At one hour of full use, after the fee."""

    tier: str
    multiplier_ppm: int
    # At the reference price, which rises with the tier.
    reference_microcredits_per_hour: int
    owner_reference_microcredits_per_hour: int
    # At spot, which follows demand.
    price_microcredits_per_hour: int
    owner_microcredits_per_hour: int
    # By kind of job, for those with a fixed price.
    owner_microcredits_per_slice: dict[str, int]


class Earnings(msgspec.Struct, frozen=True, kw_only=True):
    # Of the rate card; the table of all tiers is for it.
    region: str
    # One's own machines, or the one that was asked for.
    buckets: list[BucketEarnings]
    tiers: list[TierEarnings]
