"""What `Network` offers besides training: a plan for machines, its weights, and its output in this process."""

from __future__ import annotations

import pytest
import torch

from computepool.core.errors import InvalidRequest
from computepool.networks import Machine, Network
from computepool.networks.plan import plan_network
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import make_branching, make_mlp


def test_a_plan_places_every_vnode_once_and_names_the_edges_that_are_cut():
    spec = make_branching()
    plan = Network(spec).plan([Machine(1e9), Machine(1e9)])
    assert plan.places.keys() == {(vnode.id, 0) for vnode in spec.vnodes}
    assert set(plan.places.values()) == {0, 1}
    cut = {(edge.source, edge.target) for edge in plan.edges if edge.cut}
    assert cut == {
        (edge.source, edge.target)
        for edge in spec.edges
        if edge.source_name is None and plan.places[edge.source, 0] != plan.places[edge.target, 0]
    }
    assert plan.estimate.cut_bytes == sum(edge.bytes_per_step for edge in plan.edges if edge.cut)


def test_replicas_go_to_machines_of_their_own():
    spec = make_mlp(replicas=2, micro_batches=4)
    plan = plan_network(spec, [Machine(1e9), Machine(1e9)])
    assert len({plan.places[vnode.id, 0] for vnode in spec.vnodes}) == 1
    assert {plan.places[spec.loss, 0], plan.places[spec.loss, 1]} == {0, 1}


def test_a_network_that_fits_no_memory_is_refused():
    with pytest.raises(InvalidRequest, match="cannot be cut over 2 machines"):
        plan_network(make_mlp(), [Machine(1e9)] * 2, memory_bytes=[100, 100])


def test_before_training_the_weights_are_those_of_the_seed_and_inference_uses_them():
    spec = make_mlp()
    network = Network(spec)
    assert same_bits(network.state_dict(), dict(network.to_torch().state_dict()))
    given = make_dataset(spec).tensors["x"][:3]
    with torch.no_grad():
        expected = network.to_torch().eval()(given)
    assert network.infer(given).equal(expected)
