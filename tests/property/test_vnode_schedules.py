"""Any cut, any schedule of frames, any deaths: one curve. Placements and schedules are drawn, not chosen."""

from __future__ import annotations

from functools import lru_cache
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computepool.core.networks.placement import Location, Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.reference_run import ReferenceRun, reference
from computepool.node.vnodes import segment_run
from computepool.node.vnodes.gradients import add_in_order
from tests.support.vnode_cluster import Cluster
from tests.support.vnode_nets import KINDS, RUN_ID, make_net, make_samples

STEPS = 4
BOUNDED = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

# Micro-batches of two samples each, and replicas that each get one at least.
CUTS = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (2, 2), (5, 2), (8, 3)]


@lru_cache(maxsize=64)
def expect(kind: str, micro_batches: int, replicas: int) -> tuple[NetworkSpec, ReferenceRun]:
    # Statistics of a micro-batch do not go with replicas: a spec with both is refused.
    replicas = 1 if kind == "conv" else replicas
    sizes = {"micro_batches": micro_batches, "batch_size": 2 * micro_batches}
    spec = make_net(kind, replicas=replicas, checkpoint_every=2, **sizes)
    return spec, reference(spec, make_samples(spec), STEPS)


@st.composite
def runs(draw: st.DrawFn) -> tuple[NetworkSpec, ReferenceRun, Placement, dict[str, float]]:
    spec, expected = expect(draw(st.sampled_from(KINDS)), *draw(st.sampled_from(CUTS)))
    seats = draw(st.integers(1, 5))
    places = st.integers(0, seats - 1)
    locations = tuple(
        Location(vnode.id, SeatId(f"seat-{draw(places)}"), replica)
        for replica in range(spec.replicas)
        for vnode in spec.vnodes
    )
    schedule = {"seed": draw(st.integers(0, 1 << 30)), "haste": draw(st.sampled_from([0.05, 0.5, 0.95]))}
    return spec, expected, Placement(RUN_ID, 1, locations), schedule


@BOUNDED
@given(runs(), st.integers(0, 2))
def test_any_placement_and_any_schedule_give_the_curve_of_the_reference(
    run: tuple[NetworkSpec, ReferenceRun, Placement, dict[str, float]], extra_in_flight: int
) -> None:
    spec, expected, placement, schedule = run
    options = {"extra_in_flight": extra_in_flight}
    cluster = Cluster(spec, make_samples(spec), placement, engine_options=options, **schedule)  # type: ignore[arg-type]
    try:
        cluster.train(STEPS)
        assert_same(cluster, expected)
        assert cluster.refusals == []
    finally:
        cluster.close()


@BOUNDED
@given(runs(), st.integers(1, 3), st.integers(0, 1 << 30))
def test_deaths_at_any_moment_give_the_curve_of_the_reference(
    run: tuple[NetworkSpec, ReferenceRun, Placement, dict[str, float]], deaths: int, seed: int
) -> None:
    spec, expected, placement, schedule = run
    random = Random(seed)
    cluster = Cluster(spec, make_samples(spec), placement, **schedule)  # type: ignore[arg-type]
    try:
        cluster.prepare()
        cluster.start(STEPS)
        for number in range(deaths):
            until = cluster.delivered + random.randrange(40)
            cluster.run(until=lambda until=until: cluster.delivered >= until)
            victim = random.choice(sorted(cluster.engines))
            spare = SeatId(random.choice([*sorted(set(cluster.engines) - {victim}), f"spare-{number}"]))
            moves = {(each.vnode_id, each.replica): spare for each in cluster.placement.at(victim)}
            cluster.kill(victim)
            cluster.recover(moves, STEPS)
        cluster.run()

        assert_same(cluster, expected)
        assert cluster.contradictions == []
        assert all(refusal.is_harmless for _, refusal in cluster.refusals)
    finally:
        cluster.close()


def test_a_sum_in_the_order_of_arrival_is_found_by_these_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that these properties are for: it needs a tensor with three readers and an unlucky network."""
    random = Random(3)

    def add_as_it_comes(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        return add_in_order(random.sample(parts, len(parts)))

    monkeypatch.setattr(segment_run, "add_in_order", add_as_it_comes)
    spec, expected = expect("residual", 4, 1)
    curves = set()
    for seed in range(3):
        seats = [SeatId(f"seat-{number % 3}") for number in range(len(spec.vnodes))]
        locations = tuple(Location(vnode.id, seat) for vnode, seat in zip(spec.vnodes, seats, strict=True))
        cluster = Cluster(spec, make_samples(spec), Placement(RUN_ID, 1, locations), seed=seed)
        cluster.train(STEPS)
        weights = cluster.weights(STEPS)
        cluster.close()
        curves.add(tuple(cluster.curve))
        assert any(not torch.equal(weights[name], tensor) for name, tensor in expected.state_dict.items())
    assert len(curves) > 1


def assert_same(cluster: Cluster, expected: ReferenceRun) -> None:
    assert cluster.faults == []
    assert cluster.is_done
    assert cluster.curve == expected.losses
    weights = cluster.weights(STEPS)
    assert [name for name, tensor in expected.state_dict.items() if not torch.equal(weights[name], tensor)] == []
