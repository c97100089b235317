"""An engine computes its part of a run: the curve is the reference's, bit for bit, and the pipeline has rules."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from computepool.core.networks.cost import IN_FLIGHT_PER_CROSSING
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import Dtype, NetworkSpec, OptimizerKind, OptimizerSpec, Schedule
from computepool.networks import uncut
from computepool.networks.reference_run import ReferenceRun, reference
from computepool.node.vnodes import exchange, seams, segment_run, updates
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import Event, FaultFound, LossKnown
from computepool.node.vnodes.frames import FrameHead, FrameKind, FrameLimits, Outgoing, Refusal, RefusalCode
from computepool.node.vnodes.gradients import add_in_order
from tests.support.vnode_cluster import Cluster
from tests.support.vnode_nets import ADAMW, KINDS, RUN_ID, make_net, make_samples, place_all

STEPS = 4


@contextmanager
def cluster_of(spec: NetworkSpec, placement: Placement, **options: Any) -> Iterator[Cluster]:
    cluster = Cluster(spec, options.pop("samples", make_samples(spec)), placement, **options)
    try:
        yield cluster
    finally:
        cluster.close()


def train(spec: NetworkSpec, placement: Placement, *, steps: int = STEPS, **options: Any) -> Cluster:
    with cluster_of(spec, placement, **options) as cluster:
        cluster.train(steps)
        return cluster


def assert_same(cluster: Cluster, expected: ReferenceRun, steps: int = STEPS) -> None:
    assert cluster.faults == []
    assert cluster.refusals == []
    assert cluster.is_done
    assert cluster.curve == expected.losses
    weights = cluster.weights(steps)
    assert set(weights) == set(expected.state_dict)
    assert [name for name, tensor in expected.state_dict.items() if not torch.equal(weights[name], tensor)] == []


def assert_differs(cluster: Cluster, expected: ReferenceRun, steps: int = STEPS) -> None:
    """A loss is one number out of many: where it hides a difference, the weights show it."""
    assert cluster.faults == []
    weights = cluster.weights(steps)
    assert any(not torch.equal(weights[name], tensor) for name, tensor in expected.state_dict.items())


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_network_has_the_curve_and_the_weights_of_the_uncut_one(kind: str, seats: int) -> None:
    spec = make_net(kind)

    cluster = train(spec, place_all(spec, seats), seed=seats)

    assert_same(cluster, reference(spec, make_samples(spec), STEPS))


@pytest.mark.parametrize("kind", KINDS)
def test_vnodes_that_are_strewn_over_seats_change_nothing(kind: str) -> None:
    spec = make_net(kind)
    expected = reference(spec, make_samples(spec), STEPS)

    for seed in range(3):
        assert_same(train(spec, place_all(spec, 4, seed=seed), seed=seed), expected)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_any_number_of_micro_batches_gives_the_curve_of_the_reference(micro_batches: int) -> None:
    spec = make_net("residual", micro_batches=micro_batches)

    cluster = train(spec, place_all(spec, 3))

    assert_same(cluster, reference(spec, make_samples(spec), STEPS))


@pytest.mark.parametrize("kind", ["mlp", "residual", "chars"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_equal_a_reference_that_sums_as_they_do(kind: str, replicas: int) -> None:
    spec = make_net(kind, replicas=replicas, micro_batches=6, batch_size=12)
    expected = reference(spec, make_samples(spec), STEPS)

    assert_same(train(spec, place_all(spec, 2)), expected)
    assert_same(train(spec, place_all(spec, 3, seed=5)), expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec(OptimizerKind.SGD, lr=0.1),
        OptimizerSpec(OptimizerKind.ADAM, lr=0.01, weight_decay=0.01, schedule=Schedule.COSINE, schedule_steps=5),
        replace(ADAMW, warmup_steps=3, clip_norm=0.01),
    ],
)
def test_optimizers_with_schedules_and_clipping_are_the_same_when_cut(optimizer: OptimizerSpec) -> None:
    spec = make_net("towers", optimizer=optimizer)

    assert_same(train(spec, place_all(spec, 3)), reference(spec, make_samples(spec), STEPS))


def test_room_for_slow_links_changes_no_result() -> None:
    spec = make_net("chars", micro_batches=8)

    cluster = train(spec, place_all(spec, 3), engine_options={"extra_in_flight": 2})

    assert_same(cluster, reference(spec, make_samples(spec), STEPS))


def test_half_the_bytes_on_the_wire_is_not_exact_but_comes_near() -> None:
    spec = make_net("mlp", wire=Dtype.BF16)
    expected = reference(spec, make_samples(spec), 40)

    cluster = train(spec, place_all(spec, 3), steps=40)

    assert cluster.faults == []
    assert cluster.curve != expected.losses
    assert cluster.curve == pytest.approx(expected.losses, rel=0.02)
    assert cluster.curve[-1] < 0.95 * cluster.curve[0]


# What would make the curve another one: each of these is a bug that the tests above must see.


def test_gradients_added_in_another_order_change_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("residual")
    monkeypatch.setattr(segment_run, "add_in_order", lambda parts: add_in_order(parts[::-1]))

    assert_differs(train(spec, place_all(spec, 3)), reference(spec, make_samples(spec), STEPS))


def test_a_partial_sum_out_of_order_changes_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("residual")
    whole = reference(spec, make_samples(spec), STEPS)
    # All readers of `sum` on one other seat: it adds up the four gradients itself.
    seats = {"a": 0, "b": 0, "c": 0, "d": 0, "sum": 0}
    base = place_all(spec, 1)
    placement = replace(
        base,
        locations=tuple(replace(each, seat=SeatId(f"seat-{seats.get(each.vnode_id, 1)}")) for each in base.locations),
    )
    assert train(spec, placement).curve == whole.losses

    monkeypatch.setattr(exchange, "add_in_order", lambda parts: add_in_order(parts[::-1]))

    assert_differs(train(spec, placement), whole)


def test_replicas_summed_in_another_order_change_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("mlp", replicas=3, micro_batches=6, batch_size=12)
    whole = reference(spec, make_samples(spec), STEPS)
    monkeypatch.setattr(updates, "add_in_order", lambda parts: add_in_order(parts[::-1]))

    assert_differs(train(spec, place_all(spec, 1)), whole)


def test_norms_totalled_in_another_order_change_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("chars")
    # A total is rounded to the same float more often than not.
    whole = reference(spec, make_samples(spec), 12)
    right = updates.clip_scale
    monkeypatch.setattr(updates, "clip_scale", lambda optimizer, norms: right(optimizer, sorted(norms)))

    assert_differs(train(spec, place_all(spec, 3), steps=12), whole, 12)


def test_dropout_that_forgets_the_micro_batch_changes_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    from computepool.node.vnodes.modules import VNodeModule

    spec = make_net("chars")
    whole = reference(spec, make_samples(spec), STEPS)
    right = VNodeModule.set_moment
    monkeypatch.setattr(VNodeModule, "set_moment", lambda self, step, micro_batch: right(self, step, 0))

    assert_differs(train(spec, place_all(spec, 2)), whole)


def test_without_a_node_for_every_reader_the_curve_depends_on_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("residual")
    monkeypatch.setattr(uncut, "enter", lambda tensor, is_shared: tensor)

    assert_differs(train(spec, place_all(spec, 3)), reference(spec, make_samples(spec), STEPS))


def test_without_dense_tensors_between_vnodes_the_curve_depends_on_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("towers")
    for module in (uncut, segment_run):
        monkeypatch.setattr(module, "leave", lambda tensor: tensor)

    assert_differs(train(spec, place_all(spec, 3)), reference(spec, make_samples(spec), STEPS))


def test_a_seam_makes_what_is_strided_dense_in_both_directions() -> None:
    given = torch.randn(4, 3, requires_grad=True)
    seen: list[torch.Tensor] = []
    given.register_hook(lambda gradient: seen.append(gradient))

    output = seams.leave(given * 2)
    output.t().sum().backward()

    assert seams.leave((given * 2).t()).is_contiguous()
    assert seams.leave(torch.randn(6)[2:]).storage_offset() == 0
    assert seen[0].is_contiguous()


# The pipeline


def test_no_more_forwards_are_open_than_hosts_on_the_way_and_queues_stay_short() -> None:
    spec = make_net("mlp", micro_batches=8)
    with cluster_of(spec, place_all(spec, 3), haste=0.9) as cluster:
        cluster.prepare()
        cluster.start(4)
        seen = dict.fromkeys(cluster.engines, 0)

        def look() -> bool:
            for seat, engine in cluster.engines.items():
                run = engine._run
                assert run is not None
                for each in run.runs:
                    in_flight = each.gate.forwarded - each.gate.returned
                    assert len(each._open) <= 1 + each.segment.crossings
                    assert len(each.inputs) <= 2 + each.segment.crossings
                    seen[seat] = max(seen[seat], in_flight)
            return False

        cluster.run(until=look)

        assert cluster.is_done
        assert seen == {"seat-0": 3, "seat-1": 2, "seat-2": 1}, "and the room is used"


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_the_memory_that_is_counted_covers_what_hosts_may_have_under_way(kind: str) -> None:
    """However many hosts there are: nobody knows yet when a VNode's memory is reckoned."""
    spec = make_net(kind, micro_batches=8)
    stages = draw_graph(spec).stages
    options = {"extra_in_flight": IN_FLIGHT_PER_CROSSING - 1}
    for seats in range(1, len(spec.vnodes) + 1):
        with cluster_of(spec, place_all(spec, seats), engine_options=options) as cluster:
            cluster.prepare()
            for engine in cluster.engines.values():
                assert engine._run is not None
                for each in engine._run.runs:
                    for vnode_id in each.segment.vnode_ids:
                        assert each.gate.in_flight_max <= stages[vnode_id] * IN_FLIGHT_PER_CROSSING + 1


