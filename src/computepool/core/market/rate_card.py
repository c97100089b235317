"""The rate card: base, tiers, regions, fee, bases per slice and cash-out minimum, read from TOML and checked.

Reads text, never a file: whoever has the file hands its text in. All figures are whole microcredits and whole parts
in a million: a card says the same on every machine. Its version is the hash of what it says, not of its layout.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from itertools import pairwise
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from computepool.core.ledger.fee import FEE_PPM_MAX
from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.market.ppm import PPM
from computepool.core.market.regions import COUNTRIES_BY_REGION, DEFAULT_REGION, derive_multiplier_ppm

MULTIPLIER_MAX = 100
CREDITS_MAX = 1_000_000
TFLOPS_MAX = 1_000_000
TIERS_MAX = 256
REGIONS_MAX = 256
KINDS_MAX = 16
UNKNOWN_STEPS_MAX = 32
# Of a product of two multipliers, in parts in a million each.
UNIT = PPM * PPM
# The smallest fraction that parts in a million can hold.
GRAIN = Decimal(1) / PPM

CPU_TIER = "cpu"
UNKNOWN_TIER = "unknown"
BY_PURCHASING_POWER = "purchasing_power"

_TOP_KEYS = ("base_credits_per_hour", "fee", "tiers", "unknown_cards", "regions", "slice_base_credits")
_REGION_KEYS = ("multiplier", "currency", "cash_out_min_credits", "countries")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")
_COUNTRY = re.compile(r"[A-Z]{2}\Z")
_CURRENCY = re.compile(r"[A-Z]{3}\Z")


class Bucket(NamedTuple):
    """One cell of the card: all slots of a tier in a region share one spot price."""

    tier: str
    region: str


@dataclass(frozen=True, slots=True)
class RegionTerms:
    multiplier_ppm: int
    # ISO 4217, of a cash-out.
    currency: str
    cash_out_min_microcredits: int
    countries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpeedStep:
    """What a card without a row of its own is worth from this speed on, as a tier of its own."""

    tier: str
    tflops_min: Decimal
    multiplier_ppm: int


@dataclass(frozen=True, slots=True)
class RateCard:
    base_microcredits_per_hour: int
    fee_ppm: int
    tiers_ppm: Mapping[str, int]
    # The fastest first; the last one begins at zero.
    unknown_steps: tuple[SpeedStep, ...]
    regions: Mapping[str, RegionTerms]
    # By kind of job, for the fixed mode.
    slice_bases_microcredits: Mapping[str, int]
    region_by_country: Mapping[str, str]
    # 16 hex digits of the hash of all above.
    version: str

    @property
    def kinds(self) -> frozenset[str]:
        """Of jobs. The one that a job is of which does not say is always among them."""
        return frozenset({*self.slice_bases_microcredits, DEFAULT_KIND})

    def region_of(self, country: str | None) -> str:
        """From an ISO-2 code, whatever its case; a country that nobody listed belongs to the default."""
        return self.region_by_country.get((country or "").upper(), DEFAULT_REGION)

    def terms_of(self, region: str) -> RegionTerms:
        return self.regions.get(region) or self.regions[DEFAULT_REGION]

    def bucket_of(self, tier: str, country: str | None, *, tflops: float | None = None) -> Bucket:
        """Where a slot is priced. A tier without a row counts by measured speed; unmeasured, by the last step."""
        if tier not in self.tiers_ppm:
            speed = Decimal(repr(tflops)) if tflops is not None and isfinite(tflops) else Decimal(0)
            tier = next((step.tier for step in self.unknown_steps if speed >= step.tflops_min), self._last_step.tier)
        return Bucket(tier, self.region_of(country))

    def tier_ppm(self, tier: str) -> int:
        found = self.tiers_ppm.get(tier)
        if found is not None:
            return found
        step = next((step for step in self.unknown_steps if step.tier == tier), self._last_step)
        return step.multiplier_ppm

    @property
    def _last_step(self) -> SpeedStep:
        return self.unknown_steps[-1]

    def reference(self, bucket: Bucket) -> int:
        """Microcredits per hour: base x tier x region."""
        return self.multiply(self.base_microcredits_per_hour, bucket)

    def multiply(self, base_microcredits: int, bucket: Bucket) -> int:
        """Rounded down."""
        return base_microcredits * self.multiplier(bucket) // UNIT

    def slice_reference(self, base_microcredits: int, bucket: Bucket) -> int:
        """Microcredits per slice in the fixed mode: a base of the card or of the submitter, x tier x region.

        Rounded up, so that a price which covers an owner's floor before tier and region covers it after them too.
        """
        return -(-base_microcredits * self.multiplier(bucket) // UNIT)

    def multiplier(self, bucket: Bucket) -> int:
        """Tier x region, in parts of UNIT."""
        return self.tier_ppm(bucket.tier) * self.terms_of(bucket.region).multiplier_ppm


def parse_rate_card(text: str) -> RateCard:
    """Raises ValueError with every fault at once, each naming its key and what to write."""
    try:
        table: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, ArithmeticError) as error:
        raise ValueError(f"the rate card is not TOML: {error}") from error
    reader = _Reader()
    reader.refuse_strangers("", table, _TOP_KEYS)
    regions = _read_regions(reader, table.get("regions"))
    card = RateCard(
        base_microcredits_per_hour=reader.credits("base_credits_per_hour", table.get("base_credits_per_hour")),
        fee_ppm=_read_fee(reader, table.get("fee")),
        tiers_ppm=_read_tiers(reader, table.get("tiers")),
        unknown_steps=_read_unknown_cards(reader, table.get("unknown_cards")),
        regions=MappingProxyType(regions),
        slice_bases_microcredits=_read_slice_bases(reader, table.get("slice_base_credits")),
        region_by_country=MappingProxyType(_index_countries(reader, regions)),
        version="",
    )
    if reader.faults:
        raise ValueError("the rate card cannot be used: " + "; ".join(reader.faults))
    return replace(card, version=_hash_content(card))


def _hash_content(card: RateCard) -> str:
    """Of the resolved figures in a fixed order: comments, layout and 1.0 or 1.00 make no other version."""
    content = {
        "base": card.base_microcredits_per_hour,
        "fee": card.fee_ppm,
        "tiers": dict(card.tiers_ppm),
        "unknown": [[str(step.tflops_min.normalize()), step.multiplier_ppm] for step in card.unknown_steps],
        "regions": {
            name: [terms.multiplier_ppm, terms.currency, terms.cash_out_min_microcredits, sorted(terms.countries)]
            for name, terms in card.regions.items()
        },
        "slices": dict(card.slice_bases_microcredits),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class _Reader:
    """Turns what TOML holds into whole numbers and collects every fault on the way; a fault reads as 1."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def refuse_strangers(self, where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
        for key in table:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
                self.faults.append(f"{where}{key} is unknown{hint}")

    def table(self, key: str, value: Any, *, count_max: int) -> Mapping[str, Any]:
        if not isinstance(value, dict) or not value:
            self.faults.append(f"there is no [{key}]; write it with at least one entry")
            return {}
        if len(value) > count_max:
            self.faults.append(f"{key} has {len(value)} entries; at most {count_max} are allowed")
        for name in value:
            if not _NAME.match(name):
                self.faults.append(
                    f"{key}.{name} is no name; write lower-case letters, digits and dashes, at most 32"
                )
        return value

    def number(self, key: str, value: Any, *, least: Decimal, most: Decimal, grain: Decimal = GRAIN) -> Decimal:
        found = _to_decimal(value)
        if found is None or not least <= found <= most:
            self.faults.append(f"{key} is {_show(value)}; write a number from {least:f} to {most:f}")
            return Decimal(1)
        if found % grain:
            self.faults.append(f"{key} is {_show(value)}; write at most six digits after the point")
            return Decimal(1)
        return found

    def multiplier(self, key: str, value: Any) -> int:
        return int(self.number(key, value, least=Decimal("0.01"), most=Decimal(MULTIPLIER_MAX)) * PPM)

    def credits(self, key: str, value: Any) -> int:
        return int(self.number(key, value, least=GRAIN, most=Decimal(CREDITS_MAX)) * PPM)


