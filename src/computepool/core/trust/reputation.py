"""How far a node can be relied on: two discounted Betas, each judged by its 5 % quantile.

Reliability, per node and class of jobs: does it finish what it takes? Integrity, per node: is what it delivers right?
Whoever calls decides first whose fault a failure or a wrong result was; this room only counts. The bounds are
cautious on purpose: a newcomer starts low and rises with every good event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from math import exp, floor, lgamma, log

# Each event counts 2 % less at the next one: a memory of about fifty events.
DISCOUNT = 0.98
# Without events, half of what is known is forgotten in this time.
IDLE_HALF_LIFE_DAYS = 30.0
# What the first, second and every further failure in a row weigh. A success ends the row.
FAULT_WEIGHTS = (1.0, 2.0, 4.0)
# A wrong result is never an accident of the line: it weighs as much as the third failure in a row.
WRONG_WEIGHT = 4.0
QUANTILE = 0.05

# Evidence is rounded against the node to this part of an event, so that few quantiles ever need computing.
_STEPS_PER_EVENT = 16
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Reliability:
    """Evidence about one node and one class of jobs, as of `counted_at`."""

    finished: float = 0.0  # discounted number of attempts that ended well
    failed: float = 0.0  # discounted and weighted number of failures by the node's fault
    faults_running: int = 0  # failures since the last success
    counted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Integrity:
    """Evidence about one node's results, as of `counted_at`. Only results that were validated count."""

    right: float = 0.0  # discounted number of results that others of another owner got, too
    wrong: float = 0.0  # discounted and weighted number of wrong ones
    validated_count: int = 0  # of both, undiscounted; never fades
    counted_at: datetime | None = None


def to_job_class(*, gpu: bool) -> str:
    """The kind of job that evidence is counted by: a node may be good at one and bad at another."""
    return "script|gpu" if gpu else "script|cpu"


def record_finished(known: Reliability, *, now: datetime) -> Reliability:
    known = fade(known, now=now)
    # Never below what it was: a success must not lower the bound by making old evidence thinner.
    finished = max(known.finished * DISCOUNT + 1.0, known.finished)
    return Reliability(finished, known.failed * DISCOUNT, 0, known.counted_at)


def record_fault(known: Reliability, *, now: datetime) -> Reliability:
    """A failure that is the node's and nobody else's."""
    known = fade(known, now=now)
    weight = FAULT_WEIGHTS[min(known.faults_running, len(FAULT_WEIGHTS) - 1)]
    # Never below what it was, or a light failure after many heavy ones would raise the bound.
    failed = max(known.failed * DISCOUNT + weight, known.failed)
    return Reliability(known.finished * DISCOUNT, failed, known.faults_running + 1, known.counted_at)


def fade(known: Reliability, *, now: datetime) -> Reliability:
    """What is left of the evidence after a time without events: it drifts back to that of a newcomer."""
    left = _left_ratio(known.counted_at, now)
    if left is None:
        return known if known.counted_at else replace(known, counted_at=now)
    return Reliability(known.finished * left, known.failed * left, known.faults_running, now)


def reliability_bound(known: Reliability, *, now: datetime) -> float:
    """With 95 % confidence the node finishes at least this share of what it takes. 0..1."""
    faded = fade(known, now=now)
    return _bound_of(faded.finished, faded.failed)


def record_right(known: Integrity, *, now: datetime) -> Integrity:
    """A result of the node was validated, and is right."""
    known = fade_integrity(known, now=now)
    right = max(known.right * DISCOUNT + 1.0, known.right)
    return Integrity(right, known.wrong * DISCOUNT, known.validated_count + 1, known.counted_at)


def record_wrong(known: Integrity, *, now: datetime) -> Integrity:
    """A result of the node was validated, and is wrong by its own fault."""
    known = fade_integrity(known, now=now)
    wrong = max(known.wrong * DISCOUNT + WRONG_WEIGHT, known.wrong)
    return Integrity(known.right * DISCOUNT, wrong, known.validated_count + 1, known.counted_at)


def fade_integrity(known: Integrity, *, now: datetime) -> Integrity:
    left = _left_ratio(known.counted_at, now)
    if left is None:
        return known if known.counted_at else replace(known, counted_at=now)
    return Integrity(known.right * left, known.wrong * left, known.validated_count, now)


def integrity_bound(known: Integrity, *, now: datetime) -> float:
    """With 95 % confidence at least this share of the node's results is right. 0..1."""
    faded = fade_integrity(known, now=now)
    return _bound_of(faded.right, faded.wrong)


def expected_wrong_ratio(known: Integrity, *, now: datetime) -> float:
    """The mean of the same Beta: how probable it is that the next result is wrong, for all that is known. 0..1."""
    faded = fade_integrity(known, now=now)
    return (faded.wrong + 1.0) / (faded.right + faded.wrong + 2.0)


def _left_ratio(counted_at: datetime | None, now: datetime) -> float | None:
    """None: nothing fades. Hubs write in an order of their own; an event a moment older than the last is no gap."""
    days = 0.0 if counted_at is None else (now - counted_at).total_seconds() / _DAY_SECONDS
    return 2.0 ** (-days / IDLE_HALF_LIFE_DAYS) if days > 0 else None


def _bound_of(good: float, bad: float) -> float:
    return _bound(floor(good * _STEPS_PER_EVENT), -floor(-bad * _STEPS_PER_EVENT))


@lru_cache(maxsize=65_536)
def _bound(good_steps: int, bad_steps: int) -> float:
    return beta_quantile(QUANTILE, good_steps / _STEPS_PER_EVENT + 1.0, bad_steps / _STEPS_PER_EVENT + 1.0)


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x below which a share p of Beta(a, b) lies: Newton's steps, and a halving wherever one would leave."""
    scale = lgamma(a + b) - lgamma(a) - lgamma(b)
    low, high = 0.0, 1.0
    x = a / (a + b)
    for _ in range(60):
        excess = beta_share_below(x, a, b) - p
        if excess < 0:
            low = x
        else:
            high = x
        density = exp(scale + (a - 1.0) * log(x) + (b - 1.0) * log(1.0 - x))
        step = x - excess / density if density > 0.0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - x) < 1e-12:
            return following
        x = following
    return x


def beta_share_below(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1.0 - x))
    # The fraction converges quickly on one side of the mean only; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _continued_fraction(x, a, b) / a
    return 1.0 - front * _continued_fraction(1.0 - x, b, a) / b


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Lentz's method. With the evidence capped by the discount, far fewer than 200 terms are needed."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    total = d
    for m in range(1, 200):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            total *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return total
