"""Sizes and prices as people write them, in bytes and microcredits as the wire wants them. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from computepool.core.errors import InvalidSpec
from computepool.core.placement.price import MICROCREDITS_PER_CREDIT

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*\Z", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(size: int | str) -> int:
    """`"24GB"` counts in thousands, `"24GiB"` in 1024s, as disks and memory are sold; a bare number is bytes.

    A fraction of a byte is rounded up: who asks for some room must not get less.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        if size < 0:
            raise InvalidSpec(f"A size of {size} bytes is negative.")
        return size
    match = _SIZE.match(size) if isinstance(size, str) else None
    if match is None or (match[3] and not match[2]):
        raise InvalidSpec(f"{size!r} is not a size. Write it as 24GB, 24GiB, 500MB, or as a number of bytes.")
    step = 1024 if match[3] else 1000
    factor: int = step ** _POWER[match[2].lower()]
    return math.ceil(Decimal(match[1]) * factor)


def parse_credits(credits: int | float | str | Decimal) -> int:
    """`40`, `"0.5"` or a Decimal, in microcredits. What is finer than a microcredit is refused, not rounded."""
    try:
        # By way of its text, a float is what its writer saw: 0.1, not its nearest neighbour in binary.
        exact = Decimal(str(credits).strip()) * MICROCREDITS_PER_CREDIT
        whole = int(exact) if exact.is_finite() else -1
    except (InvalidOperation, ValueError):
        whole, exact = -1, Decimal(0)
    if isinstance(credits, bool) or whole < 0 or whole != exact:
        raise InvalidSpec(
            f"{credits!r} is not a number of credits. Write it as 40 or 0.5, with six decimals at most."
        )
    return whole


def format_size(size_bytes: int) -> str:
    """Three digits and a decimal unit: `25.8 GB`."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    text = f"{value:.0f}" if unit == "B" or value >= 99.95 else f"{value:.1f}".removesuffix(".0")
    return f"{text} {unit}"
