"""A host's memory is one account: training, open checkpoints and replays of others together stay within it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec_json import to_json
from computepool.node.vnodes.memory import MemoryBook, count_training_bytes
from computepool.node.vnodes.placements import read_placement
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.host_alone import SEATS, SPEC, HostAlone
from tests.support.network_data import make_dataset

SEAT = SeatId("seat-1")
LOCATIONS = [pb.Location(vnode_id=id, seat=seat, incarnation=1) for id, seat in SEATS.items()]
PLACEMENT = read_placement("r", 1, LOCATIONS)
TRAINING_BYTES = count_training_bytes(SPEC, PLACEMENT, SEAT)


def test_what_is_taken_is_missing_until_it_is_given_back():
    book = MemoryBook(100)
    book.set_own(40)
    book.take("a", 30)
    with pytest.raises(
        MemoryError, match=r"b takes 31 bytes and 30 are left here; there are 100, .* training 40, a 30"
    ):
        book.take("b", 31)
    with book.holding("b", 30):
        assert book.left_bytes == 0
    book.give_back(["a", "nothing"])
    assert book.left_bytes == 60


def test_training_comes_first_and_nothing_more_is_taken_on_before_there_is_room():
    book = MemoryBook(100)
    book.take("a", 30)
    book.set_own(90)
    assert book.left_bytes == 0
    with pytest.raises(MemoryError, match="its VNodes take 101 bytes; there are 100 for them"):
        book.set_own(101)
    with pytest.raises(MemoryError):
        book.take("b", 1)


@pytest.fixture
async def host():
    """Room for its VNodes, for those of another seat, and for one byte less than a checkpoint beside both."""
    made = HostAlone("seat-1", memory_bytes=10**9)
    weights_bytes = made.host._serving._count_weights(SPEC, PLACEMENT)
    assert 1 < weights_bytes < TRAINING_BYTES
    made.host._memory.bytes_max = 2 * TRAINING_BYTES + weights_bytes - 1
    await made.prepare(make_dataset(SPEC).to_bytes())
    made.list_said()
    yield made
    await made.close()


async def open_checkpoint(host: HostAlone) -> str:
    host.host._serving.open(pb.OpenCheckpoint(epoch=1, checkpoint_step=0))
    return (await hear(host, "opened")).message


async def replay(host: HostAlone) -> str:
    """Of the middle seat, which reads no data: with no frames to replay it comes to nothing, and says so."""
    order = pb.AuditOrder(audit_id="a", epoch=1, seat="seat-1", from_step=0, until_step=1)
    order.replay.spec_json = to_json(SPEC)
    order.replay.placement.extend(LOCATIONS)
    host.host._auditor.obey(order)
    return (await hear(host, "audit_result")).message


async def hear(host: HostAlone, kind: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            for said in host.list_said():
                if said.WhichOneof("kind") == kind:
                    return getattr(said, kind)
            await asyncio.sleep(0.01)


async def test_a_replay_that_fits_beside_the_training_does_not_fit_beside_an_open_checkpoint_too(host):
    assert await open_checkpoint(host) == ""
    refused = await replay(host)
    assert f"a replay takes {TRAINING_BYTES:,} bytes" in refused
    assert "open checkpoint 0" in refused
    host.host._serving.leave()
    assert "bytes" not in await replay(host)
    assert host.host._memory.left_bytes >= TRAINING_BYTES


async def test_an_open_checkpoint_does_not_fit_beside_a_replay_that_is_under_way(host):
    with host.host._memory.holding("a replay", TRAINING_BYTES):
        assert "a replay" in await open_checkpoint(host)
    assert await open_checkpoint(host) == ""


async def test_control_accounts_that_do_not_know_of_each_other_take_more_than_there_is(host, monkeypatch):
    def apart(book: MemoryBook) -> int:
        return book.bytes_max - book._own_bytes

    monkeypatch.setattr(MemoryBook, "left_bytes", property(apart))
    assert await open_checkpoint(host) == ""
    assert "bytes" not in await replay(host)
