"""How the surge follows the pressure, and what presses."""

from __future__ import annotations

from itertools import pairwise

import pytest

from computepool.core.market.ppm import PPM
from computepool.core.market.rate_card import Bucket
from computepool.core.market.spot import (
    PRESSURE_PPM_MAX,
    RULE,
    SpotRule,
    SpotState,
    Supply,
    Waiting,
    advance,
    find_target_ppm,
    list_buckets_with_backlog,
    measure_pressures,
    price_spot,
)
from tests.support.builders import account_number

HERE, THERE = Bucket("rtx-4090", "us"), Bucket("rtx-4090", "eu")
SPOTS = {HERE: 100, THERE: 90}
OWNER, ANNA, BEN, CARL = (account_number(number) for number in range(1, 5))


UNDAMPED = SpotRule(smoothing_ppm=PPM, reach_ppm=5 * PPM, step_ppm_min=5 * PPM, step_ppm_max=5 * PPM)


def run(pressure_ppm: int, ticks: int, state: SpotState | None = None, rule: SpotRule = RULE) -> list[SpotState]:
    states = [state or SpotState()]
    for _ in range(ticks):
        states.append(advance(states[-1], pressure_ppm, rule))
    return states


def test_a_bucket_that_is_just_full_costs_the_reference_price():
    assert run(PPM, 50)[-1].surge_ppm == PPM
    assert price_spot(36_000_000, SpotState()) == 36_000_000


def test_a_short_queue_does_not_lift_the_price_and_a_long_one_does():
    assert run(1_250_000, 50)[-1].surge_ppm == PPM
    assert run(2_000_000, 50)[-1].surge_ppm == pytest.approx(1_700_000, abs=10)


@pytest.mark.parametrize(("pressure_ppm", "surge_ppm"), [(0, 800_000), (PRESSURE_PPM_MAX * 5, 3_000_000)])
def test_the_surge_has_bounds(pressure_ppm, surge_ppm):
    assert run(pressure_ppm, 100)[-1].surge_ppm == pytest.approx(surge_ppm, abs=10)


def test_one_tick_moves_by_no_more_than_the_step():
    for before, after in pairwise(run(PRESSURE_PPM_MAX, 30) + run(0, 30, run(PRESSURE_PPM_MAX, 30)[-1])[1:]):
        assert abs(after.surge_ppm - before.surge_ppm) <= before.surge_ppm * RULE.step_ppm_max // PPM + 1


def test_the_first_move_is_small_and_the_following_ones_grow():
    surges = [state.surge_ppm for state in run(5 * PPM, 6)]
    ratios = [after / before for before, after in pairwise(surges)]
    assert ratios[0] == pytest.approx(1 + RULE.step_ppm_min / PPM)
    assert ratios == sorted(ratios)


def test_a_move_that_turns_is_smaller_than_the_one_before():
    up = run(5 * PPM, 8)[-1]
    down = next(state for state in run(0, 30, up) if state.direction < 0)
    assert down.step_ppm < up.step_ppm


def test_one_great_reading_is_soon_forgotten():
    calm = run(PPM, 20)[-1]
    shaken = run(PPM, 8, advance(calm, PRESSURE_PPM_MAX))
    assert max(state.surge_ppm for state in shaken) < 1_100_000
    assert shaken[-1].surge_ppm == pytest.approx(PPM, rel=0.03)


def test_without_supply_nothing_moves():
    state = run(3 * PPM, 5)[-1]
    assert advance(state, None) is state


def test_the_curve_never_falls():
    targets = [find_target_ppm(pressure) for pressure in range(0, 5 * PPM, 1_000)]
    assert targets == sorted(targets)


def settle_on_a_lump(rule: SpotRule) -> list[float]:
    """All of the demand has one ceiling, at 1.5 of the reference: above it nobody waits, below it everybody."""
    state, surges = SpotState(), []
    for _ in range(120):
        state = advance(state, 8 * PPM if state.surge_ppm <= 1_500_000 else PPM, rule)
        surges.append(state.surge_ppm / PPM)
    return surges[60:]


def test_the_price_comes_to_rest_at_a_lump_of_equal_ceilings():
    surges = settle_on_a_lump(RULE)
    assert max(surges) - min(surges) < 0.05
    assert 1.4 < min(surges) <= max(surges) < 1.6


def test_control_without_damping_it_swings_around_the_lump_for_ever():
    surges = settle_on_a_lump(UNDAMPED)
    assert max(surges) - min(surges) > 1.5


def measure(waiting=(), slots=10, busy=10, owners=(), links=None) -> int:
    supplies = {HERE: Supply(slots, busy, frozenset(owners))}
    return measure_pressures(supplies, list(waiting), SPOTS, links or {})[HERE]


def test_pressure_is_work_over_slots():
    assert measure(busy=5) == 500_000
    assert measure([Waiting(ANNA, 2, None, (HERE,))]) == 1_200_000


def test_who_would_not_pay_spot_does_not_press():
    assert measure([Waiting(ANNA, 2, 99, (HERE,)), Waiting(BEN, 3, 100, (HERE,))]) == 1_300_000


def test_one_account_presses_by_half_of_the_slots_at_most():
    assert measure([Waiting(ANNA, 10_000, None, (HERE,))]) == 1_500_000
    assert measure([Waiting(ANNA, 10_000, None, (HERE,)), Waiting(BEN, 10_000, None, (HERE,))]) == 2_000_000


def test_linked_accounts_press_as_one():
    waiting = [Waiting(ANNA, 10_000, None, (HERE,)), Waiting(BEN, 10_000, None, (HERE,))]
    assert measure(waiting, links={BEN: ANNA}) == 1_500_000


def test_even_in_a_tiny_bucket_a_waiting_slice_counts_as_one():
    assert measure([Waiting(ANNA, 1, None, (HERE,))], slots=1, busy=1) == 2_000_000


def test_an_owners_own_queue_does_not_press_on_the_price_of_their_slots():
    waiting = [Waiting(OWNER, 4, None, (HERE,)), Waiting(CARL, 4, None, (HERE,))]
    assert measure(waiting, owners={OWNER}) == 1_400_000
    assert measure(waiting, owners={OWNER}, links={CARL: OWNER}) == 1_000_000


def test_who_could_run_in_two_buckets_presses_on_each_by_its_share():
    supplies = {HERE: Supply(10, 10), THERE: Supply(30, 30)}
    pressures = measure_pressures(supplies, [Waiting(ANNA, 8, None, (HERE, THERE))], SPOTS)
    assert pressures == {HERE: 1_200_000, THERE: 1_200_000}
    only_there = measure_pressures(supplies, [Waiting(ANNA, 8, 95, (HERE, THERE))], SPOTS)
    assert only_there == {HERE: 1_000_000, THERE: 1_266_666}


def test_a_bucket_without_slots_has_no_pressure():
    supplies = {HERE: Supply(0, 0), THERE: Supply(10, 0)}
    assert measure_pressures(supplies, [Waiting(ANNA, 5, None, (HERE,))], SPOTS) == {THERE: 0}


def test_spot_has_force_where_somebody_waits_who_pays_it():
    waiting = [Waiting(ANNA, 1, 95, (HERE, THERE)), Waiting(BEN, 0, None, (HERE,))]
    assert list_buckets_with_backlog(waiting, SPOTS) == {THERE}
