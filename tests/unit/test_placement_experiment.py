"""Two sets of weights compared: intervals against published figures, and what is concluded from them."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, log

import pytest

from computepool.core.placement.experiment import (
    JOBS_MIN,
    Interval,
    JobOutcome,
    Verdict,
    compare,
    newcombe_interval,
    student_quantile,
    summarise,
    welch_interval,
    wilson_interval,
)

# A pair of samples that textbooks of Welch's test show: t = -2.46 with 25.0 degrees of freedom.
ONE = (27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4)
OTHER = (27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4)

DONE = JobOutcome(
    weight_set="default",
    slice_count=1,
    wait_seconds=1.0,
    turnaround_seconds=10.0,
    finished=True,
    attempt_count=1,
    fault_count=0,
    run_count=1,
    run_seconds=8.0,
    paid_microcredits=8.0 / 3_600 * 12_000_000,
)


def make_jobs(
    name: str, count: int, *, seed: int, scale: float = 1.0, spread: float = 0.3, faults: float = 0.0
) -> list[JobOutcome]:
    drawn = random.Random(seed)
    return [
        replace(
            DONE,
            weight_set=name,
            turnaround_seconds=10.0 * scale * drawn.lognormvariate(0.0, spread),
            fault_count=int(drawn.random() < faults),
        )
        for _ in range(count)
    ]


# Intervals


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980), (1_500, 1.962), (1e9, 1.960)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, quantile: float):
    assert student_quantile(0.95, freedom) == pytest.approx(quantile, abs=6e-4)


def test_welchs_interval_is_the_published_one():
    found = welch_interval(ONE, OTHER)
    # By the published t and freedom: the standard error is the difference over t, times the quantile 2.060.
    assert found.estimate == pytest.approx(2.1667, abs=1e-4)
    reach = found.estimate / 2.46 * 2.0596
    assert (found.low, found.high) == pytest.approx((found.estimate - reach, found.estimate + reach), abs=0.01)
    assert found.sign == 1
    assert welch_interval(OTHER, ONE).sign == -1


@pytest.mark.parametrize(
    ("count", "total", "interval"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_wilsons_interval_is_the_published_one(count: int, total: int, interval: tuple[float, float]):
    assert wilson_interval(count, total) == pytest.approx(interval, abs=1e-4)


@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [
        # Newcombe 1998, table II, method 10: 56/70 - 48/80, 9/10 - 3/10, 10/10 - 0/20, 10/10 - 0/10.
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
        ((0, 20), (10, 10), (0.6791, 1.0)),
        ((0, 10), (10, 10), (0.6075, 1.0)),
    ],
)
def test_newcombes_interval_is_the_published_one(first, second, interval):
    found = newcombe_interval(*first, *second)
    assert (found.low, found.high) == pytest.approx(interval, abs=1e-4)


def test_an_interval_of_equal_values_is_a_point():
    assert welch_interval([1.0, 1.0], [3.0, 3.0]) == Interval(2.0, 2.0, 2.0)


def count_misses(compare_slices: bool, *, rounds: int = 400) -> int:
    """How often two equal sets are told apart, with jobs whose 30 slices share their job's fate."""
    drawn = random.Random(7)
    misses = 0
    for _ in range(rounds):
        sides = []
        for _ in range(2):
            jobs = [drawn.gauss(0.0, 0.5) for _ in range(25)]
            slices = [job + drawn.gauss(0.0, 0.1) for job in jobs for _ in range(30)]
            sides.append(slices if compare_slices else jobs)
        misses += welch_interval(*sides).sign != 0
    return misses


def test_equal_sets_are_told_apart_once_in_twenty_times_and_not_more():
    assert 8 <= count_misses(compare_slices=False) <= 34


def test_control_counting_slices_instead_of_jobs_would_feign_differences():
    assert count_misses(compare_slices=True) > 150


# Conclusions


def test_a_set_that_is_clearly_quicker_is_called_better():
    outcomes = make_jobs("default", 400, seed=1) + make_jobs("classic", 400, seed=2, scale=0.8)
    found = compare(outcomes, first="default", second="classic")
    assert found.verdict is Verdict.SECOND
    assert found.turnaround is not None
    assert found.turnaround.low < log(0.8) < found.turnaround.high < 0
    assert found.words.startswith("classic is better: jobs of classic take ")
    assert " % less time (" in found.words
    assert found.jobs_more is None
    turned = compare(outcomes, first="classic", second="default")
    assert turned.verdict is Verdict.FIRST
    assert turned.words.startswith("classic is better: jobs of default take ")


