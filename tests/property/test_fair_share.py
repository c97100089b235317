"""Fair shares on a simulated grid: whoever waits gets slot-seconds by weight, however wrong the estimates.

Each property has its negative control: a share broken on purpose, which the same check must catch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.placement import fair_share
from computepool.core.placement.fair_share import FairShare
from tests.support.fair_grid import Demand, FairGrid, account_number

BOUNDED = settings(max_examples=12, deadline=None, derandomize=True, database=None)

A, B = account_number(1), account_number(2)
WINDOW = 200
TOLERANCE = 0.05


def about(seconds: float) -> Callable[[random.Random], float]:
    return lambda dice: seconds * dice.uniform(0.8, 1.2)


def contend(
    *, a_seconds: float, b_seconds: float, slots: list[int], grant_count: int = 1_200, **options: Any
) -> tuple[FairGrid, float]:
    """A has been there for a while when B arrives; some time later half of A is cancelled."""
    a_weight, b_weight = options.pop("weights", (1.0, 1.0))
    # By then the hubs have put right what they thought of A before anything at all was known.
    arrival = max(20 * a_seconds, 30.0) + 0.123
    demands = [
        Demand(A, 100_000, about(a_seconds), weight=a_weight),
        Demand(B, 100_000, about(b_seconds), weight=b_weight, arrives_at=arrival),
    ]
    grid = FairGrid(demands, slots=slots, **options)
    grid.at(arrival + 8 * max(a_seconds, b_seconds), lambda: grid.cancel_half(A))
    grid.run_until(arrival)
    grid.run(grant_count=len(grid.grants) + grant_count)
    return grid, arrival


def find_worst(shares: list[float], fair: float) -> float:
    assert len(shares) > WINDOW, "too few windows prove nothing"
    return max((share - fair for share in shares), key=abs)


def slice_share(one: float, other: float) -> float:
    """What part of a window one of the longer slices is, when two accounts share it evenly."""
    return max(one, other) / (WINDOW * 2 * one * other / (one + other))


# One hub

LENGTHS = st.sampled_from([(10.0, 100.0), (100.0, 10.0), (0.05, 0.5), (0.5, 0.05), (10.0, 10.0)])


@BOUNDED
@given(lengths=LENGTHS, slot_count=st.integers(4, 9), seed=st.integers(0, 2**32))
def test_over_any_200_grants_two_accounts_share_evenly(lengths, slot_count, seed):
    grid, arrival = contend(a_seconds=lengths[0], b_seconds=lengths[1], slots=[slot_count], seed=seed)
    shares = grid.list_granted_shares(A, window=WINDOW, after=arrival, skip=WINDOW)
    assert abs(find_worst(shares, 0.5)) < TOLERANCE
    # From B's first grant on, when nothing is known of how long its slices run, by one long slice more.
    shares = grid.list_granted_shares(A, window=WINDOW, after=arrival)
    assert abs(find_worst(shares, 0.5)) < TOLERANCE + slice_share(*lengths)


@BOUNDED
@given(
    # Long slices of a light account would be few in a window: one more or less is more than the tolerance.
    case=st.sampled_from([((10.0, 100.0), (1.0, 3.0)), ((100.0, 10.0), (3.0, 1.0)), ((10.0, 20.0), (3.0, 1.0))]),
    slot_count=st.integers(4, 9),
    seed=st.integers(0, 2**32),
)
def test_over_any_200_grants_shares_follow_the_weights(case, slot_count, seed):
    (a_seconds, b_seconds), weights = case
    grid, arrival = contend(a_seconds=a_seconds, b_seconds=b_seconds, slots=[slot_count], seed=seed, weights=weights)
    shares = grid.list_granted_shares(A, window=WINDOW, after=arrival)
    assert abs(find_worst(shares, weights[0] / sum(weights))) < TOLERANCE


class ChargesAtTheEndOnly(FairShare):
    def charge_lease(self, account_id, attempt_id, *, expected_seconds, now):
        pass

    def charge_end(self, account_id, attempt_id, *, expected_seconds, **end):
        super().charge_end(account_id, attempt_id, expected_seconds=0.0, **end)


class NeverCorrects(FairShare):
    def charge_end(self, account_id, attempt_id, *, expected_seconds, held_seconds, natural, now):
        super().charge_end(
            account_id,
            attempt_id,
            expected_seconds=expected_seconds,
            held_seconds=expected_seconds,
            natural=natural,
            now=now,
        )


class LevelsNobody(FairShare):
    def _level(self, accounts, arrived, now):
        pass


@pytest.mark.parametrize("broken", [ChargesAtTheEndOnly, NeverCorrects, LevelsNobody])
def test_a_broken_share_is_noticed(broken):
    grid, arrival = contend(a_seconds=10.0, b_seconds=100.0, slots=[8], make_share=broken)
    worst = find_worst(grid.list_granted_shares(A, window=WINDOW, after=arrival), 0.5)
    assert abs(worst) > TOLERANCE + slice_share(10.0, 100.0)


def test_without_levelling_a_newcomer_would_take_everything():
    grid, arrival = contend(a_seconds=10.0, b_seconds=10.0, slots=[8], make_share=LevelsNobody)
    assert grid.list_granted_shares(A, window=WINDOW, after=arrival)[0] < 0.1


# Three hubs that know of each other once a second


@BOUNDED
@given(
    lengths=st.sampled_from([(10.0, 100.0), (100.0, 10.0), (0.05, 0.5), (0.5, 0.05), (3.0, 3.0)]),
    seed=st.integers(0, 2**32),
)
def test_three_hubs_share_evenly_over_any_200_grants(lengths, seed):
    a_seconds, b_seconds = lengths
    grid, arrival = contend(a_seconds=a_seconds, b_seconds=b_seconds, slots=[3, 3, 3], seed=seed)
    held = grid.list_held_shares(A, window=WINDOW, after=arrival, skip=WINDOW)
    assert abs(find_worst(held, 0.5)) < TOLERANCE
    # Each hub is fair to within a slice of its own: by whole slices, a window may have one of the long ones more.
    granted = grid.list_granted_shares(A, window=WINDOW, after=arrival, skip=WINDOW)
    assert abs(find_worst(granted, 0.5)) < TOLERANCE + slice_share(*lengths)


@pytest.mark.parametrize("seed", range(3))
def test_ends_that_are_told_to_another_hub_make_no_difference(seed):
    grid, arrival = contend(a_seconds=10.0, b_seconds=100.0, slots=[3, 3, 3], seed=seed, roaming_ratio=0.7)
    assert abs(find_worst(grid.list_held_shares(A, window=WINDOW, after=arrival, skip=WINDOW), 0.5)) < TOLERANCE


class HearsNothing(FairShare):
    def take_totals(self, deltas, totals, *, hub_count, hub_rank):
        own = {delta.account_id: delta.seconds for delta in deltas}
        for total in totals:
            self._take_total(total, own.get(total.account_id, 0.0))


def share_lopsidedly(make_share: Callable[[], FairShare]) -> float:
    """A third of the slots cannot run what B wants. Returns B's part in the end."""
    demands = [Demand(A, 100_000, about(5.0)), Demand(B, 100_000, about(5.0), unfit_hubs=frozenset({0}))]
    grid = FairGrid(demands, slots=[4, 4, 4], make_share=make_share).run(grant_count=1_500)
    shares = grid.list_held_shares(B, window=WINDOW, after=0.0, skip=600)
    return sum(shares) / len(shares)


