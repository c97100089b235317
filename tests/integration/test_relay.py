"""The hub's relay, with real streams: what it carries, what it refuses, its quotas, and that it reads no content."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import grpc
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.networks.placement import SeatId
from computepool.hub.rpc import relay as relay_module
from computepool.hub.rpc.peek import Address, peek
from computepool.hub.rpc.reach import Reach, check_address
from computepool.hub.rpc.relay import Relay
from computepool.hub.rpc.routing import to_code
from computepool.hub.services.keyring import Keyring, SigningKey
from computepool.node.vnodes import edges
from computepool.node.vnodes.frames import FrameKind
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import SERVER_OPTIONS
from tests.support.edge_hosts import RUN, Host, Signer, Stranger, connect_all, make_head, until
from tests.support.quickest import quickest_of

A, B, C = SeatId("a"), SeatId("b"), SeatId("c")


class RelayServer:
    """The relay as the hub serves it, without the rest of the hub."""

    def __init__(self, signer: Signer, **quotas: int) -> None:
        keyring = Keyring(uuid4())
        key: Ed25519PrivateKey = signer.key
        raw = key.public_key().public_bytes_raw()
        keyring._signing = {signer.kid: SigningKey(signer.kid, key, key.public_key(), raw, clock.now(), True)}
        limits = {"bytes_per_second_max": 10**9, "bytes_in_flight_max": 10**8, **quotas}
        self.relay = Relay(keyring, **limits)

    async def start(self, port: str = "0") -> RelayServer:
        async def open_stream(_: Any, stream: Any) -> None:
            try:
                await self.relay.carry(stream)
            except Exception as error:
                refusal = error
            else:
                return
            await stream.abort(to_code(refusal), str(refusal))

        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        method = grpc.stream_stream_rpc_method_handler(open_stream)
        service = grpc.method_handlers_generic_handler("computepool.v1.EdgeService", {"Open": method})
        self.server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self.server.start()
        return self

    async def close(self) -> None:
        self.relay.close()
        await self.server.stop(0.1)


@pytest.fixture
def signer() -> Signer:
    return Signer()


@pytest.fixture
async def start_relay(signer: Signer) -> AsyncIterator[Callable[..., Any]]:
    started: list[RelayServer] = []

    async def start(**quotas: int) -> RelayServer:
        started.append(await RelayServer(signer, **quotas).start())
        return started[-1]

    yield start
    for each in started:
        await each.close()


@pytest.fixture
async def make_host(signer: Signer) -> AsyncIterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(seat: SeatId, **options: Any) -> Host:
        made.append(Host(seat, signer, **options))
        return made[-1]

    yield make
    await asyncio.gather(*(host.close() for host in made))


@pytest.fixture
async def stranger(signer: Signer) -> AsyncIterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(relay: RelayServer, seat: str, target: str) -> Stranger:
        made.append(Stranger(relay.address, seat, signer))
        made[-1].target = target
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def meet(relay: RelayServer, make_host: Callable[..., Host], **options: Any) -> tuple[Host, Host]:
    a, b = make_host(A, **options), make_host(B, **options)
    connect_all(a, b, relay=relay.address)
    await until(lambda: a.joined and b.joined, "the two to meet")
    return a, b


async def tie(relay: RelayServer, stranger: Callable[..., Stranger]) -> tuple[Stranger, Stranger]:
    one, other = stranger(relay, "a", "b"), stranger(relay, "b", "a")
    await one.say(one.hello())
    await other.say(other.hello())
    await one.hear(pb.FRAME_KIND_HELLO)
    await other.hear(pb.FRAME_KIND_HELLO)
    return one, other


# What it carries


async def test_hosts_that_cannot_be_dialled_meet_at_the_relay(start_relay, make_host):
    relay = await start_relay()
    a, b = await meet(relay, make_host)
    sent = [(make_head(step, size=size), os.urandom(size)) for step, size in enumerate([0, 7, 262_145, 2_000_000])]
    for head, content in sent:
        a.edges.post(B, head, content)
        b.edges.post(A, head._replace(kind=FrameKind.GRADIENT), content)
    await until(lambda: len(a.heard) == len(b.heard) == 4, "all tensors")
    assert b.heard == sent
    assert a.joined == [(B, True)]
    assert relay.relay.carried_bytes(RUN) > 2 * 2_000_000


async def test_a_host_that_cannot_reach_the_others_address_falls_back_to_the_relay(
    start_relay, make_host, monkeypatch
):
    monkeypatch.setattr(edges, "AWAIT_SECONDS", 0.5)
    monkeypatch.setattr(edges, "DIAL_SECONDS", 0.5)
    relay = await start_relay()
    a, b = make_host(A), await make_host(B).start()
    b.address = "127.0.0.1:9"
    connect_all(a, b, relay=relay.address)
    a.edges.post(B, make_head(size=3), b"abc")
    await until(lambda: b.heard, "the tensor")
    assert a.joined == [(B, True)]


@pytest.mark.parametrize("late_seconds", [0, 0.3], ids=["at once", "after the peer has left the relay"])
async def test_a_direct_stream_takes_over_from_the_relay_once_it_works(
    start_relay, make_host, monkeypatch, late_seconds
):
    exchange = edges._exchange

    async def hear_late(call, hello):
        answer = await exchange(call, hello)
        await asyncio.sleep(late_seconds)
        return answer

    monkeypatch.setattr(edges, "_exchange", hear_late)
    monkeypatch.setattr(edges, "AWAIT_SECONDS", 0.2)
    monkeypatch.setattr(edges, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(edges, "UPGRADE_SECONDS", 0.3)
    relay = await start_relay()
    a, b = make_host(A, options={}), make_host(B)
    listening = await make_host(C).start()
    b.address = listening.address.rpartition(":")[0] + ":9"
    connect_all(a, b, relay=relay.address)
    await until(lambda: a.joined == [(B, True)], "the relay to carry")
    # The way opens: what was an address of nobody's is now the host's.
    a.edges._peers[B].address = await b.edges.start()
    await until(lambda: (B, False) in a.joined, "the direct stream")
    a.edges.post(B, make_head(size=3), b"abc")
    await until(lambda: b.heard, "the tensor")
    assert (a.lost, b.lost) == ([], [])


async def test_the_relay_forwards_what_it_cannot_decode(start_relay, stranger):
    """Behind the five fields that it reads anything may stand: it goes through byte for byte."""
    relay = await start_relay()
    one, other = await tie(relay, stranger)
    address = pb.Frame(run_id=RUN, epoch=1, source_seat="a", target_seat="b", kind=pb.FRAME_KIND_ACTIVATION)
    undecodable = address.SerializeToString() + b"\xff" * 1_000
    with pytest.raises(DecodeError):
        pb.Frame.FromString(undecodable)
    await one.say(undecodable)
    assert await other.call.read() == undecodable


async def test_a_host_that_was_killed_is_told_to_the_other_within_a_second(start_relay, make_host, signer):
    async def kill_one() -> float:
        return await seconds_to_hear_of_a_kill(await start_relay(), make_host(A), signer)

    assert await quickest_of(kill_one, enough=1.0) < 1.0


async def seconds_to_hear_of_a_kill(relay: RelayServer, a: Host, signer: Signer) -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.edge_process", "b", "silent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        keys = msgspec.to_builtins(signer.hub_keys)
        told = {"run_id": RUN, "hub_keys": keys, "epoch": 1, "token": signer.token("b"), "relay": relay.address}
        process.stdin.write(json.dumps(told) + "\n" + json.dumps({A: "", B: ""}) + "\n")
        process.stdin.flush()
        a.edges.connect(1, signer.token("a"), {A: "", B: ""}, relay_address=relay.address)
        a.edges.post(B, make_head(size=3), b"abc")
        await asyncio.to_thread(process.stdout.readline)
        await asyncio.to_thread(process.stdout.readline)
        os.kill(process.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        await until(lambda: a.lost, "the loss to be told")
        return a.lost[0][2] - killed_at
    finally:
        process.kill()
        process.wait()


async def test_a_relay_that_restarts_loses_nothing(signer, make_host):
    relay = await RelayServer(signer).start()
    a, b = await meet(relay, make_host)
    a.edges.post(B, make_head(0, size=3), b"abc")
    await until(lambda: b.heard, "the first tensor")
    port = relay.address.rpartition(":")[2]
    await relay.close()
    await until(lambda: a.lost and b.lost, "both to notice")
    a.edges.post(B, make_head(1, size=3), b"def")
    again = await RelayServer(signer).start(port)
    try:
        await until(lambda: len(b.heard) == 2, "the second tensor")
    finally:
        await a.close()
        await b.close()
        await again.close()


# What it refuses


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another run than the token's": ({"run_id": str(uuid4())}, "UNAUTHENTICATED", "Audience"),
    "another seat than the token's": ({"source_seat": "c"}, "PERMISSION_DENIED", "another seat"),
    "another epoch than the token's": ({"epoch": 2, "token": "epoch 1"}, "PERMISSION_DENIED", "epoch"),
    "a stranger's token": ({"token": "stranger"}, "UNAUTHENTICATED", "does not hold"),
    "an old token": ({"token": "old"}, "UNAUTHENTICATED", "expired"),
    "no token": ({"token": ""}, "UNAUTHENTICATED", "not a token"),
    "no hello": ({"kind": pb.FRAME_KIND_ACTIVATION}, "INVALID_ARGUMENT", "must be a hello"),
    "itself as target": ({"target_seat": "a"}, "INVALID_ARGUMENT", "one seat to another"),
    "no target": ({"target_seat": ""}, "INVALID_ARGUMENT", "one seat to another"),
    "another major version": ({"version": pb.ApiVersion(major=2)}, "FAILED_PRECONDITION", "version 2.0"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_stream_that_may_not_be_relayed_is_refused_with_a_reason(start_relay, stranger, signer, name):
    changes, code, words = REFUSED[name]
    tokens = {"stranger": Signer().token("a"), "old": signer.token("a", seconds=-60), "epoch 1": signer.token("a", 1)}
    changes = {**changes, **({"token": tokens.get(changes["token"], changes["token"])} if "token" in changes else {})}
    caller = stranger(await start_relay(), "a", "b")
    await caller.say(caller.hello(**changes))
    found = await caller.hear_refusal()
    assert found[0] == code
    assert words in found[1]


async def test_a_stream_that_says_nothing_is_closed_with_a_reason(start_relay, stranger, monkeypatch):
    monkeypatch.setattr(relay_module.wire, "HELLO_SECONDS", 0.3)
    caller = stranger(await start_relay(), "a", "b")
    await caller.call.wait_for_connection()
    code, details = await caller.hear_refusal()
    assert (code, "must be a hello" in details) == ("INVALID_ARGUMENT", True)


async def test_a_host_whose_peer_does_not_come_is_told_to_call_again(start_relay, stranger, monkeypatch):
    monkeypatch.setattr(relay_module, "WAIT_SECONDS", 0.3)
    caller = stranger(await start_relay(), "a", "b")
    await caller.say(caller.hello())
    code, details = await caller.hear_refusal()
    assert (code, "seat b has not called" in details) == ("UNAVAILABLE", True)


async def test_a_host_of_an_older_epoch_is_not_let_in_again(start_relay, stranger):
    relay = await start_relay()
    newer, met = stranger(relay, "a", "b"), stranger(relay, "b", "a")
    for each in (newer, met):
        await each.say(each.hello(epoch=2))
    await newer.hear(pb.FRAME_KIND_HELLO)
    older = stranger(relay, "c", "b")
    await older.say(older.hello(epoch=1))
    code, details = await older.hear_refusal()
    assert (code, "epoch 2" in details) == ("FAILED_PRECONDITION", True)


async def test_hosts_of_two_runs_never_meet(start_relay, stranger, signer):
    relay = await start_relay()
    other_run = str(uuid4())
    one, other = stranger(relay, "a", "b"), stranger(relay, "b", "a")
    await one.say(one.hello())
    await other.say(other.hello(run_id=other_run, token=signer.token("b", run_id=other_run)))
    with pytest.raises(TimeoutError):
        await one.hear(seconds=0.5)


WRONG: dict[str, Callable[[Stranger], pb.Frame | bytes]] = {
    "another run": lambda s: s.frame(content=b"x", run_id=str(uuid4())),
    "another target": lambda s: s.frame(content=b"x", target_seat="c"),
    "another source": lambda s: s.frame(content=b"x", source_seat="c"),
    "oversize": lambda s: s.frame(content=bytes(400_000)),
    "garbage": lambda s: b"\xff\xff\xff",
    "its first fields in another order": lambda s: (
        pb.Frame(target_seat="b").SerializeToString() + pb.Frame(run_id=RUN).SerializeToString()
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_frame_is_refused_and_the_stream_goes_on(start_relay, stranger, name):
    relay = await start_relay()
    one, other = await tie(relay, stranger)
    await one.say(WRONG[name](one))
    nack = await one.hear(pb.FRAME_KIND_NACK)
    assert (nack.source_seat, nack.code) == ("@relay", "malformed_frame")
    await one.say(one.frame(content=b"good"))
    assert (await other.hear()).content == b"good"


async def test_a_newer_stream_of_the_same_host_takes_the_place_of_the_old(start_relay, stranger):
    relay = await start_relay()
    one, other = await tie(relay, stranger)
    again = stranger(relay, "a", "b")
    await again.say(again.hello())
    assert "newer stream" in (await one.hear_refusal())[1]
    assert "seat a has left" in (await other.hear_refusal())[1]


# Quotas


async def seconds_for(relay: RelayServer, make_host: Callable[..., Host], size: int) -> float:
    a, b = await meet(relay, make_host)
    began = time.monotonic()
    a.edges.post(B, make_head(size=size), bytes(size))
    await until(lambda: b.heard, "the tensor")
    return time.monotonic() - began


async def test_a_run_gets_no_more_than_its_bytes_a_second(start_relay, make_host):
    """5 MB at 2 MB a second, of which half a second's worth may pass at once."""
    assert await seconds_for(await start_relay(bytes_per_second_max=2_000_000), make_host, 5_000_000) > 1.8


