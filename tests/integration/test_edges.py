"""Streams between hosts, over real sockets: order, credits, what is refused, and how a dead peer is noticed."""

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

import grpc
import msgspec
import pytest

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import Dtype
from computepool.node.vnodes import credits, edges
from computepool.node.vnodes.credits import Inbox, OutboxFull
from computepool.node.vnodes.frames import FrameKind, Refusal, RefusalCode
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.edge_hosts import RUN, Host, Signer, Stranger, connect_all, make_head, until
from tests.support.quickest import quickest_of
from tests.support.tcp_proxy import TcpProxy

A, B, C = SeatId("a"), SeatId("b"), SeatId("c")
GRADIENT = {"kind": FrameKind.GRADIENT, "source": "back", "target": "front"}


@pytest.fixture
def signer() -> Signer:
    return Signer()


@pytest.fixture
async def make_host(signer: Signer) -> AsyncIterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(seat: SeatId, **options: Any) -> Host:
        made.append(Host(seat, options.pop("signer", signer), **options))
        return made[-1]

    yield make
    await asyncio.gather(*(host.close() for host in made))


@pytest.fixture
async def stranger(signer: Signer) -> AsyncIterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(host: Host, seat: str = "b", by: Signer | None = None) -> Stranger:
        made.append(Stranger(host, seat, by or signer))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Callable[[str], Any]]:
    made: list[TcpProxy] = []

    async def make(target: str) -> TcpProxy:
        made.append(TcpProxy(target))
        made[-1].address = await made[-1].start()  # type: ignore[attr-defined]
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def link(make_host: Callable[..., Host], **options: Any) -> tuple[Host, Host]:
    a, b = await make_host(A, **options).start(), await make_host(B, **options).start()
    connect_all(a, b)
    await until(lambda: a.joined and b.joined, "the two to meet")
    return a, b


def send_some(host: Host, seat: SeatId, count: int, *, size: int = 1_000, first: int = 0, **changes: Any) -> None:
    for step in range(first, first + count):
        host.edges.post(seat, make_head(step, size=size, **changes), bytes([step % 256]) * size)


# What arrives


