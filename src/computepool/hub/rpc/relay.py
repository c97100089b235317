"""Carries frames between hosts that cannot dial each other: ties the streams of the two together, byte for byte.

Reads of each frame where it goes, and nothing else (`peek.py`). One run cannot take the room of another: what it
sends beyond its quota waits, and so do its senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from computepool import clock
from computepool.core.errors import (
    ComputePoolError,
    Conflict,
    Forbidden,
    HubUnavailable,
    InvalidRequest,
    LimitExceeded,
)
from computepool.hub.rpc.peek import Address, peek
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.seat_tokens import verify_seat_token
from computepool.wire import rpc as wire
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

log = logging.getLogger("computepool.relay")

# How long one host of a pair waits here for the other before it is told to call again.
WAIT_SECONDS = 20.0
STREAMS_MAX = 20_000
STREAMS_PER_RUN_MAX = 2_048
# Runs whose epoch is remembered, so that a host of an older one is not let in again.
RUNS_MAX = 10_000
# Frames that a stream may get wrong before it is closed.
FAULTS_MAX = 64
RELAY_SEAT = "@relay"

# From whom to whom, in which run.
Pair: TypeAlias = tuple[str, str, str]


@dataclass(slots=True)
class _Run:
    """One run's share of the relay."""

    bytes_per_second_max: float
    bytes_in_flight_max: int
    epoch: int = 0
    streams: int = 0
    carried_bytes: int = 0
    _in_flight: int = 0
    # Bytes that may pass at once; below zero, whoever spent them waits until it is even.
    _level: float = 0.0
    _level_at: float = field(default_factory=clock.seconds)
    _room: asyncio.Condition = field(default_factory=asyncio.Condition)

    @contextlib.asynccontextmanager
    async def admit(self, size: int) -> Any:
        """Waits for the run's turn; the bytes count as in flight for as long as this lasts."""
        async with self._room:
            await self._room.wait_for(
                lambda: self._in_flight == 0 or self._in_flight + size <= self.bytes_in_flight_max
            )
            self._in_flight += size
        try:
            await asyncio.sleep(self._spend(size))
            yield
            self.carried_bytes += size
        finally:
            self._in_flight -= size
            async with self._room:
                self._room.notify_all()

    def _spend(self, size: int) -> float:
        now = clock.seconds()
        rate = self.bytes_per_second_max
        # What was not used for a while may pass at once, up to half a second's worth.
        self._level = min(rate / 2, self._level + (now - self._level_at) * rate) - size
        self._level_at = now
        return max(0.0, -self._level / rate)


@dataclass(slots=True, eq=False)
class _End:
    """One host's stream, waiting for that of the other or tied to it."""

    address: Address
    hello: bytes
    stream: Any
    partner: asyncio.Future[_End]
    # Why this stream is to end, though its host did not end it.
    ended: asyncio.Future[ComputePoolError]
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pair(self) -> Pair:
        return (self.address.run_id, self.address.source_seat, self.address.target_seat)

    @property
    def mirror(self) -> Pair:
        return (self.address.run_id, self.address.target_seat, self.address.source_seat)

    async def write(self, raw: bytes) -> None:
        async with self._writing:
            await self.stream.write(raw)

    def end(self, reason: ComputePoolError) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)


