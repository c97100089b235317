"""Prices as this hub knows them now: the rate card, spot, and what is agreed with every lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path

from computepool import clock
from computepool.core.errors import InvalidSpec
from computepool.core.ids import AccountId
from computepool.core.jobs.spec import JobSpec, Requirements
from computepool.core.ledger.charging import FrozenPrice, LeaseTerms, PriceMode, price_reserve
from computepool.core.market.price import ceiling_in, price_match, price_slice, to_base_price
from computepool.core.market.rate_card import Bucket, RateCard, parse_rate_card
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX, Asked, SlicePrice, round_spot
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.tier import CPU_TIER
from computepool.core.trust.tenure import TENURE_FULL, plan_terms
from computepool.settings import InvalidSettings

# A job that names no ceiling pays up to this much of the reference price of the dearest slot that it may get.
DEFAULT_CEILING_PERCENT = 150


class PriceBook:
    """Asked for every submit and every lease: no I/O. Whoever follows the market sets `spots`."""

    def __init__(self, card: RateCard, *, holdback_seconds: int) -> None:
        self.card = card
        # The usual ones; and what they are after so many days of clean service.
        self.terms = LeaseTerms(card.fee_ppm, holdback_seconds)
        self._tenured = [plan_terms(self.terms, timedelta(days=days)) for days in range(TENURE_FULL.days + 1)]
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

    def fix_price(self, spec: JobSpec) -> SlicePrice:
        """What a slice costs in the fixed mode, by the submitter's own figure or by the rate card of this moment."""
        base = spec.price.microcredits_per_slice
        if base is None:
            base = self._find_slice_base(spec.requirements.job_kind)
        dearest = self.card.slice_reference(base, self._dearest_bucket(to_shape(spec.requirements)))
        ceiling = spec.price.ceiling_microcredits_per_slice
        fixed = SlicePrice(base, dearest if ceiling is None else min(ceiling, dearest), spec.wall_seconds)
        if not (fixed.base_microcredits_per_hour and fixed.ceiling_microcredits_per_hour):
            raise _to_invalid(
                "the price of a slice comes to less than a microcredit an hour over wall_seconds; raise "
                "price.microcredits_per_slice, or set a shorter wall limit"
            )
        return fixed

    def _find_slice_base(self, kind: str) -> int:
        base = self.card.slice_bases_microcredits.get(kind)
        if base is None:
            known = ", ".join(self.card.slice_bases_microcredits)
            raise _to_invalid(
                f"the rate card has no price per slice for the kind {kind!r}; there are {known}. Name one of "
                "them, or a price of your own in price.microcredits_per_slice"
            )
        return base

    def rate(self, candidate: Candidate, ceiling: int | None, account_id: AccountId) -> int:
        """The price of a match, in microcredits per hour. What the slot asks is within the ceiling."""
        if candidate.owner_id == account_id:
            return 0
        if candidate.slot.welcome is not None:
            return candidate.price_microcredits_per_hour
        spot = self.find_spot(candidate)
        return price_match(floor=candidate.price_microcredits_per_hour, ceiling=ceiling, spot=spot)

    def price_slice(self, candidate: Candidate, fixed: SlicePrice, account_id: AccountId) -> int:
        """The same in the fixed mode: microcredits for the whole slice."""
        if candidate.owner_id == account_id:
            return 0
        bucket = self.find_bucket(candidate.slot, candidate.speed_tflops)
        return price_slice(
            self.card,
            bucket,
            base_microcredits=fixed.base_microcredits,
            ceiling_microcredits=fixed.ceiling_microcredits,
        )

    def agree(self, candidate: Candidate) -> LeaseTerms:
        """What is agreed with a lease beside its price. It changes with the days that its node has served."""
        return self.find_terms(candidate.serving_since)

    def find_terms(self, serving_since: datetime | None) -> LeaseTerms:
        if serving_since is None:
            return self.terms
        days = (clock.now() - serving_since).days
        return self._tenured[min(max(0, days), TENURE_FULL.days)]

    def find_spot(self, candidate: Candidate) -> int:
        return self._spot_of(self.find_bucket(candidate.slot, candidate.speed_tflops))

    def ask(self, slot: Slot, speed_tflops: float, floor: int) -> Asked:
        """What a slot with this floor is offered to placement for: where spot has force, for no less than spot.

        A private pool is lent at its owner's price; one that is the owner's alone, for nothing.
        """
        bucket = self.find_bucket(slot, speed_tflops)
        if slot.welcome is not None:
            price = floor if len(slot.welcome) > 1 else 0
            return Asked(price, self.to_base_price(bucket, price))
        price = max(floor, self.find_force(bucket))
        return Asked(price, self.to_base_price(bucket, price), self.score_spot(bucket), self.card.reference(bucket))

    def score_spot(self, bucket: Bucket) -> int:
        return round_spot(self._spot_of(bucket))

    def follow(self, spots: Mapping[Bucket, int], contested: Collection[Bucket]) -> bool:
        """Takes over another market. True: what slots ask, or what scores go by, has changed."""
        before = self._list_steps(spots)
        has_force = bool(contested or self.contested)
        changed = has_force and (contested != self.contested or spots != self.spots)
        self.spots, self.contested = spots, contested
        return changed or before != self._list_steps(before)

    def _list_steps(self, buckets: Iterable[Bucket]) -> dict[Bucket, int]:
        return {bucket: self.score_spot(bucket) for bucket in {*buckets, *self.spots}}

    def find_force(self, bucket: Bucket) -> int:
        """What is paid in a bucket at least, because others wait there who pay spot; 0 where nobody does."""
        return self._spot_of(bucket) if bucket in self.contested else 0

    def to_base_price(self, bucket: Bucket, price: int) -> int:
        # More than anybody can pay is all the same.
        return min(to_base_price(self.card, bucket, price), PRICE_MICROCREDITS_MAX + 1)

    def by_hour(self, shape: Shape, bucket: Bucket) -> Shape:
        """As placement sees a shape in this bucket: a fixed price as a ceiling per hour."""
        if shape.base_ceiling_microcredits_per_hour is None:
            return shape
        return replace(
            shape,
            ceiling_microcredits_per_hour=ceiling_of(self.card, shape, bucket),
            base_ceiling_microcredits_per_hour=None,
        )

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
        dearest = max(self.card.tier_ppm(tier) for tier in self._list_tiers(shape))
        return self.card.base_microcredits_per_hour * dearest * DEFAULT_CEILING_PERCENT // 100_000_000

    def _list_tiers(self, shape: Shape) -> tuple[str, ...]:
        """What a job may be given by its own words. Work that asks for no card pays for none, wherever it runs."""
        return shape.tiers or (tuple(self.card.tiers_ppm) if shape.gpu else (CPU_TIER,))

    def _dearest_bucket(self, shape: Shape) -> Bucket:
        regions = {self.card.region_of(country) for country in shape.regions} or set(self.card.regions)
        return max(
            (Bucket(tier, region) for tier in self._list_tiers(shape) for region in sorted(regions)),
            key=self.card.multiplier,
        )


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
        wants=need.wants,
    )


def ceiling_of(card: RateCard, shape: Shape, bucket: Bucket) -> int | None:
    """The most that an hour of a slot there may cost a shape; None: any price."""
    return ceiling_in(
        card,
        bucket,
        ceiling=shape.ceiling_microcredits_per_hour,
        base_ceiling=shape.base_ceiling_microcredits_per_hour,
    )


def _to_invalid(fault: str) -> InvalidSpec:
    return InvalidSpec(f"The job cannot be taken: {fault}.", faults=[fault])


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
