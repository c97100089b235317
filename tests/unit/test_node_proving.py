"""The agent is asked to show a slot's speed again: it offers nothing that could disturb it, and makes way at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from computepool.node import holdings as holdings_module
from computepool.node import proving
from computepool.node.hardware.detect import Detected
from computepool.node.hardware.port import Card
from computepool.node.proving import Prover, list_targets
from computepool.wire.attempts import Controls, NextAnswer
from computepool.wire.nodes import Gpu, Hardware
from tests.support.agent_world import Line, Runners, World, id_of, until

ASKED = NextAnswer(controls=Controls(prove=("cpu:0",)))
HARDWARE = Hardware(cores=4, ram_bytes=4 * 10**9, disk_bytes=10**10, cpu_slots=2)
BOTH = ("cpu:0", "cpu:1")


class Sittings:
    """Stands for what is computed: notes who sits, and ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.given_up: list[str] = []
        self.done = asyncio.Event()
        self.trouble: Exception | None = None
        monkeypatch.setattr(proving, "_prove", self.prove)
        monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(proving, "DISTURBED_SECONDS", 0.01)

    async def prove(self, hub: object, slot: str, card: Card | None) -> None:
        self.begun.append(slot)
        if self.trouble is not None:
            raise self.trouble
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.given_up.append(slot)
            raise


@pytest.fixture
def sittings(monkeypatch: pytest.MonkeyPatch) -> Sittings:
    return Sittings(monkeypatch)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    return Runners(monkeypatch)


@pytest.fixture
async def world(tmp_path: Path, runners: Runners, sittings: Sittings) -> AsyncIterator[World]:
    world = World(tmp_path, Line())
    world.holdings.shows_speed = True
    proving_ = asyncio.ensure_future(Prover(world.hub, Detected(HARDWARE, False, ()), world.holdings).run())
    yield world
    proving_.cancel()
    await asyncio.gather(proving_, return_exceptions=True)
    await world.close()


async def test_nothing_is_offered_while_the_processor_sits_and_everything_afterwards(world, sittings):
    assert world.holdings.free_slots == BOTH
    world.holdings.changed.clear()
    world.holdings.accept(ASKED)
    assert world.holdings.free_slots == ()
    assert world.holdings.changed.is_set()
    await until(lambda: sittings.begun == ["cpu:0"])
    # Told again because an answer was lost: it sits already.
    world.holdings.accept(ASKED)
    sittings.done.set()
    await until(lambda: world.holdings.free_slots == BOTH)
    assert sittings.begun == ["cpu:0"]


async def test_a_sitting_waits_for_what_runs(world, runners, sittings):
    answer = world.assign(slot="cpu:1")
    world.holdings.accept(answer)
    await until(lambda: runners.started)
    world.holdings.accept(ASKED)
    await asyncio.sleep(0.1)
    assert sittings.begun == []
    runners.finish(attempt_id=id_of(answer), exit_code=0)
    await world.settle()
    await until(lambda: sittings.begun == ["cpu:0"])


async def test_the_owner_comes_back_and_has_the_machine_at_once(world, sittings):
    world.holdings.accept(ASKED)
    await until(lambda: sittings.begun)
    world.holdings.make_way("You are here.", grace_seconds=1.0)
    await until(lambda: sittings.given_up == ["cpu:0"])
    await asyncio.sleep(0.1)
    assert sittings.begun == ["cpu:0"]
    world.holdings.take_up()
    await until(lambda: sittings.begun == ["cpu:0", "cpu:0"])


async def test_a_slot_that_cannot_sit_is_lent_again_after_a_while(world, runners, sittings, monkeypatch):
    monkeypatch.setattr(holdings_module, "ASKED_SECONDS_MAX", 0.1)
    answer = world.assign(slot="cpu:1")
    world.holdings.accept(answer)
    await until(lambda: runners.started)
    world.holdings.accept(ASKED)
    assert world.holdings.free_slots == ()
    await until(lambda: world.holdings.free_slots == ("cpu:0",))
    assert sittings.begun == []


async def test_a_sitting_that_breaks_ends_neither_the_agent_nor_its_work(world, sittings):
    sittings.trouble = RuntimeError("a driver that answers in riddles")
    world.holdings.accept(ASKED)
    await until(lambda: sittings.begun)
    await until(lambda: world.holdings.free_slots == BOTH)
    world.holdings.accept(ASKED)
    await until(lambda: len(sittings.begun) == 2)


async def test_a_slot_that_the_machine_does_not_have_is_passed_over(world, sittings):
    world.holdings.accept(NextAnswer(controls=Controls(prove=("gpu:7",))))
    await until(lambda: not world.holdings.asked.is_set())
    assert sittings.begun == []


async def test_an_agent_that_measures_nothing_goes_on_working(world, sittings):
    world.holdings.shows_speed = False
    world.holdings.accept(ASKED)
    assert world.holdings.free_slots == BOTH
    await asyncio.sleep(0.05)
    assert sittings.begun == []


def test_cards_are_shown_by_their_place_and_the_processor_once():
    card = Card("nvidia", "NVIDIA GeForce RTX 4090", 24 << 30)
    hardware = Hardware(
        gpus=(Gpu(name=card.name, vram_bytes=card.vram_bytes),), cores=4, ram_bytes=1, disk_bytes=1, cpu_slots=3
    )
    assert list_targets(Detected(hardware, False, (), (card,))) == {"gpu:0": card, "cpu:0": None}
