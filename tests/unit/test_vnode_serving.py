"""A host's answers beside its training: what it opens, what it computes, what it says when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from computepool.core.networks.entries import ANSWER
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.uncut import UncutNetwork, answer
from computepool.node.vnodes import driver as driver_module
from computepool.node.vnodes import serving as serving_module
from computepool.node.vnodes.checkpoints import pack, take_snapshot
from computepool.node.vnodes.driver import Driver
from computepool.node.vnodes.frames import Outgoing, RefusalCode, to_bytes, to_tensor
from computepool.node.vnodes.memory import MemoryBook
from computepool.node.vnodes.serving import Serving
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.vnode_nets import make_net, make_samples, place_all

SPEC = make_net("residual")
STEP = 10
X = make_samples(SPEC).tensors["x"][:3]


class Hosts:
    """The hosts of one placement, their frames carried by hand, and one shelf of checkpoints."""

    def __init__(self, spec: NetworkSpec, placement: Placement, *, memory_bytes: int = 10**9) -> None:
        self.spec = spec
        self.said: list[tuple[SeatId, pb.HostMessage]] = []
        self.fetched: list[str] = []
        self.shelf = self._fill_shelf()
        # Of one host, or shared by all: enough for those who do not look at it.
        self.memory = MemoryBook(memory_bytes)
        self.hosts = {seat: self._make(seat) for seat in placement.seats}
        self.enter(placement)

    def _fill_shelf(self) -> dict[str, bytes]:
        """The weights that follow from the seed, each a little larger, so that a checkpoint is not the seed's."""
        network = UncutNetwork(self.spec)
        self.weights = {name: tensor + 0.125 for name, tensor in network.state_dict().items()}
        shelf = {}
        for vnode in self.spec.vnodes:
            mine = {n: t for n, t in self.weights.items() if n == vnode.path or n.startswith(f"{vnode.path}.")}
            shelf[vnode.id] = pack(take_snapshot(vnode.id, STEP, {f"weight/{n}": t for n, t in mine.items()})).content
        return shelf

    def _make(self, seat: SeatId) -> Serving:
        async def load(vnode_id: str, step: int, sha256: str) -> bytes:
            assert step == STEP
            self.fetched.append(vnode_id)
            return self.shelf[vnode_id]

        return Serving(
            seat,
            load_part=load,
            say=lambda message: self.said.append((seat, message)),
            on_work=lambda: None,
            memory=self.memory,
        )

    def enter(self, placement: Placement) -> None:
        self.placement = placement
        for host in self.hosts.values():
            host.enter(self.spec, placement)

    async def open(
        self, step: int = STEP, *, kept: tuple[int, ...] = (), epoch: int = 0
    ) -> list[pb.CheckpointOpened]:
        before = len(self.said)
        for seat, host in self.hosts.items():
            names = [each.vnode_id for each in self.placement.at(seat)] if step else []
            parts = [pb.VNodeCheckpoint(vnode_id=name) for name in names]
            host.open(
                pb.OpenCheckpoint(
                    epoch=epoch or self.placement.epoch, checkpoint_step=step, checkpoints=parts, kept_steps=kept
                )
            )
        while any(host._opening for host in self.hosts.values()):
            await asyncio.sleep(0.01)
        return [message.opened for _, message in self.said[before:]]

    def ask(self, number: int, x: torch.Tensor = X, *, step: int = STEP) -> None:
        tensor = pb.Tensor(dtype="f32", shape=x.shape, content=bytes(to_bytes(x)))
        for host in self.hosts.values():
            order = pb.InferOrder(
                checkpoint_step=step, epoch=self.placement.epoch, number=number, inputs={"x": tensor}
            )
            host.ask(order)

    def run(self) -> list[Outgoing]:
        """Till nothing moves. Returns what left for nobody: answers."""
        answers = []
        moved = True
        while moved:
            moved = False
            for host in self.hosts.values():
                frames = host.run_ready()
                moved = moved or frames is not None
                for frame in frames or ():
                    if frame.head.target == ANSWER:
                        answers.append(frame)
                        host.answer(frame)
                    else:
                        content = bytearray(to_bytes(frame.tensor))
                        assert self.hosts[frame.seat].receive(frame.head, content) is None
        return answers

    @property
    def answers(self) -> list[pb.InferAnswer]:
        return [message.answer for _, message in self.said if message.HasField("answer")]