def _to_decimal(value: Any) -> Decimal | None:
    """A truth value counts as a number in Python; on a rate card it is a slip of the pen. So are nan and inf."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    found = Decimal(value)
    return found if found.is_finite() else None


def _show(value: Any) -> str:
    return "absent" if value is None else str(value) if isinstance(value, Decimal) else repr(value)


def _read_fee(reader: _Reader, value: Any) -> int:
    found = _to_decimal(value)
    if found is not None and found * PPM > FEE_PPM_MAX:
        reader.faults.append(f"fee is {_show(value)}; the fee is never above 0.20: write 0.20 or less")
        return 0
    return int(reader.number("fee", value, least=Decimal(0), most=Decimal("0.20")) * PPM)


def _read_tiers(reader: _Reader, value: Any) -> Mapping[str, int]:
    table = reader.table("tiers", value, count_max=TIERS_MAX)
    if table and CPU_TIER not in table:
        reader.faults.append("tiers.cpu is absent; write the multiplier of a slot without a card, such as cpu = 0.8")
    for tier in table:
        if tier.startswith(UNKNOWN_TIER):
            reader.faults.append(f"tiers.{tier} has no place here; write steps of [[unknown_cards]] instead")
    return MappingProxyType({tier: reader.multiplier(f"tiers.{tier}", each) for tier, each in table.items()})


def _read_unknown_cards(reader: _Reader, value: Any) -> tuple[SpeedStep, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        reader.faults.append("there is no [[unknown_cards]]; write steps with tflops_min and multiplier")
        return ()
    if len(value) > UNKNOWN_STEPS_MAX:
        reader.faults.append(f"unknown_cards has {len(value)} steps; at most {UNKNOWN_STEPS_MAX} are allowed")
        return ()
    steps = []
    for number, each in enumerate(value):
        key = f"unknown_cards[{number}]"
        reader.refuse_strangers(f"{key}.", each, ("tflops_min", "multiplier"))
        speed = reader.number(f"{key}.tflops_min", each.get("tflops_min"), least=Decimal(0), most=Decimal(TFLOPS_MAX))
        tier = f"{UNKNOWN_TIER}-{speed.normalize():f}".replace(".", "-")
        steps.append(SpeedStep(tier, speed, reader.multiplier(f"{key}.multiplier", each.get("multiplier"))))
    steps.sort(key=lambda step: step.tflops_min, reverse=True)
    if steps[-1].tflops_min:
        reader.faults.append("unknown_cards has no last step; write one with tflops_min = 0")
    if len({step.tflops_min for step in steps}) < len(steps):
        reader.faults.append("unknown_cards has two steps with one tflops_min; write each speed once")
    if any(fast.multiplier_ppm < slow.multiplier_ppm for fast, slow in pairwise(steps)):
        reader.faults.append("unknown_cards pays a faster card less than a slower one; write rising multipliers")
    return tuple(steps)


def _read_regions(reader: _Reader, value: Any) -> dict[str, RegionTerms]:
    table = reader.table("regions", value, count_max=REGIONS_MAX)
    if table and DEFAULT_REGION not in table:
        reader.faults.append("regions.default is absent; write [regions.default] for countries that have no region")
    return {name: _read_region(reader, name, each) for name, each in table.items()}


def _read_region(reader: _Reader, name: str, table: Any) -> RegionTerms:
    key = f"regions.{name}"
    if not isinstance(table, dict):
        reader.faults.append(f"{key} is {_show(table)}; write a table: [{key}]")
        return RegionTerms(PPM, "", 1, ())
    reader.refuse_strangers(f"{key}.", table, _REGION_KEYS)
    currency = table.get("currency")
    if not isinstance(currency, str) or not _CURRENCY.match(currency):
        reader.faults.append(f"{key}.currency is {_show(currency)}; write an ISO 4217 code such as INR")
    countries = _read_countries(reader, name, table.get("countries"))
    return RegionTerms(
        multiplier_ppm=_read_region_multiplier(reader, key, table.get("multiplier"), countries),
        currency=str(currency),
        cash_out_min_microcredits=reader.credits(f"{key}.cash_out_min_credits", table.get("cash_out_min_credits")),
        countries=countries,
    )


def _read_countries(reader: _Reader, region: str, value: Any) -> tuple[str, ...]:
    key = f"regions.{region}.countries"
    if value is None:
        if region not in COUNTRIES_BY_REGION and region != DEFAULT_REGION:
            reader.faults.append(f'{key} is absent; write the ISO-2 codes of its countries, such as ["BR"]')
        return COUNTRIES_BY_REGION.get(region, ())
    if region == DEFAULT_REGION:
        reader.faults.append(f"{key} has no place here: the default is for all other countries; take it out")
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and _COUNTRY.match(each) for each in value):
        reader.faults.append(f'{key} is {_show(value)}; write a list of ISO-2 codes such as ["BR", "AR"]')
        return ()
    return tuple(value)


def _read_region_multiplier(reader: _Reader, key: str, value: Any, countries: tuple[str, ...]) -> int:
    if value != BY_PURCHASING_POWER:
        if isinstance(value, str):
            reader.faults.append(f'{key}.multiplier is {value!r}; write a number, or "{BY_PURCHASING_POWER}"')
            return PPM
        return reader.multiplier(f"{key}.multiplier", value)
    derived = derive_multiplier_ppm(countries)
    if derived is None:
        reader.faults.append(
            f"{key}.multiplier cannot be derived: the index knows none of its countries; write a number"
        )
        return PPM
    return derived


def _index_countries(reader: _Reader, regions: Mapping[str, RegionTerms]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, terms in regions.items():
        for country in terms.countries:
            if country in found:
                reader.faults.append(
                    f"regions.{name}.countries lists {country}, which is in {found[country]}; list it once"
                )
            found[country] = name
    return found


def _read_slice_bases(reader: _Reader, value: Any) -> Mapping[str, int]:
    table = reader.table("slice_base_credits", value, count_max=KINDS_MAX)
    return MappingProxyType(
        {kind: reader.credits(f"slice_base_credits.{kind}", each) for kind, each in table.items()}
    )
