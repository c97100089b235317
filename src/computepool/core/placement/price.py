"""Prices per slot and hour: their bounds, and how people write and say them. Whole microcredits, never fractions."""

from __future__ import annotations

MICROCREDITS_PER_CREDIT = 1_000_000
# A thousand million credits an hour: beyond it somebody has slipped, and sums would leave 64 bits.
PRICE_MICROCREDITS_MAX = 10**15


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
