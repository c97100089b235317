"""Ratios as whole parts in a million, so that no fraction of a float ever touches money."""

from __future__ import annotations

PPM = 1_000_000


def times_ppm(amount: int, *ratios_ppm: int) -> int:
    """The amount times all ratios, rounded down once, at the end."""
    whole = 1
    for ratio in ratios_ppm:
        amount *= ratio
        whole *= PPM
    return amount // whole


def to_ppm(part: int, whole: int) -> int:
    """How many parts in a million; the whole is above zero."""
    return part * PPM // whole


def say_percent(ratio_ppm: int) -> str:
    """Rounded to a whole percent: 12 %. Below one percent it says so."""
    if 0 < abs(ratio_ppm) < PPM // 200:
        return "less than 1 %"
    return f"{(ratio_ppm + PPM // 200) * 100 // PPM} %"
