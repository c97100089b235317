"""How sure a result is, and what more certainty costs. Used by the quote and shown with every result.

A result is wrong and stays so only if everybody who got it is wrong in the same way. Runs of strangers are taken to
be wrong independently, each as often as its node's record lets expect; nobody for better than WRONG_RATIO_MIN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log, prod

from computepool.core.ledger.fee import PPM
from computepool.core.trust.validation import RATE_MIN

# The levels that a quote shows.
LEVELS = (0.9, 0.99, 0.999)
# Of a trusted node with a full memory of right results: 1 / 52, rounded up.
TRUSTED_WRONG_RATIO = 0.02
WRONG_RATIO_MIN = 1e-3
RUNS_MAX = 5


@dataclass(frozen=True, slots=True)
class Level:
    confidence: float
    # Agreeing runs of strangers for every result.
    runs: int
    # On top of the price of the work.
    surcharge_ppm: int


def find_confidence(wrong_ratios: Iterable[float]) -> float:
    """Of a result that all these runs agree on; `wrong_ratios` as by `expected_wrong_ratio`, one for each run."""
    return 1.0 - prod(max(WRONG_RATIO_MIN, min(1.0, ratio)) for ratio in wrong_ratios)


def count_runs(confidence: float, *, wrong_ratio: float = TRUSTED_WRONG_RATIO) -> int:
    """How many agreeing runs of such nodes reach it."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    ratio = min(0.5, max(WRONG_RATIO_MIN, wrong_ratio))
    return max(1, min(RUNS_MAX, ceil(log(1.0 - confidence) / log(ratio) - 1e-9)))


def plan_level(confidence: float, *, wrong_ratio: float = TRUSTED_WRONG_RATIO, rate: float = RATE_MIN) -> Level:
    """One run is audited at the usual rate. More runs cost their price, and a further one wherever they differ."""
    runs = count_runs(confidence, wrong_ratio=wrong_ratio)
    extra = rate if runs == 1 else (runs - 1) + (1.0 - (1.0 - wrong_ratio) ** runs)
    return Level(confidence, runs, round(extra * PPM))
