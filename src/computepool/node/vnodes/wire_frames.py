"""Frames as bytes: heads of tensors to protobuf and back, and the short frames that streams say to each other.

A frame with content is put together by hand around the tensor's own bytes: letting protobuf do it costs a copy more
for every frame. What comes out is the same message.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import Dtype
from computepool.node.vnodes.frames import FrameHead, FrameKind, FrameLimits, find_tensor_fault
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import API_VERSION, FRAME_BYTES_MAX, FRAME_WIRE_BYTES_MAX

# Of a stream, not of a tensor: frames of networks_pb2 that hosts say and that the engine never sees.
HELLO, CREDIT, NACK, PROBE = (
    pb.FRAME_KIND_HELLO,
    pb.FRAME_KIND_CREDIT,
    pb.FRAME_KIND_NACK,
    pb.FRAME_KIND_PROBE,
)
_KINDS = {
    FrameKind.ACTIVATION: pb.FRAME_KIND_ACTIVATION,
    FrameKind.GRADIENT: pb.FRAME_KIND_GRADIENT,
    FrameKind.NORMS: pb.FRAME_KIND_NORMS,
    FrameKind.TOTAL: pb.FRAME_KIND_TOTAL,
    FrameKind.REDUCE: pb.FRAME_KIND_REDUCE,
    FrameKind.REDUCED: pb.FRAME_KIND_REDUCED,
    FrameKind.INFERENCE: pb.FRAME_KIND_INFERENCE,
}
_FROM_KINDS: dict[int, FrameKind] = {number: kind for kind, number in _KINDS.items()}
# Field number and wire type of what stands around the content.
_OFFSET, _TOTAL, _CRC, _CONTENT = b"\x80\x01", b"\x88\x01", b"\x95\x01", b"\x9a\x01"


class FaultCode:
    """What a stream finds wrong with a frame before the engine sees it; the engine has reasons of its own."""

    MALFORMED = "malformed_frame"
    BAD_CHECKSUM = "bad_checksum"
    OUT_OF_ORDER = "out_of_order"
    NO_CREDIT = "no_credit"
    UNPROVEN_EPOCH = "unproven_epoch"


@dataclass(frozen=True, slots=True)
class Fault:
    """`code` is for programs and stable, `message` for people."""

    code: str
    message: str


class MalformedFrame(Exception):
    """The frame cannot be used; the text says why. Its stream can be."""


@dataclass(frozen=True, slots=True)
class Lane:
    """An edge and a kind of frame on it, in one epoch: what credits are counted for."""

    epoch: int
    kind: FrameKind
    source: str
    source_slot: int
    target: str
    target_slot: int
    replica: int


@dataclass(frozen=True, slots=True)
class ParcelKey:
    """One tensor on its way."""

    lane: Lane
    step: int
    micro_batch: int


def key_of(head: FrameHead) -> ParcelKey:
    lane = Lane(head.epoch, head.kind, head.source, head.source_slot, head.target, head.target_slot, head.replica)
    return ParcelKey(lane, head.step, head.micro_batch)


def encode_head(head: FrameHead, *, source_seat: SeatId, target_seat: SeatId) -> bytes:
    """What all frames of one tensor begin with."""
    frame = pb.Frame(
        run_id=head.run_id,
        epoch=head.epoch,
        source_seat=source_seat,
        target_seat=target_seat,
        kind=_KINDS[head.kind],
        source=head.source,
        source_slot=head.source_slot,
        target=head.target,
        target_slot=head.target_slot,
        replica=head.replica,
        incarnation=head.incarnation,
        step=head.step,
        micro_batch=head.micro_batch,
        dtype=head.dtype.value,
        shape=head.shape,
    )
    return frame.SerializeToString(deterministic=True)


def encode_frame(head: bytes, content: memoryview, offset: int) -> tuple[bytes, int]:
    """The frame that begins at `offset` of the tensor's bytes, and where the next one begins."""
    piece = content[offset : offset + FRAME_BYTES_MAX]
    parts = (
        head,
        _OFFSET + _varint(offset) + _TOTAL + _varint(len(content)),
        _CRC + zlib.crc32(piece).to_bytes(4, "little"),
        _CONTENT + _varint(len(piece)),
        piece,
    )
    return b"".join(parts), offset + len(piece)


