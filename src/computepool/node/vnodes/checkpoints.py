"""A VNode's state as bytes, and back: safetensors, never pickle, and nothing is believed before it is checked.

A checkpoint's `step` is the number of updates that its weights have seen. Taking one costs the training a copy; the
bytes are made by a thread of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from computepool.node.vnodes.digests import digest_state
from computepool.node.vnodes.frames import ANY_SIZE, NumbersWentWrong, check_numbers

# Kinds of tensors, in front of their names.
WEIGHT = "weight/"
BUFFER = "buffer/"
OPTIMIZER = "optimizer/"
# Of rounds of local steps, at replica 0.
OUTER = "outer/"

_LABEL = "computepool"
_NAMES_SHOWN_MAX = 3
# Snapshots of one VNode each that may wait to be written before training waits for the writer.
_ROUNDS_PENDING_MAX = 2
WRITE_SECONDS_MAX = 600.0


class CheckpointUnreadable(Exception):
    """Not what was stored for this VNode: another source has to be found for it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run goes back to: at least the VNodes that this host has."""

    step: int
    contents: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of a VNode's tensors by kind and name: training goes on without touching them."""

    vnode_id: str
    step: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Packed:
    vnode_id: str
    step: int
    content: bytes
    sha256: str
    digest: bytes


def take_snapshot(vnode_id: str, step: int, tensors: Mapping[str, Tensor]) -> Snapshot:
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return Snapshot(vnode_id, step, copies)


def pack(snapshot: Snapshot) -> Packed:
    """Raises NumbersWentWrong rather than keep what nobody could go on from."""
    for name, tensor in snapshot.tensors.items():
        if check_numbers(tensor, ANY_SIZE) is not None:
            text = f"VNode {snapshot.vnode_id} holds NaN or infinity in {name} after {snapshot.step} steps"
            raise NumbersWentWrong(snapshot.vnode_id, text)
    # One key only: the order of several is not fixed, and equal states shall be equal bytes.
    label = json.dumps({"version": 1, "vnode": snapshot.vnode_id, "step": snapshot.step}, sort_keys=True)
    content = save(dict(snapshot.tensors), metadata={_LABEL: label})
    return Packed(
        vnode_id=snapshot.vnode_id,
        step=snapshot.step,
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        digest=digest_state(snapshot.tensors.items()),
    )


def unpack(content: bytes, vnode_id: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by kind and name, if they are those `expected`: same names, shapes and dtypes, all finite."""
    tensors = _read(content, vnode_id)
    missing = sorted(set(expected) - set(tensors))
    strange = sorted(set(tensors) - set(expected))
    if missing or strange:
        words = [f"lacks {_name_some(missing)}"] * bool(missing) + [f"has {_name_some(strange)}"] * bool(strange)
        raise CheckpointUnreadable(f"the checkpoint of VNode {vnode_id} {' and '.join(words)}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise CheckpointUnreadable(
                f"the checkpoint of VNode {vnode_id} holds {name} as {tensor.dtype}{list(tensor.shape)}; it should "
                f"be {expected[name].dtype}{list(expected[name].shape)}"
            )
        if check_numbers(tensor, ANY_SIZE) is not None:
            raise CheckpointUnreadable(f"the checkpoint of VNode {vnode_id} holds NaN or infinity in {name}")
    return tensors


def read_weights(content: bytes, vnode_id: str) -> dict[str, Tensor]:
    """Weights and buffers by their names in the uncut network: a part of its `state_dict`."""
    tensors = _read(content, vnode_id)
    return {
        name.removeprefix(kind): tensor
        for kind in (WEIGHT, BUFFER)
        for name, tensor in tensors.items()
        if name.startswith(kind)
    }


def digest_content(content: bytes, vnode_id: str) -> bytes:
    """Of the state that these bytes hold, as `pack` tells it."""
    return digest_state(_read(content, vnode_id).items())


class CheckpointWriter:
    """Packs snapshots in the background, in order. What waits is bounded: past that, training waits for it."""

    def __init__(
        self, on_packed: Callable[[Packed, int], None], on_failed: Callable[[Snapshot, int, Exception], None]
    ) -> None:
        self._on_packed = on_packed
        self._on_failed = on_failed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._waiting: deque[Future[None]] = deque()

    def submit(self, snapshot: Snapshot, *, epoch: int, vnodes: int) -> None:
        """`vnodes`: how many this host checkpoints in one round."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= _ROUNDS_PENDING_MAX * vnodes):
            self._waiting.popleft().result(timeout=WRITE_SECONDS_MAX)
        self._waiting.append(self._thread.submit(self._write, snapshot, epoch))

    def flush(self, seconds: float) -> None:
        """Returns when all that was submitted is told of."""
        while self._waiting:
            self._waiting[0].result(timeout=seconds)
            self._waiting.popleft()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _write(self, snapshot: Snapshot, epoch: int) -> None:
        try:
            packed = pack(snapshot)
        except Exception as error:
            self._on_failed(snapshot, epoch, error)
        else:
            self._on_packed(packed, epoch)


class CheckpointCache:
    """A host's own checkpoints, so that a survivor need not fetch what it made itself. Oldest go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._contents: OrderedDict[tuple[str, int], Packed] = OrderedDict()

    def put(self, packed: Packed) -> None:
        self._drop((packed.vnode_id, packed.step))
        self._contents[packed.vnode_id, packed.step] = packed
        self._size_bytes += len(packed.content)
        while self._size_bytes > self._bytes_max and self._contents:
            self._drop(next(iter(self._contents)))

    def find(self, vnode_id: str, step: int, sha256: str) -> bytes | None:
        """Only what is asked for by its hash: after a change of epoch a step can have been done again."""
        packed = self._contents.get((vnode_id, step))
        return packed.content if packed is not None and packed.sha256 == sha256 else None

    def forget_before(self, step: int) -> None:
        for key in [key for key in self._contents if key[1] < step]:
            self._drop(key)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def _drop(self, key: tuple[str, int]) -> None:
        packed = self._contents.pop(key, None)
        self._size_bytes -= len(packed.content) if packed else 0


def _read(content: bytes, vnode_id: str) -> dict[str, Tensor]:
    try:
        # Copies: safetensors hands out views into the bytes, at whatever place they lie.
        return {name: tensor.clone() for name, tensor in load(content).items()}
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointUnreadable(f"the checkpoint of VNode {vnode_id} is not readable: {error}") from error


def _name_some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN_MAX])
    return shown if len(names) <= _NAMES_SHOWN_MAX else f"{shown} and {len(names) - _NAMES_SHOWN_MAX} more"
