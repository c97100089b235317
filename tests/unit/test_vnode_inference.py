"""Inference over a placed network: the answers of the uncut one, several at once, apart from any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from computepool.core.networks.entries import ANSWER, list_entries
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import Dtype, NetworkSpec
from computepool.networks.uncut import UncutNetwork
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointUnreadable
from computepool.node.vnodes.frames import FrameHead, FrameKind, Outgoing, RefusalCode, name_dtype
from computepool.node.vnodes.inference import Inference, RequestFailed
from tests.support.vnode_cluster import Cluster
from tests.support.vnode_nets import KINDS, RUN_ID, make_net, make_samples, place_all

HUB = SeatId("hub")


class Hosts:
    """All seats of a placement, and whoever asks."""

    def __init__(
        self, spec: NetworkSpec, placement: Placement, checkpoint: Checkpoint | None, **options: Any
    ) -> None:
        self.spec, self.placement, self.step = spec, placement, checkpoint.step if checkpoint else 0
        self.failed: list[RequestFailed] = []
        self.hosts = {
            seat: Inference(spec, placement, seat, checkpoint, reply_to=HUB, on_failed=self.failed.append, **options)
            for seat in placement.seats
        }
        self.way: list[Outgoing] = []
        self.answers: dict[int, Tensor] = {}

    def ask(self, number: int, inputs: Mapping[str, Tensor], *, replica: int = 0) -> None:
        for entry in list_entries(self.spec, draw_graph(self.spec), self.placement, replica):
            tensor = inputs[entry.source_name]
            head = FrameHead(
                RUN_ID,
                self.placement.epoch,
                FrameKind.INFERENCE,
                f"@{entry.source_name}",
                0,
                entry.target,
                entry.target_slot,
                replica,
                0,
                self.step,
                number,
                name_dtype(tensor),
                tuple(tensor.shape),
            )
            self.way.append(Outgoing(entry.seat, head, tensor))

    def run(self, seed: int = 0) -> None:
        random = Random(seed)
        while True:
            seats = list(self.hosts)
            random.shuffle(seats)
            if self.way:
                self._deliver(self.way.pop(random.randrange(len(self.way))))
                continue
            sent = [self.hosts[seat].run_ready() for seat in seats]
            self.way += [frame for frames in sent for frame in frames or []]
            if all(frames is None for frames in sent):
                return

    def _deliver(self, frame: Outgoing) -> None:
        if frame.seat == HUB:
            assert frame.head.target == ANSWER
            self.answers[frame.head.micro_batch] = frame.tensor
        else:
            assert self.hosts[frame.seat].receive(frame.head, frame.tensor) is None


def pick(spec: NetworkSpec, count: int, *, seed: int = 1) -> dict[str, Tensor]:
    return dict(make_samples(spec, seed=seed, samples=count).tensors)


def answer_whole(spec: NetworkSpec, weights: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]) -> Tensor:
    network = UncutNetwork(spec)
    if weights is not None:
        network.load_state_dict(dict(weights))
    network.eval()
    with torch.no_grad():
        return network(**{name: inputs[name] for name in network.input_names})


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_a_cut_network_are_those_of_the_uncut_one(kind: str) -> None:
    spec = make_net(kind)
    hosts = Hosts(spec, place_all(spec, 3, seed=1), None)
    questions = {number: pick(spec, number + 1, seed=number) for number in range(5)}

    for number, inputs in questions.items():
        hosts.ask(number, inputs)
    hosts.run()

    assert hosts.failed == []
    assert set(hosts.answers) == set(questions)
    for number, inputs in questions.items():
        assert torch.equal(hosts.answers[number], answer_whole(spec, None, inputs))
    assert all(host.open_count == 0 for host in hosts.hosts.values())


def test_a_checkpoint_is_pinned_whatever_training_does_meanwhile() -> None:
    spec = make_net("conv")
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 2))
    cluster.train(6)
    cluster.close()
    inputs = pick(spec, 3)

    for step in (3, 6):
        hosts = Hosts(spec, place_all(spec, 3), Checkpoint(step, cluster.checkpoints[step]))
        hosts.ask(0, inputs)
        hosts.run()
        assert torch.equal(hosts.answers[0], answer_whole(spec, cluster.weights(step), inputs))


def test_replicas_answer_alike() -> None:
    spec = make_net("mlp", replicas=2)
    hosts = Hosts(spec, place_all(spec, 2), None)
    inputs = pick(spec, 2)

    hosts.ask(0, inputs, replica=0)
    hosts.ask(1, inputs, replica=1)
    hosts.run()

    assert torch.equal(hosts.answers[0], hosts.answers[1])


def test_a_host_without_part_in_the_output_holds_nothing() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 6)

    hosts = Hosts(spec, placement, None)

    assert hosts.hosts[placement.seat_of("loss")]._modules == {}


def test_half_the_bytes_on_the_wire_are_enough_for_an_answer() -> None:
    spec = make_net("mlp", wire=Dtype.BF16)
    hosts = Hosts(spec, place_all(spec, 3), None)
    inputs = pick(spec, 4)

    hosts.ask(0, inputs)
    hosts.run()

    assert hosts.answers[0].dtype == torch.float32
    assert torch.allclose(hosts.answers[0], answer_whole(spec, None, inputs), atol=0.05)


def test_a_request_that_cannot_be_answered_is_told_and_holds_up_no_other() -> None:
    spec = make_net("chars")
    hosts = Hosts(spec, place_all(spec, 2), None)
    good = pick(spec, 2)

    hosts.ask(0, {"x": good["x"] + 99})
    hosts.ask(1, good)
    hosts.run()

    assert [(each.request, each.vnode_id) for each in hosts.failed] == [(0, "embed")]
    assert set(hosts.answers) == {1}


def test_requests_that_nobody_completes_give_way_to_new_ones() -> None:
    spec = make_net("towers")
    hosts = Hosts(spec, place_all(spec, 1), None, requests_max=3)
    inputs = pick(spec, 1)
    host = hosts.hosts[SeatId("seat-0")]
    for number in range(5):
        hosts.ask(number, inputs)
        # The second half of each request never comes.
        hosts.way.pop()
    hosts.run()
    assert host.open_count == 3
    assert host.dropped_count == 2

    hosts.ask(9, inputs)
    hosts.run()

    assert set(hosts.answers) == {9}


def test_what_requests_hold_is_bounded_in_bytes() -> None:
    spec = make_net("towers")
    hosts = Hosts(spec, place_all(spec, 1), None, bytes_max=500)
    for number in range(5):
        hosts.ask(number, pick(spec, 4))
        hosts.way.pop()
    hosts.run()

    assert hosts.hosts[SeatId("seat-0")].open_count == 2


def test_a_request_that_is_not_waited_for_is_forgotten() -> None:
    spec = make_net("mlp")
    hosts = Hosts(spec, place_all(spec, 1), None)
    hosts.ask(0, pick(spec, 1))
    hosts._deliver(hosts.way.pop())

    hosts.hosts[SeatId("seat-0")].forget(0)
    hosts.run()

    assert hosts.answers == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run_id": "another"}, RefusalCode.FOREIGN_RUN),
        ({"epoch": 2}, RefusalCode.STALE_EPOCH),
        ({"step": 3}, RefusalCode.STALE_EPOCH),
        ({"source": "b"}, RefusalCode.NO_SUCH_EDGE),
        ({"kind": FrameKind.ACTIVATION}, RefusalCode.NO_SUCH_EDGE),
        ({"incarnation": 1}, RefusalCode.STALE_INCARNATION),
        ({"dtype": Dtype.I64, "tensor": torch.ones(2, 6, dtype=torch.int64)}, RefusalCode.WRONG_DTYPE),
        ({"shape": (2, 5), "tensor": torch.ones(2, 5)}, RefusalCode.WRONG_SHAPE),
        ({"shape": (0, 6), "tensor": torch.ones(0, 6)}, RefusalCode.WRONG_SHAPE),
        ({"shape": (), "tensor": torch.tensor(1.0)}, RefusalCode.WRONG_SHAPE),
        ({"tensor": torch.full((2, 6), float("nan"))}, RefusalCode.NOT_FINITE),
    ],
)
def test_a_frame_that_fits_no_request_is_refused(changes: dict[str, Any], code: RefusalCode) -> None:
    spec = make_net("mlp")
    hosts = Hosts(spec, place_all(spec, 1), None)
    hosts.ask(0, pick(spec, 2))
    frame = hosts.way.pop()
    tensor = changes.pop("tensor", frame.tensor)

    refusal = hosts.hosts[SeatId("seat-0")].receive(frame.head._replace(**changes), tensor)

    assert refusal is not None
    assert refusal.code is code
    assert hosts.hosts[SeatId("seat-0")].open_count == 0


def test_parts_of_one_request_must_be_of_one_size_and_come_once() -> None:
    spec = make_net("towers")
    hosts = Hosts(spec, place_all(spec, 1), None)
    host = hosts.hosts[SeatId("seat-0")]
    hosts.ask(0, pick(spec, 2))
    first, second = hosts.way
    larger = torch.ones(3, *second.tensor.shape[1:])

    assert host.receive(first.head, first.tensor) is None
    again = host.receive(first.head, first.tensor)
    odd = host.receive(second.head._replace(shape=tuple(larger.shape)), larger)

    assert again is not None
    assert again.code is RefusalCode.REPEATED
    assert odd is not None
    assert odd.code is RefusalCode.WRONG_SHAPE


def test_a_checkpoint_of_another_network_is_refused() -> None:
    spec = make_net("mlp")
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 1))
    cluster.train(3)
    cluster.close()
    wider = replace(spec, vnodes=(replace(spec.vnodes[0], config={"features": 17}), *spec.vnodes[1:]))

    with pytest.raises(CheckpointUnreadable, match="VNode a does not fit"):
        Hosts(wider, place_all(wider, 1), Checkpoint(3, cluster.checkpoints[3]))
    with pytest.raises(CheckpointUnreadable, match="lacks VNode a"):
        Hosts(spec, place_all(spec, 1), Checkpoint(3, {}))
