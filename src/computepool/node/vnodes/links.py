"""One peer and the stream to it: who it is, what is said to it, what is made of what it says.

Knows nothing of gRPC: a stream is two functions. Everything that a peer says is checked; a wrong frame is answered
and the stream goes on, unless there is no end to them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from computepool import clock
from computepool.core.errors import ComputePoolError, VersionMismatch
from computepool.core.networks.placement import SeatId
from computepool.node import journal
from computepool.node.tokens import TokenRefused, verify_seat_token
from computepool.node.vnodes.credits import WINDOW, Arrival, Inbox, Outbox
from computepool.node.vnodes.frames import FrameHead, FrameLimits, Refusal, RefusalCode
from computepool.node.vnodes.wire_frames import (
    CREDIT,
    HELLO,
    NACK,
    Fault,
    FaultCode,
    MalformedFrame,
    ParcelKey,
    Words,
    decode_frame,
    find_content_fault,
    read_head,
    read_key,
)
from computepool.wire.nodes import HubKey
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import agree_version

# Frames that a peer may get wrong before its stream is closed.
FAULTS_MAX = 64
# A peer must not be able to fill the log.
REFUSALS_LOGGED_MAX = 1_000
# A tensor that was refused for a reason that passes is sent again after this, and so often.
RETRY_SECONDS = 0.2
RETRIES_MAX = 50
RETRIED = frozenset(
    {
        FaultCode.BAD_CHECKSUM,
        FaultCode.OUT_OF_ORDER,
        FaultCode.NO_CREDIT,
        RefusalCode.TOO_EARLY.value,
        RefusalCode.NOT_PREPARED.value,
    }
)

# What becomes of a whole tensor: None if it was taken.
OnFrame = Callable[[SeatId, FrameHead, bytearray], Refusal | None]
# A peer will not have a tensor, and sending it again would not help. No head: a frame that nobody could read.
OnRefused = Callable[[SeatId, FrameHead | None, Fault], None]


class HelloRefused(Exception):
    """Whoever is at the other end cannot show that it has a part in this run; the text says why."""


@dataclass(frozen=True, slots=True)
class Hello:
    seat: SeatId
    # As the token proves.
    epoch: int
    window: int


@dataclass(slots=True)
class Guard:
    """Who may speak: hosts of the same run, by tokens that the hub signed."""

    run_id: str
    seat: SeatId
    hub_keys: Sequence[HubKey]

    def read_hello(self, raw: bytes) -> Hello:
        """Raises HelloRefused, or VersionMismatch."""
        try:
            frame = decode_frame(raw)
        except MalformedFrame as error:
            raise HelloRefused(f"the first frame must be a hello, not {error}") from None
        return self.check_hello(frame)

    def check_hello(self, frame: pb.Frame) -> Hello:
        if frame.kind != HELLO:
            raise HelloRefused("the first frame must be a hello")
        agree_version(frame.version.major, frame.version.minor)
        if frame.run_id != self.run_id or frame.target_seat != self.seat:
            raise HelloRefused("this host has another seat, or belongs to another run")
        try:
            token = verify_seat_token(
                frame.token, run_id=self.run_id, hub_keys=self.hub_keys, now_seconds=clock.unix_seconds()
            )
        except TokenRefused as error:
            raise HelloRefused(str(error)) from None
        if (token.seat, token.epoch) != (frame.source_seat, frame.epoch) or token.seat == self.seat:
            raise HelloRefused("the seat token is for another seat or epoch than the frame says")
        return Hello(SeatId(token.seat), token.epoch, frame.credits)


@dataclass(slots=True, eq=False)
class Link:
    """One stream to a peer that has said who it is. `read` returns None at the end."""

    read: Callable[[], Awaitable[bytes | None]]
    write: Callable[[bytes], Awaitable[None]]
    relayed: bool
    hello: Hello
    # Set to end it from here.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    words: deque[bytes] = field(default_factory=deque)
    fault_count: int = 0
    refused_count: int = 0

    def say(self, word: bytes) -> None:
        self.words.append(word)
        self.wake.set()


@dataclass(slots=True, eq=False)
class Peer:
    seat: SeatId
    guard: Guard
    on_frame: OnFrame
    on_refused: OnRefused
    limits: FrameLimits
    window: int = WINDOW
    # A tensor's credit goes back when it is released, not as soon as it was taken.
    holds_credits: bool = False
    # Proven by the hub; empty: by relay alone.
    address: str = ""
    outbox: Outbox = field(default_factory=Outbox)
    link: Link | None = None
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    # Not set while a direct stream is tried beside one through the relay.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    # Set whenever something has left the outbox.
    room: asyncio.Event = field(default_factory=asyncio.Event)
    # Why there is no stream, as far as is known.
    trouble: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    inbox: Inbox = field(init=False)
    words: Words = field(init=False)

    def __post_init__(self) -> None:
        self.inbox = Inbox(window=self.window)
        self.words = Words(self.guard.run_id, self.guard.seat, self.seat)
        self.settled.set()

    def wake(self) -> None:
        if self.link is not None:
            self.link.wake.set()

    def close_link(self) -> None:
        if self.link is not None:
            self.link.closing.set()

    def enter(self, epoch: int, hello: bytes) -> None:
        """What belongs to an older epoch is dropped; the peer is told of the new one."""
        self.outbox.drop_before(epoch)
        self.inbox.drop_before(epoch)
        self.room.set()
        if self.link is not None:
            self.link.say(hello)

    def join(self, link: Link) -> None:
        """This is the stream from now on: one that was there before is closed."""
        self.close_link()
        self.link = link
        self.trouble = ""
        self.outbox.begin_stream(window=link.hello.window)
        self.outbox.epoch = link.hello.epoch
        self.inbox.begin_stream()
        self.lost.clear()
        self.joined.set()

    def part(self, link: Link, reason: str) -> bool:
        """Whether this was the stream, and not one that a newer one has replaced."""
        if self.link is not link:
            return False
        self.link, self.trouble = None, reason
        self.joined.clear()
        self.lost.set()
        return True

    async def converse(self, link: Link) -> str:
        """Until the stream ends. Returns how."""
        talking = {asyncio.ensure_future(self._hear_all(link)), asyncio.ensure_future(self._say_all(link))}
        closing = asyncio.ensure_future(link.closing.wait())
        try:
            done, _ = await asyncio.wait({*talking, closing}, return_when=asyncio.FIRST_COMPLETED)
            if closing in done:
                return "closed"
            failed = [error for each in done if (error := each.exception()) is not None]
            return str(failed[0]) if failed else "the peer has closed the stream"
        finally:
            for each in (*talking, closing):
                each.cancel()
            await asyncio.gather(*talking, closing, return_exceptions=True)

    def release(self, key: ParcelKey) -> None:
        """The engine has used it up."""
        if self.inbox.release(key):
            self._give_credit(key)

    async def _say_all(self, link: Link) -> None:
        while True:
            # Words first: they are short, and somebody waits for them.
            raw = link.words.popleft() if link.words else self.outbox.next_frame()
            if raw is None:
                link.wake.clear()
                await link.wake.wait()
                continue
            await link.write(raw)
            self.sent_bytes += len(raw)

    async def _hear_all(self, link: Link) -> None:
        while (raw := await link.read()) is not None:
            self.received_bytes += len(raw)
            try:
                self._hear(link, decode_frame(raw))
            except (MalformedFrame, HelloRefused, VersionMismatch) as error:
                self._complain(link, error.message if isinstance(error, ComputePoolError) else str(error))

    def _complain(self, link: Link, message: str) -> None:
        link.fault_count += 1
        journal.warning("frame_refused", seat=self.seat, reason=message)
        if link.fault_count > FAULTS_MAX:
            raise ConnectionError(f"too many wrong frames from seat {self.seat}; the last: {message}")
        link.say(self.words.complaint(epoch=link.hello.epoch, message=message))

    def _hear(self, link: Link, frame: pb.Frame) -> None:
        if (frame.run_id, frame.target_seat) != (self.guard.run_id, self.guard.seat):
            raise MalformedFrame("a frame for another run or seat")
        if frame.kind == HELLO:
            self._hear_hello(link, frame)
        elif frame.kind == CREDIT:
            self._hear_credit(read_key(frame, frame.of))
        elif frame.kind == NACK:
            self._hear_nack(frame)
        else:
            self._hear_content(link, frame)

    def _hear_hello(self, link: Link, frame: pb.Frame) -> None:
        hello = self.guard.check_hello(frame)
        if hello.seat != self.seat:
            raise HelloRefused("a stream belongs to one seat")
        # The epoch only grows; an older word may come late, through a relay.
        if hello.epoch > link.hello.epoch:
            link.hello = hello
            self.outbox.epoch = hello.epoch
            link.wake.set()

    def _hear_credit(self, key: ParcelKey) -> None:
        if self.outbox.take_back(key) is not None:
            self.room.set()
            self.wake()

    def _hear_nack(self, frame: pb.Frame) -> None:
        fault = Fault(frame.code[:64], frame.message[:500])
        if not frame.of:
            self.on_refused(self.seat, None, fault)
            return
        key = read_key(frame, frame.of)
        parcel = self.outbox.find(key)
        if parcel is None:
            return
        parcel.refusals += 1
        if fault.code in RETRIED and parcel.refusals <= RETRIES_MAX:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send_again, key)
            return
        self._hear_credit(key)
        self.on_refused(self.seat, parcel.head, fault)

    def _send_again(self, key: ParcelKey) -> None:
        parcel = self.outbox.find(key)
        if parcel is not None:
            self.outbox.send_again(parcel)
            self.wake()

    def _hear_content(self, link: Link, frame: pb.Frame) -> None:
        key = read_key(frame, frame.kind)
        head = read_head(frame, self.limits)
        if isinstance(head, Fault):
            self._refuse(link, key, head)
            return
        if head.epoch > link.hello.epoch:
            fault: Fault | None = Fault(
                FaultCode.UNPROVEN_EPOCH, f"epoch {head.epoch}, but the stream's token is of {link.hello.epoch}"
            )
        else:
            fault = find_content_fault(frame)
        if fault is not None:
            self._refuse(link, key, fault)
            return
        arrived = self.inbox.add(head, offset=frame.offset, total_bytes=frame.total_bytes, content=frame.content)
        if isinstance(arrived, Fault):
            self._refuse(link, key, arrived)
        elif arrived is not None:
            self._take(link, arrived)

    def _take(self, link: Link, arrived: Arrival) -> None:
        if arrived.repeated:
            # Its credit was lost with the stream that it was said on.
            self._give_credit(arrived.key)
            return
        try:
            refusal = self.on_frame(self.seat, arrived.head, arrived.content)
        except Exception as error:
            journal.error("frame_failed", trace=error, seat=self.seat, frame=arrived.head)
            self._refuse(link, arrived.key, Fault("host_fault", f"the receiving host failed: {error!r}"))
            return
        if refusal is not None and not refusal.is_harmless:
            self._refuse(link, arrived.key, Fault(refusal.code.value, refusal.message))
        elif refusal is not None or not self.holds_credits:
            self.release(arrived.key)

    def _refuse(self, link: Link, key: ParcelKey, fault: Fault) -> None:
        self.inbox.give_up(key)
        link.refused_count += 1
        if link.refused_count <= REFUSALS_LOGGED_MAX:
            journal.warning("frame_refused", seat=self.seat, code=fault.code, reason=fault.message)
        link.say(self.words.nack(key, fault))

    def _give_credit(self, key: ParcelKey) -> None:
        if self.link is not None:
            self.link.say(self.words.credit(key))
