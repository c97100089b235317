"""Prices as this hub knows them now: the rate card, spot, and what is agreed with every lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path

from computepool.core.jobs.spec import Requirements
from computepool.core.ledger.charging import FrozenPrice, LeaseTerms, PriceMode, price_reserve
from computepool.core.market.price import price_match
from computepool.core.market.rate_card import Bucket, RateCard, parse_rate_card
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.tier import CPU_TIER
from computepool.settings import InvalidSettings

# A job that names no ceiling pays up to this much of the reference price of the dearest slot that it may get.
DEFAULT_CEILING_PERCENT = 150


class PriceBook:
    """Asked for every submit and every lease: no I/O. Whoever follows the market sets `spots`."""

    def __init__(self, card: RateCard, *, holdback_seconds: int) -> None:
        self.card = card
        self.terms = LeaseTerms(card.version, card.fee_ppm, holdback_seconds)
        # Microcredits per hour; a bucket without a row stands at its reference.
        self.spots: Mapping[Bucket, int] = {}
        # Where somebody waits who pays spot: there nobody starts for less.
        self.contested: Collection[Bucket] = frozenset()
        self._buckets: dict[tuple[str, str | None, float], Bucket] = {}

    def fill_ceiling(self, need: Requirements) -> Shape:
        """The shape of a job, with a ceiling in any case: what it may cost is held before it starts."""
        shape = to_shape(need)
        if shape.ceiling_microcredits_per_hour is not None:
            return shape
        return to_shape(_with_ceiling(need, self._default_ceiling(shape)))

    def reserve(self, shape: Shape, wall_seconds: int) -> int:
        """The most that one attempt can come to."""
        ceiling = shape.ceiling_microcredits_per_hour or 0
        return price_reserve(FrozenPrice(PriceMode.PER_SECOND, ceiling), wall_seconds=wall_seconds)

    def rate(self, candidate: Candidate, ceiling: int | None) -> int:
        """The price of a match, in microcredits per hour. What the slot asks is within the ceiling."""
        if candidate.slot.welcome is not None:
            return candidate.price_microcredits_per_hour
        spot = self.find_spot(candidate)
        return price_match(floor=candidate.price_microcredits_per_hour, ceiling=ceiling, spot=spot)

    def find_spot(self, candidate: Candidate) -> int:
        return self._spot_of(self.find_bucket(candidate.slot, candidate.speed_tflops))

    def ask(self, slot: Slot, speed_tflops: float, floor: int) -> int:
        """What a slot with this floor is offered to placement for: where spot has force, for no less than spot.

        A private pool is lent at its owner's price; one that is the owner's alone, for nothing.
        """
        if slot.welcome is not None:
            return floor if len(slot.welcome) > 1 else 0
        if not self.contested:
            return floor
        bucket = self.find_bucket(slot, speed_tflops)
        return max(floor, self._spot_of(bucket)) if bucket in self.contested else floor

    def find_bucket(self, slot: Slot, speed_tflops: float) -> Bucket:
        key = (slot.tier, slot.region, speed_tflops)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) > 10_000:
                self._buckets.clear()
            bucket = self._buckets[key] = self.card.bucket_of(slot.tier, slot.region, tflops=speed_tflops)
        return bucket

    def _spot_of(self, bucket: Bucket) -> int:
        spot = self.spots.get(bucket)
        return self.card.reference(bucket) if spot is None else spot

    def _default_ceiling(self, shape: Shape) -> int:
        tiers = shape.tiers or (tuple(self.card.tiers_ppm) if shape.gpu else (CPU_TIER,))
        dearest = max(self.card.tier_ppm(tier) for tier in tiers)
        return self.card.base_microcredits_per_hour * dearest * DEFAULT_CEILING_PERCENT // 100_000_000


def _with_ceiling(need: Requirements, ceiling: int) -> Requirements:
    return Requirements(
        gpu=need.gpu,
        vram_bytes=need.vram_bytes,
        cores=need.cores,
        ram_bytes=need.ram_bytes,
        disk_bytes=need.disk_bytes,
        tiers=need.tiers,
        regions=need.regions,
        isolation=need.isolation,
        ceiling_microcredits_per_hour=ceiling,
        job_kind=need.job_kind,
        slice_seconds=need.slice_seconds,
    )


def load_rate_card(text: str | None = None) -> RateCard:
    """The operator's, or the one that is shipped."""
    return parse_rate_card(_read_shipped() if text is None else text)


def read_rate_card(path: str | Path | None = None) -> tuple[RateCard, str]:
    """The operator's file, or the shipped one when none is named, with its text. Read once, at the hub's start."""
    if not path:
        return load_rate_card(), _read_shipped()
    try:
        text = Path(path).read_text(encoding="utf-8")
        return parse_rate_card(text), text
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{path}: {error}") from error


def _read_shipped() -> str:
    return resources.files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8")
