"""Runs over real gRPC: hubs as processes, nodes that speak REST, hosts that speak the protocol without computing."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import httpx
import pytest

from computepool.core.errors import (
    ComputePoolError,
    Conflict,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    StaleLease,
    VersionMismatch,
)
from computepool.core.networks.detection import SILENCE_SECONDS
from computepool.core.networks.errors import DataRefused, NoPlacement, RunElsewhere
from computepool.core.networks.spec import Dtype, Edge, VNodeSpec
from computepool.core.networks.spec_json import to_json
from computepool.node.tokens import find_vouched_keys
from computepool.wire.nodes import HubKey
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from tests.support.hub_process import HubProcess, free_port
from tests.support.networks import chain, make_mlp
from tests.support.people import Person, sign_up
from tests.support.played_host import PlayedHost
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode
from tests.support.rpc_client import to_error, wait_for_rpc

DATA = b"samples"
SHA = hashlib.sha256(DATA).hexdigest()
SEATS = 2
HOSTING = {"numeric_class": "played", "memory_bytes": 10**9, "flops_per_second": 1e10}


class Grid:
    """Hubs with gRPC on one database, people, and nodes that host."""

    def __init__(self, start_hub: Callable[..., HubProcess], dsn: str) -> None:
        self._start_hub = start_hub
        self.dsn = dsn
        self.hubs: list[HubProcess] = []
        self.addresses: list[str] = []
        self.nodes: list[ProtocolNode] = []
        self.hosts: list[PlayedHost] = []

    async def add_hub(self, **settings: Any) -> str:
        port = free_port()
        self.hubs.append(self._start_hub(rpc_port=port, **settings))
        self.addresses.append(f"127.0.0.1:{port}")
        await wait_for_rpc(self.addresses[-1])
        return self.addresses[-1]

    async def add_node(self, **options: Any) -> ProtocolNode:
        hub = self.hubs[0]
        node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1, hosting=HOSTING, **options)
        await node.enrol()
        await node.heartbeat()
        self.nodes.append(node)
        return node

    async def call(self, person: Person, name: str, request: Any, *, address: str = "") -> Any:
        metadata = (("authorization", f"Bearer {person.key}"),)
        async with grpc.aio.insecure_channel(address or self.addresses[0]) as channel:
            try:
                return await getattr(stubs.NetworkServiceStub(channel), name)(request, metadata=metadata, timeout=60)
            except grpc.aio.AioRpcError as error:
                raise to_error(error) from error

    async def read_all(self, person: Person, name: str, request: Any) -> list[Any]:
        metadata = (("authorization", f"Bearer {person.key}"),)
        async with grpc.aio.insecure_channel(self.addresses[0]) as channel:
            answers = getattr(stubs.NetworkServiceStub(channel), name)(request, metadata=metadata, timeout=30)
            return [answer async for answer in answers]

    async def start(self, person: Person, **options: Any) -> pb.Run:
        answer = httpx.put(f"{self.hubs[0].url}/v1/artifacts/{SHA}", content=DATA, headers=person.headers, timeout=60)
        assert answer.status_code == 200
        network = await self.call(person, "CreateNetwork", pb.CreateNetworkRequest(spec_json=to_json(make_mlp())))
        given = {"steps": 4, "seats": SEATS, "hours_max": 1, "data": [pb.DataRef(sha256=SHA, size_bytes=len(DATA))]}
        request = pb.StartTrainRequest(network_id=network.id, options=pb.TrainOptions(**{**given, **options}))
        return await self.call(person, "StartTrain", request)

    async def host(self, node: ProtocolNode) -> PlayedHost:
        """What the node's agent starts when its lease comes."""
        held = await node.claim_one()
        host = PlayedHost(held)
        self.hosts.append(host)
        await host.register()
        await host.open()
        return host

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        conn = await asyncpg.connect(self.dsn)
        try:
            return await conn.fetch(query, *values)
        finally:
            await conn.close()

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()
        for node in self.nodes:
            await node.close()


@pytest.fixture
async def grid(start_hub, dsn) -> AsyncIterator[Grid]:
    grid = Grid(start_hub, dsn)
    yield grid
    await grid.close()