def test_what_one_hub_cannot_give_an_account_the_others_make_up_for():
    assert share_lopsidedly(FairShare) == pytest.approx(0.5, abs=TOLERANCE)


def test_without_totals_they_would_not():
    assert share_lopsidedly(HearsNothing) < 0.4


def test_hubs_that_made_up_for_differences_at_once_would_swing(monkeypatch):
    monkeypatch.setattr(fair_share, "CALM_SECONDS", 1 / 3)
    worst = []
    for seed in range(3):
        grid, arrival = contend(
            a_seconds=0.05, b_seconds=0.5, slots=[3, 3, 3], seed=seed, roaming_ratio=0.3, grant_count=2_000
        )
        worst.append(abs(find_worst(grid.list_held_shares(A, window=WINDOW, after=arrival, skip=WINDOW), 0.5)))
    assert max(worst) > 2 * TOLERANCE


# Estimates that are wrong for long


class StopsCharging(FairShare):
    def judge_suspects(self, suspects, live, *, now):
        pass


def hold_share_while_estimates_are_wrong(make_share: Callable[[], FairShare]) -> float:
    """B's slices, so far as short as A's, last thirty times as long from some moment on. B's part until they end."""
    change, length = 200.0, 10.0
    lengths = {B: length}
    demands = [Demand(A, 100_000, about(length)), Demand(B, 100_000, lambda dice: about(lengths[B])(dice))]
    grid = FairGrid(demands, slots=[12], make_share=make_share)
    grid.at(change, lambda: lengths.update({B: 30 * length}))
    grid.run_until(change + 25 * length)
    held = [sum(g.had_by(grid.now) for g in grid.grants if g.at >= change and g.account_id == id) for id in (A, B)]
    return held[1] / sum(held)


def test_slices_that_outlast_their_estimate_are_charged_while_they_run():
    assert hold_share_while_estimates_are_wrong(FairShare) < 0.7


def test_charged_at_their_end_alone_they_would_fill_the_fleet():
    assert hold_share_while_estimates_are_wrong(StopsCharging) > 0.8
