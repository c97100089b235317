"""What a seat got and gave between two checkpoints, in a few bytes: enough to see that somebody else would have given
otherwise.

For each neighbour one digest of all frames that went to it and one of all that came from it. What one says that it
sent is what the other says that it got; and within one numeric class whoever replays the seat from the same
checkpoint and frames comes to the same digests. A seat tells them before it can know whether anybody will look.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from computepool.core.networks.audit import PeerDigests, SpanDigest
from computepool.core.networks.placement import SeatId
from computepool.node.vnodes.frames import FrameHead, name_dtype, to_bytes


@dataclass(slots=True)
class _Stream:
    """Of one neighbour and one direction. Frames of a step come in any order and are put into one."""

    steps: dict[int, list[bytes]] = field(default_factory=dict)
    total: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, step: int, entry: bytes) -> None:
        self.steps.setdefault(step, []).append(entry)

    def close(self, step: int) -> None:
        for entry in sorted(self.steps.pop(step, ())):
            self.total.update(entry)


class SeatDigests:
    """Of one seat, from the step at which its epoch began. Not for several threads at once."""

    def __init__(self, from_step: int) -> None:
        self.from_step = from_step
        # The first step that may still get frames.
        self.step = from_step
        self._losses: list[tuple[int, float]] = []
        self._open()

    def record_sent(self, seat: SeatId, head: FrameHead, digest: bytes) -> None:
        self._sent.setdefault(seat, _Stream()).add(head.step, _name(head) + digest)

    def record_received(self, seat: SeatId, head: FrameHead, digest: bytes) -> None:
        self._received.setdefault(seat, _Stream()).add(head.step, _name(head) + digest)

    def record_loss(self, step: int, loss: float) -> None:
        self._losses.append((step, loss))

    def close_step(self) -> None:
        """The current step: nothing more of it will come or go."""
        for stream in (*self._sent.values(), *self._received.values()):
            stream.close(self.step)
        self.step += 1

    def take(self, epoch: int) -> SpanDigest:
        """All steps that were closed since this was last asked. Frames of later ones are kept."""
        peers = {
            seat: PeerDigests(_digest(self._sent.get(seat)), _digest(self._received.get(seat)))
            for seat in sorted(self._sent.keys() | self._received.keys())
        }
        span = SpanDigest(
            epoch=epoch,
            from_step=self.from_step,
            until_step=self.step,
            peers={seat: digests for seat, digests in peers.items() if digests != PeerDigests()},
            losses=digest_losses([loss for step, loss in sorted(self._losses) if step < self.step]),
        )
        sent, received = self._sent, self._received
        self._losses = [(step, loss) for step, loss in self._losses if step >= self.step]
        self.from_step = self.step
        self._open()
        for before, after in ((sent, self._sent), (received, self._received)):
            after.update({seat: _Stream(stream.steps) for seat, stream in before.items() if stream.steps})
        return span

    def _open(self) -> None:
        self._sent: dict[SeatId, _Stream] = {}
        self._received: dict[SeatId, _Stream] = {}


def digest_tensor(tensor: Tensor) -> bytes:
    return hashlib.sha256(to_bytes(tensor)).digest()


def digest_state(tensors: Iterable[tuple[str, Tensor]]) -> bytes:
    """Of everything that a checkpoint holds, whatever order or file it stands in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        digest.update(f"{name}:{name_dtype(tensor).value}:{list(tensor.shape)}\n".encode())
        digest.update(to_bytes(tensor))
    return digest.digest()


def digest_losses(losses: Iterable[float]) -> bytes:
    """Empty for a seat that tells none."""
    content = b"".join(struct.pack("<d", loss) for loss in losses)
    return hashlib.sha256(content).digest() if content else b""


def _digest(stream: _Stream | None) -> bytes:
    return stream.total.digest() if stream is not None else hashlib.sha256().digest()


def _name(head: FrameHead) -> bytes:
    """The same at both ends, and in a replay."""
    where = f"{head.kind.value}:{head.replica}:{head.source}:{head.source_slot}:{head.target}:{head.target_slot}"
    return f"{where}:{head.step}:{head.micro_batch}:{head.dtype.value}:{list(head.shape)}:".encode()
