"""What hosts say to each other about tensors: the head of a frame, its bytes, and the checks that every frame passes.

Whoever sends is `source` and whoever receives is `target`, also of a gradient, which flows against its edge. Tensors
cross as raw little-endian bytes. A frame that fails a check is refused with a reason and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import EDGE_BYTES_MAX, RANK_MAX, Dtype

TORCH_TYPES = {
    Dtype.F32: torch.float32,
    Dtype.F16: torch.float16,
    Dtype.BF16: torch.bfloat16,
    Dtype.I64: torch.int64,
    Dtype.I32: torch.int32,
    Dtype.BOOL: torch.bool,
}
_DTYPES = {torch_type: dtype for dtype, torch_type in TORCH_TYPES.items()}


class FrameKind(str, Enum):
    # What flows along an edge, and against it.
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    # Norms of gradients to the host of the loss, and the norm of all of them back.
    NORMS = "norms"
    TOTAL = "total"
    # Gradients or weights (slot 0) and losses (slot 1) of a replica to replica 0, and what comes of them back.
    REDUCE = "reduce"
    REDUCED = "reduced"
    INFERENCE = "inference"


class FrameHead(NamedTuple):
    run_id: str
    epoch: int
    kind: FrameKind
    source: str
    source_slot: int
    target: str
    target_slot: int
    # Of the pipeline that it belongs to; of a sum, the replica that sends it or that it is meant for.
    replica: int
    # Of the VNode that sends.
    incarnation: int
    # Of an inference: the checkpoint's step, and the number of the request.
    step: int
    micro_batch: int
    dtype: Dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.kind.value} {self.source}:{self.source_slot} -> {self.target}:{self.target_slot}, "
            f"step {self.step}, micro-batch {self.micro_batch}"
        )


class Outgoing(NamedTuple):
    """A frame and the seat that it must reach. The tensor is dense and has the dtype that the head names."""

    seat: SeatId
    head: FrameHead
    tensor: Tensor


class RefusalCode(str, Enum):
    FOREIGN_RUN = "foreign_run"
    STALE_EPOCH = "stale_epoch"
    STALE_INCARNATION = "stale_incarnation"
    TOO_EARLY = "too_early"
    NO_SUCH_EDGE = "no_such_edge"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_SHAPE = "wrong_shape"
    TOO_LARGE = "too_large"
    NOT_FINITE = "not_finite"
    NORM_TOO_LARGE = "norm_too_large"
    # Of a step or micro-batch that is over, or that came already.
    REPEATED = "repeated"
    # Further ahead than an honest neighbour can be.
    TOO_FAR_AHEAD = "too_far_ahead"
    NOT_PREPARED = "not_prepared"


# What a neighbour's delay, restart or resend explains. The rest means that somebody computes or speaks wrongly.
HARMLESS = frozenset({RefusalCode.STALE_EPOCH, RefusalCode.STALE_INCARNATION, RefusalCode.REPEATED})


@dataclass(frozen=True, slots=True)
class Refusal:
    code: RefusalCode
    message: str

    @property
    def is_harmless(self) -> bool:
        return self.code in HARMLESS


@dataclass(frozen=True, slots=True)
class FrameLimits:
    bytes_max: int = EDGE_BYTES_MAX
    # Root mean square of a tensor's elements: a network that gives more has diverged, or somebody makes it up.
    rms_max: float = 1e9
    # Kept of an epoch that was not prepared yet.
    early_frames_max: int = 1_024
    early_bytes_max: int = 256 << 20


class NumbersWentWrong(Exception):
    """NaN, infinity, or numbers so large that they are about to be. Names the first VNode that gave them."""

    def __init__(self, vnode_id: str, message: str) -> None:
        super().__init__(message)
        self.vnode_id = vnode_id


# For numbers that may be large, such as a loss, but never NaN or infinite.
ANY_SIZE = FrameLimits(rms_max=torch.finfo(torch.float32).max)


def to_bytes(tensor: Tensor) -> memoryview:
    """Raw little-endian bytes, without a copy where the tensor is dense and the machine is little-endian."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if sys.byteorder == "big" and flat.element_size() > 1:
        flat = _swap(flat)
    return flat.view(torch.uint8).numpy().data


def find_tensor_fault(dtype: str, shape: Sequence[int], size_bytes: int, limits: FrameLimits) -> Refusal | None:
    """What is wrong with a head before a single byte is reserved for its tensor; None if nothing is."""
    if dtype not in {each.value for each in Dtype}:
        return Refusal(RefusalCode.WRONG_DTYPE, f"dtype {dtype[:16]!r} is not known; use one of {_name_dtypes()}")
    if len(shape) > RANK_MAX + 1 or any(length < 0 for length in shape):
        return Refusal(RefusalCode.WRONG_SHAPE, f"shape {list(shape)[:RANK_MAX]} is not a shape")
    expected_bytes = prod(shape) * Dtype(dtype).size_bytes
    if expected_bytes > limits.bytes_max:
        return Refusal(RefusalCode.TOO_LARGE, f"a tensor of {expected_bytes} bytes; at most {limits.bytes_max}")
    if expected_bytes != size_bytes:
        return Refusal(RefusalCode.WRONG_SHAPE, f"{size_bytes} bytes for a tensor of {expected_bytes} bytes")
    return None


def to_tensor(content: bytes | bytearray | memoryview, dtype: Dtype, shape: Sequence[int]) -> Tensor:
    """A tensor in memory of its own: where bytes lie must not decide how a kernel adds them up.

    Its head has passed `find_tensor_fault`.
    """
    flat = torch.empty(prod(shape), dtype=TORCH_TYPES[dtype])
    flat.view(torch.uint8).numpy().data[:] = memoryview(content).cast("B")
    if sys.byteorder == "big" and flat.element_size() > 1:
        flat = _swap(flat)
    return flat.view(tuple(shape))


def name_dtype(tensor: Tensor) -> Dtype:
    return _DTYPES[tensor.dtype]


def check_numbers(tensor: Tensor, limits: FrameLimits) -> tuple[RefusalCode, str] | None:
    """Whether all is finite and no larger than training can make it, in one pass: one NaN makes a norm NaN."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    norm = torch.linalg.vector_norm(tensor, dtype=torch.float32).item()
    rms = norm / tensor.numel() ** 0.5
    if rms <= limits.rms_max:
        return None
    if norm != norm or not torch.isfinite(tensor).all():
        return RefusalCode.NOT_FINITE, "it holds NaN or infinity"
    return RefusalCode.NORM_TOO_LARGE, f"its root mean square is {rms:.3g}; at most {limits.rms_max:.3g}"


def _swap(flat: Tensor) -> Tensor:
    return torch.from_numpy(flat.numpy().byteswap())


def _name_dtypes() -> str:
    return ", ".join(dtype.value for dtype in Dtype)