async def test_control_without_the_quota_the_same_passes_in_a_fraction(start_relay, make_host):
    relay = await start_relay()
    assert await quickest_of(lambda: seconds_for(relay, make_host, 5_000_000), enough=1.5) < 1.5


async def test_one_runs_quota_is_not_anothers(start_relay, make_host, signer):
    relay = await start_relay(bytes_per_second_max=1_000_000)
    a, b = await meet(relay, make_host)
    other_run = str(uuid4())
    c, d = Host(A, signer, run_id=other_run), Host(B, signer, run_id=other_run)
    try:
        for host in (c, d):
            token = signer.token(host.seat, run_id=other_run)
            host.edges.connect(1, token, {A: "", B: ""}, relay_address=relay.address)
        await until(lambda: c.joined and d.joined, "the other run's to meet")
        a.edges.post(B, make_head(size=30_000_000), bytes(30_000_000))
        await until(lambda: b.edges.describe()[0].received_bytes > 300_000, "the first run to be at its quota")
        c.edges.post(B, make_head(size=300_000, run_id=other_run), bytes(300_000))
        await until(lambda: d.heard, "the other run's tensor")
        # What is left of the first run's takes it seconds yet.
        assert b.heard == []
    finally:
        await c.close()
        await d.close()


async def test_what_the_relay_holds_of_a_run_is_bounded_though_a_receiver_does_not_read(start_relay, stranger):
    relay = await start_relay(bytes_in_flight_max=1_000_000)
    one, _ = await tie(relay, stranger)
    frame = one.frame(content=bytes(250_000)).SerializeToString()

    async def flood() -> None:
        while True:
            await one.call.write(frame)

    flooding = asyncio.create_task(flood())
    held = []
    for _ in range(40):
        await asyncio.sleep(0.02)
        held.append(relay.relay._runs[RUN]._in_flight)
    flooding.cancel()
    assert max(held) <= 1_000_000
    assert relay.relay.carried_bytes(RUN) < 20_000_000, "whoever is not read is not read from"