def test_a_set_whose_nodes_fail_more_is_called_worse_though_it_is_as_quick():
    outcomes = make_jobs("default", 600, seed=1, faults=0.02) + make_jobs("classic", 600, seed=2, faults=0.10)
    found = compare(outcomes, first="default", second="classic")
    assert found.verdict is Verdict.FIRST
    assert found.fault_share is not None
    assert found.fault_share.sign == 1
    assert "more of the jobs of classic meet a node's fault" in found.words


def test_quicker_but_less_reliable_is_told_as_both():
    outcomes = make_jobs("default", 600, seed=1) + make_jobs("classic", 600, seed=2, scale=0.7, faults=0.1)
    found = compare(outcomes, first="default", second="classic")
    assert found.verdict is Verdict.MIXED
    assert "less time" in found.words
    assert "more of the jobs" in found.words


def test_few_jobs_and_wide_spread_tell_nothing_yet_and_say_how_many_more():
    outcomes = make_jobs("default", 30, seed=1, spread=1.0) + make_jobs("classic", 30, seed=2, spread=1.0)
    found = compare(outcomes, first="default", second="classic")
    assert found.verdict is Verdict.UNDECIDED
    assert found.jobs_more is not None
    assert f"needs about {found.jobs_more:,} more job" in found.words


def test_with_as_many_more_jobs_as_it_said_a_difference_is_told_four_times_of_five():
    """Spread exp(1) and a fifth less time, first as a small sample that shows just that, then drawn at random."""
    small = [
        replace(DONE, weight_set=name, turnaround_seconds=10.0 * scale * exp(side))
        for name, scale in (("default", 1.0), ("classic", 0.8))
        for side in (-1.0, 1.0)
        for _ in range(JOBS_MIN)
    ]
    found = compare(small, first="default", second="classic")
    assert found.verdict is Verdict.UNDECIDED
    assert found.jobs_more is not None
    each = (len(small) + found.jobs_more) // 2
    told = 0
    for seed in range(60):
        one = make_jobs("default", each, seed=seed, spread=1.0)
        other = make_jobs("classic", each, seed=1_000 + seed, spread=1.0, scale=0.8)
        told += compare(one + other, first="default", second="classic").verdict is Verdict.SECOND
    assert 39 <= told <= 57


def test_sets_that_differ_by_less_than_matters_are_called_alike():
    outcomes = make_jobs("default", 3_000, seed=1, spread=0.2) + make_jobs("classic", 3_000, seed=2, spread=0.2)
    assert compare(outcomes, first="default", second="classic").verdict is Verdict.ALIKE


@pytest.mark.parametrize("count", [0, 1, JOBS_MIN - 1])
def test_with_fewer_jobs_than_a_sample_needs_nothing_is_reckoned(count: int):
    outcomes = make_jobs("default", 500, seed=1) + make_jobs("classic", count, seed=2, scale=0.1)
    found = compare(outcomes, first="default", second="classic")
    assert (found.turnaround, found.verdict) == (None, Verdict.UNDECIDED)
    assert found.words.startswith("Cannot be told yet: ")
    assert ("no job was given classic" in found.words) is (count == 0)


def test_a_set_against_itself_is_no_comparison():
    found = compare(make_jobs("default", 100, seed=1), first="default", second="default")
    assert found.verdict is Verdict.UNDECIDED
    assert found.words == "Nothing is compared: both sides of the split are default."


def test_jobs_of_another_set_do_not_count():
    outcomes = make_jobs("older", 100, seed=1) + make_jobs("default", 3, seed=2)
    found = compare(outcomes, first="default", second="classic")
    assert (found.first.job_count, found.second.job_count) == (3, 0)


def test_a_set_is_summed_up():
    waiting = replace(DONE, wait_seconds=None, turnaround_seconds=None, finished=False, run_count=0, run_seconds=0.0)
    waiting = replace(waiting, attempt_count=0, paid_microcredits=0.0)
    failed = replace(DONE, turnaround_seconds=None, attempt_count=3, fault_count=2, wait_seconds=5.0)
    found = summarise("default", [DONE, replace(DONE, slice_count=4, run_seconds=16.0), failed, waiting])
    assert (found.job_count, found.finished_count, found.succeeded_count, found.slice_count) == (4, 3, 2, 7)
    assert (found.attempt_count, found.fault_count, found.faulty_job_count) == (5, 2, 1)
    assert found.wait_seconds is not None
    assert (found.wait_seconds.median, found.wait_seconds.mean) == (1.0, pytest.approx(7 / 3))
    assert found.run_seconds is not None
    assert found.run_seconds.mean == pytest.approx((8 + 16 + 8) / 3)
    assert found.price_microcredits_per_hour == pytest.approx(9_000_000)
    assert summarise("empty", []).wait_seconds is None