async def test_hosts_that_have_opened_a_checkpoint_answer_as_the_uncut_network_does():
    hosts = Hosts(SPEC, place_all(SPEC, 3))
    opened = await hosts.open()
    assert [(each.checkpoint_step, each.code) for each in opened] == [(STEP, "")] * 3
    hosts.ask(1)
    hosts.run()
    [said] = hosts.answers
    output = to_tensor(said.output.content, serving_module.Dtype(said.output.dtype), tuple(said.output.shape))
    assert (said.epoch, said.number) == (1, 1)
    assert torch.equal(output, answer(SPEC, hosts.weights, X))
    # Told again, it is said again and fetched no second time.
    count = len(hosts.fetched)
    assert len(await hosts.open()) == 3
    assert len(hosts.fetched) == count


async def test_before_the_first_checkpoint_the_seed_answers():
    hosts = Hosts(SPEC, place_all(SPEC, 2))
    await hosts.open(0)
    hosts.ask(1, step=0)
    [frame] = hosts.run()
    assert torch.equal(frame.tensor, answer(SPEC, UncutNetwork(SPEC).state_dict(), X))
    assert hosts.fetched == []


async def test_a_checkpoint_that_is_not_kept_is_closed_and_whoever_asks_it_is_told():
    hosts = Hosts(SPEC, place_all(SPEC, 1))
    await hosts.open(STEP)
    await hosts.open(0, kept=(STEP,))
    hosts.ask(1)
    assert len(hosts.run()) == 1
    await hosts.open(0)
    hosts.ask(2)
    assert hosts.run() == []
    assert [(each.number, each.code) for each in hosts.answers] == [(1, ""), (2, serving_module.NOT_OPEN)]


async def test_weights_that_do_not_fit_beside_the_training_are_refused_before_they_are_fetched():
    hosts = Hosts(SPEC, place_all(SPEC, 1), memory_bytes=1_000)
    [opened] = await hosts.open()
    assert (opened.code, "there are 1,000" in opened.message) == (serving_module.OUT_OF_MEMORY, True)
    assert hosts.fetched == []


async def test_checkpoints_that_are_opened_at_once_are_counted_together_and_given_back_when_they_are_closed():
    hosts = Hosts(SPEC, place_all(SPEC, 1))
    [serving] = hosts.hosts.values()
    weights_bytes = serving._count_weights(SPEC, hosts.placement)
    hosts.memory.bytes_max = 2 * weights_bytes - 1
    names = [each.vnode_id for each in hosts.placement.locations]
    parts = [pb.VNodeCheckpoint(vnode_id=name) for name in names]
    for step, given in ((STEP, parts), (0, [])):
        kept = (STEP, 0)
        serving.open(pb.OpenCheckpoint(epoch=1, checkpoint_step=step, checkpoints=given, kept_steps=kept))
    while serving._opening:
        await asyncio.sleep(0.01)
    codes = {message.opened.checkpoint_step: message.opened.code for _, message in hosts.said}
    assert codes == {STEP: "", 0: serving_module.OUT_OF_MEMORY}
    # The hub lets go of the first: then there is room.
    [opened] = await hosts.open(0)
    assert opened.code == ""
    hosts.enter(place_all(SPEC, 1, epoch=2))
    assert hosts.memory.left_bytes == hosts.memory.bytes_max


async def test_what_is_done_for_requests_is_told_from_doing_nothing():
    hosts = Hosts(SPEC, place_all(SPEC, 1))
    await hosts.open()
    [serving] = hosts.hosts.values()
    before = serving.mark
    hosts.run()
    assert serving.mark == before
    hosts.ask(1)
    hosts.run()
    assert serving.mark > before


