"""What a network is: typed blocks (VNodes), edges between their slots, a loss, an optimizer and how a run is cut.

A spec carries names and figures only, never code. `spec_json.py` reads and writes it, `faults.py` says all that is
wrong with one, `shapes.py` what flows along its edges, `blocks.py` which blocks there are, `cost.py` what they cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod

VNODES_MAX = 2_000
EDGES_MAX = 20_000
SOURCES_MAX = 16
SLOTS_MAX = 64
RANK_MAX = 8
DIMENSION_MAX = 1 << 31
BATCH_SIZE_MAX = 1 << 20
MICRO_BATCHES_MAX = 1_024
REPLICAS_MAX = 64
CHECKPOINT_EVERY_MAX = 100_000
LOCAL_STEPS_MAX = 10_000
STEPS_MAX = 100_000_000
SEED_MAX = (1 << 63) - 1
NAME_LENGTH_MAX = 200
PATH_LENGTH_MAX = 256
NESTING_MAX = 8
LAYERS_MAX = 10_000
CONFIG_BYTES_MAX = 65_536
SPEC_BYTES_MAX = 8_000_000
# Of all parameters together, of one tensor among them, and of what one micro-batch sends along one edge.
PARAMETERS_MAX = 100_000_000_000
PARAMETER_BYTES_MAX = 8 << 30
EDGE_BYTES_MAX = 256 << 20

SOURCE_MARK = "@"

_VNODE_ID = re.compile(r"[a-z0-9_.-]{1,64}\Z")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")
_SOURCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_TENSOR_TYPE = re.compile(r"([a-z0-9]+)\[([0-9]{1,12}(?:,[0-9]{1,12})*)?\]\Z")

Scalar = int | float | bool | str
ConfigValue = Scalar | tuple["ConfigValue", ...] | Mapping[str, "ConfigValue"]
Config = Mapping[str, ConfigValue]


class Dtype(str, Enum):
    """The value is the wire string."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    BOOL = "bool"

    @property
    def size_bytes(self) -> int:
        return _SIZES_BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (Dtype.F32, Dtype.F16, Dtype.BF16)


_SIZES_BYTES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2, Dtype.I64: 8, Dtype.I32: 4, Dtype.BOOL: 1}


@dataclass(frozen=True, slots=True)
class TensorType:
    """What one sample is: the batch dimension comes in front of `shape` and is not part of it."""

    shape: tuple[int, ...]
    dtype: Dtype = Dtype.F32

    @property
    def element_count(self) -> int:
        return prod(self.shape)

    def size_bytes(self, samples: int) -> int:
        return samples * self.element_count * self.dtype.size_bytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


def find_tensor_type(text: str) -> TensorType | None:
    """`f32[3,8,8]` or `i64[]`, as `str` writes it; None if it is neither."""
    match = _TENSOR_TYPE.match(text)
    if match is None or match[1] not in {dtype.value for dtype in Dtype}:
        return None
    return TensorType(tuple(int(part) for part in (match[2] or "").split(",") if part), Dtype(match[1]))


@dataclass(frozen=True, slots=True)
class VNodeSpec:
    id: str
    # A name in the registry of blocks.
    block: str
    config: Config = field(default_factory=dict)
    # Where the module stands in the uncut network: names of parameters and everything random follow from it. Left
    # empty, it is the id.
    path: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", self.id)


@dataclass(frozen=True, slots=True)
class Edge:
    """From an output slot to an input slot. A source is named with a mark: `@x`."""

    source: str
    target: str
    source_slot: int = 0
    target_slot: int = 0

    @property
    def source_name(self) -> str | None:
        """Of the source that feeds this edge; None if a VNode does."""
        return self.source[1:] if self.source.startswith(SOURCE_MARK) else None

    def __str__(self) -> str:
        return f"{self.source}:{self.source_slot} -> {self.target}:{self.target_slot}"


@dataclass(frozen=True, slots=True)
class Source:
    """What a run feeds in from its data, by the name of a tensor there: usually "x" and "y"."""

    name: str
    type: TensorType


class OptimizerKind(str, Enum):
    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class Schedule(str, Enum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """As in torch.optim, plus a schedule that is a function of the step and nothing else."""

    kind: OptimizerKind = OptimizerKind.SGD
    lr: float = 0.01
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    # Steps over which the rate climbs from zero.
    warmup_steps: int = 0
    # The step at which linear and cosine have come down; a run may go on, at what they came down to.
    schedule_steps: int = 0
    # What they come down to, as a part of lr.
    lr_end_ratio: float = 0.0
    # The norm of all gradients together that is not passed; None: no clipping.
    clip_norm: float | None = None


class Exactness(str, Enum):
    """Whether a run waits for a spare of its numeric class, or goes on and says from where it is no longer exact."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class TrustPolicy(str, Enum):
    """Whether PNodes that are trusted get seats before others, and among them what tells the curve."""

    ANY = "any"
    TRUSTED_FIRST = "trusted_first"


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    name: str
    vnodes: tuple[VNodeSpec, ...]
    edges: tuple[Edge, ...]
    sources: tuple[Source, ...]
    # The VNode that is the loss head: its output is one number per micro-batch.
    loss: str
    # The VNode and slot that inference returns.
    output: tuple[str, int]
    seed: int = 0
    optimizer: OptimizerSpec = OptimizerSpec()
    # Samples per step, over all micro-batches and replicas.
    batch_size: int = 32
    micro_batches: int = 1
    replicas: int = 1
    # Steps between checkpoints.
    checkpoint_every: int = 20
    # What crosses an edge between hosts: f32 or bf16. Anything but f32 is not exact.
    wire: Dtype = Dtype.F32
    exact: Exactness = Exactness.PREFERRED
    trust: TrustPolicy = TrustPolicy.ANY
    # Steps that replicas take on their own before they average (DiLoCo); above zero nothing is exact.
    local_steps: int = 0

    def __post_init__(self) -> None:
        # Their order says nothing: equal networks are to be equal values, and to have one text.
        place = {vnode.id: index for index, vnode in enumerate(self.vnodes)}
        ordered = sorted(
            self.edges,
            key=lambda edge: (place.get(edge.target, len(place)), edge.target_slot, edge.source, edge.source_slot),
        )
        object.__setattr__(self, "edges", tuple(ordered))

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // self.micro_batches

    @property
    def promises_exactness(self) -> bool:
        """Whether the curve of a run within one numeric class is that of the reference, bit for bit."""
        return self.wire is Dtype.F32 and self.local_steps == 0

    @property
    def trusts_first(self) -> bool:
        return self.trust is TrustPolicy.TRUSTED_FIRST

    def vnode(self, vnode_id: str) -> VNodeSpec:
        return next(vnode for vnode in self.vnodes if vnode.id == vnode_id)


def is_vnode_id(text: str) -> bool:
    return _VNODE_ID.match(text) is not None


def is_source_name(text: str) -> bool:
    return _SOURCE_NAME.match(text) is not None


def is_path(text: str) -> bool:
    """Whether it can be the name of a module: parts of letters, digits, `_` and `-`, with dots between them."""
    return len(text) <= PATH_LENGTH_MAX and _PATH.match(text) is not None
