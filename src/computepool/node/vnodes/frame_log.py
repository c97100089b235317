"""What a host has sent, for as long as there is room: so that what others made of it can be looked at later.

A ring in a file without a name: the newest frames displace the oldest, and nothing of it outlives the process. A part
of it leaves the host as safetensors, with the heads of its frames beside them.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from computepool.core.networks.placement import SeatId
from computepool.node.vnodes.frames import FrameHead, Outgoing, name_dtype, to_bytes, to_tensor

LOG_BYTES_MAX = 1 << 30
# Of a log that was shown, as whoever replays it takes it.
FRAMES_MAX = 1_000_000
_LABEL = "computepool"


class LogUnreadable(Exception):
    """Not a log, or frames are missing from it."""


class _Kept(NamedTuple):
    seat: SeatId
    head: FrameHead
    at: int
    size_bytes: int


class FrameLog:
    """Not for several threads at once."""

    def __init__(self, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # It lives as long as the log, and without a buffer, which would only copy once more.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._next = 0
        self._at = 0
        # By epoch: the first step of which all is there.
        self._whole_from: dict[int, int] = {}

    def record(self, frame: Outgoing) -> None:
        content = to_bytes(frame.tensor)
        size_bytes = len(content)
        if size_bytes > self._bytes_max:
            self.miss(frame.head)
            return
        if self._at + size_bytes > self._bytes_max:
            self._make_room(self._at, self._bytes_max)
            self._at = 0
        self._make_room(self._at, self._at + size_bytes)
        self._file.seek(self._at)
        self._file.write(content)
        self._kept[self._next] = _Kept(frame.seat, frame.head, self._at, size_bytes)
        self._next += 1
        self._at += size_bytes

    def has(self, epoch: int, from_step: int) -> bool:
        return from_step >= self._whole_from.get(epoch, 0)

    def list_frames(
        self, epoch: int, from_step: int, until_step: int, *, to: SeatId | None = None
    ) -> list[tuple[SeatId, FrameHead, Tensor]]:
        """What went to one seat, or to all, in these steps. Raises LogUnreadable where some of it is gone."""
        if not self.has(epoch, from_step):
            raise LogUnreadable(f"frames of epoch {epoch} are kept from step {self._whole_from[epoch]} on")
        return [
            (each.seat, each.head, self._read(each))
            for each in self._kept.values()
            if each.head.epoch == epoch and from_step <= each.head.step < until_step and to in (None, each.seat)
        ]

    def close(self) -> None:
        self._file.close()

    def _read(self, kept: _Kept) -> Tensor:
        self._file.seek(kept.at)
        return to_tensor(self._file.read(kept.size_bytes), kept.head.dtype, kept.head.shape)

    def _make_room(self, start: int, end: int) -> None:
        """The oldest lie next in the ring's way."""
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.at >= end or oldest.at + max(1, oldest.size_bytes) <= start:
                return
            self._kept.popitem(last=False)
            self.miss(oldest.head)

    def miss(self, head: FrameHead) -> None:
        """It is not kept, and said so to whoever asks."""
        self._whole_from[head.epoch] = max(head.step + 1, self._whole_from.get(head.epoch, 0))


def pack_log(frames: Iterable[tuple[SeatId, FrameHead, Tensor]]) -> bytes:
    heads, tensors = [], {}
    for number, (seat, head, tensor) in enumerate(frames):
        heads.append((seat, head))
        tensors[str(number)] = tensor
    return save(tensors, metadata={_LABEL: msgspec.json.encode(heads).decode()})


def unpack_log(content: bytes) -> list[tuple[SeatId, FrameHead, Tensor]]:
    """The seat that each frame went to, its head and its tensor. Nothing is believed that the engine would not be."""
    try:
        tensors = load(content)
        # The file begins with the length of its header, which names the tensors and what else there is to say.
        header = msgspec.json.decode(content[8 : 8 + int.from_bytes(content[:8], "little")])
        heads = msgspec.json.decode(header["__metadata__"][_LABEL], type=list[tuple[str, FrameHead]])
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise LogUnreadable(f"the log is not readable: {error}") from error
    if len(heads) != len(tensors) or len(heads) > FRAMES_MAX:
        raise LogUnreadable(f"the log names {len(heads)} frames and holds {len(tensors)}")
    found = []
    for number, (seat, head) in enumerate(heads):
        tensor = tensors.get(str(number))
        if tensor is None or tuple(tensor.shape) != head.shape or name_dtype(tensor) is not head.dtype:
            raise LogUnreadable(f"the log lacks {head}")
        # A copy: where bytes lie must not decide how a kernel adds them up.
        found.append((SeatId(seat), head, tensor.clone()))
    return found
