"""Hosts and the owner of their run: who comes, what they say, and what they are told.

Steps of losses count from 0 on the wire, as hosts count them; here they count from 1, as people do. What a host says
is a claim: it is measured and cut here, and core asks whether it may say it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.jobs.spec import is_sha256
from computepool.core.networks.detection import BEAT_SECONDS, LEAVE_SECONDS
from computepool.core.networks.errors import RunElsewhere
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import (
    BeatHeard,
    CheckpointReported,
    FaultReported,
    HostJoined,
    HostPrepared,
    LeaveAnnounced,
    PeerReported,
    SessionClosed,
    StepReported,
)
from computepool.core.networks.spec import STEPS_MAX
from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.claims import read_audit_id, read_replayed, read_span
from computepool.hub.rpc.hosting import Session, from_tensor
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.hub.services.inference import Answered, Opened
from computepool.hub.services.owners import Heard
from computepool.hub.services.pnodes import note_address
from computepool.hub.services.run_blobs import has_blob
from computepool.hub.services.seats import check_class, get_seat
from computepool.hub.store.runs import Metric, Part
from computepool.wire import rpc as wire
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

rpcs = Rpcs("MembershipService")

VNODE_ID_LENGTH_MAX = 64
MESSAGE_LENGTH_MAX = 500
DIGEST_BYTES_MAX = 64
# Beyond what an owner waits for its leave.
LEAVE_SLACK_SECONDS = 1.0
# For what a session that ends has still to say.
REST_SECONDS = 1.0


@rpcs.add("Register", Access.LEASE)
async def register(call: Call, request: pb.RegisterRequest) -> pb.RegisterResponse:
    version = wire.agree_version(request.version.major, request.version.minor)
    seat = await get_seat(call.rpc.pool, call.lease.attempt_id)
    await check_class(call.rpc.pool, seat, request.numeric_class)
    address = await _prove(call, request.address)
    return pb.RegisterResponse(
        version=pb.ApiVersion(major=version[0], minor=version[1]),
        run_id=str(seat.run_id),
        seat=seat.seat,
        beat_seconds=BEAT_SECONDS,
        relay_address=call.rpc.settings.rpc_address,
        reachable=bool(address),
    )


@rpcs.add("Leave", Access.LEASE)
async def leave(call: Call, request: pb.LeaveRequest) -> pb.LeaveResponse:
    """Answered once the host may end: everything is stored, or the owner has waited long enough."""
    attempt_id, owner = call.lease.attempt_id, call.rpc.hosting.owner
    run_id, seat, _ = await owner.admit(attempt_id)
    await owner.hear(run_id, Heard(LeaveAnnounced(seat, attempt_id, request.reason[:MESSAGE_LENGTH_MAX])))
    until = clock.seconds() + LEAVE_SECONDS + LEAVE_SLACK_SECONDS
    while clock.seconds() < until:
        run = owner.find(run_id)
        if run is None or run.seats[seat].attempt_id != attempt_id:
            break
        await asyncio.sleep(0.05)
    return pb.LeaveResponse()


@rpcs.add("Session", Access.LEASE)
async def session(call: Call, _: Any) -> None:
    """The hello names the same lease as the call: what a proxy in between would mix up is refused."""
    attempt_id, hosting = call.lease.attempt_id, call.rpc.hosting
    hello = await _read_hello(call)
    if hello.attempt_id != str(attempt_id):
        raise InvalidRequest("The hello names another attempt than the call's metadata.")
    run_id, seat, node_id = await hosting.owner.admit(attempt_id)
    address = await _prove(call, hello.address)
    opened = hosting.sessions.open(attempt_id)
    host = _Host(call, run_id, seat, attempt_id, node_id)
    writing = asyncio.create_task(_write(call, opened))
    reading = asyncio.create_task(host.read(address))
    ending = asyncio.create_task(opened.ended.wait())
    try:
        await asyncio.wait({writing, reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        for done in (reading, writing):
            if done.done():
                done.result()
        if ending.done():
            await _write_rest(call, opened)
            raise RunElsewhere("This session is over: a newer one was opened, or another hub owns the run. Resolve.")
    finally:
        for task in (writing, reading, ending):
            task.cancel()
        await asyncio.gather(writing, reading, ending, return_exceptions=True)
        if hosting.sessions.leave(opened):
            hosting.owner.note_closed(attempt_id)
            if not call.rpc.closing:
                await hosting.owner.hear(run_id, Heard(SessionClosed(seat, attempt_id)))


async def _read_hello(call: Call) -> pb.Hello:
    try:
        async with asyncio.timeout(wire.HELLO_SECONDS):
            message = await call.stream.read()
    except TimeoutError:
        raise InvalidRequest(f"The session said nothing for {wire.HELLO_SECONDS:.0f} s. Say hello first.") from None
    if message is grpc.aio.EOF or message.WhichOneof("kind") != "hello":
        raise InvalidRequest("A session begins with a hello.")
    return message.hello  # type: ignore[no-any-return]


async def _prove(call: Call, address: str) -> str:
    """Where others may dial the host, if the hub could."""
    secret = call.metadata.get(wire.LEASE_SECRET, "")
    proven = await call.rpc.reach.find_address(address, peer=call.peer, lease_secret=secret)
    await note_address(call.rpc.pool, call.lease.node_id, proven)
    return proven


async def _write(call: Call, session: Session) -> None:
    while True:
        await call.stream.write(await session.orders.get())


async def _write_rest(call: Call, session: Session) -> None:
    """Its last orders: to drop what it has, for one."""
    with contextlib.suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(REST_SECONDS):
            while not session.orders.empty():
                await call.stream.write(session.orders.get_nowait())


@dataclass(frozen=True, slots=True)
class _Host:
    """Turns what a host says into what happened."""

    call: Call
    run_id: RunId
    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId

    async def read(self, address: str) -> None:
        owner = self.call.rpc.hosting.owner
        owner.note_beat(self.attempt_id, self.node_id)
        await owner.hear(self.run_id, Heard(HostJoined(self.seat, self.attempt_id, address)))
        async for message in self._list_messages():
            kind = message.WhichOneof("kind")
            read = _READERS.get(kind or "")
            heard = await read(self, getattr(message, kind)) if read is not None and kind else None
            if heard is not None:
                # One message at a time: whoever sends faster than it can be written waits.
                await owner.hear(self.run_id, heard)
            if owner.find(self.run_id) is None:
                raise RunElsewhere("This hub does not own the run any more. Resolve.")

    async def _list_messages(self) -> AsyncIterator[pb.HostMessage]:
        while True:
            message = await self.call.stream.read()
            if message is grpc.aio.EOF:
                return
            # What came through before the cable was pulled has been read; this one was never heard.
            self.call.rpc.plugs.check(self.node_id)
            yield message

    async def read_beat(self, said: pb.HostBeat) -> Heard:
        self.call.rpc.hosting.owner.note_beat(self.attempt_id, self.node_id)
        return Heard(BeatHeard(self.seat, self.attempt_id, said.epoch, said.watermark, said.answering))

    async def read_prepared(self, said: pb.Prepared) -> Heard:
        return Heard(HostPrepared(self.seat, self.attempt_id, said.epoch))

    async def read_event(self, said: pb.HostEvent) -> Heard:
        step = said.step + 1
        if step > STEPS_MAX:
            raise InvalidRequest(f"Step {said.step} is more than any run has.")
        bits: int = struct.unpack("<q", struct.pack("<Q", said.loss_bits))[0]
        loss: float = struct.unpack("<d", struct.pack("<Q", said.loss_bits))[0]
        if not math.isfinite(loss):
            words = f"the loss of step {step} is {loss}"
            code = HostFaultCode.LOSS_NOT_FINITE
            return Heard(FaultReported(self.seat, self.attempt_id, said.epoch, "", code, words))
        rate = said.samples_per_second if math.isfinite(said.samples_per_second) else 0.0
        return Heard(
            StepReported(self.seat, self.attempt_id, said.epoch, step),
            metric=Metric(step, said.epoch, bits, max(0.0, rate)),
        )

    async def read_peer_lost(self, said: pb.PeerLost) -> Heard:
        return Heard(PeerReported(self.seat, SeatId(said.seat), said.epoch, said.reason[:MESSAGE_LENGTH_MAX]))

    async def read_checkpoint(self, said: pb.CheckpointStored) -> Heard | None:
        plausible = (
            is_sha256(said.sha256)
            and 0 < said.step <= STEPS_MAX
            and said.epoch > 0
            and len(said.vnode_id) <= VNODE_ID_LENGTH_MAX
            and 0 < len(said.digest) <= DIGEST_BYTES_MAX
        )
        if not plausible:
            raise InvalidRequest("A checkpoint's report needs epoch, step, VNode, sha256 and digest.")
        if not await has_blob(self.call.rpc.pool, self.run_id, said.sha256, size_bytes=said.size_bytes):
            raise InvalidRequest(f"The content {said.sha256} was not stored, or has another size. Put it first.")
        raw = bytes.fromhex(said.sha256)
        return Heard(
            CheckpointReported(self.seat, self.attempt_id, said.epoch, said.step, said.vnode_id),
            part=Part(said.step, said.vnode_id, said.epoch, raw, said.size_bytes, bytes(said.digest)),
        )

    async def read_digest(self, said: pb.AuditDigest) -> None:
        audits = self.call.rpc.hosting.owner.audits
        if audits is not None:
            await audits.hear_claim(self.run_id, self.seat, self.attempt_id, read_span(said))

    async def read_audit_log(self, said: pb.AuditLog) -> None:
        audits = self.call.rpc.hosting.owner.audits
        if audits is not None:
            audit_id, sha256 = read_audit_id(said.audit_id), said.sha256
            if sha256 and not await has_blob(self.call.rpc.pool, self.run_id, sha256, size_bytes=said.size_bytes):
                raise InvalidRequest(f"The content {sha256[:64]} was not stored, or has another size. Put it first.")
            await audits.hear_log(self.run_id, self.seat, audit_id, sha256)

    async def read_audit_result(self, said: pb.AuditResult) -> None:
        audits = self.call.rpc.hosting.owner.audits
        if audits is not None:
            reason = said.message[:MESSAGE_LENGTH_MAX].replace("\0", "")
            replayed = None if reason else read_replayed(said)
            await audits.hear_replay(self.run_id, self.attempt_id, read_audit_id(said.audit_id), replayed, reason)

    async def read_fault(self, said: pb.HostFault) -> Heard:
        return Heard(
            FaultReported(
                self.seat,
                self.attempt_id,
                said.epoch,
                said.vnode_id[:VNODE_ID_LENGTH_MAX],
                said.code[:VNODE_ID_LENGTH_MAX],
                _cut(said.message),
            )
        )

    async def read_opened(self, said: pb.CheckpointOpened) -> None:
        opened = Opened(said.epoch, said.checkpoint_step, said.code[:VNODE_ID_LENGTH_MAX], _cut(said.message))
        self.call.rpc.hosting.inference.note_opened(self.run_id, self.seat, self.attempt_id, opened)

    async def read_answer(self, said: pb.InferAnswer) -> None:
        answered = Answered(
            epoch=said.epoch,
            number=said.number,
            output=from_tensor(said.output) if said.HasField("output") else None,
            code=said.code[:VNODE_ID_LENGTH_MAX],
            message=_cut(said.message),
            vnode_id=said.vnode_id[:VNODE_ID_LENGTH_MAX],
        )
        self.call.rpc.hosting.inference.note_answer(self.run_id, self.seat, self.attempt_id, answered)


def _cut(message: str) -> str:
    return message[:MESSAGE_LENGTH_MAX].replace("\0", "")


_READERS: Mapping[str, Callable[[_Host, Any], Awaitable[Heard | None]]] = {
    "beat": _Host.read_beat,
    "prepared": _Host.read_prepared,
    "event": _Host.read_event,
    "peer_lost": _Host.read_peer_lost,
    "checkpoint": _Host.read_checkpoint,
    "fault": _Host.read_fault,
    "opened": _Host.read_opened,
    "answer": _Host.read_answer,
    "digest": _Host.read_digest,
    "audit_log": _Host.read_audit_log,
    "audit_result": _Host.read_audit_result,
}