async def test_a_checkpoint_of_something_else_is_told_and_training_is_not_touched():
    hosts = Hosts(SPEC, place_all(SPEC, 1))
    hosts.shelf[SPEC.vnodes[0].id] = b"no safetensors"
    [opened] = await hosts.open()
    assert opened.code == serving_module.CHECKPOINT_UNREADABLE


async def test_a_new_epoch_forgets_what_was_asked_and_says_nothing_of_it():
    hosts = Hosts(SPEC, place_all(SPEC, 2))
    await hosts.open()
    hosts.ask(1)
    first = hosts.hosts[hosts.placement.seat_of("a")]
    old = next(frame for _ in range(99) for frame in first.run_ready() or ())
    hosts.enter(place_all(SPEC, 2, epoch=2))
    assert hosts.run() == []
    refusal = hosts.hosts[old.seat].receive(old.head, bytearray(to_bytes(old.tensor)))
    assert refusal is not None
    assert refusal.is_harmless
    assert refusal.code is RefusalCode.STALE_EPOCH
    assert await hosts.open(epoch=1) == []
    assert hosts.answers == []


async def test_a_request_that_cannot_be_computed_is_told_with_its_vnode_and_holds_up_no_other():
    spec = make_net("chars")
    hosts = Hosts(spec, place_all(spec, 1))
    await hosts.open(0)
    good = make_samples(spec).tensors["x"][:2]
    host = hosts.hosts[SeatId("seat-0")]
    for number, x in ((1, good + 99), (2, good)):
        tensor = pb.Tensor(dtype="i64", shape=x.shape, content=bytes(to_bytes(x)))
        host.ask(pb.InferOrder(checkpoint_step=0, epoch=1, number=number, inputs={"x": tensor}))
    assert len(hosts.run()) == 1
    await asyncio.sleep(0)
    assert {each.number: (each.code, each.vnode_id) for each in hosts.answers} == {
        1: (serving_module.FAILED, "embed"),
        2: ("", ""),
    }


async def test_inputs_that_are_no_numbers_or_no_tensor_are_refused_where_they_enter():
    hosts = Hosts(SPEC, place_all(SPEC, 1))
    await hosts.open()
    hosts.ask(1, torch.full((2, 6), float("nan")))
    broken = pb.Tensor(dtype="f32", shape=(2, 6), content=b"123")
    hosts.hosts[SeatId("seat-0")].ask(pb.InferOrder(checkpoint_step=STEP, epoch=1, number=2, inputs={"x": broken}))
    assert [(each.number, each.code) for each in hosts.answers] == [
        (1, RefusalCode.NOT_FINITE.value),
        (2, RefusalCode.WRONG_SHAPE.value),
    ]
    assert hosts.run() == []


class _Busy:
    """Somebody asks without end, and each piece takes a second."""

    def __init__(self, now: list[float]) -> None:
        self._now = now
        self.pieces = 0

    def receive(self, head: Any, tensor_bytes: bytearray) -> None:
        return None

    def run_ready(self) -> list[Outgoing]:
        self._now[0] += 1.0
        self.pieces += 1
        return []


class _Engine:
    def __init__(self, *, is_done: bool) -> None:
        self.progress = type("Progress", (), {"is_done": is_done})()


@pytest.mark.parametrize(("is_done", "share"), [(False, 0.5), (True, 1.0)])
async def test_answers_take_half_of_the_time_while_training_goes_on_and_all_of_it_afterwards(
    monkeypatch, is_done, share
):
    now = [100.0]
    monkeypatch.setattr(driver_module.clock, "seconds", lambda: now[0])
    driver = Driver(on_outgoing=_nothing, on_event=_nothing)
    busy, engine = _Busy(now), _Engine(is_done=is_done)
    driver.set_answering(busy)
    for _ in range(10_000):
        if driver._answer(engine) is None:
            now[0] += 0.25
        if now[0] >= 200.0:
            break
    assert busy.pieces == pytest.approx(100 * share, abs=1)


_nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