def test_hosts_wait_for_their_neighbours_only_and_not_for_a_barrier() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3), seed=4, haste=0.9) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        apart: set[int] = set()

        def look() -> bool:
            steps = [engine.progress.step for engine in cluster.engines.values()]
            apart.add(max(steps) - min(steps))
            return False

        cluster.run(until=look)

        assert max(apart) == 1, "the host of the loss begins a step while the first still ends the one before"


def test_backward_comes_before_forward() -> None:
    spec = make_net("mlp", micro_batches=4)
    placement = place_all(spec, 2)
    with cluster_of(spec, placement) as cluster:
        cluster.prepare()
        cluster.start(1)
        first, last = cluster.engines.values()
        frames = [*(first.run_ready() or []), *(first.run_ready() or [])]
        assert [frame.head.micro_batch for frame in frames] == [0, 1]
        assert first.run_ready() is None, "two are open, as many as there are hosts"
        for frame in frames:
            assert last.receive(frame.head, frame.tensor) is None
        gradients = [frame for _ in range(4) for frame in last.run_ready() or []]
        assert [frame.head.kind for frame in gradients] == [FrameKind.GRADIENT] * 2
        assert first.receive(gradients[0].head, gradients[0].tensor) is None

        assert first.run_ready() == [], "the backward, which the first host has nobody to send to"
        assert [frame.head.micro_batch for frame in first.run_ready() or []] == [2]


