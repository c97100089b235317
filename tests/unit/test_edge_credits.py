"""What may be under way to a peer and in which order, and how tensors become frames: without any stream."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import Dtype
from computepool.node.vnodes import credits
from computepool.node.vnodes.credits import Arrival, Inbox, Outbox, Parcel
from computepool.node.vnodes.frames import FrameHead, FrameKind, FrameLimits
from computepool.node.vnodes.wire_frames import (
    Fault,
    MalformedFrame,
    Words,
    decode_frame,
    encode_frame,
    encode_head,
    find_content_fault,
    key_of,
    read_head,
    read_key,
)
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import FRAME_BYTES_MAX
from tests.support.edge_hosts import make_head

A, B = SeatId("a"), SeatId("b")
KINDS = [FrameKind.ACTIVATION, FrameKind.GRADIENT]


def make_parcel(step: int, *, size: int = 10, **changes: object) -> Parcel:
    head = make_head(step, size=size, **changes)
    content = bytes([step % 256]) * size
    return Parcel(key_of(head), head, encode_head(head, source_seat=A, target_seat=B), memoryview(content))


def drain(outbox: Outbox) -> list[pb.Frame]:
    frames = []
    while (raw := outbox.next_frame()) is not None:
        frames.append(pb.Frame.FromString(raw))
    return frames


def deliver(frames: list[pb.Frame], inbox: Inbox) -> list[Arrival | Fault]:
    found = []
    for frame in frames:
        head = read_head(frame, FrameLimits())
        assert isinstance(head, FrameHead)
        arrived = inbox.add(head, offset=frame.offset, total_bytes=frame.total_bytes, content=frame.content)
        if arrived is not None:
            found.append(arrived)
    return found


# Frames as bytes

heads = st.builds(
    FrameHead,
    run_id=st.text(max_size=40),
    epoch=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(FrameKind),
    source=st.text(max_size=20),
    source_slot=st.integers(0, 100),
    target=st.text(max_size=20),
    target_slot=st.integers(0, 100),
    replica=st.integers(0, 100),
    incarnation=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**32 - 1),
    micro_batch=st.integers(0, 2**32 - 1),
    dtype=st.just(Dtype.BOOL),
    shape=st.just((0,)),
)


@given(head=heads, size=st.sampled_from([0, 1, 127, 128, 300, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 700_000]))
@settings(max_examples=60, deadline=None)
def test_a_tensor_survives_the_way_through_frames(head: FrameHead, size: int):
    head = head._replace(shape=(size,))
    content = memoryview(random.Random(size).randbytes(size))
    prefix, offset, back = encode_head(head, source_seat=A, target_seat=B), 0, b""
    while True:
        raw, offset = encode_frame(prefix, content, offset)
        frame = decode_frame(raw)
        assert read_head(frame, FrameLimits()) == head
        assert find_content_fault(frame) is None
        assert read_key(frame, frame.kind) == key_of(head)
        back += frame.content
        if offset >= size:
            break
    assert back == content


def test_frames_put_together_by_hand_are_those_that_protobuf_makes():
    head = make_head(300, 7, size=5)
    raw, _ = encode_frame(encode_head(head, source_seat=A, target_seat=B), memoryview(b"abcde"), 0)
    made = pb.Frame.FromString(raw)
    assert made.crc == zlib.crc32(b"abcde")
    assert pb.Frame.FromString(made.SerializeToString()) == made
    # The first five fields stand first: a relay reads no further.
    assert raw.startswith(
        pb.Frame(
            run_id=head.run_id, epoch=1, source_seat="a", target_seat="b", kind=pb.FRAME_KIND_ACTIVATION
        ).SerializeToString()
    )


def test_words_name_the_tensor_that_they_speak_of():
    words, key = Words("run", A, B), key_of(make_head(3, 4, kind=FrameKind.GRADIENT, replica=2))
    credit = decode_frame(words.credit(key))
    assert (credit.kind, credit.credits, read_key(credit, credit.of)) == (pb.FRAME_KIND_CREDIT, 1, key)
    nack = decode_frame(words.nack(key, Fault("not_finite", "NaN")))
    assert (nack.code, nack.message, read_key(nack, nack.of)) == ("not_finite", "NaN", key)
    with pytest.raises(MalformedFrame, match="kind 0"):
        read_key(decode_frame(words.complaint(epoch=1, message="?")), 0)


# Order and credits


def test_urgent_kinds_go_first_even_when_another_is_half_sent():
    outbox = Outbox(epoch=1)
    outbox.post(make_parcel(0, size=600_000))
    first = pb.Frame.FromString(outbox.next_frame())
    outbox.post(make_parcel(1, kind=FrameKind.GRADIENT))
    rest = drain(outbox)
    assert [(frame.kind, frame.offset) for frame in (first, *rest)] == [
        (pb.FRAME_KIND_ACTIVATION, 0),
        (pb.FRAME_KIND_GRADIENT, 0),
        (pb.FRAME_KIND_ACTIVATION, FRAME_BYTES_MAX),
        (pb.FRAME_KIND_ACTIVATION, 2 * FRAME_BYTES_MAX),
    ]


def test_a_window_holds_for_each_edge_and_kind_by_itself():
    outbox = Outbox(epoch=1, window=2)
    for step in range(4):
        for kind in KINDS:
            outbox.post(make_parcel(step, kind=kind))
        outbox.post(make_parcel(step, target_slot=1))
    sent = drain(outbox)
    assert len(sent) == 6
    assert {frame.step for frame in sent} == {0, 1}
    assert outbox.take_back(key_of(make_head(0, size=10))) is not None
    assert [frame.step for frame in drain(outbox)] == [2]


def test_what_is_posted_twice_is_sent_once():
    outbox = Outbox(epoch=1, window=1)
    for step in (0, 0, 1, 1):
        outbox.post(make_parcel(step))
    assert len(drain(outbox)) == 1
    assert outbox.count_waiting(make_parcel(1).key.lane) == 1


def test_a_peer_gets_nothing_of_an_epoch_that_it_has_not_proven():
    outbox = Outbox(epoch=1)
    outbox.post(make_parcel(0, epoch=2))
    assert drain(outbox) == []
    outbox.epoch = 2
    assert len(drain(outbox)) == 1


def test_an_older_epoch_leaves_nothing_behind():
    outbox, inbox = Outbox(epoch=1, window=1), Inbox()
    for step in range(3):
        outbox.post(make_parcel(step))
    deliver(drain(outbox), inbox)
    outbox.drop_before(2)
    inbox.drop_before(2)
    assert (outbox._bytes, inbox._bytes, drain(outbox)) == (0, 0, [])


def test_a_receiver_holds_no_more_than_its_bytes():
    inbox = Inbox(bytes_max=15)
    outbox = Outbox(epoch=1)
    for step in range(2):
        outbox.post(make_parcel(step))
    first, second = deliver(drain(outbox), inbox)
    assert isinstance(first, Arrival)
    assert isinstance(second, Fault)
    assert second.code == "no_credit"


def test_a_peer_cannot_make_up_edges_without_end(monkeypatch):
    monkeypatch.setattr(credits, "LANES_MAX", 3)
    inbox, outbox = Inbox(), Outbox(epoch=1)
    for slot in range(4):
        outbox.post(make_parcel(0, target_slot=slot))
    assert [isinstance(each, Fault) for each in deliver(drain(outbox), inbox)] == [False, False, False, True]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(
        st.lists(
            st.tuples(st.sampled_from(["post", "send", "hear", "credit", "cut"]), st.integers(0, 5)), max_size=80
        )
    )


@given(history=histories(), window=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_whatever_breaks_every_tensor_is_taken_exactly_once_and_in_order(history, window):
    """Frames, credits and streams are lost at any moment; in the end all is there once, in the order of each lane."""
    taken = run_history(history, window)
    for kind in KINDS:
        steps = [head.step for head in taken if head.kind is kind]
        assert steps == sorted(set(steps))
    posted = sum(count for what, count in history if what == "post")
    assert len(taken) == posted


def test_control_a_receiver_without_memory_takes_a_tensor_twice(monkeypatch):
    monkeypatch.setattr(credits, "REMEMBERED", 0)
    taken = run_history([("post", 1), ("send", 2), ("hear", 2), ("cut", 0)], window=2)
    assert len(taken) == 2


def run_history(history: list[tuple[str, int]], window: int) -> list[FrameHead]:
    outbox, inbox = Outbox(epoch=1, window=window), Inbox(window=window)
    on_the_way: list[pb.Frame] = []
    back: list[object] = []
    taken: list[FrameHead] = []
    numbers = iter(range(10_000))

    def hear(count: int) -> None:
        for arrived in deliver([on_the_way.pop(0) for _ in range(min(count, len(on_the_way)))], inbox):
            assert isinstance(arrived, Arrival), arrived
            if not arrived.repeated:
                assert bytes(arrived.content) == bytes([arrived.head.step % 256]) * arrived.head.shape[0]
                taken.append(arrived.head)
                assert inbox.release(arrived.key)
            back.append(arrived.key)

    def do(what: str, count: int) -> None:
        if what == "post":
            for _ in range(count):
                number = next(numbers)
                size = FRAME_BYTES_MAX + 7 if number % 5 == 0 else 3
                outbox.post(make_parcel(number, size=size, kind=KINDS[number % 2]))
        elif what == "send":
            for _ in range(count):
                raw = outbox.next_frame()
                if raw is not None:
                    on_the_way.append(pb.Frame.FromString(raw))
        elif what == "hear":
            hear(count)
        elif what == "credit":
            for _ in range(min(count, len(back))):
                outbox.take_back(back.pop(0))
        else:
            on_the_way.clear()
            back.clear()
            outbox.begin_stream(window=window)
            inbox.begin_stream()

    for what, count in history:
        do(what, count)
    while outbox._bytes:
        for what in ("send", "hear", "credit"):
            do(what, 5)
    return taken