async def test_tensors_of_any_size_arrive_whole_and_in_order(make_host):
    a, b = await link(make_host)
    sizes = [0, 1, 1_000, 262_144, 262_145, 3_000_001]
    sent = []
    for step, size in enumerate(sizes):
        content = bytes(range(256)) * (size // 256 + 1)
        sent.append((make_head(step, size=size), content[:size]))
        await a.edges.send(B, *sent[-1])
    await until(lambda: len(b.heard) == len(sizes), "all tensors")
    assert b.heard == sent
    assert [(view.seat, view.linked, view.relayed) for view in a.edges.describe()] == [(B, True, False)]


async def test_one_stream_serves_both_directions_and_one_of_the_two_dials(make_host, proxy):
    a, b = await make_host(A).start(), await make_host(B).start()
    way_to_a, way_to_b = await proxy(a.address), await proxy(b.address)
    a.address, b.address = way_to_a.address, way_to_b.address
    connect_all(a, b)
    await until(lambda: a.joined and b.joined, "the two to meet")
    send_some(a, B, 3)
    send_some(b, A, 3, **GRADIENT)
    await until(lambda: len(a.heard) == len(b.heard) == 3, "all tensors")
    assert (way_to_a.connections, way_to_b.connections) == (0, 1)


async def test_what_was_posted_is_sent_as_it_was_even_if_its_memory_is_used_again(make_host):
    a, b = await make_host(A).start(), await make_host(B).start()
    a.connect(b)
    buffer = bytearray(b"first")
    a.edges.post(B, make_head(size=5), buffer)
    buffer[:] = b"later"
    b.connect(a)
    await until(lambda: b.heard, "the tensor")
    assert b.heard[0][1] == b"first"


# Order and credits


async def overtake(make_host: Callable[..., Host]) -> int:
    """How many activations arrive before a gradient that was posted after them."""
    a, b = await make_host(A).start(), await make_host(B).start()
    a.connect(b)
    send_some(a, B, 6, size=2_000_000)
    a.edges.post(B, make_head(size=1_000, **GRADIENT), bytes(1_000))
    b.connect(a)
    await until(lambda: len(b.heard) == 7, "all tensors")
    return [head.kind for head, _ in b.heard].index(FrameKind.GRADIENT)


async def test_a_gradient_never_queues_behind_activations(make_host):
    assert await overtake(make_host) == 0


async def test_control_without_the_order_of_kinds_a_gradient_waits_behind_activations(make_host, monkeypatch):
    monkeypatch.setattr(credits, "URGENT", frozenset())
    assert await overtake(make_host) == 6


async def test_a_gradient_overtakes_an_activation_that_is_half_sent(make_host):
    a, b = await link(make_host)
    send_some(a, B, 1, size=60_000_000)
    await until(lambda: b.edges.describe()[0].received_bytes > 500_000, "the activation to be under way")
    a.edges.post(B, make_head(size=1_000, **GRADIENT), bytes(1_000))
    await until(lambda: len(b.heard) == 2, "both")
    assert [head.kind for head, _ in b.heard] == [FrameKind.GRADIENT, FrameKind.ACTIVATION]


async def test_no_more_tensors_of_an_edge_and_kind_are_under_way_than_there_are_credits(make_host):
    a, b = await link(make_host, options={"window": 2, "holds_credits": True})
    send_some(a, B, 5)
    send_some(a, B, 1, **GRADIENT)
    send_some(a, B, 1, target_slot=1)
    await until(lambda: len(b.heard) == 4, "what there are credits for")
    await asyncio.sleep(0.2)
    steps = [head.step for head, _ in b.heard if head.kind is FrameKind.ACTIVATION and head.target_slot == 0]
    assert steps == [0, 1], "other edges and kinds have credits of their own, and this one has spent its two"
    b.edges.release(A, make_head(0, size=1_000))
    await until(lambda: len(b.heard) == 5, "the next one")
    assert b.heard[-1][0].step == 2


async def test_a_sender_waits_while_a_window_waits_already(make_host):
    a, b = await link(make_host, options={"window": 1, "holds_credits": True})
    for step in range(2):
        await a.edges.send(B, make_head(step, size=3), b"abc")
    third = asyncio.create_task(a.edges.send(B, make_head(2, size=3), b"abc"))
    await asyncio.sleep(0.2)
    assert not third.done()
    b.edges.release(A, make_head(0, size=3))
    await asyncio.wait_for(third, 60)


async def test_a_sender_that_ignores_its_credits_is_refused_and_loses_nothing(make_host):
    a, b = await link(make_host, options={"window": 2, "holds_credits": True})
    a.edges._peers[B].outbox.window = 8
    send_some(a, B, 4)
    await until(lambda: len(b.heard) == 2, "what fits")
    peer = b.edges._peers[A]
    assert sum(len(lane.held) + len(lane.arriving) for lane in peer.inbox._lanes.values()) == 2
    for step in range(2):
        b.edges.release(A, make_head(step, size=1_000))
    await until(lambda: len(b.heard) == 4, "the rest, sent again")


async def test_an_outbox_has_an_end(make_host):
    a, b = make_host(A), make_host(B)
    a.connect(b)
    a.edges._peers[B].outbox.bytes_max = 1_500
    send_some(a, B, 1)
    with pytest.raises(OutboxFull):
        send_some(a, B, 1, first=1)
    with pytest.raises(KeyError):
        send_some(a, C, 1)


# Streams that break


@pytest.mark.parametrize("listens", [True, False], ids=["we dial", "it dials"])
async def test_a_peer_that_was_killed_is_noticed_within_a_second(make_host, signer, listens):
    async def kill_one() -> float:
        return await seconds_to_notice_a_kill(await make_host(A).start(), signer, listens=listens)

    assert await quickest_of(kill_one, enough=1.0) < 1.0


async def seconds_to_notice_a_kill(a: Host, signer: Signer, *, listens: bool) -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.edge_process", "b", "listens" if listens else "silent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        keys = msgspec.to_builtins(signer.hub_keys)
        told = {"run_id": RUN, "hub_keys": keys, "epoch": 1, "token": signer.token("b"), "relay": ""}
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        routes = {A: a.address, B: address}
        process.stdin.write(json.dumps(routes) + "\n")
        process.stdin.flush()
        a.edges.connect(1, signer.token("a"), routes)
        send_some(a, B, 1)
        await asyncio.to_thread(process.stdout.readline)
        os.kill(process.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        await until(lambda: a.lost, "the loss to be told")
        seat, _, lost_at = a.lost[0]
        assert seat == B
        return lost_at - killed_at
    finally:
        process.kill()
        process.wait()


async def exchange_through_cuts(make_host: Callable[..., Host], proxy: Any) -> tuple[Host, Host]:
    a, b = await make_host(A).start(), await make_host(B).start()
    way = await proxy(b.address)
    b.address = way.address
    connect_all(a, b)
    for round in range(4):
        send_some(a, B, 6, size=400_000, first=6 * round)
        send_some(b, A, 6, size=1_000, first=6 * round, **GRADIENT)
        seen = len(b.heard)
        await until(lambda seen=seen: len(b.heard) > seen, "something to arrive")
        way.cut()
    await until(lambda: len({head for head, _ in b.heard}) == len({head for head, _ in a.heard}) == 24, "everything")
    return a, b


async def test_what_was_under_way_when_a_stream_broke_arrives_exactly_once_over_the_next(make_host, proxy):
    a, b = await exchange_through_cuts(make_host, proxy)
    assert sorted(head.step for head, _ in b.heard) == list(range(24))
    assert sorted(head.step for head, _ in a.heard) == list(range(24))
    assert all(content == bytes([head.step]) * 400_000 for head, content in b.heard)
    assert len(a.lost) >= 2, "each cut was told"


@pytest.mark.parametrize("ticks", range(12))
async def test_a_host_can_be_closed_at_the_very_moment_at_which_a_stream_breaks(make_host, ticks):
    """`asyncio.wait_for` of Python 3.11 forgets a cancellation that comes with what it waited for."""
    a, _ = await link(make_host)
    await asyncio.sleep(0.05)
    a.edges._peers[B].close_link()
    for _ in range(ticks):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await a.close()


async def test_control_a_receiver_that_forgets_what_it_has_taken_takes_it_twice(make_host, monkeypatch):
    """A credit that was lost with its stream: the sender cannot know that the tensor was taken."""
    a, b = await link(make_host)
    monkeypatch.setattr(Inbox, "release", lambda self, key: bool(self._lanes[key.lane].held.pop(key, 0)) and False)
    send_some(a, B, 1)
    await until(lambda: b.heard, "the tensor")
    b.edges._peers[A].close_link()
    await until(lambda: len(b.heard) == 2, "the same tensor once more")


async def test_a_credit_that_was_lost_with_its_stream_is_given_again_and_the_tensor_taken_once(
    make_host, monkeypatch
):
    a, b = await link(make_host)
    said = []
    peer = b.edges._peers[A]
    real = type(peer)._give_credit
    monkeypatch.setattr(type(peer), "_give_credit", lambda self, key: said.append(key))
    send_some(a, B, 1)
    await until(lambda: said, "the credit that gets lost")
    monkeypatch.setattr(type(peer), "_give_credit", real)
    peer.close_link()
    await until(lambda: a.edges._peers[B].outbox._bytes == 0, "the credit of the second try")
    assert len(b.heard) == 1


SHORT = {"grpc.keepalive_time_ms": 500, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}


@pytest.mark.parametrize("keepalive", [True, False], ids=["keepalive", "control: none"])
async def test_a_peer_that_falls_silent_without_a_word_is_noticed_by_keepalive(
    make_host, proxy, monkeypatch, keepalive
):
    for name in ("CHANNEL_OPTIONS", "SERVER_OPTIONS"):
        kept = {key: value for key, value in getattr(edges, name) if key not in SHORT}
        monkeypatch.setattr(edges, name, tuple((kept | SHORT if keepalive else kept).items()))
    a, b = await make_host(A).start(), await make_host(B).start()
    way = await proxy(b.address)
    b.address = way.address
    connect_all(a, b)
    await until(lambda: a.joined and b.joined, "the two to meet")
    way.freeze()
    if keepalive:
        await until(lambda: a.lost, "the silence to be noticed")
    else:
        await asyncio.sleep(3)
        assert a.lost == []


# Who may speak


async def test_a_stream_that_says_nothing_is_closed_with_a_reason(make_host, stranger, monkeypatch):
    monkeypatch.setattr(edges, "HELLO_SECONDS", 0.3)
    a = await make_host(A).start()
    a.connect()
    silent = stranger(a)
    await silent.call.wait_for_connection()
    code, details = await silent.hear_refusal()
    assert code == "DEADLINE_EXCEEDED"
    assert "hello" in details


HELLOS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another major version": ({"version": pb.ApiVersion(major=2)}, "FAILED_PRECONDITION", "version 2.0"),
    "no version": ({"version": pb.ApiVersion()}, "FAILED_PRECONDITION", "Upgrade the caller"),
    "no token": ({"token": ""}, "PERMISSION_DENIED", "cannot be read"),
    "another run": ({"run_id": "other"}, "PERMISSION_DENIED", "another run"),
    "another target": ({"target_seat": "c"}, "PERMISSION_DENIED", "another seat"),
    "somebody else's seat": ({"source_seat": "c"}, "PERMISSION_DENIED", "another seat"),
    "our own seat": ({"source_seat": "a"}, "PERMISSION_DENIED", "another seat"),
    "no hello": ({"kind": pb.FRAME_KIND_ACTIVATION}, "PERMISSION_DENIED", "must be a hello"),
}


@pytest.mark.parametrize("name", HELLOS)
async def test_a_hello_that_does_not_hold_is_refused_with_a_reason(make_host, stranger, name):
    changes, code, words = HELLOS[name]
    a, b = await make_host(A).start(), make_host(B)
    a.connect(b)
    caller = stranger(a)
    await caller.say(caller.hello(**changes))
    found = await caller.hear_refusal()
    assert found[0] == code
    assert words in found[1]
    assert a.joined == []


async def test_tokens_of_others_and_old_tokens_are_refused(make_host, stranger, signer):
    a, b = await make_host(A).start(), make_host(B)
    a.connect(b, epoch=2)
    tokens = {
        "not pinned": Signer(kid="else").token("b", 2),
        "does not verify": Signer().token("b", 2),
        "ran out": signer.token("b", 2, seconds=-100),
        "another node or run": signer.token("b", 2, run_id="other"),
        "another seat or epoch": signer.token("b", 1),
        "no seat and epoch": signer.token("b", "2"),
    }
    for words, token in tokens.items():
        caller = stranger(a)
        await caller.say(caller.hello(epoch=2, token=token))
        code, details = await caller.hear_refusal()
        assert code == "PERMISSION_DENIED"
        assert words in details
    outsider = stranger(a, seat="z")
    await outsider.say(outsider.hello(epoch=2))
    assert "seat z has no part in epoch 2" in (await outsider.hear_refusal())[1]
    assert a.joined == []


async def test_an_older_host_of_a_seat_cannot_push_out_the_newer(make_host, stranger):
    a, b = await make_host(A).start(), make_host(B)
    a.connect(b, epoch=2)
    newer = stranger(a)
    await newer.say(newer.hello(epoch=2))
    await newer.hear(pb.FRAME_KIND_HELLO)
    older = stranger(a)
    await older.say(older.hello(epoch=1))
    assert "is here already, in epoch 2" in (await older.hear_refusal())[1]
    again = stranger(a)
    await again.say(again.hello(epoch=2))
    await again.hear(pb.FRAME_KIND_HELLO)
    await until(lambda: len(a.joined) == 2, "the newer stream of the same host to take over")
    await newer.hear_refusal()


async def test_a_host_that_is_known_to_nobody_yet_waits_for_us_to_hear_of_the_epoch(make_host, stranger):
    a = await make_host(A).start()
    early = stranger(a)
    await early.say(early.hello())
    await asyncio.sleep(0.1)
    b = make_host(B)
    a.connect(b)
    assert (await early.hear(pb.FRAME_KIND_HELLO)).source_seat == "a"
    newcomer = stranger(a, seat="n")
    await newcomer.say(newcomer.hello(epoch=2))
    await newcomer.hear(pb.FRAME_KIND_HELLO)


# What may be said


async def meet(
    make_host: Callable[..., Host], stranger: Callable[..., Stranger], **options: Any
) -> tuple[Host, Stranger]:
    a, b = await make_host(A, **options).start(), make_host(B)
    a.connect(b)
    caller = stranger(a)
    await caller.say(caller.hello())
    await caller.hear(pb.FRAME_KIND_HELLO)
    return a, caller


WRONG: dict[str, tuple[Callable[[Stranger], pb.Frame | bytes], str]] = {
    "garbage": (lambda s: b"\xff\xff\xff", "malformed_frame"),
    "oversize frame": (lambda s: s.frame(content=bytes(300_000)), "malformed_frame"),
    "a little oversize": (lambda s: s.frame(content=bytes(262_145)), "malformed_frame"),
    "bad checksum": (lambda s: s.frame(content=b"abc", crc=1), "bad_checksum"),
    "unknown dtype": (lambda s: s.frame(content=b"abc", dtype="f64"), "wrong_dtype"),
    "shape and size differ": (lambda s: s.frame(content=b"abc", shape=[4]), "wrong_shape"),
    "negative shape": (lambda s: s.frame(content=b"abc", shape=[-3]), "wrong_shape"),
    "oversize tensor": (lambda s: s.frame(shape=[1 << 40], total_bytes=1 << 40), "too_large"),
    "starts in the middle": (lambda s: s.frame(content=b"abc", shape=[6], total_bytes=6, offset=3), "out_of_order"),
    "longer than it says": (lambda s: s.frame(content=b"abc", shape=[2], total_bytes=2), "malformed_frame"),
    "epoch without a token": (lambda s: s.frame(content=b"abc", epoch=2), "unproven_epoch"),
    "another run": (lambda s: s.frame(content=b"abc", run_id="other"), "malformed_frame"),
    "another seat": (lambda s: s.frame(content=b"abc", target_seat="z"), "malformed_frame"),
    "unknown kind": (lambda s: s.frame(99, content=b"abc"), "malformed_frame"),
    "credit for nothing": (lambda s: s.frame(pb.FRAME_KIND_CREDIT), "malformed_frame"),
    "hello of another seat": (
        lambda s: s.hello(source_seat="c", token=s.signer.token("c")),
        "malformed_frame",
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_frame_is_refused_and_the_stream_goes_on(make_host, stranger, name):
    make, code = WRONG[name]
    a, caller = await meet(make_host, stranger)
    await caller.say(make(caller))
    nack = await caller.hear(pb.FRAME_KIND_NACK)
    assert nack.code == code
    assert nack.message
    await caller.say(caller.frame(content=b"good", step=7))
    assert (await caller.hear(pb.FRAME_KIND_CREDIT)).step == 7
    assert [content for _, content in a.heard] == [b"good"]


async def test_a_stream_of_nothing_but_wrong_frames_is_closed(make_host, stranger):
    a, caller = await meet(make_host, stranger)
    for _ in range(80):
        await caller.say(b"\xff\xff\xff")
    await caller.hear_refusal()
    await until(lambda: a.lost, "the loss to be told")
    assert "too many wrong frames" in a.lost[0][1]


async def test_a_message_beyond_the_cap_ends_the_stream_and_a_new_one_is_welcome(make_host, stranger):
    a, caller = await meet(make_host, stranger)
    await caller.say(bytes(9_000_000))
    code, _ = await caller.hear_refusal()
    assert code in ("RESOURCE_EXHAUSTED", "CANCELLED", "UNKNOWN")
    again = stranger(a)
    await again.say(again.hello())
    await again.hear(pb.FRAME_KIND_HELLO)
    await again.say(again.frame(content=b"good"))
    await again.hear(pb.FRAME_KIND_CREDIT)


async def test_what_the_engine_refuses_is_told_to_the_sender(make_host):
    verdicts = {
        1: Refusal(RefusalCode.NOT_FINITE, "it holds NaN or infinity"),
        2: Refusal(RefusalCode.REPEATED, "it came before"),
    }
    a, b = await link(make_host)
    b.refuse = lambda head: verdicts.get(head.step)
    send_some(a, B, 4)
    await until(lambda: len(b.heard) == 2, "what was not refused")
    await until(lambda: a.refused, "the refusal")
    [(head, fault)] = a.refused
    assert (head.step, fault.code) == (1, "not_finite")
    await until(lambda: a.edges._peers[B].outbox._bytes == 0, "every credit back")


async def test_what_comes_too_early_for_the_engine_is_sent_again(make_host):
    a, b = await link(make_host)
    prepared = []
    b.refuse = lambda head: None if prepared else Refusal(RefusalCode.NOT_PREPARED, "building")
    send_some(a, B, 1)
    await asyncio.sleep(0.3)
    prepared.append(True)
    await until(lambda: b.heard, "the second try")
    assert a.refused == []


async def test_an_engine_that_raises_costs_its_frame_and_nothing_else(make_host):
    a, b = await link(make_host)

    def fail(head: Any) -> None:
        if head.step == 0:
            raise RuntimeError("planted")

    b.refuse = fail
    send_some(a, B, 2)
    await until(lambda: b.heard and a.refused, "the other frame, and the refusal")
    assert a.refused[0][1].code == "host_fault"


# Epochs


async def test_a_new_epoch_keeps_streams_and_drops_what_belongs_to_the_old(make_host):
    a, b = await link(make_host, options={"window": 1, "holds_credits": True})
    send_some(a, B, 3)
    await until(lambda: b.heard, "the first of them")
    connect_all(a, b, epoch=2)
    send_some(a, B, 1, epoch=2)
    await until(lambda: len(b.heard) == 2, "the new epoch's")
    assert [head.epoch for head, _ in b.heard] == [1, 2]
    a.edges.post(B, make_head(5, size=3), b"old")
    await asyncio.sleep(0.2)
    assert (len(b.heard), a.lost, b.lost, len(a.joined)) == (2, [], [], 1)


async def test_frames_of_a_new_epoch_wait_until_the_peer_is_in_it(make_host):
    a, b = await link(make_host)
    a.connect(b, epoch=2)
    send_some(a, B, 1, epoch=2)
    await asyncio.sleep(0.3)
    assert b.heard == []
    b.connect(a, epoch=2)
    await until(lambda: b.heard, "the frame")


async def test_a_seat_that_has_no_part_any_more_is_cut_off(make_host):
    a, b, c = await make_host(A).start(), await make_host(B).start(), await make_host(C).start()
    connect_all(a, b, c)
    await until(lambda: len(a.joined) == len(b.joined) == len(c.joined) == 2, "all to meet")
    connect_all(a, b, epoch=2)
    await until(lambda: len(c.lost) == 2, "the third to be cut off")
    await asyncio.sleep(0.5)
    assert (len(a.joined), len(b.joined), a.lost, b.lost) == (2, 2, [], [])


async def test_an_evicted_host_that_holds_its_stream_gets_nothing_and_gives_way_to_the_seats_new_host(
    make_host, stranger
):
    a, evicted = await meet(make_host, stranger)
    b = make_host(B)
    a.connect(b, epoch=2)
    send_some(a, B, 1, epoch=2)
    hearing = asyncio.create_task(evicted.hear(pb.FRAME_KIND_ACTIVATION))
    await asyncio.sleep(0.5)
    assert not hearing.done()
    newer = stranger(a)
    await newer.say(newer.hello(epoch=2))
    assert (await newer.hear(pb.FRAME_KIND_ACTIVATION)).epoch == 2
    await newer.say(newer.frame(content=b"new", epoch=2))
    await newer.hear(pb.FRAME_KIND_CREDIT)
    with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
        await hearing
    assert [content for _, content in a.heard] == [b"new"]


async def test_a_host_that_is_reached_but_not_yet_prepared_is_waited_for_and_not_sent_to_the_relay(make_host):
    """The relay here is nobody's address: whoever tried it would be noticed."""
    a, b = await make_host(A).start(), await make_host(B).start()
    a.connect(b, relay="127.0.0.1:9")
    await asyncio.sleep(1.0)
    assert a.edges.describe()[0].trouble == ""
    b.connect(a, relay="127.0.0.1:9")
    await until(lambda: a.joined and b.joined, "the two to meet")
    assert (a.joined, b.joined) == ([(B, False)], [(A, False)])


async def test_a_host_that_seeks_a_dead_one_through_the_relay_dials_its_successor_at_once(make_host, monkeypatch):
    """The relay here takes calls and never answers: whoever went on waiting for it would be late."""
    monkeypatch.setattr(edges, "ANSWER_SECONDS", 100.0)
    sought = asyncio.Event()

    async def say_nothing(requests, context):
        sought.set()
        await asyncio.sleep(100)
        yield b""

    silent = grpc.aio.server()
    answer = {edges.OPEN: grpc.stream_stream_rpc_method_handler(say_nothing)}
    silent.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(edges.SERVICE, answer),))
    relay = f"127.0.0.1:{silent.add_insecure_port('127.0.0.1:0')}"
    await silent.start()
    a, b = await make_host(A).start(), await make_host(B).start()
    connect_all(a, b, relay=relay)
    await until(lambda: a.joined and b.joined, "the two to meet")
    await b.close()
    await until(lambda: a.lost, "the loss")
    await until(sought.is_set, "the relay to be asked")
    successor = await make_host(B).start()
    began = time.monotonic()
    connect_all(a, successor, epoch=2, relay=relay)
    await until(lambda: successor.joined, "the two to meet")
    assert time.monotonic() - began < 50
    assert successor.joined == [(A, False)]
    await silent.stop(0)


async def test_an_inference_and_a_dtype_survive_the_way(make_host):
    a, b = await link(make_host)
    head = make_head(3, 2, kind=FrameKind.INFERENCE, dtype=Dtype.BF16, shape=(2, 3), replica=1, incarnation=4)
    a.edges.post(B, head, bytes(range(12)))
    await until(lambda: b.heard, "the tensor")
    assert b.heard == [(head, bytes(range(12)))]