def test_one_frame_carries_a_tensor_to_all_its_readers_on_a_seat() -> None:
    spec = make_net("residual", micro_batches=1)
    base = place_all(spec, 1)
    apart = replace(
        base,
        locations=tuple(
            replace(each, seat=SeatId("front" if each.vnode_id == "a" else "back")) for each in base.locations
        ),
    )

    cluster = train(spec, apart, steps=1)

    # One activation and one gradient, although three VNodes read it; and norms and scale of the clipping.
    assert cluster.delivered == 4
    assert_same(cluster, reference(spec, make_samples(spec), 1), 1)


def test_a_host_tells_of_losses_and_of_steps_that_it_has_ended() -> None:
    spec = make_net("mlp")

    cluster = train(spec, place_all(spec, 2))

    assert cluster.ended_steps(SeatId("seat-0")) == list(range(STEPS))
    assert sorted(cluster.losses) == list(range(STEPS))


def test_the_watermark_grows_with_every_piece_of_work_and_stands_still_without() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 1)) as cluster:
        engine = cluster.engines[SeatId("seat-0")]
        cluster.prepare()
        assert engine.run_ready() is None
        assert engine.progress.watermark == 0
        cluster.start(1)
        marks = []
        while engine.run_ready() is not None:
            marks.append(engine.progress.watermark)

        assert marks == list(range(1, len(marks) + 1))
        assert engine.progress.step == 1
        assert engine.progress.is_done
        assert engine.run_ready() is None
        assert engine.progress.watermark == marks[-1]


