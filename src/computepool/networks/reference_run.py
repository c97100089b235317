"""The training of a network in one process: the curve that a run of it has, bit for bit, however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from computepool.core.errors import InvalidSpec
from computepool.core.networks.faults import list_spec_faults
from computepool.core.networks.schedules import total_loss
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.uncut import UncutNetwork
from computepool.node.vnodes.data import Dataset, list_data_faults
from computepool.node.vnodes.optimizers import LocalOptimizer, clip_scale


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    # One per step.
    losses: list[float]
    # Weights and buffers, by their names in the uncut network.
    state_dict: dict[str, Tensor]
    # What the optimizer keeps, for going on from here.
    optimizer_state: dict[str, Tensor]


def reference(
    spec: NetworkSpec,
    data: Dataset,
    steps: int,
    *,
    state: Mapping[str, Tensor] | None = None,
    optimizer_state: Mapping[str, Tensor] | None = None,
    from_step: int = 0,
    threads: int = 1,
) -> ReferenceRun:
    """One autograd graph per micro-batch, micro-batches in index order, each loss divided by their number.

    `threads` belongs to the result: hosts compute on one unless they say otherwise. A spec that is not exact (bf16 on
    the wire, local steps) has the same reference as one that is: the curve it comes near to.
    """
    faults = [*list_spec_faults(spec), *list_data_faults(spec, data)]
    if faults:
        raise InvalidSpec("The network cannot be trained: " + "; ".join(faults) + ".", faults=faults)
    with _threads(threads):
        network = UncutNetwork(spec)
        if state is not None:
            network.load_state_dict(dict(state))
        parameters = network.ordered_parameters()
        optimizer = LocalOptimizer(spec.optimizer, parameters)
        optimizer.load(optimizer_state or {})
        losses = []
        for step in range(from_step, from_step + steps):
            losses.append(_accumulate(spec, network, data, step))
            norms = [norm for _, norm in optimizer.norms()] if spec.optimizer.clip_norm is not None else []
            optimizer.step(step, clip_scale(spec.optimizer, norms))
            optimizer.zero_grad()
    return ReferenceRun(losses, _copy(network.state_dict()), _copy(optimizer.state()))


def _accumulate(spec: NetworkSpec, network: UncutNetwork, data: Dataset, step: int) -> float:
    """Leaves the step's gradients in the parameters: summed within a replica by index, then by replica."""
    parts: dict[int, float] = {}
    parameters = [parameter for _, parameter in network.ordered_parameters()]
    totals: list[Tensor | None] = [None] * len(parameters)
    for replica in range(spec.replicas):
        for micro_batch in range(replica, spec.micro_batches, spec.replicas):
            network.set_moment(step, micro_batch)
            loss = network.loss(data.batch(spec, step, micro_batch)) / spec.micro_batches
            torch.autograd.backward(loss)
            parts[micro_batch] = loss.item()
        for number, parameter in enumerate(parameters):
            total, parameter.grad, given = totals[number], None, parameter.grad
            totals[number] = given if total is None or given is None else total + given
    for parameter, total in zip(parameters, totals, strict=True):
        parameter.grad = total
    return total_loss([parts[micro_batch] for micro_batch in sorted(parts)])


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
