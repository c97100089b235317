"""Compares two sets of weights by what became of the jobs that were given each.

The split draws by job, so a job counts once, however many slices it has: its slices share a fate, and counting them
one by one would feign certainty. Times are compared as logarithms, because jobs differ by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import ceil, exp, log, sqrt
from statistics import NormalDist, fmean, median, variance

from computepool.core.jobs.cause import Cause
from computepool.core.trust.reputation import beta_quantile
from computepool.core.words import say_count

# The node did not do what it had taken on. An owner who comes back to their machine is within their rights.
NODE_FAULTS = frozenset({Cause.GPU_LOST, Cause.NETWORK_LOST, Cause.NODE_VANISHED, Cause.SANDBOX_REFUSED})

CONFIDENCE = 0.95
# The chance to tell a difference that is there, for which the number of jobs still needed is reckoned.
POWER = 0.80
# With fewer jobs than this in either set nothing is concluded: a handful of jobs is no normal sample.
JOBS_MIN = 20
# Differences below these matter to nobody: 5 % of the time, 2 of 100 jobs.
TURNAROUND_RATIO_MINOR = 1.05
FAULT_SHARE_MINOR = 0.02
# A job that took no measurable time is taken for one that took this long.
TURNAROUND_SECONDS_MIN = 0.001
# Beyond it Student's curve and the normal one are the same to four digits.
FREEDOM_MAX = 2_000.0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job. Sums are over the attempts that were looked at."""

    weight_set: str
    slice_count: int
    # From submission to its first lease; None: it has had none.
    wait_seconds: float | None
    # From its first lease to its end; None: it has not succeeded (yet).
    turnaround_seconds: float | None
    finished: bool
    attempt_count: int
    # Attempts that failed by the node's fault.
    fault_count: int
    # Of attempts that succeeded.
    run_count: int
    run_seconds: float
    # Run time of each x the present floor of its node.
    paid_microcredits: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Half of the jobs lie below the median; the mean is what they cost together."""

    median: float
    mean: float


@dataclass(frozen=True, slots=True)
class SetOutcome:
    name: str
    job_count: int
    finished_count: int
    succeeded_count: int
    slice_count: int
    attempt_count: int
    fault_count: int
    # Finished jobs in which at least one attempt failed by a node's fault.
    faulty_job_count: int
    wait_seconds: Summary | None
    turnaround_seconds: Summary | None
    # Mean run of a slice, per job.
    run_seconds: Summary | None
    # What an hour of a slot cost on average, by the present floors of the nodes.
    price_microcredits_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Interval:
    """The second set against the first; below zero the second has less. With 95 % confidence between low and high."""

    estimate: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """-1 or 1 when it is told that the second has less or more, 0 when it is not."""
        return (self.low > 0) - (self.high < 0)

    def is_within(self, bound: float) -> bool:
        return -bound < self.low and self.high < bound


class Verdict(str, Enum):
    FIRST = "first"  # is better
    SECOND = "second"
    MIXED = "mixed"  # one is quicker, the other meets fewer faults
    ALIKE = "alike"  # they differ by less than matters
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Comparison:
    first: SetOutcome
    second: SetOutcome
    # Of the logarithm of the time from first lease to end; None: too few jobs.
    turnaround: Interval | None
    # Of the share of jobs that met a node's fault.
    fault_share: Interval | None
    verdict: Verdict
    words: str
    # About how many more jobs it takes, if it cannot be told yet.
    jobs_more: int | None


def compare(outcomes: Sequence[JobOutcome], *, first: str, second: str) -> Comparison:
    """Jobs of other sets, given before the comparison was changed, do not count."""
    one, other = (
        [each for each in outcomes if each.weight_set == name and name] for name in _distinct(first, second)
    )
    left, right = summarise(first, one), summarise(second, other)
    turnaround, fault_share, jobs_more = None, None, None
    if min(left.succeeded_count, right.succeeded_count) >= JOBS_MIN:
        turnaround = welch_interval(_list_logs(one), _list_logs(other))
        jobs_more = _count_more(turnaround, _list_logs(one), _list_logs(other))
    if min(left.finished_count, right.finished_count) >= JOBS_MIN:
        fault_share = newcombe_interval(
            left.faulty_job_count, left.finished_count, right.faulty_job_count, right.finished_count
        )
    verdict = _judge(turnaround, fault_share)
    if verdict is not Verdict.UNDECIDED:
        jobs_more = None
    elif turnaround is None:
        jobs_more = max(1, 2 * JOBS_MIN - left.succeeded_count - right.succeeded_count)
    words = _say(verdict, left, right, turnaround, fault_share, jobs_more)
    return Comparison(left, right, turnaround, fault_share, verdict, words, jobs_more)


def _distinct(first: str, second: str) -> tuple[str, str]:
    """A set compared with itself has no second side."""
    return first, "" if first == second else second


def summarise(name: str, outcomes: Sequence[JobOutcome]) -> SetOutcome:
    finished = [each for each in outcomes if each.finished]
    run_seconds = sum(each.run_seconds for each in outcomes)
    return SetOutcome(
        name=name,
        job_count=len(outcomes),
        finished_count=len(finished),
        succeeded_count=sum(each.turnaround_seconds is not None for each in outcomes),
        slice_count=sum(each.slice_count for each in outcomes),
        attempt_count=sum(each.attempt_count for each in outcomes),
        fault_count=sum(each.fault_count for each in outcomes),
        faulty_job_count=sum(each.fault_count > 0 for each in finished),
        wait_seconds=_summarise(outcomes, lambda each: each.wait_seconds),
        turnaround_seconds=_summarise(outcomes, lambda each: each.turnaround_seconds),
        run_seconds=_summarise(outcomes, lambda each: each.run_seconds / each.run_count if each.run_count else None),
        price_microcredits_per_hour=(
            sum(each.paid_microcredits for each in outcomes) / run_seconds * 3_600 if run_seconds else None
        ),
    )


def _summarise(outcomes: Sequence[JobOutcome], value: Callable[[JobOutcome], float | None]) -> Summary | None:
    found = [seconds for each in outcomes if (seconds := value(each)) is not None]
    return Summary(median(found), fmean(found)) if found else None


def _list_logs(outcomes: Sequence[JobOutcome]) -> list[float]:
    times = (each.turnaround_seconds for each in outcomes)
    return [log(max(seconds, TURNAROUND_SECONDS_MIN)) for seconds in times if seconds is not None]


# Intervals


def welch_interval(first: Sequence[float], second: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """Of the difference of two means, without taking the spread of both for equal. Two values each at least."""
    a, b = variance(first) / len(first), variance(second) / len(second)
    estimate = fmean(second) - fmean(first)
    if a + b == 0:
        return Interval(estimate, estimate, estimate)
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    reach = student_quantile(confidence, freedom) * sqrt(a + b)
    return Interval(estimate, estimate - reach, estimate + reach)


@lru_cache(maxsize=64)
def student_quantile(confidence: float, freedom: float) -> float:
    """How far from the middle of Student's curve this share of it reaches, on both sides."""
    if freedom > FREEDOM_MAX:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    x = beta_quantile(1 - confidence, freedom / 2, 0.5)
    return sqrt(freedom * (1 - x) / x)


