"""How near two numbers must lie to count as the same, and the words for what differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Unreadable(Exception):
    """A file is not what its name says; the words say how."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if they differ by no more than absolute + relative x the larger of them."""

    # Single precision summed in another order, such as on another number of threads, stays within it, unless terms
    # nearly cancel (arrays.py).
    relative: float = 1e-5
    absolute: float = 1e-8

    def __post_init__(self) -> None:
        # Also refuses what is no number. At 1 every two numbers of one sign would agree.
        if not (0.0 <= self.relative < 1.0 and 0.0 <= self.absolute < float("inf")):
            raise ValueError("a tolerance is at least 0; the relative one is below 1, the absolute one finite")


USUAL = Tolerance()


def are_close(one: float, other: float, tolerance: Tolerance) -> bool:
    if one == other:
        return True
    if one != one or other != other:
        # What is no number agrees with what is none either.
        return one != one and other != other
    gap = abs(one - other)
    # An infinite gap would be within an infinite share of it.
    return gap < float("inf") and gap <= tolerance.absolute + tolerance.relative * max(abs(one), abs(other))


def find_far_number(ones: Iterable[float], others: Iterable[float], tolerance: Tolerance) -> str | None:
    """The first pair that lies too far apart. Both have the same length."""
    for index, (one, other) in enumerate(zip(ones, others, strict=True)):
        if one != other and not are_close(one, other, tolerance):
            return f"number {index:,} is {one!r} here and {other!r} there"
    return None
