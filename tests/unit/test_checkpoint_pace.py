"""The pace of checkpoints: at most one interval is lost, as long as half of one is enough to save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from computepool import job
from computepool.core.jobs import checkpoint_pace
from computepool.core.jobs.checkpoint_pace import FIRST_COST_SECONDS, find_due_at, find_lead_seconds, learn_cost

EVERY_SECONDS = 8.0
Rule = Callable[[float, float, float], float]


def by_the_rule(saved_at: float, arrived_at: float, cost_seconds: float) -> float:
    return find_due_at(saved_at, every_seconds=EVERY_SECONDS, cost_seconds=cost_seconds)


def from_the_arrival(saved_at: float, arrived_at: float, cost_seconds: float) -> float:
    """Planted: the next interval begins when the last checkpoint has arrived."""
    return find_due_at(arrived_at, every_seconds=EVERY_SECONDS, cost_seconds=cost_seconds)


def without_the_cost(saved_at: float, arrived_at: float, cost_seconds: float) -> float:
    """Planted: the same lead for everybody."""
    return find_due_at(saved_at, every_seconds=EVERY_SECONDS, cost_seconds=0.0)


def find_losses(rule: Rule, costs_seconds: Iterable[float]) -> list[float]:
    """What is lost if the machine goes just before each of these checkpoints has arrived."""
    saved_at = arrived_at = 0.0
    expected_seconds, losses = FIRST_COST_SECONDS, []
    for cost_seconds in costs_seconds:
        # No job saves before its last checkpoint is on its way to the end.
        next_saved_at = max(arrived_at, rule(saved_at, arrived_at, expected_seconds))
        arrived_at = next_saved_at + cost_seconds
        losses.append(arrived_at - saved_at)
        saved_at = next_saved_at
        expected_seconds = learn_cost(expected_seconds, cost_seconds, every_seconds=EVERY_SECONDS)
    return losses


@pytest.mark.parametrize("cost_seconds", [0.0, 0.5, 1.9, 2.0])
def test_what_fits_into_the_first_lead_never_loses_more_than_an_interval(cost_seconds: float) -> None:
    assert max(find_losses(by_the_rule, [cost_seconds] * 20)) <= EVERY_SECONDS


@pytest.mark.parametrize("cost_seconds", [2.5, 3.0, 4.0])
def test_what_takes_longer_is_learnt_from_the_first_one(cost_seconds: float) -> None:
    first, *later = find_losses(by_the_rule, [cost_seconds] * 20)
    assert first > EVERY_SECONDS
    assert max(later) <= EVERY_SECONDS


def test_a_single_slow_one_adds_nothing_to_those_after_it() -> None:
    losses = find_losses(by_the_rule, [1.0, 1.0, 30.0, 1.0, 1.0, 1.0])
    assert [loss > EVERY_SECONDS for loss in losses] == [False, False, True, True, False, False]


def test_control_an_interval_that_begins_at_the_arrival_would_lose_more() -> None:
    assert max(find_losses(from_the_arrival, [1.9] * 20)) > EVERY_SECONDS


def test_control_without_the_measured_cost_every_interval_of_a_slow_line_would_lose_more() -> None:
    assert min(find_losses(without_the_cost, [3.0] * 20)) > EVERY_SECONDS


def test_nobody_is_asked_to_save_more_than_twice_an_interval() -> None:
    assert find_lead_seconds(EVERY_SECONDS, 1e9) == EVERY_SECONDS / 2
    assert find_lead_seconds(EVERY_SECONDS, math.inf) == EVERY_SECONDS / 2


def test_an_outage_is_forgotten_after_a_few_checkpoints() -> None:
    cost_seconds = learn_cost(0.5, 3_600.0, every_seconds=EVERY_SECONDS)
    for _ in range(3):
        cost_seconds = learn_cost(cost_seconds, 0.5, every_seconds=EVERY_SECONDS)
    assert find_lead_seconds(EVERY_SECONDS, cost_seconds) == 0.25 * EVERY_SECONDS


def test_a_clock_that_goes_back_costs_nothing() -> None:
    assert learn_cost(0.0, -5.0, every_seconds=EVERY_SECONDS) == 0.0


def test_scripts_begin_with_the_same_numbers_as_the_machine() -> None:
    told = (job._LEAD_SHARE, job._LEAD_SHARE_MAX, job._FIRST_COST_SECONDS)
    assert told == (checkpoint_pace.LEAD_SHARE, checkpoint_pace.LEAD_SHARE_MAX, checkpoint_pace.FIRST_COST_SECONDS)
