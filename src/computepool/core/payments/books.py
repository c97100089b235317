"""Compares the cash that our books say has moved with what the provider's own books say, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class CashMovement:
    # Our id of the top-up or payout.
    subject_id: UUID
    currency: str
    # In: above zero. Out: below.
    minor: int


@dataclass(frozen=True, slots=True)
class Difference:
    subject_id: UUID
    currency: str
    ours_minor: int
    theirs_minor: int


def list_differences(ours: Iterable[CashMovement], theirs: Iterable[CashMovement]) -> list[Difference]:
    """Each direction by itself: cash that left twice and came back once must not look like cash that left once."""
    our_sums, their_sums = _sum(ours), _sum(theirs)
    return [
        Difference(subject_id, currency, our_sums[subject_id, currency, out], their_sums[subject_id, currency, out])
        for subject_id, currency, out in sorted(our_sums.keys() | their_sums.keys())
        if our_sums[subject_id, currency, out] != their_sums[subject_id, currency, out]
    ]


def _sum(movements: Iterable[CashMovement]) -> Counter[tuple[UUID, str, bool]]:
    sums: Counter[tuple[UUID, str, bool]] = Counter()
    for movement in movements:
        sums[movement.subject_id, movement.currency, movement.minor < 0] += movement.minor
    return sums
