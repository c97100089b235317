"""Rounds of local steps (DiLoCo): replicas alone, then one step together. Not exact, but what it says it is."""

from __future__ import annotations

import pytest
import torch

from computepool.core.networks.placement import SeatId
from computepool.core.networks.schedules import total_loss
from computepool.core.networks.spec import NetworkSpec, OptimizerKind, OptimizerSpec
from computepool.networks.reference_run import reference
from computepool.networks.uncut import UncutNetwork
from computepool.node.vnodes.local_steps import OUTER_MOMENTUM, OUTER_RATE, is_round_over
from computepool.node.vnodes.optimizers import LocalOptimizer, clip_scale
from tests.support.vnode_cluster import Cluster
from tests.support.vnode_nets import make_net, make_samples, place_all

STEPS = 10


def train_alone(spec: NetworkSpec, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same in one process, written down as plainly as can be."""
    samples = make_samples(spec)
    networks = [UncutNetwork(spec) for _ in range(spec.replicas)]
    optimizers = [LocalOptimizer(spec.optimizer, network.ordered_parameters()) for network in networks]
    starts = [parameter.detach().clone() for _, parameter in networks[0].ordered_parameters()]
    momenta = [torch.zeros_like(start) for start in starts]
    curve = []
    for step in range(steps):
        losses = []
        for replica, (network, optimizer) in enumerate(zip(networks, optimizers, strict=True)):
            mine = range(replica, spec.micro_batches, spec.replicas)
            for micro_batch in mine:
                network.set_moment(step, micro_batch)
                loss = network.loss(samples.batch(spec, step, micro_batch))
                losses.append((loss / spec.micro_batches).item())
                (loss / len(mine)).backward()
            norms = [norm for _, norm in optimizer.norms()]
            optimizer.step(step, clip_scale(spec.optimizer, norms))
            optimizer.zero_grad()
        curve.append(total_loss(losses))
        if not is_round_over(spec.local_steps, step):
            continue
        with torch.no_grad():
            together = zip(*(network.ordered_parameters() for network in networks), strict=True)
            for start, momentum, named in zip(starts, momenta, together, strict=True):
                parameters = [parameter for _, parameter in named]
                total = parameters[0].clone()
                for parameter in parameters[1:]:
                    total += parameter
                change = start - total / spec.replicas
                momentum.mul_(OUTER_MOMENTUM).add_(change)
                start -= OUTER_RATE * (change + OUTER_MOMENTUM * momentum)
                for parameter in parameters:
                    parameter.copy_(start)
    return curve, dict(networks[0].state_dict())


@pytest.mark.parametrize("kind", ["mlp", "chars"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_rounds_are_what_the_method_says(kind: str, local_steps: int) -> None:
    spec = make_net(kind, replicas=2, local_steps=local_steps)
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 2), seed=4)
    cluster.train(STEPS)
    cluster.close()

    curve, weights = train_alone(spec, STEPS)

    assert cluster.faults == []
    assert cluster.refusals == []
    assert cluster.curve == curve
    assert all(torch.equal(cluster.weights(STEPS)[name], tensor) for name, tensor in weights.items())


def test_it_is_not_the_curve_of_the_reference_and_the_spec_says_so() -> None:
    spec = make_net("mlp", replicas=2, local_steps=3)
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 1))
    cluster.train(STEPS)
    cluster.close()

    assert not spec.promises_exactness
    assert cluster.curve != reference(spec, make_samples(spec), STEPS).losses


def test_far_fewer_frames_cross_between_replicas() -> None:
    crossed = {}
    for local_steps in (0, 5):
        spec = make_net("mlp", replicas=2, local_steps=local_steps)
        cluster = Cluster(spec, make_samples(spec), place_all(spec, 1))
        cluster.train(STEPS)
        cluster.close()
        crossed[local_steps] = cluster.delivered

    # Three VNodes have weights, and the losses of every step cross all the same.
    assert crossed == {0: STEPS * (3 + 3 + 1), 5: 2 * (3 + 3) + STEPS}


def test_a_replica_may_be_a_round_ahead_and_no_more() -> None:
    spec = make_net("mlp", replicas=2, local_steps=4)
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 1))
    cluster.prepare()
    cluster.start(STEPS)
    slow, fast = SeatId("seat-0-0"), SeatId("seat-1-0")
    frames = []
    while (sent := cluster.engines[fast].run_ready()) is not None:
        frames += sent

    assert cluster.engines[fast].progress.step == 3, "its fourth step ends with the others"
    assert [cluster.engines[slow].receive(frame.head, frame.tensor) for frame in frames] == [None] * len(frames)
    cluster.run()
    assert cluster.is_done
    assert cluster.curve == train_alone(spec, STEPS)[0]
    cluster.close()


def test_a_run_with_rounds_goes_on_from_a_checkpoint_with_the_momentum_of_its_rounds() -> None:
    # An optimizer that keeps nothing: otherwise replicas would go on with what replica 0's has kept.
    plain = OptimizerSpec(OptimizerKind.SGD, lr=0.1)
    spec = make_net("mlp", replicas=2, local_steps=2, checkpoint_every=4, optimizer=plain)
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 2))
    cluster.prepare()
    cluster.start(STEPS)
    cluster.run(until=lambda: len(cluster.losses) == 6)
    victim = SeatId("seat-1-1")
    moves = {(each.vnode_id, each.replica): SeatId("spare") for each in cluster.placement.at(victim)}
    cluster.kill(victim)

    assert cluster.recover(moves, STEPS) == 4
    cluster.run()

    assert cluster.faults == []
    assert cluster.curve == train_alone(spec, STEPS)[0]
    cluster.close()