async def set_going(grid: Grid, *, nodes: int = 2, **options: Any) -> tuple[Person, pb.Run, list[PlayedHost]]:
    if not grid.hubs:
        await grid.add_hub(lease_seconds=30)
    person = sign_up(grid.hubs[0].url, "submitter")
    for _ in range(nodes):
        await grid.add_node()
    run = await grid.start(person, **options)
    tasks = [asyncio.create_task(grid.host(node)) for node in grid.nodes]
    first = itertools.islice(asyncio.as_completed(tasks), options.get("seats", SEATS))
    hosts = sorted([await task for task in first], key=lambda host: host.seat)
    # Whoever has come to no seat is a spare.
    for task in tasks:
        task.cancel()
    return person, run, hosts


def vnodes_of(host: PlayedHost) -> list[str]:
    newest = [order.prepare for order in host.orders if order.WhichOneof("kind") == "prepare"][-1]
    return [each.vnode_id for each in newest.placement if each.seat == host.seat]


async def store_all(hosts: list[PlayedHost], step: int) -> None:
    for host in hosts:
        for vnode_id in vnodes_of(host):
            await host.store(step, vnode_id)


async def test_a_run_goes_from_a_spec_to_weights_over_grpc_and_rest(grid):
    person, run, hosts = await set_going(grid)
    prepares = [await host.until("prepare", epoch=1) for host in hosts]
    assert prepares[0].placement == prepares[1].placement
    assert all(prepare.seat_token for prepare in prepares)
    assert [ref.sha256 for ref in prepares[0].data] == [SHA]
    assert await hosts[0].read_blob(SHA) == DATA
    # A host learns the keys that sign streams' tokens from the hub's older ones.
    resolved, node = await hosts[0].resolve(), next(node for node in grid.nodes if hosts[0].attempt_id in node.held)
    known = httpx.get(f"{grid.hubs[0].url}/v1/hub", timeout=60).json()["hub_keys"]
    pinned = [HubKey(kid=key["kid"], public_key=key["public_key"]) for key in known]
    vouched = find_vouched_keys(
        resolved.hub_keys_signed, node_id=UUID(node.node_id), pinned=pinned, now_seconds=time.time()
    )
    assert vouched == pinned
    runs = [await host.until("run", epoch=1) for host in hosts]
    assert {(order.from_step, order.until_step) for order in runs} == {(0, 4)}
    last = next(host for host in hosts if "loss" in vnodes_of(host))
    losses = [0.1, 1 / 3, 2.5e-300, 0.25]
    for step, loss in enumerate(losses):
        await last.lose(step, loss)
    await store_all(hosts, 4)
    told = await grid.read_all(person, "WatchTrain", pb.WatchTrainRequest(run_id=run.id))
    steps = [event for event in told if event.kind == "step"]
    assert [(event.step, struct.pack("<d", event.loss)) for event in steps] == [
        (number, struct.pack("<d", loss)) for number, loss in enumerate(losses, start=1)
    ]
    over = await grid.call(person, "GetRun", pb.GetRunRequest(run_id=run.id))
    assert (over.state, over.step, over.checkpoint_step) == ("succeeded", 4, 4)
    pieces = await grid.read_all(person, "ExportState", pb.ExportStateRequest(run_id=run.id))
    assert {piece.content.decode() for piece in pieces} == {f"{vnode} 4" for vnode in ("a", "b", "head", "loss")}
    # Hosts hear that it is over, and their agents are told to let go of them.
    assert (await hosts[0].until("drop")).epoch == 1
    assert isinstance(await hosts[0].until_ended(), RunElsewhere)
    await hosts[0].open()
    assert isinstance(await hosts[0].until_ended(), StaleLease)

    async def is_let_go() -> bool:
        answer = await grid.nodes[0].next(wait_seconds=0.5)
        if answer.status_code == 200:
            grid.nodes[0].take(answer.json())
        return not grid.nodes[0].held

    await wait_for(is_let_go, what="the stop to reach the agent")


