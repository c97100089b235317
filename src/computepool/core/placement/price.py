"""Prices per slot and hour, and fixed ones per slice: their bounds, and how people write and say them.

Whole microcredits, never fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from typing import NamedTuple

SECONDS_PER_HOUR = 3_600
MICROCREDITS_PER_CREDIT = 1_000_000
# A thousand million credits an hour: beyond it somebody has slipped, and sums would leave 64 bits.
PRICE_MICROCREDITS_MAX = 10**15
# Spot as slots are scored by it: in steps of two percent.
SPOT_STEP = 0.02


class Asked(NamedTuple):
    """What a slot is offered to placement for, in microcredits per hour."""

    # No less than this opens it.
    price: int
    # The same before tier and region, which is what fixed prices per slice are compared with.
    base_price: int
    # What it costs whoever pays spot, if that is more: scores go by it. 0: spot is no matter there.
    spot: int = 0
    # Its reference price: fixed prices go up and down with that, and with nothing else. 0: they are no matter there.
    reference: int = 0


@dataclass(frozen=True, slots=True)
class SlicePrice:
    """A fixed price for a slice. By the hour it is reckoned over the whole wall limit.

    So an owner who lends for so much an hour never gets less because a slice takes longer than somebody hoped.
    """

    # Before tier and region of the slot that takes it.
    base_microcredits: int
    # The most that a slice may cost, tier and region included.
    ceiling_microcredits: int
    # The wall limit.
    seconds: int

    @property
    def base_microcredits_per_hour(self) -> int:
        return to_rate(self.base_microcredits, self.seconds)

    @property
    def ceiling_microcredits_per_hour(self) -> int:
        return to_rate(self.ceiling_microcredits, self.seconds)


def to_rate(microcredits: int, seconds: int) -> int:
    """What an hour comes to, rounded down. More than anybody may ask is as good as the most that anybody may."""
    return min(microcredits * SECONDS_PER_HOUR // seconds, PRICE_MICROCREDITS_MAX)


def to_whole(microcredits_per_hour: int, seconds: int) -> int:
    """The least whole price that comes to so much an hour."""
    return -(-microcredits_per_hour * seconds // SECONDS_PER_HOUR)


@lru_cache(maxsize=4_096)
def round_spot(microcredits_per_hour: int) -> int:
    """Downward, in small steps: a price that trembles changes no order, and no slot has to be put in order anew."""
    if microcredits_per_hour < 1:
        return 0
    return int(exp(int(log(microcredits_per_hour) / SPOT_STEP) * SPOT_STEP))


def say_price(microcredits_per_hour: int) -> str:
    """Exact, as far as a microcredit goes: 12 credits/h, 0.75 credits/h."""
    return f"{format_credits(microcredits_per_hour)} credit{'' if microcredits_per_hour == 10**6 else 's'}/h"


def format_credits(microcredits: int) -> str:
    whole, rest = divmod(abs(microcredits), MICROCREDITS_PER_CREDIT)
    text = f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
    return f"-{text}" if microcredits < 0 else text


def round_down_price(microcredits_per_hour: int) -> int:
    """To three digits: a figure that a person would type."""
    grain = int(10 ** max(0, len(str(microcredits_per_hour)) - 3))
    return microcredits_per_hour // grain * grain