def decode_frame(raw: bytes) -> pb.Frame:
    """Raises MalformedFrame."""
    if len(raw) > FRAME_WIRE_BYTES_MAX:
        raise MalformedFrame(
            f"a frame of {len(raw):,} bytes; at most {FRAME_BYTES_MAX:,} of content fit into one, so split the tensor"
        )
    try:
        return pb.Frame.FromString(raw)
    except DecodeError:
        raise MalformedFrame("a frame that is no message of the protocol") from None


def read_head(frame: pb.Frame, limits: FrameLimits) -> FrameHead | Fault:
    """The head of a frame with content, or why there can be no such tensor."""
    kind = _FROM_KINDS.get(frame.kind)
    if kind is None:
        raise MalformedFrame(f"a frame of kind {frame.kind}, which this host does not know")
    fault = find_tensor_fault(frame.dtype, frame.shape, frame.total_bytes, limits)
    if fault is not None:
        return Fault(fault.code.value, fault.message)
    return _to_head(frame, kind, Dtype(frame.dtype))


def find_content_fault(frame: pb.Frame) -> Fault | None:
    if len(frame.content) > FRAME_BYTES_MAX or frame.offset + len(frame.content) > frame.total_bytes:
        return Fault(FaultCode.MALFORMED, "more content than a frame or its tensor may have")
    if zlib.crc32(frame.content) != frame.crc:
        return Fault(FaultCode.BAD_CHECKSUM, "the content does not match its checksum")
    return None


def read_key(frame: pb.Frame, kind_number: int) -> ParcelKey:
    """The tensor that a frame is a part of, or that a credit or a nack speaks of."""
    kind = _FROM_KINDS.get(kind_number)
    if kind is None:
        raise MalformedFrame(f"a frame of kind {kind_number}, which this host does not know")
    return key_of(_to_head(frame, kind, Dtype.F32))


def _to_head(frame: pb.Frame, kind: FrameKind, dtype: Dtype) -> FrameHead:
    return FrameHead(
        run_id=frame.run_id,
        epoch=frame.epoch,
        kind=kind,
        source=frame.source,
        source_slot=frame.source_slot,
        target=frame.target,
        target_slot=frame.target_slot,
        replica=frame.replica,
        incarnation=frame.incarnation,
        step=frame.step,
        micro_batch=frame.micro_batch,
        dtype=dtype,
        shape=tuple(frame.shape),
    )


@dataclass(frozen=True, slots=True)
class Words:
    """The short frames that one seat says to another."""

    run_id: str
    source_seat: SeatId
    target_seat: SeatId

    def hello(self, *, epoch: int, token: str, window: int) -> bytes:
        frame = self._frame(HELLO, epoch)
        frame.token = token
        frame.credits = window
        frame.version.major, frame.version.minor = API_VERSION
        return frame.SerializeToString(deterministic=True)

    def credit(self, key: ParcelKey) -> bytes:
        frame = self._about(CREDIT, key)
        frame.credits = 1
        return frame.SerializeToString(deterministic=True)

    def nack(self, key: ParcelKey, fault: Fault) -> bytes:
        frame = self._about(NACK, key)
        frame.code, frame.message = fault.code, fault.message
        return frame.SerializeToString(deterministic=True)

    def complaint(self, *, epoch: int, message: str) -> bytes:
        """About a frame of which not even the head can be trusted."""
        frame = self._frame(NACK, epoch)
        frame.code, frame.message = FaultCode.MALFORMED, message
        return frame.SerializeToString(deterministic=True)

    def _about(self, kind: pb.FrameKind, key: ParcelKey) -> pb.Frame:
        lane = key.lane
        frame = self._frame(kind, lane.epoch)
        frame.of = _KINDS[lane.kind]
        frame.source, frame.source_slot = lane.source, lane.source_slot
        frame.target, frame.target_slot = lane.target, lane.target_slot
        frame.replica, frame.step, frame.micro_batch = lane.replica, key.step, key.micro_batch
        return frame

    def _frame(self, kind: pb.FrameKind, epoch: int) -> pb.Frame:
        return pb.Frame(
            run_id=self.run_id,
            epoch=epoch,
            source_seat=self.source_seat,
            target_seat=self.target_seat,
            kind=kind,
        )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
