"""What each scorer says, and what they say together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log

import pytest

from computepool.core.placement import scorers
from computepool.core.placement.scorers import (
    CORE_TFLOPS,
    SCORERS,
    TIER_TFLOPS,
    Candidate,
    break_tie,
    default_tflops,
    list_score_lines,
    make_candidate,
    round_reliability,
    score,
)
from computepool.core.placement.weights import WEIGHT_MAX, Preference, Weights
from tests.support.builders import GB, make_shape, make_slot, node_number

EVEN = Weights(price=1.0, speed=1.0, reliability=1.0)
CLASSIC = Weights(vram_fit=10.0, cores_fit=5.0)
CPU_SLOT = Candidate(make_slot(), 0.2, 9_600_000, 0.9)
CARD = Candidate(make_slot(vram_bytes=24 * GB), 35.6, 30_000_000, 0.9)
CPU_WORK, GPU_WORK = make_shape(), make_shape(gpu=True)


def gpu_score(candidate: Candidate, preference: Preference = Preference.VALUE, weights: Weights = EVEN) -> float:
    return score(candidate, GPU_WORK, weights, preference)


def test_the_score_is_the_weighted_sum_of_logarithms():
    weights = Weights(price=1.0, speed=2.0, reliability=3.0)
    expected = -log(30_000_000) + 2 * log(35.6) + 3 * log(0.9)
    assert gpu_score(CARD, weights=weights) == pytest.approx(expected)


def test_a_floor_below_spot_counts_as_spot_and_one_above_as_itself():
    """Whoever undercuts the others is paid spot as they are, and gains nothing by it."""
    shape = make_shape()
    points = [
        scorers.score_price(replace(CARD, price_microcredits_per_hour=price, spot_microcredits_per_hour=10), shape)
        for price in (1, 9, 10, 11)
    ]
    assert points[0] == points[1] == points[2] > points[3]


def test_a_fixed_price_is_compared_by_the_reference_and_not_by_spot_or_floor():
    """It is the same base everywhere, times tier and region: what others pay there by the hour is no matter."""
    crowded = replace(CARD, spot_microcredits_per_hour=90_000_000, reference_microcredits_per_hour=25_200_000)
    calm = replace(CARD, spot_microcredits_per_hour=29_000_000, reference_microcredits_per_hour=36_000_000)
    fixed = make_shape(gpu=True, base_ceiling_microcredits_per_hour=10**9)
    assert scorers.score_price(crowded, fixed) > scorers.score_price(calm, fixed)
    assert scorers.score_price(crowded, GPU_WORK) < scorers.score_price(calm, GPU_WORK)
    # Of a pool, and of one's own, what is asked.
    own = replace(CARD, price_microcredits_per_hour=0)
    assert scorers.score_price(own, fixed) == scorers.score_price(own, GPU_WORK) > scorers.score_price(crowded, fixed)


def test_twice_the_speed_is_worth_twice_the_price():
    assert gpu_score(replace(CARD, speed_tflops=71.2, price_microcredits_per_hour=60_000_000)) == pytest.approx(
        gpu_score(CARD)
    )


@pytest.mark.parametrize(
    ("better", "blind"),
    [
        ({"price_microcredits_per_hour": 20_000_000}, Preference.FASTEST),
        ({"speed_tflops": 80.0}, Preference.CHEAPEST),
        ({"reliability": 0.95}, None),
    ],
)
def test_what_is_better_scores_higher_unless_the_wish_ignores_it(better, blind):
    for preference in Preference:
        gain = gpu_score(replace(CARD, **better), preference) - gpu_score(CARD, preference)
        assert gain == 0 if preference is blind else gain > 0


def test_a_free_slot_and_one_that_never_succeeded_have_a_score():
    poor = Candidate(CARD.slot, 0.0, 0, 0.0)
    for preference in Preference:
        assert -1_000 < gpu_score(poor, preference) < 1_000


def test_the_classic_set_gives_points_for_fitting_alone():
    assert gpu_score(CARD, weights=CLASSIC) == 15
    assert score(CARD, make_shape(gpu=True, vram_bytes=30 * GB), CLASSIC, Preference.VALUE) == 5
    assert score(CARD, make_shape(gpu=True, cores=30), CLASSIC, Preference.VALUE) == 10


def test_no_weights_and_no_price_make_cpu_work_prefer_a_gpu():
    extreme = [Weights(*each) for each in product((0.0, WEIGHT_MAX), repeat=5)]
    gift = Candidate(CARD.slot, 1_000.0, 0, 1.0)
    dear = Candidate(CPU_SLOT.slot, 0.0, 2**62, 0.0)
    for weights, preference in product(extreme, Preference):
        assert score(dear, CPU_WORK, weights, preference) > score(gift, CPU_WORK, weights, preference)


def test_every_scorer_of_the_module_is_in_the_list_once_and_has_its_weight():
    own = {name for name in vars(scorers) if name.startswith("score_")}
    assert sorted(scorer.__name__ for scorer in SCORERS) == sorted(own)
    lines = list_score_lines(CARD, CPU_WORK, Weights(1.0, 2.0, 3.0, 4.0, 5.0), Preference.VALUE)
    assert {line.scorer: line.weight for line in lines} == {
        "price": 1.0,
        "speed": 2.0,
        "reliability": 3.0,
        "vram_fit": 4.0,
        "cores_fit": 5.0,
        "gpu_spared": 1.0,
    }


@pytest.mark.parametrize("candidate", [CPU_SLOT, CARD])
@pytest.mark.parametrize("preference", list(Preference))
def test_the_lines_of_the_table_add_up_to_the_score(candidate, preference):
    lines = list_score_lines(candidate, CPU_WORK, EVEN, preference)
    total = score(candidate, CPU_WORK, EVEN, preference)
    assert sum(line.points for line in lines) == pytest.approx(total)


def test_the_score_of_a_slot_that_fits_depends_on_nothing_else_of_the_shape():
    demanding = make_shape(gpu=True, vram_bytes=20 * GB, cores=4, ram_bytes=8 * GB, regions=("IN",))
    for weights, preference in product((EVEN, CLASSIC), Preference):
        assert score(CARD, demanding, weights, preference) == score(CARD, GPU_WORK, weights, preference)


# Ties


def test_among_equals_gpu_work_takes_the_faster_card():
    slow, fast = replace(CARD, speed_tflops=10.0), replace(CARD, speed_tflops=20.0)
    assert break_tie(fast, gpu=True) < break_tie(slow, gpu=True)


def test_among_equals_other_work_takes_the_tightest_fit():
    roomy = replace(CPU_SLOT, slot=replace(CPU_SLOT.slot, cores=64), speed_tflops=3.2)
    assert break_tie(CPU_SLOT, gpu=False) < break_tie(roomy, gpu=False) < break_tie(CARD, gpu=False)


@pytest.mark.parametrize("gpu", [False, True])
def test_who_came_back_from_work_first_is_next_among_those_that_are_alike(gpu):
    one, other = (replace(CARD, slot=replace(CARD.slot, node_id=node_number(n))) for n in (1, 2))
    assert break_tie(other, gpu=gpu, turn=3) < break_tie(one, gpu=gpu, turn=4)
    assert break_tie(other, gpu=gpu) < break_tie(one, gpu=gpu, turn=1), "who has had none comes first of all"
    faster = replace(one, speed_tflops=2 * CARD.speed_tflops)
    assert not gpu or break_tie(faster, gpu=True, turn=9) < break_tie(other, gpu=True, turn=1)


@pytest.mark.parametrize("gpu", [False, True])
def test_ids_decide_at_last(gpu):
    one, other = (replace(CARD, slot=replace(CARD.slot, node_id=node_number(n))) for n in (1, 2))
    assert break_tie(one, gpu=gpu) < break_tie(other, gpu=gpu)


# Reliability


def test_reliability_is_compared_by_whole_percents_rounded_down():
    made = [make_candidate(CARD.slot, price_microcredits_per_hour=1, reliability=r) for r in (0.9301, 0.9399, 0.94)]
    assert [candidate.reliability for candidate in made] == [0.93, 0.93, 0.94]
    for percent in range(101):
        assert round_reliability(percent / 100) == percent / 100
        assert round_reliability(percent / 100 - 1e-12) == percent / 100


# Speed, first form


def test_a_slot_without_a_declared_speed_has_that_of_its_tier():
    assert make_candidate(CARD.slot, price_microcredits_per_hour=1, reliability=1.0).speed_tflops == 35.6
    assert default_tflops(replace(CARD.slot, tier="rtx-9999")) == TIER_TFLOPS["unknown"]
    assert default_tflops(make_slot(cores=8)) == 8 * CORE_TFLOPS


@pytest.mark.parametrize(("declared", "counted"), [(10.0, 10.0), (40.0, 40.0), (1e9, 44.5)])
def test_a_node_can_declare_itself_faster_by_a_quarter_at_most(declared, counted):
    made = make_candidate(CARD.slot, price_microcredits_per_hour=1, reliability=1.0, declared_tflops=declared)
    assert made.speed_tflops == pytest.approx(counted)
