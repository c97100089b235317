"""Microcredits as credits with a decimal point: exact, for tables and sentences. Pure text, never a float."""

from __future__ import annotations

MICROCREDITS_PER_CREDIT = 1_000_000


def to_decimal(microcredits: int) -> str:
    """Always six places, no grouping: what a spreadsheet or another program reads."""
    whole, rest = divmod(abs(microcredits), MICROCREDITS_PER_CREDIT)
    return f"{'-' if microcredits < 0 else ''}{whole}.{rest:06d}"


def say_credits(microcredits: int) -> str:
    """As short as it is exact: 1 credit, 0.84 credits, 1,200 credits."""
    whole, rest = divmod(abs(microcredits), MICROCREDITS_PER_CREDIT)
    text = f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
    return f"{'-' if microcredits < 0 else ''}{text} credit{'' if microcredits == MICROCREDITS_PER_CREDIT else 's'}"
