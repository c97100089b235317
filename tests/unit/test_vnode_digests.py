"""Digests of seats and replays: honest hosts agree bit for bit, and whoever computes otherwise does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from computepool.core.networks.audit import SpanDigest
from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import Dtype, NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint
from computepool.node.vnodes.digests import SeatDigests, digest_tensor
from computepool.node.vnodes.events import DigestKnown
from computepool.node.vnodes.frame_log import FrameLog, LogUnreadable, pack_log, unpack_log
from computepool.node.vnodes.frames import FrameHead, FrameKind, Outgoing, to_tensor
from computepool.node.vnodes.replay import Replay, ReplayFailed, digest_frames, measure_deviation, replay
from tests.support.vnode_cluster import Cluster, Parcel
from tests.support.vnode_nets import make_net, make_samples, place_all

STEPS = 6
SEAT = SeatId("seat-1")


class Recorded:
    """A run of three hosts with checkpoints after three and six steps, and all that reached and left the second."""

    def __init__(self, spec: NetworkSpec, *, seed: int = 0, seats: int = 3, seat: SeatId = SEAT) -> None:
        self.spec = spec
        self.seat = seat
        self.placement = place_all(spec, seats)
        self.received: list[tuple[SeatId, FrameHead, torch.Tensor]] = []
        self.sent: list[tuple[SeatId, FrameHead, torch.Tensor]] = []
        self.cluster = Cluster(spec, make_samples(spec), self.placement, seed=seed, meddle=self._log)
        self.cluster.prepare()

    def train(self) -> None:
        self.cluster.start(STEPS)
        self.cluster.run()
        self.cluster.close()

    def told(self, seat: SeatId | None = None) -> list[SpanDigest]:
        seat = seat or self.seat
        return [event.span for at, event in self.cluster.events if at == seat and isinstance(event, DigestKnown)]

    def replay(self, from_step: int = 0, *, steps: int = 3, keeps_frames: bool = False) -> Replay:
        checkpoint = Checkpoint(from_step, self.cluster.checkpoints[from_step]) if from_step else None
        return replay(
            self.spec,
            self.placement,
            self.seat,
            [(head, tensor) for _, head, tensor in self.received if from_step <= head.step < from_step + steps],
            make_samples(self.spec),
            checkpoint=checkpoint,
            until_step=from_step + steps,
            keeps_frames=keeps_frames,
        )

    def _log(self, parcel: Parcel) -> list[Parcel]:
        tensor = to_tensor(parcel.content, parcel.head.dtype, parcel.head.shape)
        source = self._find_seat(parcel.head)
        if parcel.seat == self.seat:
            self.received.append((source, parcel.head, tensor))
        if source == self.seat:
            self.sent.append((parcel.seat, parcel.head, tensor))
        return [parcel]

    def _find_seat(self, head: FrameHead) -> SeatId:
        replica = 0 if head.kind is FrameKind.REDUCED else head.replica
        return self.placement.seat_of(head.source, replica)


@pytest.mark.parametrize("kind", ["mlp", "residual", "conv", "chars", "towers"])
def test_a_replay_of_an_honest_seat_gives_its_digests_and_its_states(kind: str) -> None:
    recorded = Recorded(make_net(kind))
    recorded.train()

    assert [span.key for span in recorded.told()] == [(1, 0, 3), (1, 3, 6)]
    for span in recorded.told():
        found = recorded.replay(span.from_step)
        assert found.span == span
        stored = recorded.cluster.checkpoints[span.until_step]
        assert found.states.keys() == {each.vnode_id for each in recorded.placement.at(SEAT)} <= stored.keys()


@pytest.mark.parametrize(
    ("kind", "options"), [("residual", {}), ("chars", {"replicas": 2}), ("mlp", {"wire": Dtype.BF16})]
)
def test_what_one_neighbour_says_that_it_sent_is_what_the_other_says_that_it_got(kind: str, options: dict) -> None:
    recorded = Recorded(make_net(kind, **options), seed=3)
    recorded.train()
    seats = recorded.placement.seats
    told = {seat: recorded.told(seat) for seat in seats}

    pairs = 0
    for one in seats:
        for mine in told[one]:
            for two, digests in mine.peers.items():
                [theirs] = [span for span in told[two] if span.key == mine.key]
                assert theirs.peers[one].received == digests.sent
                assert theirs.peers[one].sent == digests.received
                pairs += 1
    assert pairs >= 4 * len(seats) - 4


@pytest.mark.parametrize("seat", ["seat-0-1", "seat-1-0", "seat-1-1"])
def test_a_replay_agrees_also_where_replicas_add_their_gradients_between_seats(seat: str) -> None:
    recorded = Recorded(make_net("chars", replicas=2), seats=2, seat=SeatId(seat))
    recorded.train()

    for span in recorded.told():
        assert recorded.replay(span.from_step).span == span


def test_digests_do_not_depend_on_the_order_in_which_frames_arrive() -> None:
    told = []
    for seed in range(3):
        recorded = Recorded(make_net("residual"), seed=seed)
        recorded.train()
        told.append(recorded.told())

    assert told[0] == told[1] == told[2]


def spoil(recorded: Recorded, moment: tuple[int, int], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run = recorded.cluster.engines[SEAT]._run
    assert run is not None
    right = run.runs[0].forward

    def forward(at: tuple[int, int], parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [change(output) if at == moment else output for output in right(at, parts)]

    run.runs[0].forward = forward  # type: ignore[method-assign,assignment]


def test_a_host_that_sends_what_it_did_not_compute_is_found() -> None:
    recorded = Recorded(make_net("mlp"))
    spoil(recorded, (4, 1), lambda output: output * 1.01)
    recorded.train()

    honest, wrong = recorded.told()
    assert recorded.replay(0).span == honest
    found = recorded.replay(3).span
    assert found != wrong
    # All that reached it is as it says: the fault is its own.
    assert {seat: each.received for seat, each in found.peers.items()} == {
        seat: each.received for seat, each in wrong.peers.items()
    }


def test_a_host_that_changes_one_bit_of_one_weight_is_found() -> None:
    recorded = Recorded(make_net("mlp"))
    engine = recorded.cluster.engines[SEAT]
    recorded.cluster.start(STEPS)
    recorded.cluster.run(until=lambda: engine.progress.step == 2)
    vnode = next(each for each in engine._hosted.values() if each.parameters)
    with torch.no_grad():
        vnode.parameters[0][1].view(torch.int32)[0, 0] ^= 1
    recorded.train()

    found = recorded.replay(0)
    stored = {
        event.vnode_id: event.digest
        for at, event in recorded.cluster.events
        if at == SEAT and getattr(event, "content", None) is not None and event.step == 3
    }
    assert found.span != recorded.told()[0] or found.states != stored
    assert found.states[vnode.id] != stored[vnode.id]


def test_a_log_with_a_hole_says_what_is_missing_and_blames_nobody() -> None:
    recorded = Recorded(make_net("mlp"))
    recorded.train()
    del recorded.received[0]

    with pytest.raises(ReplayFailed, match="the log lacks activation of VNode b on seat-0, step 0, micro-batch 0"):
        recorded.replay()


def test_a_log_with_a_frame_of_somebody_else_is_no_proof() -> None:
    recorded = Recorded(make_net("mlp"))
    recorded.train()
    seat, head, tensor = recorded.received[0]
    recorded.received[0] = (seat, head._replace(target="e"), tensor)

    with pytest.raises(ReplayFailed, match="a frame that no seat takes"):
        recorded.replay()


def test_frames_that_are_shown_have_the_digests_that_were_told() -> None:
    recorded = Recorded(make_net("chars"))
    recorded.train()
    span = recorded.told()[1]

    def shown(frames: list) -> list:
        return [frame for frame in frames if 3 <= frame[1].step < 6]

    found = digest_frames(shown(recorded.sent), shown(recorded.received), epoch=1, from_step=3, until_step=6)
    assert replace(found, losses=span.losses) == span


def test_a_replay_in_another_numeric_class_is_compared_as_numbers() -> None:
    recorded = Recorded(make_net("chars"))
    spoil(recorded, (3, 1), lambda output: output * 1.01)
    recorded.train()

    honest = recorded.replay(0, steps=1, keeps_frames=True)
    noisy = [(seat, head, _shake(head, tensor)) for seat, head, tensor in recorded.sent]
    assert 0 < measure_deviation(honest.sent, noisy, step=0) < 1e-4
    wrong = recorded.replay(3, steps=1, keeps_frames=True)
    assert measure_deviation(wrong.sent, recorded.sent, step=3) > 1e-3
    assert measure_deviation(wrong.sent, recorded.sent[:-20], step=3) == float("inf")


def _shake(head: FrameHead, tensor: torch.Tensor) -> torch.Tensor:
    return tensor * (1 + 1e-6) if head.dtype is Dtype.F32 else tensor


def test_digests_can_be_left_out() -> None:
    spec = make_net("mlp")
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 2), engine_options={"records_digests": False})
    cluster.train(STEPS)
    cluster.close()

    assert cluster.digests == []
    assert cluster.is_done


def make_head(step: int = 0, micro_batch: int = 0, **changes: object) -> FrameHead:
    head = FrameHead("run-1", 1, FrameKind.ACTIVATION, "a", 0, "b", 0, 0, 1, step, micro_batch, Dtype.F32, (2,))
    return head._replace(**changes)


def test_control_a_digest_that_ignores_the_payload_would_be_the_same_for_other_numbers() -> None:
    def claim(value: float, *, looks: bool) -> SpanDigest:
        digests = SeatDigests(0)
        digests.record_sent(SEAT, make_head(), digest_tensor(torch.full((2,), value)) if looks else b"")
        digests.close_step()
        return digests.take(1)

    assert claim(1.0, looks=True) != claim(1.0 + 1e-7, looks=True)
    assert claim(1.0, looks=False) == claim(1.0 + 1e-7, looks=False)


def test_frames_of_a_later_step_are_told_with_that_step() -> None:
    early, late = SeatDigests(0), SeatDigests(1)
    early.record_received(SEAT, make_head(1), b"x")
    early.close_step()
    assert early.take(1).peers == {}
    late.record_received(SEAT, make_head(1), b"x")
    for digests in (early, late):
        digests.close_step()
    assert early.take(1) == late.take(1)


# The log of what was sent


def make_frame(step: int, *, floats: int = 256, seat: SeatId = SEAT, epoch: int = 1) -> Outgoing:
    return Outgoing(seat, make_head(step, shape=(floats,), epoch=epoch), torch.full((floats,), float(step)))


def test_a_log_gives_back_what_went_to_one_seat_in_some_steps() -> None:
    log = FrameLog()
    for step in range(6):
        log.record(make_frame(step))
        log.record(make_frame(step, seat=SeatId("seat-2")))
    log.record(make_frame(3, epoch=2))

    found = unpack_log(pack_log(log.list_frames(1, 2, 4, to=SEAT)))
    assert [(seat, head.step, tensor[0].item()) for seat, head, tensor in found] == [(SEAT, 2, 2.0), (SEAT, 3, 3.0)]
    assert len(log.list_frames(1, 2, 4)) == 4
    assert unpack_log(pack_log(log.list_frames(1, 9, 12))) == []
    log.close()


def test_a_log_is_bounded_keeps_the_newest_and_says_what_it_has_lost() -> None:
    log = FrameLog(bytes_max=4 * 1_024 + 100)
    for step in range(11):
        log.record(make_frame(step))
    assert [head.step for _, head, _ in log.list_frames(1, 7, 99)] == [7, 8, 9, 10]
    assert [tensor[5].item() for _, _, tensor in log.list_frames(1, 7, 99)] == [7.0, 8.0, 9.0, 10.0]
    with pytest.raises(LogUnreadable, match="kept from step 7 on"):
        log.list_frames(1, 6, 9)
    log.record(make_frame(11, floats=5_000))
    with pytest.raises(LogUnreadable):
        log.list_frames(1, 10, 12)
    log.close()


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\xff" * 64, pack_log([])[:-1]])
def test_what_is_no_log_is_refused(content: bytes) -> None:
    with pytest.raises(LogUnreadable):
        unpack_log(content)


def test_a_log_whose_heads_do_not_fit_its_tensors_is_refused() -> None:
    with pytest.raises(LogUnreadable, match="the log lacks"):
        unpack_log(pack_log([(SEAT, make_head(shape=(3,)), torch.ones(2))]))