# Orders


def test_a_run_goes_on_where_its_end_is_moved_out() -> None:
    spec = make_net("chars")
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(2)
        cluster.run()
        assert sorted(cluster.losses) == [0, 1]
        cluster.start(STEPS)
        cluster.run()

        assert_same(cluster, reference(spec, make_samples(spec), STEPS))


def test_a_run_stops_where_its_end_is_moved_in_and_stores_that_step() -> None:
    spec = make_net("chars", checkpoint_every=100)
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(50)
        cluster.run(until=lambda: len(cluster.losses) == 3)
        cluster.start(6)
        cluster.run()

        assert cluster.is_done
        assert_same(cluster, reference(spec, make_samples(spec), 6), 6)


def test_a_host_that_stands_at_its_new_end_already_stores_it() -> None:
    spec = make_net("mlp", checkpoint_every=100)
    with cluster_of(spec, place_all(spec, 1)) as cluster:
        engine = cluster.engines[SeatId("seat-0")]
        cluster.prepare()
        cluster.start(50)
        while engine.progress.step < 2:
            engine.run_ready()

        assert engine.start(0, 2)
        assert cluster.complete_step == 2


def test_a_host_says_when_it_is_past_the_end_that_it_should_stop_at() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 1)) as cluster:
        engine = cluster.engines[SeatId("seat-0")]
        cluster.prepare()
        cluster.start(50)
        while engine.progress.step < 3:
            engine.run_ready()

        assert not engine.start(0, 2)
        engine.run_ready()
        assert not engine.start(0, 3), "it has begun that step"
        assert engine.start(0, 4)


def test_orders_that_do_not_fit_are_refused() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 1)
    with cluster_of(spec, placement) as cluster:
        engine = cluster.engines[SeatId("seat-0")]
        with pytest.raises(ValueError, match="not prepared"):
            engine.start(0, 1)
        with pytest.raises(ValueError, match="epoch 2 with a placement of epoch 1"):
            engine.prepare(2)
        with pytest.raises(ValueError, match="VNode a has no seat"):
            engine.prepare(1, placement=replace(placement, locations=placement.locations[1:]))
        cluster.prepare()
        with pytest.raises(ValueError, match="prepared from step 0"):
            engine.start(5, 9)
        with pytest.raises(ValueError, match="this is 1"):
            engine.prepare(0, placement=replace(placement, epoch=0))


def test_a_host_without_the_samples_that_its_vnodes_read_says_so() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 3)

    middle = Engine(spec, placement, SeatId("seat-1"), None, on_event=lambda _: None)
    middle.prepare(1)
    first = Engine(spec, placement, SeatId("seat-0"), None, on_event=lambda _: None)
    with pytest.raises(ValueError, match="VNodes here read x; the data has nothing"):
        first.prepare(1)

    middle.close()
    first.close()


def test_a_host_holds_its_own_vnodes_only_and_none_once_it_dropped_them() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3)) as cluster:
        engine = cluster.engines[SeatId("seat-1")]
        assert engine._hosted == {}
        cluster.prepare()
        assert {vnode_id for vnode_id, _ in engine._hosted} == {"c", "d"}
        engine.drop()
        assert engine._hosted == {}
        assert engine.run_ready() is None


def test_a_snapshot_is_taken_between_steps_only() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(3)
        engine = cluster.engines[SeatId("seat-0")]
        cluster.run(until=lambda: engine.progress.watermark == 1)
        with pytest.raises(ValueError, match="between two steps"):
            engine.snapshot()
        cluster.run()

        packed = {each.vnode_id: each for each in engine.snapshot()}

        assert set(packed) == {"a", "b", "c"}
        assert packed["a"].content == cluster.checkpoints[3]["a"]


# Trouble


def test_a_loss_that_is_not_finite_is_a_fault_that_names_vnode_and_step() -> None:
    spec = make_net("mlp", optimizer=OptimizerSpec(OptimizerKind.SGD, lr=1e18))

    cluster = train(spec, place_all(spec, 2), steps=20)

    fault = cluster.faults[0]
    assert fault.code is HostFaultCode.LOSS_NOT_FINITE
    assert fault.vnode_id in {vnode.id for vnode in spec.vnodes}
    assert f"VNode {fault.vnode_id}" in fault.message
    assert f"step {fault.step}" in fault.message
    assert not cluster.is_done