# The parts


def test_peek_reads_the_first_five_fields_and_no_content():
    frame = pb.Frame(run_id="r", epoch=300, source_seat="a", target_seat="b", kind=2, source="x", content=b"y")
    assert peek(frame.SerializeToString()) == Address("r", 300, "a", "b", 2)
    assert peek(b"") == Address()
    assert peek(pb.Frame(target_seat="b").SerializeToString()) == Address(target_seat="b")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0a\x02\xff\xfe",
        b"\x08\x01",
        b"\x12\x00",
        b"\xff" * 12,
        b"\x0a\xff\x01" + b"a" * 255,
        pb.Frame(epoch=1).SerializeToString() + pb.Frame(run_id="r").SerializeToString(),
    ],
)
def test_peek_refuses_what_does_not_begin_as_a_frame(raw):
    with pytest.raises(InvalidRequest):
        peek(raw)


@pytest.mark.parametrize(
    ("address", "peer", "found"),
    [
        ("127.0.0.1:5000", "127.0.0.1", "127.0.0.1:5000"),
        ("0.0.0.0:5000", "203.0.113.7", "203.0.113.7:5000"),
        (":5000", "203.0.113.7", "203.0.113.7:5000"),
        ("[::]:5000", "2001:db8::1", "[2001:db8::1]:5000"),
        ("10.0.0.5:5000", "203.0.113.7", None),
        ("127.0.0.1:5000", "203.0.113.7", None),
        ("203.0.113.7:22", "203.0.113.7", None),
        ("203.0.113.7:70000", "203.0.113.7", None),
        ("example.org:5000", "203.0.113.7", None),
        ("203.0.113.7", "203.0.113.7", None),
        ("203.0.113.7:5000", "", None),
    ],
)
def test_only_the_machine_that_calls_is_dialled_back(address, peer, found):
    if found is None:
        with pytest.raises(InvalidRequest):
            check_address(address, peer=peer)
    else:
        assert check_address(address, peer=peer) == found


async def test_an_address_is_given_to_others_only_when_the_host_itself_answers_there(make_host):
    host = await make_host(A, options={"lease_secret": "s3cret"}).start()
    other = await make_host(B, options={"lease_secret": "another"}).start()
    reach = Reach()
    find = {"peer": "127.0.0.1", "lease_secret": "s3cret"}
    assert await reach.find_address(host.address, **find) == host.address
    assert await reach.find_address(other.address, **find) == "", "another host listens there"
    assert await reach.find_address("127.0.0.1:9999", **find) == "", "nobody listens there"
    assert await reach.find_address(host.address, peer="127.0.0.2", lease_secret="s3cret") == ""
    assert await reach.find_address("", **find) == ""
    assert (host.joined, other.joined) == ([], [])