def newcombe_interval(
    first_count: int, first_total: int, second_count: int, second_total: int, *, confidence: float = CONFIDENCE
) -> Interval:
    """Of the difference of two shares, from Wilson's interval of each: right for shares near 0 and 1, too."""
    p, q = first_count / first_total, second_count / second_total
    p_low, p_high = wilson_interval(first_count, first_total, confidence=confidence)
    q_low, q_high = wilson_interval(second_count, second_total, confidence=confidence)
    low = q - p - sqrt((q - q_low) ** 2 + (p_high - p) ** 2)
    high = q - p + sqrt((q_high - q) ** 2 + (p - p_low) ** 2)
    return Interval(q - p, low, high)


def wilson_interval(count: int, total: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = count / total
    middle = share + z * z / (2 * total)
    reach = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def _count_more(found: Interval, first: Sequence[float], second: Sequence[float]) -> int:
    """Until a difference as large as the one that is seen, or the least that matters, is told with good chance."""
    difference = max(abs(found.estimate), log(TURNAROUND_RATIO_MINOR))
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + NormalDist().inv_cdf(POWER)
    total = len(first) + len(second)
    spread = variance(first) * total / len(first) + variance(second) * total / len(second)
    return max(1, ceil(z * z * spread / difference**2) - total)


# Words


def _judge(turnaround: Interval | None, fault_share: Interval | None) -> Verdict:
    if turnaround is None or fault_share is None:
        return Verdict.UNDECIDED
    signs = {turnaround.sign, fault_share.sign} - {0}
    if len(signs) == 2:
        return Verdict.MIXED
    if signs:
        return Verdict.SECOND if signs == {-1} else Verdict.FIRST
    if turnaround.is_within(log(TURNAROUND_RATIO_MINOR)) and fault_share.is_within(FAULT_SHARE_MINOR):
        return Verdict.ALIKE
    return Verdict.UNDECIDED


def _say(
    verdict: Verdict,
    left: SetOutcome,
    right: SetOutcome,
    turnaround: Interval | None,
    fault_share: Interval | None,
    jobs_more: int | None,
) -> str:
    if verdict is Verdict.UNDECIDED:
        return _say_undecided(left, right, jobs_more)
    assert turnaround is not None
    assert fault_share is not None
    if verdict is Verdict.ALIKE:
        return (
            f"{left.name} and {right.name} are alike: times differ by less than "
            f"{_percent(TURNAROUND_RATIO_MINOR - 1)} and faults by less than {_points(FAULT_SHARE_MINOR)}."
        )
    told = [
        *([_say_turnaround(right.name, turnaround)] if turnaround.sign else []),
        *([_say_faults(right.name, fault_share)] if fault_share.sign else []),
    ]
    better = {Verdict.FIRST: f"{left.name} is better", Verdict.SECOND: f"{right.name} is better"}
    return f"{better.get(verdict, 'Each is better in one way')}: {' and '.join(told)}."


def _say_undecided(left: SetOutcome, right: SetOutcome, jobs_more: int | None) -> str:
    if left.name == right.name:
        return f"Nothing is compared: both sides of the split are {left.name}."
    empty = next((each for each in (left, right) if not each.job_count), None)
    if empty is not None:
        return f"Cannot be told yet: no job was given {empty.name}. The split in the placement file decides how many."
    return f"Cannot be told yet: needs about {say_count(jobs_more or 1, 'more job')}."


def _say_turnaround(name: str, found: Interval) -> str:
    """From logarithms back to percent of the first set's time."""
    less = found.estimate < 0
    nearer, farther = sorted(abs(exp(bound) - 1) for bound in (found.low, found.high))
    amount = _percent(abs(exp(found.estimate) - 1))
    return (
        f"jobs of {name} take {amount} {'less' if less else 'more'} time ({_percent(nearer)} to {_percent(farther)})"
    )


def _say_faults(name: str, found: Interval) -> str:
    nearer, farther = sorted((abs(found.low), abs(found.high)))
    word = "fewer" if found.estimate < 0 else "more"
    return (
        f"{_points(abs(found.estimate))} {word} of the jobs of {name} meet a node's fault "
        f"({_points(nearer)} to {_points(farther)})"
    )


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _points(share: float) -> str:
    """Of shares that are themselves percents: the difference in jobs of a hundred."""
    return f"{share * 100:.2g} in 100"
