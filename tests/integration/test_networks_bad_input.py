"""Networks, runs and frames that cannot be: each is refused with a status, with VNode and PNode as far as they are
known, and with what to do next; and a run that can go on does.

Streams of another version, streams that say nothing and frames that nobody can read: test_edges.py, test_relay.py,
test_rpc_process.py. All of it over the wire: test_rpc_networks.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from computepool.core.errors import ComputePoolError, InvalidSpec, NotFound
from computepool.core.ids import NetworkId
from computepool.core.networks.errors import DataRefused, NoPlacement
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.run import FaultReported, RunState, seat_id
from computepool.core.networks.spec import Dtype, Edge, NetworkSpec, VNodeSpec
from computepool.hub.http.errors import STATUS
from computepool.hub.rpc.routing import CODES
from computepool.hub.services import runs as run_service
from computepool.hub.services.owners import Heard
from computepool.hub.services.runs import DataRef
from tests.support.networks import chain, make_mlp
from tests.support.run_lab import RunLab, open_run_lab

GOOD = make_mlp()
A, B, HEAD, LOSS = GOOD.vnodes
CYCLE = (Edge("@x", "a", target_slot=0), Edge("b", "a", target_slot=1), *GOOD.edges[1:])

# What is handed in, and what the refusal must say: who it is about, and what to do.
SPECS: dict[str, tuple[NetworkSpec, str, str]] = {
    "a cyclic graph": (
        replace(GOOD, vnodes=(VNodeSpec("a", "add"), B, HEAD, LOSS), edges=CYCLE),
        "VNodes a -> b -> a",
        "take one of their edges out",
    ),
    "shapes that do not fit": (
        replace(GOOD, vnodes=(VNodeSpec("a", "conv2d", {"channels": 2, "kernel": (3, 3)}), B, HEAD, LOSS)),
        r"vnode a \(conv2d\), fed by @x:0: slot 0 gets f32\[16\]",
        "it takes channels, height and width",
    ),
    "an unknown block": (
        replace(GOOD, vnodes=(replace(A, block="linea"), B, HEAD, LOSS)),
        "vnode a: block 'linea' is unknown",
        "did you mean linear",
    ),
    "an oversize tensor": (
        chain(VNodeSpec("wide", "linear", {"features": 8_192}), batch_size=1 << 18, micro_batches=1),
        "wide:0 gives",
        "use more micro_batches",
    ),
    "a wrong dtype": (replace(GOOD, wire=Dtype.I64), "wire is i64", "one of f32, bf16"),
}


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


def status_of(error: ComputePoolError) -> str:
    return CODES[STATUS[type(error)]].name


@pytest.mark.parametrize("name", SPECS)
async def test_a_network_that_cannot_be_is_refused_before_anything_is_stored(lab, name):
    spec, who, what = SPECS[name]
    by = await lab.spine.sign_up()
    with pytest.raises(InvalidSpec) as refusal:
        await lab.create(by, spec)
    assert status_of(refusal.value) == "INVALID_ARGUMENT"
    assert re.search(who, refusal.value.message), refusal.value.message
    assert re.search(what, refusal.value.message), refusal.value.message
    assert refusal.value.message.endswith("create it again.")
    assert await lab.spine.fetch_value("SELECT count(*) FROM networks") == 0


async def test_a_block_larger_than_any_pnode_is_named_with_the_largest_of_them(lab):
    by = await lab.spine.sign_up(credits=100_000)
    pnode = await lab.enrol_pnode(memory_bytes=1_000)
    network = await lab.create(by)
    with pytest.raises(NoPlacement) as refusal:
        await lab.start(by, network, seats=0)
    assert status_of(refusal.value) == "FAILED_PRECONDITION"
    assert re.search(rf"VNode b needs .*; the largest free PNode \({pnode.id}\) has", refusal.value.message)
    assert "cut the block into smaller ones, or wait for a larger PNode" in refusal.value.message
    assert await lab.spine.fetch_value("SELECT count(*) FROM runs") == 0


@pytest.mark.parametrize("whose", ["nobody's", "somebody else's"])
async def test_a_foreign_network_is_none(lab, whose):
    by, other = await lab.spine.sign_up(credits=100_000), await lab.spine.sign_up()
    network = await lab.create(other)
    foreign = network if whose == "somebody else's" else replace(network, id=NetworkId(by.account_id))
    with pytest.raises(NotFound) as refusal:
        await lab.start(by, foreign)
    assert status_of(refusal.value) == "NOT_FOUND"
    assert refusal.value.message.startswith("You have no such network. GET /v1/networks lists yours")


async def test_data_at_a_private_address_is_not_fetched(lab):
    by = await lab.spine.sign_up(credits=100_000)
    with pytest.raises(DataRefused) as refusal:
        await lab.start(by, data=(DataRef("0" * 64, uri="https://127.0.0.1/samples", size_bytes=7),))
    assert status_of(refusal.value) == "INVALID_ARGUMENT"
    assert "127.0.0.1, which is in a private or special network" in refusal.value.message
    assert refusal.value.message.endswith("upload the file instead.")
    assert await lab.spine.fetch_value("SELECT count(*) FROM runs") == 0


async def set_going(lab: RunLab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(2):
        await lab.enrol_pnode()
    view = await lab.start(by)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    return by, view.row.id, at


async def report(lab: RunLab, at, run_id, vnode_id: str, code: HostFaultCode, message: str):
    run = at.run(run_id)
    seat = run.seats[next(each.seat for each in run.locations if each.vnode_id == vnode_id)]
    await at.owner.hear(run_id, Heard(FaultReported(seat.id, seat.attempt_id, run.epoch, vnode_id, code, message)))
    return seat


async def test_a_loss_that_is_no_number_ends_the_run_with_vnode_pnode_and_what_to_do(lab):
    by, run_id, at = await set_going(lab)
    seat = await report(lab, at, run_id, "loss", HostFaultCode.LOSS_NOT_FINITE, "the loss of VNode loss is no use")
    row = (await run_service.get_run(lab.spine.pool, by, run_id)).row
    assert row.state is RunState.FAILED
    assert row.message.startswith(f"VNode loss on {seat.id} (PNode {seat.node_id}): the loss of VNode loss is no use")
    assert "Lower optimizer.lr or set optimizer.clip_norm" in row.message


REFUSED_FRAMES = {
    "an oversize tensor": "a tensor of 1099511627776 bytes; at most 268435456",
    "a wrong dtype": "activation a:0 -> b:0, step 3, micro-batch 1: dtype f16; it should be f32",
    "a wrong shape": "activation a:0 -> b:0, step 3, micro-batch 1: shape [2, 3]; it should be [4, 8]",
    "not a number": "activation a:0 -> b:0, step 3, micro-batch 1: it holds NaN or infinity",
}


@pytest.mark.parametrize("name", REFUSED_FRAMES)
async def test_a_frame_that_is_refused_is_told_with_vnode_and_pnode_and_the_run_goes_on(lab, name):
    by, run_id, at = await set_going(lab)
    words = f"seat {seat_id(1)} refused {REFUSED_FRAMES[name]}"
    seat = await report(lab, at, run_id, "a", HostFaultCode.FRAME_REFUSED, words)
    assert at.run(run_id).epoch == 2
    await lab.set_going(at, run_id)
    assert at.run(run_id).state is RunState.RUNNING
    told = await lab.spine.fetch("SELECT message FROM run_events WHERE run_id = $1", run_id)
    assert f"VNode a on {seat.id} (PNode {seat.node_id}): {words}" in {row["message"] for row in told}
    assert (await run_service.get_run(lab.spine.pool, by, run_id)).row.state is RunState.RUNNING
