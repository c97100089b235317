"""What a VNode did in a step, in 32 bytes: enough to see that two machines did not do the same, and where it began.

A chain per VNode: weights after the update, what came in over edges between seats, what went out. Within one numeric
class whoever replays a step from the same checkpoint and frames gets the same bytes, and nobody else does.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from computepool.node.vnodes.frames import name_dtype, to_bytes

# Links that are kept to find the first step on which two chains differ.
LINKS_KEPT_MAX = 256


@dataclass(frozen=True, slots=True)
class Link:
    """One step of one VNode. `chain` covers this step and all before it since the chain began."""

    step: int
    weights: bytes
    received: bytes
    sent: bytes
    chain: bytes


class DigestChain:
    """Of one VNode, from the step at which its epoch began.

    Each stream of frames has an order of its own (micro-batches in order), but how streams mix is up to the network:
    so they are kept apart until the step ends.
    """

    def __init__(self, vnode_id: str, from_step: int) -> None:
        self._chain = hashlib.sha256(f"{vnode_id}:{from_step}".encode()).digest()
        self.links: deque[Link] = deque(maxlen=LINKS_KEPT_MAX)
        self._open_streams()

    @property
    def head(self) -> bytes:
        return self._chain

    def take_links(self) -> tuple[Link, ...]:
        """Those since they were last taken."""
        links = tuple(self.links)
        self.links.clear()
        return links

    def record_received(self, tensor: Tensor, *, is_gradient: bool) -> None:
        self._received[is_gradient].update(digest_tensor(tensor))

    def record_sent(self, tensor: Tensor, *, is_gradient: bool) -> None:
        self._sent[is_gradient].update(digest_tensor(tensor))

    def close_step(self, step: int, state: Iterable[Tensor]) -> Link:
        """After the update; `state` is weights and buffers in their fixed order."""
        weights = hashlib.sha256()
        for tensor in state:
            weights.update(to_bytes(tensor))
        received = b"".join(stream.digest() for stream in self._received)
        sent = b"".join(stream.digest() for stream in self._sent)
        link = Link(
            step=step,
            weights=weights.digest(),
            received=hashlib.sha256(received).digest(),
            sent=hashlib.sha256(sent).digest(),
            chain=b"",
        )
        return self._add(link)

    def _add(self, link: Link) -> Link:
        text = self._chain + link.step.to_bytes(8, "little") + link.weights + link.received + link.sent
        self._chain = hashlib.sha256(text).digest()
        whole = Link(link.step, link.weights, link.received, link.sent, self._chain)
        self.links.append(whole)
        self._open_streams()
        return whole

    def _open_streams(self) -> None:
        # Activations first, then gradients.
        self._received = (hashlib.sha256(), hashlib.sha256())
        self._sent = (hashlib.sha256(), hashlib.sha256())


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The chain that each tensor at the edge of a segment belongs to; None for those that stay on the seat."""

    inputs: Sequence[DigestChain | None]
    outputs: Sequence[DigestChain | None]
    # Of the outputs' gradients.
    terms: Sequence[DigestChain | None]

    def record_forward(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for tensor, chain in zip(inputs, self.inputs, strict=True):
            if chain is not None:
                chain.record_received(tensor, is_gradient=False)
        for tensor, chain in zip(outputs, self.outputs, strict=True):
            if chain is not None:
                chain.record_sent(tensor, is_gradient=False)

    def record_backward(self, terms: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
        for tensor, chain in zip(terms, self.terms, strict=True):
            if chain is not None and tensor is not None:
                chain.record_received(tensor, is_gradient=True)
        for tensor, chain in zip(gradients, self.inputs, strict=True):
            if chain is not None and tensor is not None:
                chain.record_sent(tensor, is_gradient=True)


def digest_tensor(tensor: Tensor) -> bytes:
    return hashlib.sha256(to_bytes(tensor)).digest()


def digest_state(tensors: Iterable[tuple[str, Tensor]]) -> bytes:
    """Of everything that a checkpoint holds, whatever order or file it stands in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        digest.update(f"{name}:{name_dtype(tensor).value}:{list(tensor.shape)}\n".encode())
        digest.update(to_bytes(tensor))
    return digest.digest()


def find_first_difference(ours: Iterable[Link], theirs: Iterable[Link]) -> int | None:
    """The first step that both know and did not do alike; None if they agree on all of them."""
    known = {link.step: link for link in theirs}
    for link in ours:
        other = known.get(link.step)
        if other is not None and (other.weights, other.received, other.sent) != (
            link.weights,
            link.received,
            link.sent,
        ):
            return link.step
    return None