def test_the_first_vnode_that_gives_nan_is_named_even_inside_a_segment() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 1)) as cluster:
        cluster.prepare()
        engine = cluster.engines[SeatId("seat-0")]
        with torch.no_grad():
            engine._hosted["c", 0].parameters[0][1][0] = float("nan")
        cluster.start(1)
        cluster.run()

        assert [(fault.vnode_id, fault.step, fault.micro_batch) for fault in cluster.faults] == [("c", 0, 0)]
        assert engine.run_ready() is None, "it waits to be prepared anew"
        engine.prepare(1)
        assert engine.start(0, 1)
        cluster.run()
        assert cluster.is_done


def test_a_class_that_the_network_does_not_have_is_a_fault_of_the_samples() -> None:
    spec = make_net("chars")
    samples = make_samples(spec)
    bad = Dataset(samples.tensors["x"] + 3, samples.tensors["y"])

    cluster = train(spec, place_all(spec, 2), samples=bad)

    assert cluster.faults[0].code is HostFaultCode.DATA_INVALID
    assert cluster.faults[0].vnode_id == "embed"


def test_a_gradient_that_explodes_is_not_sent() -> None:
    spec = make_net("mlp")

    cluster = train(spec, place_all(spec, 2), engine_options={"limits": FrameLimits(rms_max=1e-9)})

    assert cluster.faults[0].code is HostFaultCode.LOSS_NOT_FINITE
    assert cluster.delivered == 0


def make_frame(**changes: Any) -> tuple[FrameHead, torch.Tensor]:
    """The first activation that the second of two hosts of the mlp gets."""
    head = FrameHead(RUN_ID, 1, FrameKind.ACTIVATION, "c", 0, "d", 0, 0, 1, 0, 0, Dtype.F32, (2, 12))
    tensor = changes.pop("tensor", torch.ones(2, 12))
    return head._replace(**changes), tensor


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run_id": "another"}, RefusalCode.FOREIGN_RUN),
        ({"epoch": 0}, RefusalCode.STALE_EPOCH),
        ({"incarnation": 0}, RefusalCode.STALE_INCARNATION),
        ({"incarnation": 2}, RefusalCode.STALE_INCARNATION),
        ({"source": "a"}, RefusalCode.NO_SUCH_EDGE),
        ({"target": "loss"}, RefusalCode.NO_SUCH_EDGE),
        ({"target_slot": 1}, RefusalCode.NO_SUCH_EDGE),
        ({"replica": 1}, RefusalCode.NO_SUCH_EDGE),
        ({"kind": FrameKind.GRADIENT}, RefusalCode.NO_SUCH_EDGE),
        ({"micro_batch": 4}, RefusalCode.NO_SUCH_EDGE),
        ({"micro_batch": -1}, RefusalCode.NO_SUCH_EDGE),
        ({"step": 2}, RefusalCode.TOO_FAR_AHEAD),
        ({"step": -1}, RefusalCode.REPEATED),
        ({"dtype": Dtype.BF16, "tensor": torch.ones(2, 12, dtype=torch.bfloat16)}, RefusalCode.WRONG_DTYPE),
        ({"tensor": torch.ones(2, 12, dtype=torch.int64)}, RefusalCode.WRONG_DTYPE),
        ({"shape": (2, 11), "tensor": torch.ones(2, 11)}, RefusalCode.WRONG_SHAPE),
        ({"shape": (0,), "tensor": torch.ones(0)}, RefusalCode.WRONG_SHAPE),
        ({"tensor": torch.ones(24)}, RefusalCode.WRONG_SHAPE),
        ({"tensor": torch.full((2, 12), float("nan"))}, RefusalCode.NOT_FINITE),
        ({"tensor": torch.full((2, 12), 1e10)}, RefusalCode.NORM_TOO_LARGE),
    ],
)
def test_a_frame_that_is_not_expected_is_refused_and_changes_nothing(
    changes: dict[str, Any], code: RefusalCode
) -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        engine = cluster.engines[SeatId("seat-1")]

        refusal = engine.receive(*make_frame(**changes))

        assert refusal is not None
        assert refusal.code is code
        assert engine.run_ready() is None
        cluster.run()
        assert cluster.curve == reference(spec, make_samples(spec), STEPS).losses


