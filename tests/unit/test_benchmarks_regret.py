"""What a hub is charged with when a better slot was free elsewhere, and what it is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from benchmarks.regret import Grant, Key, Lent, replay
from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.core.trust.reputation import Reliability

WEIGHTS = Weights(price=1.0, speed=1.0, reliability=1.0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CPU, GPU = to_shape(Requirements()), to_shape(Requirements(gpu=True))


def make_lent(number: int, price: int, *, gpu: bool = False) -> Lent:
    slot = Slot(
        node_id=NodeId(UUID(int=number)),
        name=SlotName("gpu:0" if gpu else "cpu:0"),
        kind=SlotKind.GPU if gpu else SlotKind.CPU,
        tier="rtx-4090" if gpu else "cpu",
        vram_bytes=24_000_000_000 if gpu else 0,
        cores=4,
        ram_bytes=16_000_000_000,
        disk_bytes=100_000_000_000,
        region=None,
        isolation=IsolationLevel.SANDBOXED,
    )
    return Lent(slot, price)


def make_fleet(*lent: Lent) -> dict[Key, Lent]:
    return {(str(each.slot.node_id), each.slot.name): each for each in lent}


def make_grant(lent: Lent, *, at: float, seconds: float | None = 1.0, shape: Shape = CPU) -> Grant:
    began = NOON + timedelta(seconds=at)
    ended = None if seconds is None else began + timedelta(seconds=seconds)
    return Grant(began, ended, (str(lent.slot.node_id), lent.slot.name), shape, Preference.VALUE)


CHEAP, DEAR = make_lent(1, 1_000), make_lent(2, 1_250)
FLEET = make_fleet(CHEAP, DEAR)


def test_taking_the_best_slot_loses_nothing() -> None:
    found = replay(FLEET, {}, [make_grant(CHEAP, at=0)], WEIGHTS)
    assert (found.grants, found.lost, found.best_share, found.choices) == (1, 0.0, 1.0, 2)


def test_a_slot_that_asks_a_quarter_more_loses_a_fifth() -> None:
    assert replay(FLEET, {}, [make_grant(DEAR, at=0)], WEIGHTS).lost == pytest.approx(0.2)


def test_a_busy_slot_is_no_choice() -> None:
    grants = [make_grant(CHEAP, at=0, seconds=10), make_grant(DEAR, at=5)]
    assert replay(FLEET, {}, grants, WEIGHTS).lost == 0.0


def test_an_attempt_without_an_end_is_busy_to_the_end() -> None:
    grants = [make_grant(CHEAP, at=0, seconds=None), make_grant(DEAR, at=1_000)]
    assert replay(FLEET, {}, grants, WEIGHTS).lost == 0.0


def test_a_slot_that_was_freed_a_moment_ago_is_no_choice_but_one_freed_before_is() -> None:
    long_ago = [make_grant(CHEAP, at=0, seconds=1), make_grant(DEAR, at=1.2)]
    just_now = [make_grant(CHEAP, at=0, seconds=1), make_grant(DEAR, at=1.01)]
    assert replay(FLEET, {}, just_now, WEIGHTS).lost == 0.0
    assert replay(FLEET, {}, long_ago, WEIGHTS).lost > 0.05


def test_a_slot_that_is_given_out_again_at_once_is_busy() -> None:
    grants = [make_grant(CHEAP, at=0, seconds=1), make_grant(CHEAP, at=1.01, seconds=10), make_grant(DEAR, at=5)]
    assert replay(FLEET, {}, grants, WEIGHTS).lost == 0.0


def test_grants_of_one_transaction_are_not_charged_with_each_other() -> None:
    together = [make_grant(DEAR, at=0), make_grant(CHEAP, at=0.0005)]
    apart = [make_grant(DEAR, at=0), make_grant(CHEAP, at=0.5)]
    assert replay(FLEET, {}, together, WEIGHTS).lost == 0.0
    assert replay(FLEET, {}, apart, WEIGHTS).lost == pytest.approx(0.1)


def test_cpu_work_on_a_gpu_while_a_cpu_slot_is_free_has_lost_everything() -> None:
    card = make_lent(3, 1, gpu=True)
    found = replay(make_fleet(CHEAP, card), {}, [make_grant(card, at=0)], WEIGHTS)
    assert (found.lost, found.blunder_share) == (pytest.approx(1.0), 1.0)


def test_a_slot_that_does_not_pass_the_gates_is_no_choice() -> None:
    card = make_lent(3, 99_000, gpu=True)
    found = replay(make_fleet(CHEAP, card), {}, [make_grant(card, at=0, shape=GPU)], WEIGHTS)
    assert (found.lost, found.choices) == (0.0, 1)


def test_a_slot_above_the_ceiling_is_no_choice() -> None:
    shape = to_shape(Requirements(ceiling_microcredits_per_hour=1_100))
    assert replay(FLEET, {}, [make_grant(CHEAP, at=0, shape=shape)], WEIGHTS).choices == 1


def test_what_is_known_of_a_node_counts_and_grows_with_what_it_finishes() -> None:
    first, second = make_lent(1, 1_000), make_lent(2, 1_000)
    fleet = make_fleet(first, second)
    trusted = {(str(second.slot.node_id), False): Reliability(40.0, 1.0, 0, NOON)}
    assert replay(fleet, trusted, [make_grant(second, at=0)], WEIGHTS).lost == 0.0
    assert replay(fleet, trusted, [make_grant(first, at=0)], WEIGHTS).lost > 0.5
    # Both are newcomers, so the first choice costs nothing; the second passes over the one that has proved itself.
    grants = [make_grant(first, at=0), make_grant(second, at=5)]
    assert replay(fleet, {}, grants, WEIGHTS).lost > 0.1


def test_no_grants_are_no_regret_and_are_told_as_such() -> None:
    assert replay(FLEET, {}, [], WEIGHTS).grants == 0