async def test_a_host_that_dies_is_replaced_at_once_and_all_go_back(grid):
    person, run, hosts = await set_going(grid, nodes=3, steps=100)
    for host in hosts:
        await host.until("run", epoch=1)
    last = next(host for host in hosts if "loss" in vnodes_of(host))
    first = next(host for host in hosts if host is not last)
    for step in range(20):
        await last.lose(step, 1.0)
    await store_all(hosts, 20)

    async def is_stored() -> bool:
        found = await grid.call(person, "GetRun", pb.GetRunRequest(run_id=run.id))
        return found.checkpoint_step == 20

    await wait_for(is_stored, what="the checkpoint to be complete")
    spare = next(node for node in grid.nodes if not node.held)
    coming = asyncio.create_task(grid.host(spare))
    killed_at = time.monotonic()
    await first.close()
    await last.say(peer_lost=pb.PeerLost(epoch=1, seat=first.seat, reason="stream closed"))
    replacement = await coming
    again = await asyncio.gather(replacement.until("run", epoch=2), last.until("run", epoch=2))
    # Well before its silence would have been noticed, also on a busy machine; the benchmark has the real figure.
    assert time.monotonic() - killed_at < SILENCE_SECONDS
    assert {order.from_step for order in again} == {20}
    prepare = await replacement.until("prepare", epoch=2)
    assert prepare.checkpoint_step == 20
    assert {each.vnode_id for each in prepare.checkpoints} == set(vnodes_of(replacement))
    part = prepare.checkpoints[0]
    assert await replacement.read_blob(part.sha256) == f"{part.vnode_id} 20".encode()
    moved = {each.vnode_id: each.incarnation for each in prepare.placement}
    assert {moved[vnode_id] for vnode_id in vnodes_of(replacement)} == {2}
    assert {moved[vnode_id] for vnode_id in vnodes_of(last)} == {1}


async def test_another_hub_takes_a_run_over_and_hosts_follow(grid):
    await grid.add_hub(lease_seconds=30)
    person, run, hosts = await set_going(grid, steps=100)
    for host in hosts:
        await host.until("run", epoch=1)
    second = await grid.add_hub(lease_seconds=30)
    # A session belongs to the owner: the other hub sends hosts there.
    stray = PlayedHost(next(iter(grid.nodes[0].held.values())))
    grid.hosts.append(stray)
    await stray.open(address=second)
    assert isinstance(await stray.until_ended(), RunElsewhere)
    grid.hubs[0].kill()
    for host in hosts:
        await host.until_ended()

    async def is_taken_over() -> bool:
        try:
            return (await hosts[0].resolve(address=second)).owner_address == second
        except ComputePoolError:
            return False

    await wait_for(is_taken_over, what="the other hub to own the run")
    for host in hosts:
        await host.open(address=second)
    again = [await host.until("run", epoch=2) for host in hosts]
    assert {order.epoch for order in again} == {2}
    grid.addresses.reverse()
    assert (await grid.call(person, "GetRun", pb.GetRunRequest(run_id=run.id))).state == "running"


async def test_a_host_that_beats_keeps_its_lease_while_its_agent_is_cut_off_and_the_reverse(grid):
    """One liveness: whoever is heard, by whichever protocol, is alive."""
    await grid.add_hub(lease_seconds=3)
    _, _, hosts = await set_going(grid, steps=100)
    for host in hosts:
        await host.until("run", epoch=1)
    # No agent says a word for two leases.
    for _ in range(14):
        await asyncio.sleep(0.5)
        for host in hosts:
            host.watermark += 1
    [row] = await grid.fetch("SELECT count(*) FROM attempts WHERE state <> 'running'")
    assert row["count"] == 0
    # And now the hosts' sessions are cut, for longer than a suspect has, and agents speak.
    for host in hosts:
        await host.close()
    for _ in range(8):
        await asyncio.sleep(0.5)
        for node in grid.nodes:
            await node.heartbeat()
    for host in hosts:
        await host.open()
    await asyncio.sleep(1.0)
    [row] = await grid.fetch("SELECT count(*) FROM attempts WHERE state <> 'running'")
    assert row["count"] == 0
    [row] = await grid.fetch("SELECT epoch FROM runs")
    assert row["epoch"] == 1


async def test_what_a_host_may_not_say_ends_its_session_with_a_clear_word(grid):
    _, _, hosts = await set_going(grid, steps=100)
    host = hosts[0]
    await host.until("run", epoch=1)
    await host.say(
        checkpoint=pb.CheckpointStored(epoch=1, step=1, vnode_id="a", sha256=SHA, size_bytes=1, digest=b"d")
    )
    refusal = await host.until_ended()
    assert isinstance(refusal, InvalidRequest)
    assert "was not stored" in refusal.message


