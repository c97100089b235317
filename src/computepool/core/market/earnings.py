"""What a machine would earn: per hour and per job, at which floor, and over all tiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from computepool.core.ledger.amount import Microcredits
from computepool.core.ledger.fee import split_price
from computepool.core.market.ppm import times_ppm, to_ppm
from computepool.core.market.price import SECONDS_PER_HOUR
from computepool.core.market.rate_card import CPU_TIER, Bucket, RateCard

# Floors that are compared, in parts of the spot price.
FLOOR_STEPS_PPM = (0, 500_000, 750_000, 900_000, 1_000_000, 1_100_000, 1_250_000, 1_500_000, 2_000_000)


@dataclass(frozen=True, slots=True)
class TierEarnings:
    """One row of the table over all tiers, at one hour of full use and after the fee."""

    tier: str
    multiplier_ppm: int
    # At the reference price, which rises with the tier, and at spot, which follows demand.
    reference_microcredits_per_hour: int
    owner_reference_microcredits_per_hour: Microcredits
    price_microcredits_per_hour: int
    owner_microcredits_per_hour: Microcredits
    # By kind of job, in the fixed mode.
    owner_microcredits_per_slice: Mapping[str, Microcredits]


@dataclass(frozen=True, slots=True)
class Bid:
    """Work that was asked for in a bucket: what its submitter would have paid, and for how long."""

    # None: any price.
    ceiling_microcredits_per_hour: int | None
    seconds: int


@dataclass(frozen=True, slots=True)
class FloorEarnings:
    """What to expect of one floor. A forecast from what was asked for lately, and no promise."""

    floor_microcredits_per_hour: int
    price_microcredits_per_hour: int
    # How much of the time the machine would be in use.
    busy_ppm: int
    # After the fee, over an hour of being lent, the idle minutes included; and over an hour of work.
    owner_microcredits_per_hour: Microcredits
    owner_microcredits_per_busy_hour: Microcredits
    # After the fee, for one job of usual length.
    owner_microcredits_per_job: Microcredits


def list_tier_earnings(
    card: RateCard, region: str, *, spots: Mapping[Bucket, int] | None = None
) -> list[TierEarnings]:
    """All tiers of the card from the lowest multiplier up, at spot where it is known and else at reference."""
    tiers = {**card.tiers_ppm, **{step.tier: step.multiplier_ppm for step in card.unknown_steps}}
    return [
        _to_row(card, Bucket(tier, region), spots or {})
        for tier in sorted(tiers, key=lambda tier: (tiers[tier], tier != CPU_TIER, tier))
    ]


def _to_row(card: RateCard, bucket: Bucket, spots: Mapping[Bucket, int]) -> TierEarnings:
    reference = card.reference(bucket)
    price = spots.get(bucket, reference)
    return TierEarnings(
        tier=bucket.tier,
        multiplier_ppm=card.tier_ppm(bucket.tier),
        reference_microcredits_per_hour=reference,
        owner_reference_microcredits_per_hour=split_price(reference, fee_ppm=card.fee_ppm)[0],
        price_microcredits_per_hour=price,
        owner_microcredits_per_hour=split_price(price, fee_ppm=card.fee_ppm)[0],
        owner_microcredits_per_slice={
            kind: split_price(card.slice_reference(base, bucket), fee_ppm=card.fee_ppm)[0]
            for kind, base in card.slice_bases_microcredits.items()
        },
    )


def forecast_floor(
    *, floor: int, spot: int, busy_ppm: int, bids: Sequence[Bid], seconds_per_job: int, fee_ppm: int
) -> FloorEarnings:
    """At a floor up to spot a machine is used as much as the others of its bucket, and paid spot.

    Above spot it is paid its floor, by those alone who would pay that much.
    """
    price = max(floor, spot)
    busy = busy_ppm if floor <= spot else times_ppm(busy_ppm, _share_that_pays(bids, floor))
    per_hour = split_price(times_ppm(price, busy), fee_ppm=fee_ppm)[0]
    per_busy_hour = split_price(price, fee_ppm=fee_ppm)[0]
    per_job = split_price(price * seconds_per_job // SECONDS_PER_HOUR, fee_ppm=fee_ppm)[0]
    return FloorEarnings(floor, price, busy, per_hour, per_busy_hour, per_job)


def _share_that_pays(bids: Sequence[Bid], price: int) -> int:
    """Of the seconds asked for, in parts in a million. Nothing is known without bids, and nothing promised."""
    total = sum(bid.seconds for bid in bids)
    if total <= 0:
        return 0
    paying = sum(
        bid.seconds
        for bid in bids
        if bid.ceiling_microcredits_per_hour is None or bid.ceiling_microcredits_per_hour >= price
    )
    return to_ppm(paying, total)


def list_floor_earnings(
    *,
    spot: int,
    busy_ppm: int,
    bids: Sequence[Bid],
    seconds_per_job: int,
    fee_ppm: int,
    floors: Iterable[int] | None = None,
) -> list[FloorEarnings]:
    """One row per floor, rising: those given, or steps around spot."""
    wanted = [times_ppm(spot, step) for step in FLOOR_STEPS_PPM] if floors is None else list(floors)
    return [
        forecast_floor(
            floor=floor,
            spot=spot,
            busy_ppm=busy_ppm,
            bids=bids,
            seconds_per_job=seconds_per_job,
            fee_ppm=fee_ppm,
        )
        for floor in sorted(set(wanted))
    ]


def find_best_floor(rows: Sequence[FloorEarnings]) -> FloorEarnings:
    """The row that earns most per hour; of equals the lowest floor, which waits least."""
    return max(rows, key=lambda row: (row.owner_microcredits_per_hour, -row.floor_microcredits_per_hour))
