"""How far a node can be relied on to finish what it takes: a discounted Beta, judged by its 5 % quantile.

First form: reliability only, per node and job class. Whoever calls decides first whose fault a failure was; this
room only counts. The bound is cautious on purpose: a newcomer starts low and rises with every finished attempt.
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
    if known.counted_at is None:
        return replace(known, counted_at=now)
    days = (now - known.counted_at).total_seconds() / _DAY_SECONDS
    if days <= 0:
        # Hubs write in an order of their own; an event a moment older than the last one fades nothing.
        return known
    left = 2.0 ** (-days / IDLE_HALF_LIFE_DAYS)
    return Reliability(known.finished * left, known.failed * left, known.faults_running, now)


def reliability_bound(known: Reliability, *, now: datetime) -> float:
    """With 95 % confidence the node finishes at least this share of what it takes. 0..1."""
    faded = fade(known, now=now)
    return _bound(floor(faded.finished * _STEPS_PER_EVENT), -floor(-faded.failed * _STEPS_PER_EVENT))


@lru_cache(maxsize=65_536)
def _bound(finished_steps: int, failed_steps: int) -> float:
    return beta_quantile(QUANTILE, finished_steps / _STEPS_PER_EVENT + 1.0, failed_steps / _STEPS_PER_EVENT + 1.0)


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
