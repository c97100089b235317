"""What a network costs, against figures worked out by hand and against what torch really builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from computepool.core.networks.cost import count_parameters, estimate_edges, estimate_vnodes
from computepool.core.networks.spec import Dtype, Edge, NetworkSpec, OptimizerKind, OptimizerSpec, VNodeSpec
from computepool.networks import reference
from computepool.networks.uncut import UncutNetwork
from tests.support.network_data import make_dataset
from tests.support.networks import chain, make_branching, make_char_lm, make_conv, make_mlp

NETWORKS = [make_mlp(), make_conv(), make_branching(), make_char_lm()]


@pytest.mark.parametrize("spec", NETWORKS, ids=["mlp", "conv", "branching", "char_lm"])
def test_parameters_are_counted_as_torch_counts_them(spec: NetworkSpec) -> None:
    assert count_parameters(spec) == sum(parameter.numel() for parameter in UncutNetwork(spec).parameters())


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [
        (OptimizerSpec(OptimizerKind.ADAM), 16),
        (OptimizerSpec(OptimizerKind.ADAMW), 16),
        (OptimizerSpec(OptimizerKind.SGD), 8),
        (OptimizerSpec(OptimizerKind.SGD, momentum=0.9), 12),
    ],
    ids=["adam", "adamw", "sgd", "momentum"],
)
def test_a_parameter_takes_its_weight_its_gradient_and_what_the_optimizer_keeps(
    optimizer: OptimizerSpec, each: int
) -> None:
    cost = estimate_vnodes(make_mlp(optimizer=optimizer))["head"]
    assert cost.parameter_count == 24 * 10 + 10
    assert cost.state_bytes == each * cost.parameter_count
    assert cost.checkpoint_bytes == (each - 4) * cost.parameter_count


def test_work_and_kept_bytes_grow_with_the_micro_batch() -> None:
    small = estimate_vnodes(make_mlp(micro_batches=16))["head"]
    large = estimate_vnodes(make_mlp(micro_batches=1))["head"]
    assert small.flops_forward == 2 * 24 * 10
    assert small.flops_backward == 2 * small.flops_forward
    assert small.kept_bytes == 4 * (24 + 10)
    assert (large.flops, large.kept_bytes) == (16 * small.flops, 16 * small.kept_bytes)
    assert large.memory_bytes(3) == large.state_bytes + 3 * large.kept_bytes


def test_an_edge_carries_a_micro_batch_there_and_its_gradient_back() -> None:
    edges = estimate_edges(make_branching())
    assert len(edges) == 7
    there = edges[Edge("stem", "left")]
    assert (there.forward_bytes, there.backward_bytes) == (4 * 24 * 4, 4 * 24 * 4)
    halved = estimate_edges(make_branching(wire=Dtype.BF16))[Edge("stem", "left")]
    assert halved.size_bytes * 2 == there.size_bytes


def test_nothing_comes_back_to_what_has_no_weights() -> None:
    spec = chain(VNodeSpec("a", "relu"), VNodeSpec("b", "linear", {"features": 10}))
    assert estimate_edges(spec)[Edge("a", "b")].backward_bytes == 0


@pytest.mark.parametrize("spec", NETWORKS, ids=["mlp", "conv", "branching", "char_lm"])
def test_flops_are_near_what_torch_counts(spec: NetworkSpec) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from tests.support.network_data import make_dataset

    network = UncutNetwork(spec)
    sources = make_dataset(spec).batch(spec, 0, 0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.loss(sources)
    ours = sum(cost.flops_forward for cost in estimate_vnodes(spec).values())
    # Torch counts products of matrices alone; ours counts the small change too.
    assert 1.0 <= ours / counter.get_total_flops() < 1.5


class _Counting(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return call(*args, **(kwargs or {}))


def count_calls(spec: NetworkSpec, steps: int) -> int:
    with _Counting() as counting:
        reference(spec, make_dataset(spec), steps, threads=1)
    return counting.count


@pytest.mark.parametrize("spec", NETWORKS, ids=["mlp", "conv", "branching", "char_lm"])
def test_calls_of_the_array_library_are_about_as_many_as_torch_makes(spec: NetworkSpec) -> None:
    costs = estimate_vnodes(spec).values()
    estimated = sum(spec.micro_batches * cost.calls + cost.update_calls for cost in costs)
    assert estimated == pytest.approx(count_calls(spec, 2) - count_calls(spec, 1), rel=0.3)