async def test_a_pnode_of_another_class_than_it_was_chosen_for_is_refused(grid):
    await grid.add_hub(lease_seconds=30)
    person = sign_up(grid.hubs[0].url, "submitter")
    node = await grid.add_node()
    await grid.start(person, seats=1)
    host = PlayedHost(await node.claim_one(), numeric_class="other")
    with pytest.raises(Conflict, match="numeric class 'other'"):
        await host.register()


async def test_contents_of_one_run_are_not_read_through_a_seat_of_another(grid):
    _, _, hosts = await set_going(grid, steps=100)
    with pytest.raises(NotFound):
        await hosts[0].read_blob(hashlib.sha256(b"somebody's").hexdigest())
    with pytest.raises(InvalidRequest):
        await hosts[0].read_blob("xyz")


async def test_what_makes_no_sense_is_refused_with_what_is_wrong_and_changes_nothing(grid):
    """Over the wire, as people and hosts send it; who may call is in the authorisation matrix."""
    address = await grid.add_hub(lease_seconds=30)
    person = sign_up(grid.hubs[0].url, "submitter")
    node = await grid.add_node()
    good = make_mlp()
    a, b, head, loss = good.vnodes
    cycle = (Edge("@x", "a", target_slot=0), Edge("b", "a", target_slot=1), *good.edges[1:])
    specs = {
        "not JSON": ("{", "JSON"),
        "no spec": ("{}", "vnodes"),
        "a cycle": (replace(good, vnodes=(VNodeSpec("a", "add"), b, head, loss), edges=cycle), "a -> b -> a"),
        "an unknown block": (replace(good, vnodes=(replace(a, block="linea"), b, head, loss)), "linear"),
        "shapes that do not fit": (
            replace(good, vnodes=(VNodeSpec("a", "conv2d", {"channels": 2, "kernel": (3, 3)}), b, head, loss)),
            "vnode a .conv2d.",
        ),
        "a tensor too large for an edge": (
            chain(VNodeSpec("a", "linear", {"features": 8_192}), batch_size=1 << 18, micro_batches=1),
            "a:0 gives .* use more micro_batches",
        ),
        "a wrong dtype": (replace(good, wire=Dtype.I64), "wire is i64"),
    }
    for spec, words in specs.values():
        text = spec if isinstance(spec, str) else to_json(spec)
        with pytest.raises(InvalidSpec, match=words):
            await grid.call(person, "CreateNetwork", pb.CreateNetworkRequest(spec_json=text))
    # A block that fits no PNode is named, with what it takes and what there is.
    large = chain(VNodeSpec("wide", "linear", {"features": 10_000_000}), VNodeSpec("head", "linear", {"features": 2}))
    network = await grid.call(person, "CreateNetwork", pb.CreateNetworkRequest(spec_json=to_json(large)))
    httpx.put(f"{grid.hubs[0].url}/v1/artifacts/{SHA}", content=DATA, headers=person.headers, timeout=60)
    ref = pb.DataRef(sha256=SHA, size_bytes=len(DATA))
    request = pb.StartTrainRequest(network_id=network.id, options=pb.TrainOptions(steps=1, hours_max=1, data=[ref]))
    with pytest.raises(NoPlacement, match="wide"):
        await grid.call(person, "StartTrain", request)
    private = pb.DataRef(sha256="0" * 64, uri="https://127.0.0.1/samples", size_bytes=7)
    request.options.data[0].CopyFrom(private)
    with pytest.raises(DataRefused):
        await grid.call(person, "StartTrain", request)
    # A host of another version, and one that opens a stream and says nothing.
    await grid.start(person, seats=1)
    host = PlayedHost(await node.claim_one())
    with pytest.raises(VersionMismatch, match="major versions must agree"):
        await host.ask(stubs.MembershipServiceStub, "Register", pb.RegisterRequest(version=pb.ApiVersion(major=2)))
    async with grpc.aio.insecure_channel(address) as channel:
        silent = stubs.MembershipServiceStub(channel).Session(metadata=host.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await silent.read()
        assert "Say hello first" in str(refusal.value.details())
