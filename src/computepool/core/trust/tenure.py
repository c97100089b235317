"""What long and clean service earns an owner: pay that is held back for less time, and a small bonus out of the fee.

Served time runs from the day on which probation was passed, and begins anew with every wrong result. It earns comfort
only: which results are audited and what is accepted is the same for all.
"""

from __future__ import annotations

from datetime import timedelta

from computepool.core.ledger.charging import LeaseTerms

HOLDBACK_MAX = timedelta(hours=72)
HOLDBACK_MIN = timedelta(hours=6)
# Nothing changes before the first, nothing after the second. Both lie far beyond what a forger could wait for: the
# held back pay is what a forger has to lose, and what a retro-audit can still reach.
TENURE_STARTS = timedelta(days=30)
TENURE_FULL = timedelta(days=180)
# Of the price, at full tenure.
BONUS_PPM_MAX = 50_000


def tenure_ratio(served: timedelta) -> float:
    """0 for a newcomer, 1 at full tenure."""
    return min(1.0, max(0.0, (served - TENURE_STARTS) / (TENURE_FULL - TENURE_STARTS)))


def plan_holdback(served: timedelta, *, longest: timedelta = HOLDBACK_MAX) -> timedelta:
    """`longest` is the operator's setting; a shorter one than ours is kept as it is."""
    shortest = min(HOLDBACK_MIN, longest)
    return longest - (longest - shortest) * tenure_ratio(served)


def find_bonus_ppm(served: timedelta) -> int:
    """Of the price; whole days count."""
    days, full = (served - TENURE_STARTS).days, (TENURE_FULL - TENURE_STARTS).days
    return BONUS_PPM_MAX * min(full, max(0, days)) // full


def plan_terms(usual: LeaseTerms, served: timedelta) -> LeaseTerms:
    """What is agreed with a node of so much service. The fee is smaller by the bonus, as far as it reaches."""
    longest = timedelta(seconds=usual.holdback_seconds)
    return LeaseTerms(
        fee_ppm=max(0, usual.fee_ppm - find_bonus_ppm(served)),
        holdback_seconds=round(plan_holdback(served, longest=longest).total_seconds()),
    )
