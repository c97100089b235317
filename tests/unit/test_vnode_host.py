"""What a host does with the hub's orders before it computes: counts, fetches, builds, and says what is wrong.

The hub is only a shelf of blobs here; hosts at real hubs are in the acceptance tests of networks.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
import torch
from safetensors.torch import load

from computepool.core.networks.spec import OptimizerKind, OptimizerSpec
from computepool.node.tokens import KEY_SET_TYPE, verify_seat_token
from computepool.node.vnodes.checkpoints import pack, take_snapshot
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.events import CheckpointReady
from computepool.node.vnodes.shelf import DataShelf
from tests.support.edge_hosts import Signer
from tests.support.host_alone import NODE_ID, SPEC, HostAlone
from tests.support.network_data import make_dataset
from tests.support.networks import make_mlp

# Its optimizer keeps nothing: the weights of the seed are a whole checkpoint.
PLAIN = make_mlp(optimizer=OptimizerSpec(kind=OptimizerKind.SGD))


@pytest.fixture
async def make_host():
    made: list[HostAlone] = []

    def make(seat: str, **options: Any) -> HostAlone:
        made.append(HostAlone(seat, **options))
        return made[-1]

    yield make
    await asyncio.gather(*(each.close() for each in made))


async def test_a_host_that_is_prepared_names_its_vnodes(make_host):
    at = make_host("seat-2")
    await at.prepare(make_dataset(SPEC).to_bytes())
    [said] = at.list_said()
    assert (said.prepared.epoch, list(said.prepared.vnode_ids)) == (1, ["head", "loss"])


async def test_vnodes_that_take_more_memory_than_there_is_are_refused_before_anything_is_fetched(make_host):
    at = make_host("seat-0", memory_bytes=1_000)
    await at.prepare(make_dataset(SPEC).to_bytes())
    fault = at.fault
    assert fault.code == "out_of_memory"
    assert "there are 1,000 for them" in fault.message
    assert at.fetched == []
    assert at.host._driver.engine is None


async def test_a_seat_whose_vnodes_read_no_data_fetches_none(make_host):
    content = make_dataset(SPEC).to_bytes()
    middle, first = make_host("seat-1"), make_host("seat-0")
    await middle.prepare(content)
    await first.prepare(content)
    assert (len(middle.fetched), len(first.fetched)) == (0, 1)


async def test_a_new_epoch_fetches_the_same_data_no_second_time(make_host):
    at = make_host("seat-0")
    content = make_dataset(SPEC).to_bytes()
    await at.prepare(content)
    await at.prepare(content, epoch=2)
    assert len(at.fetched) == 1
    assert [said.prepared.epoch for said in at.list_said()] == [1, 2]


async def test_shards_of_data_are_one_after_the_other(make_host):
    at = make_host("seat-0")
    whole = make_dataset(SPEC, 40)
    parts = [Dataset.from_tensors({k: v[i : i + 20] for k, v in whole.tensors.items()}).to_bytes() for i in (0, 20)]
    await at.prepare(*parts)
    assert all(torch.equal(at.host._dataset.tensors[name], whole.tensors[name]) for name in whole.tensors)


async def test_data_that_does_not_fit_or_cannot_be_read_is_told_as_such(make_host):
    at = make_host("seat-0")
    await at.prepare(
        Dataset.from_tensors({"x": torch.zeros(8, 3), "y": torch.zeros(8, dtype=torch.int64)}).to_bytes()
    )
    fault = at.fault
    assert (fault.code, "does not fit" in fault.message) == ("data_invalid", True)
    await at.prepare(b"no safetensors", epoch=2)
    assert at.fault.code == "data_invalid"


async def test_samples_that_are_no_numbers_are_told_before_a_step_is_made(make_host):
    at = make_host("seat-0")
    good = make_dataset(SPEC).tensors
    spoilt = {**good, "x": good["x"].clone()}
    spoilt["x"][3, 0], spoilt["x"][5, 1] = float("nan"), float("inf")
    await at.prepare(Dataset.from_tensors(spoilt).to_bytes())
    fault = at.fault
    assert fault.code == "data_invalid"
    assert "2 samples of x hold NaN or infinity, the first is 3" in fault.message


async def test_an_order_of_an_older_epoch_is_not_obeyed(make_host):
    at = make_host("seat-1")
    await at.prepare(epoch=3)
    at.list_said()
    await at.prepare(epoch=2)
    assert at.list_said() == []
    assert at.host._driver.engine.progress.epoch == 3


async def test_an_order_that_is_said_again_does_not_begin_anew_what_has_begun(make_host):
    at = make_host("seat-1")
    await at.prepare()
    at.host._driver.engine.start(0, 5)
    begun = at.host._driver.engine._run
    await at.prepare()
    assert at.host._driver.engine._run is begun
    assert [said.prepared.epoch for said in at.list_said()] == [1, 1], "the hub has not heard the first answer"
    # What was dropped since is built again.
    at.host._driver.engine.drop()
    await at.prepare()
    assert at.host._driver.engine.prepared_epoch == 1


async def test_who_stays_goes_back_to_what_it_stored_itself_and_fetches_nothing(make_host):
    at = make_host("seat-1")
    stored: list[str] = []

    async def write(sha256: str, content: bytes) -> None:
        stored.append(sha256)
        at.shelf[sha256] = content

    at.host._session.write_blob = write
    await at.prepare(spec=PLAIN)
    [packed] = at.host._driver.engine.snapshot()
    at.host._hear(CheckpointReady(1, 10, "b", packed.content, packed.sha256, packed.digest))
    await asyncio.gather(*at.host._storing)
    at.list_said()

    await at.prepare(spec=PLAIN, epoch=2, checkpoint=(10, {"b": packed.sha256}))
    assert (stored, at.fetched) == ([packed.sha256], [])
    [said] = at.list_said()
    assert said.prepared.epoch == 2
    # What somebody else has stored of the same step meanwhile is another thing, and is fetched.
    other = pack(take_snapshot("b", 10, {name: t + 1 for name, t in load(packed.content).items()}))
    at.shelf[other.sha256] = other.content
    await at.prepare(spec=PLAIN, epoch=3, checkpoint=(10, {"b": other.sha256}))
    assert at.fetched == [other.sha256]


async def test_whoever_takes_a_seat_over_fetches_its_checkpoint_once(make_host):
    before, after = make_host("seat-1"), make_host("seat-1")
    await before.prepare(spec=PLAIN)
    [packed] = before.host._driver.engine.snapshot()
    after.shelf[packed.sha256] = packed.content
    for epoch in (2, 3):
        await after.prepare(spec=PLAIN, epoch=epoch, checkpoint=(10, {"b": packed.sha256}))
    assert after.fetched == [packed.sha256]


async def test_data_that_an_earlier_host_of_this_machine_has_fetched_is_not_fetched_again(make_host, tmp_path: Path):
    content = make_dataset(SPEC).to_bytes()
    kept = {"data_folder": str(tmp_path / "data"), "data_bytes_max": 10**6}
    first, second, elsewhere = make_host("seat-0", **kept), make_host("seat-2", **kept), make_host("seat-0")
    for at in (first, second, elsewhere):
        await at.prepare(content)
    assert [len(at.fetched) for at in (first, second, elsewhere)] == [1, 0, 1]
    # What lies there is not believed: somebody may have been at it.
    [file] = (tmp_path / "data").iterdir()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    third = make_host("seat-0", **kept)
    await third.prepare(content)
    assert len(third.fetched) == 1


def test_the_shards_that_are_kept_are_bounded_and_the_oldest_go_first(tmp_path: Path):
    shelf = DataShelf(str(tmp_path), bytes_max=250)
    names = []
    for number in range(3):
        content = bytes([number]) * 100
        names.append(hashlib.sha256(content).hexdigest())
        shelf.put(names[-1], content)
        os.utime(tmp_path / names[-1], (number, number))
    assert [shelf.find(name) is not None for name in names] == [False, True, True]
    shelf.put("0" * 64, b"x" * 300)
    assert shelf.find("0" * 64) is None
    assert [shelf.find(name) is not None for name in names] == [False, True, True]


async def test_a_host_learns_the_hubs_new_keys_from_those_that_it_knows_and_from_nobody_else(make_host):
    old, new, stranger = Signer(kid="old"), Signer(kid="new"), Signer(kid="else")
    at = make_host("seat-0", hub_keys=tuple(old.hub_keys))
    keys = [*old.hub_keys, *new.hub_keys]

    def vouch(by: Signer) -> str:
        now = int(time.time())
        told = [{"kid": key.kid, "public_key": key.public_key} for key in keys]
        claims = {"iss": "hub", "aud": str(NODE_ID), "iat": now, "exp": now + 60, "hub_keys": told}
        return jwt.encode(claims, by.key, algorithm="EdDSA", headers={"kid": by.kid, "typ": KEY_SET_TYPE})

    at.host._learn_keys([vouch(stranger)])
    assert at.host._edges._guard.hub_keys == old.hub_keys
    at.host._learn_keys([vouch(stranger), vouch(old)])
    assert at.host._edges._guard.hub_keys == keys
    token = new.token("seat-1", run_id="r")
    assert verify_seat_token(token, run_id="r", hub_keys=at.host._edges._guard.hub_keys, now_seconds=time.time())
