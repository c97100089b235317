"""The score table behind a choice, and whose turn it is: figures and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from computepool.core.ids import SlotName
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.choice import RANKED_MAX, Ranked, rank_candidates, say_choice
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.turn import Counted, Turn, Use, count_less, say_slot_time, say_turn
from computepool.core.placement.weights import Preference, Weights
from tests.support.builders import GB, NOW, make_shape, make_slot, node_number

EVEN = Weights(price=1.0, speed=1.0, reliability=1.0)
CREDIT = 1_000_000
GPU_WORK = make_shape(gpu=True)


def make_candidates(*prices: int, **overrides: Any) -> list[Candidate]:
    """One card each on nodes 1, 2, ...; the lowest price is the best value."""
    return [
        Candidate(make_slot(node_id=node_number(number), vram_bytes=24 * GB), 35.6, price * CREDIT, 0.9)
        for number, price in enumerate(prices, 1)
    ]


def key_of(number: int) -> tuple[Any, SlotName]:
    return node_number(number), SlotName("gpu:0")


def rank(candidates: list[Candidate], chosen: int, busy: tuple[int, ...] = ()) -> tuple[Ranked, ...]:
    return rank_candidates(
        candidates,
        GPU_WORK,
        EVEN,
        Preference.VALUE,
        chosen=key_of(chosen),
        busy={key_of(number) for number in busy},
    )


def test_the_best_stand_first_and_the_chosen_one_is_marked():
    ranked = rank(make_candidates(30, 10, 20), chosen=2, busy=(2, 3))
    assert [(each.candidate.slot.node_id.int, each.rank, each.chosen, each.busy) for each in ranked] == [
        (2, 1, True, True),
        (3, 2, False, True),
        (1, 3, False, False),
    ]
    assert all(sum(line.points for line in each.lines) == pytest.approx(each.total) for each in ranked)


def test_the_order_is_the_one_that_placement_takes():
    candidates = make_candidates(30, 10, 10, 20, 10, 40)
    fleet = FleetIndex({"default": EVEN})
    for candidate in candidates:
        fleet.add(candidate)
    taken = fleet.ranked(GPU_WORK, Preference.VALUE, RANKED_MAX)
    assert [each.candidate for each in rank(candidates, chosen=2)] == taken


def test_a_chosen_slot_far_down_takes_the_last_place_with_its_true_rank():
    ranked = rank(make_candidates(*range(1, 10)), chosen=8)
    assert [each.rank for each in ranked] == [1, 2, 3, 8]
    assert [each.chosen for each in ranked] == [False, False, False, True]


def test_a_chosen_slot_that_does_not_fit_any_more_is_not_made_up():
    ranked = rank(make_candidates(10, 20), chosen=7)
    assert not any(each.chosen for each in ranked)
    assert say_choice(ranked, scored_count=2, fit_count=2, is_cut=False).startswith(
        "The slot it got is gone or is lent otherwise"
    )


def test_the_winner_is_told_with_what_sets_it_apart():
    words = say_choice(rank(make_candidates(10, 20), chosen=1), scored_count=2, fit_count=2, is_cut=False)
    assert words == (
        "Of 2 slots that fit, it has the highest score today: "
        "mostly for its price, 2 times as good as the next one's."
    )
    candidates = make_candidates(10, 10)
    faster = [replace(candidates[0], speed_tflops=89.0), candidates[1]]
    assert "mostly for its speed, 2.5 times as good" in say_choice(
        rank(faster, chosen=1), scored_count=2, fit_count=2, is_cut=False
    )


@pytest.mark.parametrize(
    ("busy", "words"),
    [((1, 2), "The best of them is busy now"), ((2,), "The best of them is free now; then it may have been")],
)
def test_a_slot_that_is_not_the_best_today_is_called_so(busy: tuple[int, ...], words: str):
    said = say_choice(rank(make_candidates(10, 20), chosen=2, busy=busy), scored_count=2, fit_count=2, is_cut=False)
    assert "1 slot would score higher today" in said
    assert words in said


def test_a_rank_behind_all_that_were_scored_is_called_a_least():
    ranked = rank(make_candidates(10, 20), chosen=2)
    assert "1 slot or more would score" in say_choice(ranked, scored_count=2, fit_count=600, is_cut=False)
    ranked = rank(make_candidates(10, 20, 30), chosen=2)
    assert "1 slot would score" in say_choice(ranked, scored_count=3, fit_count=600, is_cut=False)


def test_equals_and_loners_are_told_apart():
    assert "none scores higher" in say_choice(
        rank(make_candidates(10, 10), chosen=2), scored_count=2, fit_count=2, is_cut=False
    )
    assert "equal ones" in say_choice(
        rank(make_candidates(10, 10), chosen=1), scored_count=2, fit_count=2, is_cut=False
    )
    assert say_choice(rank(make_candidates(10), chosen=1), scored_count=1, fit_count=1, is_cut=False).startswith(
        "No other slot"
    )
    assert "more than 9 slots" in say_choice(
        rank(make_candidates(1, 2), chosen=1), scored_count=2, fit_count=9, is_cut=True
    )


# Turns


def make_turn(**overrides: Any) -> Turn:
    values: dict[str, Any] = {
        "priority_class": PriorityClass.NORMAL,
        "priority": 0,
        "class_ahead": Counted(0),
        "own_ahead": Counted(0),
        "use": Use(0.0, 1.0),
        "others": Counted(0),
        "others_less_count": 0,
        "deadline_at": None,
        "raised_at": None,
    }
    return Turn(**{**values, **overrides})


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({}, "No slice of this account goes before it."),
        ({"own_ahead": Counted(1)}, "1 slice of this account goes before it."),
        ({"own_ahead": Counted(40), "priority": -2}, "40 slices of this account go before it (own priority -2)."),
        (
            {"own_ahead": Counted(10_000, is_more=True)},
            "More than 10,000 slices of this account go before it.",
        ),
        (
            {"raised_at": NOW, "priority": 11},
            "No slice of this account goes before it; it was moved to the front for its deadline.",
        ),
        (
            {"class_ahead": Counted(3), "priority_class": PriorityClass.LOW},
            "3 slices of a higher class than low go first. No slice of this account goes before it.",
        ),
        (
            {"others": Counted(1), "use": Use(7_200.0, 1.0), "others_less_count": 1},
            "1 other account waits for such slots, which are shared by time and weight; lately this one has had "
            "2 slot-hours, 1 of them less. No slice of this account goes before it.",
        ),
        (
            {"others": Counted(6), "use": Use(90.0, 2.5)},
            "6 other accounts wait for such slots, which are shared by time and weight; lately this one has had "
            "1.5 slot-minutes at weight 2.5, none of them less. No slice of this account goes before it.",
        ),
    ],
)
def test_what_goes_before_it_is_told_in_the_order_of_the_rules(turn: dict[str, Any], words: str):
    assert say_turn(make_turn(**turn)) == words


def test_use_is_weighed_before_it_is_compared():
    assert count_less(Use(100.0, 1.0), [Use(99.0, 1.0), Use(150.0, 2.0), Use(100.0, 1.0), Use(1.0, 0.01)]) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "next to nothing"), (40.0, "40 slot-seconds"), (90.0, "1.5 slot-minutes"), (1e7, "2,778 slot-hours")],
)
def test_slot_time_is_said_in_its_largest_unit(seconds: float, text: str):
    assert say_slot_time(seconds) == text
