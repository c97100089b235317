"""Hosts that die, hang, come back or speak out of turn: the curve stays the reference's, and who is stuck is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from computepool.core.networks.placement import Placement, SeatId, move
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.reference_run import reference
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointUnreadable
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import CheckpointReady, LossKnown
from computepool.node.vnodes.frames import FrameHead, FrameKind, FrameLimits, Refusal, RefusalCode, to_bytes
from tests.support.vnode_cluster import Cluster, Parcel
from tests.support.vnode_nets import make_net, make_samples, place_all

STEPS = 10
FIRST, SECOND, THIRD = SeatId("seat-0"), SeatId("seat-1"), SeatId("seat-2")


@contextmanager
def cluster_of(spec: NetworkSpec, placement: Placement, **options: Any) -> Iterator[Cluster]:
    cluster = Cluster(spec, make_samples(spec), placement, **options)
    try:
        yield cluster
    finally:
        cluster.close()


def lost(placement: Placement, seat: SeatId, spare: str) -> dict[tuple[str, int], SeatId]:
    return {(each.vnode_id, each.replica): SeatId(spare) for each in placement.at(seat)}


def assert_exact(cluster: Cluster, spec: NetworkSpec, steps: int = STEPS) -> None:
    expected = reference(spec, make_samples(spec), steps)
    assert cluster.faults == []
    assert cluster.contradictions == [], "a step that was done again gave another loss"
    assert cluster.curve == expected.losses
    weights = cluster.weights(steps)
    assert [name for name, tensor in expected.state_dict.items() if not torch.equal(weights[name], tensor)] == []


@pytest.mark.parametrize("victim", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("kind", ["conv", "residual", "chars"])
def test_whoever_dies_the_curve_is_that_of_the_reference(kind: str, victim: SeatId) -> None:
    spec = make_net(kind)
    with cluster_of(spec, place_all(spec, 3), seed=8) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 5)
        moves = lost(cluster.placement, victim, "spare")
        cluster.kill(victim)
        cluster.run()
        assert not cluster.is_done

        from_step = cluster.recover(moves, STEPS)
        cluster.run()

        assert from_step == 3, "the last complete checkpoint"
        assert_exact(cluster, spec)


def test_a_run_survives_one_death_after_another_and_seats_that_come_together() -> None:
    spec = make_net("residual", checkpoint_every=2)
    with cluster_of(spec, place_all(spec, 4, seed=1), seed=2) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        for number, victim in enumerate(["seat-2", "seat-0", "spare-0"]):
            cluster.run(until=lambda number=number: len(cluster.losses) == 3 + 2 * number)
            moves = lost(cluster.placement, SeatId(victim), f"spare-{number}")
            cluster.kill(SeatId(victim))
            cluster.recover(moves, STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 9)
        everywhere = {(each.vnode_id, 0): SeatId("alone") for each in cluster.placement.locations}
        cluster.recover(everywhere, STEPS)
        cluster.run()

        assert_exact(cluster, spec)


def test_replicas_go_on_after_one_of_their_hosts_died() -> None:
    spec = make_net("chars", replicas=2)
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 5)
        moves = lost(cluster.placement, SeatId("seat-1-0"), "spare")
        cluster.kill(SeatId("seat-1-0"))
        cluster.recover(moves, STEPS)
        cluster.run()

        assert_exact(cluster, spec)


@pytest.mark.parametrize("seats", [1, 2, 5])
def test_a_checkpoint_goes_on_under_any_placement(seats: int) -> None:
    spec = make_net("chars")
    with cluster_of(spec, place_all(spec, 3)) as before:
        before.train(6)
        stored = before.checkpoints[6]
        curve = before.curve
    with cluster_of(spec, place_all(spec, seats, seed=seats)) as after:
        after.checkpoints[6] = dict(stored)
        after.prepare(6)
        after.start(STEPS, from_step=6)
        after.run()

        assert curve + after.curve == reference(spec, make_samples(spec), STEPS).losses
        assert after.complete_step == STEPS


def test_a_checkpoint_is_of_the_moment_after_the_update_although_it_is_written_later() -> None:
    spec = make_net("mlp", checkpoint_every=1)
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.train(4)

        for step in (1, 2, 3, 4):
            expected = reference(spec, make_samples(spec), step).state_dict
            weights = cluster.weights(step)
            assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_a_checkpoint_that_is_not_good_leaves_the_host_as_it_was() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.train(3)
        engine = cluster.engines[FIRST]
        before = {each.vnode_id: each.digest for each in engine.snapshot()}
        moved = replace(cluster.placement, epoch=2)
        stored = cluster.checkpoints[3]

        with pytest.raises(CheckpointUnreadable, match="VNode c"):
            engine.prepare(2, Checkpoint(3, stored | {"c": stored["e"]}), placement=moved)
        with pytest.raises(CheckpointUnreadable, match="lacks VNode b"):
            engine.prepare(2, Checkpoint(3, {"a": stored["a"]}), placement=moved)

        assert engine.progress.epoch == 1
        assert {each.vnode_id: each.digest for each in engine.snapshot()} == before
        engine.prepare(2, Checkpoint(3, stored), placement=moved)
        assert engine.progress.epoch == 2


# Five traps, each of which once stopped a run for good.


def test_trap_1_a_first_frame_that_beats_the_start_and_even_the_order_to_prepare_is_kept() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3)) as cluster:
        for seat in (FIRST, THIRD):
            cluster.engines[seat].prepare(1)
            cluster.engines[seat].start(0, STEPS)
        cluster.run()
        assert cluster.delivered > 0
        assert cluster.refusals == [], "the second host was not prepared, and yet it kept what came"

        cluster.engines[SECOND].prepare(1)
        assert cluster.engines[SECOND].run_ready() is None, "prepared, but not started"
        cluster.engines[SECOND].start(0, STEPS)
        cluster.run()

        assert_exact(cluster, spec)


def test_trap_1_without_room_for_early_frames_the_run_would_stand_still() -> None:
    spec = make_net("mlp")
    options = {"limits": FrameLimits(early_frames_max=0)}
    with cluster_of(spec, place_all(spec, 3), engine_options=options) as cluster:
        for seat in (FIRST, THIRD):
            cluster.engines[seat].prepare(1)
            cluster.engines[seat].start(0, STEPS)
        cluster.run()
        cluster.engines[SECOND].prepare(1)
        cluster.engines[SECOND].start(0, STEPS)
        cluster.run()

        assert cluster.curve == []


def test_trap_1_early_frames_are_bounded() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 2)
    limits = FrameLimits(early_frames_max=2, early_bytes_max=200)
    with cluster_of(spec, placement, engine_options={"limits": limits}) as cluster:
        engine = cluster.engines[SECOND]
        head = FrameHead("run-1", 1, FrameKind.ACTIVATION, "c", 0, "d", 0, 0, 1, 0, 0, spec.wire, (2, 12))
        frames = [(head._replace(micro_batch=number), torch.ones(2, 12)) for number in range(3)]

        refusals = [engine.receive(*frame) for frame in frames]

        assert refusals[:2] == [None, None]
        assert refusals[2] is not None
        assert refusals[2].code is RefusalCode.TOO_EARLY
        assert not refusals[2].is_harmless
        engine.prepare(1)
        assert engine.receive(*frames[2]) is None
        assert engine.receive(*frames[0]) is not None, "the first was kept"


def test_trap_2_a_gradient_that_arrives_before_the_own_forward_waits_for_it() -> None:
    spec = make_net("chars")
    frames: dict[tuple[int, int], Parcel] = {}

    def copy(parcel: Parcel) -> list[Parcel]:
        if parcel.head.kind is FrameKind.GRADIENT and parcel.seat == FIRST:
            frames[parcel.head.step, parcel.head.micro_batch] = parcel
        return [parcel]

    with cluster_of(spec, place_all(spec, 2), meddle=copy) as recorded:
        recorded.train(1)
    with cluster_of(spec, place_all(spec, 2)) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        for micro_batch in (3, 1, 0, 2):
            cluster._deliver(frames[0, micro_batch])
        assert cluster.refusals == []
        cluster.run()

        assert cluster.faults == []
        assert cluster.curve == reference(spec, make_samples(spec), STEPS).losses
        # Those that the second host sent itself came second.
        assert len(cluster.refusals) == spec.micro_batches


def test_trap_3_writes_to_a_dead_peer_say_nothing_but_it_is_known_who_is_waited_for() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3)) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 2)
        cluster.kill(SECOND)
        cluster.run()

        assert cluster.faults == []
        assert not cluster.is_done
        for engine in cluster.engines.values():
            wanted = engine.list_wanted()
            assert wanted
            assert {each.seat for each in wanted} == {SECOND}
        assert "gradient of VNode c on seat-1, step" in str(cluster.engines[FIRST].list_wanted()[0])


def test_trap_3_hosts_that_wait_for_sums_and_scales_say_so_too() -> None:
    spec = make_net("chars", replicas=2)
    mute: list[FrameKind] = []

    def drop(parcel: Parcel) -> list[Parcel]:
        return [] if parcel.head.kind in mute else [parcel]

    for kind, waiting, source in (
        (FrameKind.REDUCE, "seat-0-0", "seat-1-0"),
        (FrameKind.REDUCED, "seat-1-0", "seat-0-0"),
        (FrameKind.NORMS, "seat-0-1", "seat-0-0"),
        (FrameKind.TOTAL, "seat-0-0", "seat-0-1"),
    ):
        mute[:] = [kind]
        with cluster_of(spec, place_all(spec, 2), meddle=drop) as cluster:
            cluster.prepare()
            cluster.start(STEPS)
            cluster.run()

            wanted = cluster.engines[SeatId(waiting)].list_wanted()
            assert {(each.key.kind, each.seat) for each in wanted} == {(kind, source)}


def test_trap_4_a_host_that_lives_but_sends_nothing_is_seen_by_its_watermark() -> None:
    spec = make_net("mlp")
    is_mute = False

    def swallow(parcel: Parcel) -> list[Parcel]:
        return [] if is_mute and parcel.head.source in ("c", "d") else [parcel]

    with cluster_of(spec, place_all(spec, 3), meddle=swallow) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 2)
        is_mute = True
        cluster.run()
        stuck = {seat: engine.progress for seat, engine in cluster.engines.items()}
        cluster.run()

        # Everybody answers, and nobody gets on: that is what a watermark is for.
        assert {seat: engine.progress for seat, engine in cluster.engines.items()} == stuck
        assert not any(progress.is_done for progress in stuck.values())
        # Its neighbours wait for it. It waits for them too: it believes that it has sent.
        assert {each.seat for each in cluster.engines[FIRST].list_wanted()} == {SECOND}
        assert {each.seat for each in cluster.engines[THIRD].list_wanted()} == {SECOND}

        is_mute = False
        cluster.recover(lost(cluster.placement, SECOND, "spare"), STEPS)
        cluster.run()
        assert_exact(cluster, spec)


def test_trap_5_a_hub_that_does_not_listen_holds_nobody_up() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 2)
    samples = make_samples(spec)
    unheard: list[object] = []
    engines = {seat: Engine(spec, placement, seat, samples, on_event=unheard.append) for seat in placement.seats}
    for engine in engines.values():
        engine.prepare(1)
        engine.start(0, STEPS)

    # From here on no order comes and no event is read: hosts carry frames to each other and need nothing else.
    is_moving = True
    while is_moving:
        is_moving = False
        for engine in engines.values():
            frames = engine.run_ready()
            is_moving |= frames is not None
            for frame in frames or []:
                assert engines[frame.seat].receive(frame.head, frame.tensor.clone()) is None

    assert all(engine.progress.is_done for engine in engines.values())
    for engine in engines.values():
        engine.flush(30)
        engine.close()
    losses = [event.loss for event in unheard if isinstance(event, LossKnown)]
    assert losses == reference(spec, samples, STEPS).losses
    assert {event.vnode_id for event in unheard if isinstance(event, CheckpointReady) if event.step == STEPS} == {
        vnode.id for vnode in spec.vnodes
    }


# Fencing


def fall_ill(cluster: Cluster) -> None:
    """The second host computes wrongly from now on, is found out and replaced; its frames are still under way."""

    def spoil(parcel: Parcel) -> list[Parcel]:
        if parcel.head.source not in ("c", "d") or parcel.head.epoch > 1:
            return [parcel]
        wrong = torch.frombuffer(bytearray(parcel.content), dtype=torch.float32) * 1.5
        return [replace(parcel, content=bytes(to_bytes(wrong)))]

    cluster.meddle = spoil
    cluster.run(until=lambda: count_spoilt(cluster) >= 2)
    moves = lost(cluster.placement, SECOND, "spare")
    cluster.kill(SECOND)
    cluster.recover(moves, STEPS)
    assert count_spoilt(cluster) >= 2


def count_spoilt(cluster: Cluster) -> int:
    lanes = [lane for lane in cluster.lanes if lane[0] == SECOND]
    return sum(len(cluster.lanes[lane]) for lane in lanes)


def start_at_a_checkpoint(cluster: Cluster) -> None:
    """So that what is under way is of the very steps that are done again."""
    cluster.train(3)
    cluster.start(STEPS)


def test_frames_of_an_old_incarnation_are_refused_and_change_nothing() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3), seed=1) as cluster:
        start_at_a_checkpoint(cluster)
        fall_ill(cluster)
        cluster.run()

        assert {refusal.code for _, refusal in cluster.refusals} == {RefusalCode.STALE_EPOCH}
        assert_exact(cluster, spec)


def test_an_old_incarnation_that_knows_the_new_epoch_is_refused_all_the_same() -> None:
    spec = make_net("mlp")
    with cluster_of(spec, place_all(spec, 3), seed=1) as cluster:
        start_at_a_checkpoint(cluster)
        fall_ill(cluster)
        for parcels in cluster.lanes.values():
            for parcel in parcels:
                parcel.head = parcel.head._replace(epoch=2)
        cluster.run()

        assert {refusal.code for _, refusal in cluster.refusals} == {RefusalCode.STALE_INCARNATION}
        assert_exact(cluster, spec)


def test_without_fencing_an_old_incarnation_changes_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_net("mlp")
    receive: Callable[..., Refusal | None] = Engine.receive

    def unfenced(self: Engine, head: FrameHead, tensor: torch.Tensor) -> Refusal | None:
        known = self._run.exchange.expected if self._run is not None else {}
        at = [each for key, each in known.items() if (key.source, key.kind) == (head.source, head.kind)]
        incarnation = at[0].incarnation if at else head.incarnation
        return receive(self, head._replace(epoch=self._epoch, incarnation=incarnation), tensor)

    with cluster_of(spec, place_all(spec, 3), seed=1) as cluster:
        start_at_a_checkpoint(cluster)
        monkeypatch.setattr(Engine, "receive", unfenced)
        fall_ill(cluster)
        cluster.run()

        assert cluster.curve != reference(spec, make_samples(spec), STEPS).losses


def test_a_host_that_missed_an_epoch_is_not_listened_to_and_comes_back_with_the_next() -> None:
    spec = make_net("residual")
    with cluster_of(spec, place_all(spec, 3), seed=3) as cluster:
        cluster.prepare()
        cluster.start(STEPS)
        cluster.run(until=lambda: len(cluster.losses) == 4)
        # Cut off, and alive: it goes on in epoch 1 with nobody to hear it.
        apart = cluster.engines.pop(SECOND)
        cluster.recover(lost(cluster.placement, SECOND, "spare"), STEPS)
        stale = [frame for _ in range(20) for frame in apart.run_ready() or []]
        for frame in stale:
            if frame.seat in cluster.engines:
                refusal = cluster.engines[frame.seat].receive(frame.head, frame.tensor)
                assert refusal is not None
                assert refusal.code is RefusalCode.STALE_EPOCH
        cluster.run(until=lambda: len(cluster.losses) == 6)
        cluster.kill(SeatId("spare"))
        cluster.engines[SECOND] = apart
        cluster.recover(lost(cluster.placement, SeatId("spare"), SECOND), STEPS)
        cluster.run()

        assert cluster.placement.incarnation_of(cluster.placement.at(SECOND)[0].vnode_id) == 3
        assert_exact(cluster, spec)


def test_a_new_host_may_get_its_samples_with_the_epoch_in_which_it_needs_them() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 2)
    engine = Engine(spec, placement, SeatId("late"), None, on_event=lambda _: None)
    engine.prepare(1)
    everything = {(vnode.id, 0): SeatId("late") for vnode in spec.vnodes}

    engine.prepare(2, placement=move(placement, everything), dataset=make_samples(spec))

    assert engine.start(0, 1)
    assert engine.run_ready() is not None
    engine.close()