def test_a_network_whose_frames_nobody_would_take_is_refused_before_it_runs() -> None:
    spec = make_net("mlp")
    options = {"limits": FrameLimits(bytes_max=90)}
    words = "gradient frames of VNode d have 96 bytes, and at most 90 are taken"
    with (
        cluster_of(spec, place_all(spec, 2), engine_options=options) as cluster,
        pytest.raises(ValueError, match=words),
    ):
        cluster.prepare()


def test_a_loss_may_be_large_as_long_as_it_is_finite() -> None:
    spec = make_net("towers", optimizer=OptimizerSpec(OptimizerKind.SGD, lr=1e-9))
    samples = make_samples(spec)
    far = Dataset.from_tensors({**samples.tensors, "y": samples.tensors["y"] * 1e6})

    cluster = train(spec, place_all(spec, 2), samples=far)

    assert cluster.faults == []
    assert cluster.curve == reference(spec, far, STEPS).losses
    assert cluster.curve[0] > 1e11


def test_a_host_whose_events_nobody_can_take_stops_with_a_fault_and_does_not_die() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 1)
    told: list[object] = []

    def break_once(event: object) -> None:
        told.append(event)
        if len(told) == 1:
            raise RuntimeError("nobody listens")

    engine = Engine(spec, placement, placement.seats[0], make_samples(spec), on_event=break_once)
    engine.prepare(1)
    engine.start(0, 2)
    while engine.run_ready() is not None:
        pass
    engine.close()

    assert isinstance(told[1], FaultFound)
    assert told[1].code is HostFaultCode.HOST_BROKEN
    assert told[1].message == "nobody listens"


def test_frames_may_come_from_other_threads_while_one_computes() -> None:
    spec = make_net("residual")
    placement = place_all(spec, 3)
    samples = make_samples(spec)
    losses: list[float] = []
    refused: list[Refusal] = []
    queues = {seat: SimpleQueue[Outgoing | None]() for seat in placement.seats}

    def hear(event: Event) -> None:
        if isinstance(event, LossKnown):
            losses.append(event.loss)

    engines = {seat: Engine(spec, placement, seat, samples, on_event=hear) for seat in placement.seats}
    awake = {seat: threading.Event() for seat in placement.seats}

    def carry(seat: SeatId) -> None:
        while (frame := queues[seat].get(timeout=60)) is not None:
            refusal = engines[seat].receive(frame.head, frame.tensor.clone())
            refused.extend([refusal] if refusal else [])
            awake[seat].set()

    def compute(seat: SeatId) -> None:
        while not engines[seat].progress.is_done:
            frames = engines[seat].run_ready()
            if frames is None:
                assert awake[seat].wait(60)
                awake[seat].clear()
            for frame in frames or []:
                queues[frame.seat].put(frame)

    for engine in engines.values():
        engine.prepare(1)
        engine.start(0, STEPS)
    computing = [threading.Thread(target=compute, args=(seat,)) for seat in engines]
    carrying = [threading.Thread(target=carry, args=(seat,)) for seat in engines]
    for thread in (*computing, *carrying):
        thread.start()
    for thread in computing:
        thread.join(60)
    for queue in queues.values():
        queue.put(None)
    for thread in carrying:
        thread.join(60)
    # The last loss is told by the work that comes after it.
    for engine in engines.values():
        engine.run_ready()
        engine.close()

    assert refused == []
    assert losses == reference(spec, samples, STEPS).losses


def test_a_frame_that_comes_twice_counts_once() -> None:
    spec = make_net("residual")

    cluster = train(spec, place_all(spec, 3), meddle=lambda parcel: [parcel, parcel], seed=3)

    assert cluster.faults == []
    assert cluster.curve == reference(spec, make_samples(spec), STEPS).losses
    assert {refusal.code for _, refusal in cluster.refusals} == {RefusalCode.REPEATED}
    assert len(cluster.refusals) == cluster.delivered / 2
    assert all(refusal.is_harmless for _, refusal in cluster.refusals)