class Relay:
    def __init__(self, keyring: Keyring, *, bytes_per_second_max: float, bytes_in_flight_max: int) -> None:
        self._keyring = keyring
        self._bytes_per_second_max = bytes_per_second_max
        self._bytes_in_flight_max = bytes_in_flight_max
        self._runs: dict[str, _Run] = {}
        self._ends: dict[Pair, _End] = {}

    def carried_bytes(self, run_id: str) -> int:
        """What this relay has carried for a run since it started."""
        run = self._runs.get(run_id)
        return run.carried_bytes if run else 0

    async def carry(self, stream: Any) -> None:
        """One host's stream from its hello to its end. Raises what the host is to be told."""
        end = await self._admit(stream)
        run = self._get_run(end.address.run_id)
        run.streams += 1
        earlier = self._ends.get(end.pair)
        if earlier is not None:
            # A host that calls again has lost its old stream, whether we have noticed or not.
            earlier.end(Conflict("This host has opened a newer stream to the same peer."))
        self._ends[end.pair] = end
        try:
            await self._tie(end, run)
        finally:
            run.streams -= 1
            if self._ends.get(end.pair) is end:
                del self._ends[end.pair]
            if end.partner.done() and not end.partner.cancelled():
                gone = f"The host at seat {end.address.source_seat} has left the relay."
                end.partner.result().end(HubUnavailable(gone, seat=end.address.source_seat))
            end.partner.cancel()
            end.ended.cancel()

    def close(self) -> None:
        for end in list(self._ends.values()):
            end.end(HubUnavailable("This relay is shutting down. Call again; another may answer."))

    async def _admit(self, stream: Any) -> _End:
        try:
            async with asyncio.timeout(wire.HELLO_SECONDS):
                raw = await stream.read()
        except TimeoutError:
            raise InvalidRequest(
                f"The stream said nothing for {wire.HELLO_SECONDS:.0f} s. Its first frame must be a hello."
            ) from None
        if raw is grpc.aio.EOF:
            raise InvalidRequest("The stream ended without a hello.")
        hello = _read_hello(raw)
        wire.agree_version(hello.version.major, hello.version.minor)
        address = peek(raw)
        token = verify_seat_token(self._keyring, hello.token, run_id=address.run_id)
        if (token.seat, token.epoch) != (address.source_seat, address.epoch):
            raise Forbidden("The seat token is for another seat or epoch than the frame says.")
        if not address.target_seat or address.target_seat == address.source_seat:
            raise InvalidRequest("A stream of the relay leads from one seat to another: name the target seat.")
        run = self._get_run(address.run_id)
        if address.epoch < run.epoch:
            raise Conflict(f"The run is in epoch {run.epoch}; this token is of epoch {address.epoch}. Resolve again.")
        if len(self._ends) >= STREAMS_MAX or run.streams >= STREAMS_PER_RUN_MAX:
            raise LimitExceeded("The relay takes no more streams now. Try again later.")
        run.epoch = address.epoch
        loop = asyncio.get_running_loop()
        return _End(address, raw, stream, loop.create_future(), loop.create_future())

    def _get_run(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            if len(self._runs) >= RUNS_MAX:
                self._runs = {id: each for id, each in self._runs.items() if each.streams}
            run = self._runs[run_id] = _Run(self._bytes_per_second_max, self._bytes_in_flight_max)
        return run

    async def _tie(self, end: _End, run: _Run) -> None:
        other = self._ends.get(end.mirror)
        if other is not None and not other.partner.done():
            other.partner.set_result(end)
            end.partner.set_result(other)
        partner = await self._await_partner(end)
        pumping = asyncio.create_task(_pump(end, partner, run))
        try:
            either: set[asyncio.Future[Any]] = {pumping, end.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
            else:
                raise end.ended.result()
        finally:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)

    async def _await_partner(self, end: _End) -> _End:
        either: set[asyncio.Future[Any]] = {end.partner, end.ended}
        done, _ = await asyncio.wait(either, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if end.ended in done:
            raise end.ended.result()
        if not done:
            seat = end.address.target_seat
            raise HubUnavailable(f"The host at seat {seat} has not called the relay. Call again.", seat=seat)
        return end.partner.result()


async def _pump(end: _End, partner: _End, run: _Run) -> None:
    """Until this host closes its side."""
    # Hosts tell each other who they are; what the relay has checked is the relay's.
    await _pass_on(partner, end.hello)
    faults = 0
    while True:
        raw = await end.stream.read()
        if raw is grpc.aio.EOF:
            return
        fault = _find_fault(raw, end)
        if fault is None:
            async with run.admit(len(raw)):
                await _pass_on(partner, raw)
            continue
        faults += 1
        if faults > FAULTS_MAX:
            raise InvalidRequest(f"Too many wrong frames; the last: {fault}")
        await end.write(_nack(end, fault))


async def _pass_on(partner: _End, raw: bytes) -> None:
    try:
        await partner.write(raw)
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        seat = partner.address.source_seat
        raise HubUnavailable(f"The host at seat {seat} has left the relay.", seat=seat) from None


def _find_fault(raw: bytes, end: _End) -> str | None:
    if len(raw) > wire.FRAME_WIRE_BYTES_MAX:
        return f"A frame of {len(raw):,} bytes; at most {wire.FRAME_BYTES_MAX:,} of content fit into one. Split it."
    try:
        found = peek(raw)
    except InvalidRequest as error:
        return error.message
    if (found.run_id, found.source_seat, found.target_seat) != end.pair:
        return "The frame names another run or other seats than the stream's hello."
    return None


def _read_hello(raw: bytes) -> pb.Frame:
    """The one frame that the relay decodes."""
    if len(raw) > wire.FRAME_WIRE_BYTES_MAX:
        raise InvalidRequest("The stream's first frame must be a hello, and a hello is short.")
    try:
        hello = pb.Frame.FromString(raw)
    except DecodeError:
        raise InvalidRequest("The stream's first frame is malformed.") from None
    if hello.kind != pb.FRAME_KIND_HELLO:
        raise InvalidRequest("The stream's first frame must be a hello.")
    return hello


def _nack(end: _End, fault: str) -> bytes:
    frame = pb.Frame(
        run_id=end.address.run_id,
        epoch=end.address.epoch,
        source_seat=RELAY_SEAT,
        target_seat=end.address.source_seat,
        kind=pb.FRAME_KIND_NACK,
        code="malformed_frame",
        message=fault,
    )
    return frame.SerializeToString()
