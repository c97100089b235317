"""What a partition is expected to reach, against one machine, and when splitting is warned of."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from computepool.core.networks import estimate
from computepool.core.networks.cost import estimate_edges, estimate_vnodes
from computepool.core.networks.estimate import FRAME_SECONDS, Machine, estimate_speed
from computepool.core.networks.spec import Dtype, Edge, NetworkSpec, OptimizerSpec, Source, TensorType, VNodeSpec

FAST = 1e9


def make_ideal(*figures: float, **changes: float) -> Machine:
    """Flops, links and nothing else: what rules say of these can be reckoned by hand."""
    return Machine(*figures, **{"frame_seconds": 0.0, "call_seconds": 0.0, "kept_byte_seconds": 0.0, **changes})


# A home: 20 Mbit/s up, 50 ms.
HOME = make_ideal(FAST, bytes_per_second=2.5e6, latency_seconds=0.05)


def make_chain(width: int = 64, *, micro_batches: int = 8, **changes: object) -> NetworkSpec:
    vnodes = (
        VNodeSpec("a", "linear", {"features": width}),
        VNodeSpec("b", "linear", {"features": width}),
        VNodeSpec("head", "linear", {"features": 8}),
        VNodeSpec("loss", "cross_entropy"),
    )
    edges = (
        Edge("@x", "a"),
        Edge("a", "b"),
        Edge("b", "head"),
        Edge("head", "loss"),
        Edge("@y", "loss", target_slot=1),
    )
    sources = (Source("x", TensorType((width,))), Source("y", TensorType((), Dtype.I64)))
    filled = {"batch_size": 32, "micro_batches": micro_batches, **changes}
    return NetworkSpec("chain", vnodes, edges, sources, "loss", ("head", 0), **filled)


def place(spec: NetworkSpec, *machines: int) -> dict[tuple[str, int], int]:
    """By VNode, in the order of the spec; every replica alike."""
    return {
        (vnode.id, replica): machine
        for replica in range(spec.replicas)
        for vnode, machine in zip(spec.vnodes, machines, strict=True)
    }


def test_on_one_machine_the_estimate_is_the_work_over_its_speed():
    spec = make_chain()
    found = estimate_speed(spec, [make_ideal(FAST)], place(spec, 0, 0, 0, 0))
    flops = spec.micro_batches * sum(cost.flops for cost in estimate_vnodes(spec).values())
    assert found.seconds_per_step == pytest.approx(flops / FAST)
    assert found.against_one_machine == pytest.approx(1.0)
    assert found.busy_share == (pytest.approx(1.0),)
    assert (found.cut_bytes, found.warnings) == (0, ())


def test_two_machines_over_a_perfect_link_take_the_bubble_and_the_slower_half():
    spec = make_chain(micro_batches=16, batch_size=64)
    found = estimate_speed(spec, [make_ideal(FAST)] * 2, place(spec, 0, 1, 1, 1))
    costs = estimate_vnodes(spec)
    halves = [costs["a"].flops / FAST, sum(costs[each].flops for each in ("b", "head", "loss")) / FAST]
    assert found.seconds_per_step == pytest.approx(sum(halves) + 15 * max(halves))
    assert 1.5 < found.against_one_machine < 2.0
    assert found.warnings == ()


def test_more_micro_batches_make_the_bubble_smaller():
    few, many = (make_chain(micro_batches=count, batch_size=64) for count in (2, 32))
    rates = [
        estimate_speed(spec, [make_ideal(FAST)] * 2, place(spec, 0, 1, 1, 1)).against_one_machine
        for spec in (few, many)
    ]
    assert rates[0] < rates[1] < 2.0


def test_over_a_home_uplink_a_small_network_is_slower_and_that_is_said():
    spec = make_chain()
    found = estimate_speed(spec, [HOME, HOME], place(spec, 0, 1, 1, 1))
    assert found.against_one_machine < 0.1
    assert any("one machine that holds all of it would be faster" in words for words in found.warnings)
    assert found.cut_bytes == spec.micro_batches * estimate_edges(spec)[Edge("a", "b")].size_bytes


def test_latency_bounds_the_pace_by_what_may_be_under_way():
    """Two machines, so three micro-batches at once: a step of 8 takes at least two more round trips."""
    spec = make_chain()
    found = estimate_speed(spec, [HOME, HOME], place(spec, 0, 1, 1, 1))
    assert found.seconds_per_step >= 0.1 + 7 * 0.1 / 3


def test_control_an_estimate_without_latency_promises_too_much(monkeypatch):
    monkeypatch.setattr(estimate, "_cross", lambda sender, receiver, cost: 0.0)
    with pytest.raises(AssertionError):
        test_latency_bounds_the_pace_by_what_may_be_under_way()


def test_a_faster_link_is_never_slower():
    spec = make_chain(256)
    rates = [
        estimate_speed(spec, [make_ideal(FAST, speed)] * 2, place(spec, 0, 0, 1, 1)).samples_per_second
        for speed in (1e5, 1e6, 1e7, inf)
    ]
    assert rates == sorted(rates)


def test_too_few_micro_batches_for_the_machines_are_warned_of():
    spec = make_chain(micro_batches=2)
    found = estimate_speed(spec, [make_ideal(FAST)] * 3, place(spec, 0, 1, 2, 2))
    assert any("2 micro-batches do not keep 3 machines busy" in words for words in found.warnings)


def test_replicas_share_the_micro_batches_and_pay_for_their_sum():
    spec = make_chain(replicas=2)
    apart = {(vnode.id, replica): replica for vnode in spec.vnodes for replica in range(2)}
    free = estimate_speed(spec, [make_ideal(FAST)] * 2, apart)
    assert free.against_one_machine == pytest.approx(2.0)
    paid = estimate_speed(spec, [make_ideal(FAST, 1e6, 0.01)] * 2, apart)
    weights = 4 * sum(cost.parameter_count for cost in estimate_vnodes(spec).values())
    assert paid.cut_bytes == 2 * weights
    assert paid.seconds_per_step == pytest.approx(free.seconds_per_step + 2 * weights / 1e6 + 0.02)


def test_two_towers_on_two_machines_do_not_wait_for_each_other():
    vnodes = (
        VNodeSpec("left", "linear", {"features": 64}),
        VNodeSpec("right", "linear", {"features": 64}),
        VNodeSpec("sum", "add"),
        VNodeSpec("loss", "mse"),
    )
    edges = (
        Edge("@x", "left"),
        Edge("@x", "right"),
        Edge("left", "sum"),
        Edge("right", "sum", target_slot=1),
        Edge("sum", "loss"),
        Edge("@y", "loss", target_slot=1),
    )
    sources = (Source("x", TensorType((64,))), Source("y", TensorType((64,))))
    spec = NetworkSpec("towers", vnodes, edges, sources, "loss", ("sum", 0), batch_size=8, micro_batches=1)
    found = estimate_speed(spec, [make_ideal(FAST)] * 2, place(spec, 0, 1, 1, 1))
    assert found.against_one_machine > 1.8, "one micro-batch is enough where nothing comes after the other"


def seconds_per_step(spec: NetworkSpec, machine: Machine) -> float:
    return estimate_speed(spec, [machine, machine], place(spec, 0, 1, 1, 1)).seconds_per_step


def test_every_tensor_takes_of_both_ends_and_of_the_way():
    """One micro-batch alone: there and back, two ends each."""
    spec = make_chain(micro_batches=1)
    slower = seconds_per_step(spec, make_ideal(FAST, frame_seconds=0.001)) - seconds_per_step(spec, make_ideal(FAST))
    assert slower == pytest.approx(4 * 0.001)


def test_many_tensors_are_bound_by_the_processor_that_handles_them():
    spec = make_chain(micro_batches=32)
    assert seconds_per_step(spec, make_ideal(1e15, frame_seconds=0.001)) >= 32 * 2 * 0.001


def test_a_small_block_takes_its_calls_however_fast_the_machine_multiplies():
    spec = make_chain()
    found = estimate_speed(spec, [make_ideal(1e18, call_seconds=1e-5)], place(spec, 0, 0, 0, 0))
    costs = estimate_vnodes(spec).values()
    calls = sum(spec.micro_batches * cost.calls + cost.update_calls for cost in costs)
    assert found.seconds_per_step == pytest.approx(calls * 1e-5, rel=1e-3)
    assert found.samples_per_second_one_machine == pytest.approx(found.samples_per_second)


def test_what_is_kept_for_the_way_back_takes_time_in_proportion():
    spec = make_chain()
    found = estimate_speed(spec, [make_ideal(1e18, kept_byte_seconds=1e-9)], place(spec, 0, 0, 0, 0))
    kept_bytes = spec.micro_batches * sum(cost.kept_bytes for cost in estimate_vnodes(spec).values())
    assert found.seconds_per_step == pytest.approx(kept_bytes * 1e-9, rel=1e-3)


def test_the_norm_of_all_gradients_costs_one_round_trip_more():
    free = make_chain()
    clipped = make_chain(optimizer=OptimizerSpec(clip_norm=1.0))
    assert seconds_per_step(clipped, HOME) - seconds_per_step(free, HOME) == pytest.approx(2 * HOME.latency_seconds)
    busy = replace(HOME, frame_seconds=0.001)
    slower = seconds_per_step(clipped, busy) - seconds_per_step(free, busy)
    assert slower == pytest.approx(2 * HOME.latency_seconds + 4 * 0.001)


@pytest.mark.parametrize(
    "worse",
    [
        {"latency_seconds": 0.1},
        {"bytes_per_second": 1e5},
        {"frame_seconds": 0.05},
        {"call_seconds": 1e-3},
        {"kept_byte_seconds": 1e-5},
        {"flops_per_second": 1e6},
    ],
)
def test_a_machine_that_is_worse_in_anything_is_never_planned_to_be_faster(worse: dict[str, float]):
    spec = make_chain()
    home = Machine(FAST, bytes_per_second=2.5e6, latency_seconds=0.05)
    assert seconds_per_step(spec, replace(home, **worse)) > seconds_per_step(spec, home)


def test_of_a_machine_that_says_its_speed_alone_calls_and_tensors_are_reckoned_all_the_same():
    spec = make_chain()
    assert seconds_per_step(spec, Machine(1e18)) > 8 * FRAME_SECONDS


def test_what_runs_lately_came_to_is_what_the_next_is_planned_to():
    """The slowest of those that take part decides."""
    spec = make_chain()
    slow, slower = (replace(HOME, pace_ratio=pace) for pace in (0.8, 0.5))
    usual = estimate_speed(spec, [HOME, HOME, slower], place(spec, 0, 1, 1, 1))
    found = estimate_speed(spec, [HOME, slow, slower], place(spec, 0, 1, 1, 1))
    assert found.samples_per_second == pytest.approx(0.8 * usual.samples_per_second)
    assert found.seconds_per_step == pytest.approx(usual.seconds_per_step / 0.8)
    assert any("80% of what their lines and processors promise" in words for words in found.warnings)
    assert not any("promise" in words for words in usual.warnings), "a machine that takes no part says nothing"


def test_how_runs_over_lines_went_says_nothing_of_one_machine_alone():
    spec = make_chain()
    alone = place(spec, 0, 0, 0, 0)
    slow = estimate_speed(spec, [replace(HOME, pace_ratio=0.5)], alone)
    assert slow == estimate_speed(spec, [HOME], alone)


def test_control_a_plan_that_forgets_the_pace_is_found(monkeypatch):
    monkeypatch.setattr(estimate, "_find_pace", lambda machines, places: 1.0)
    with pytest.raises(AssertionError):
        test_what_runs_lately_came_to_is_what_the_next_is_planned_to()
