"""What every block can say of itself: its fields, what it makes of its inputs, its parameters and its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from types import MappingProxyType

from computepool.core.networks.fields import Field, FieldKind, Values
from computepool.core.networks.spec import DIMENSION_MAX, RANK_MAX, Dtype, TensorType


class Misfit(ValueError):
    """Inputs that a block cannot take; the message says what it takes."""


@dataclass(frozen=True, slots=True)
class Init:
    """First values: uniform within `bound` of `center`. Nothing but uniform draws and products of them, so that the
    start of a network has the same bits on every machine."""

    center: float = 0.0
    bound: float = 0.0


ZEROS = Init()
ONES = Init(center=1.0)


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter or a buffer. The name begins at the block; `place` puts the block's path in front of it."""

    name: str
    shape: tuple[int, ...]
    init: Init
    dtype: Dtype = Dtype.F32

    @property
    def element_count(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.element_count * self.dtype.size_bytes

    def place(self, path: str) -> ParameterSpec:
        return ParameterSpec(f"{path}.{self.name}", self.shape, self.init, self.dtype)


class Block:
    """One kind of block. Subclasses state what differs; all figures are for one sample."""

    name: str
    fields: Mapping[str, Field] = MappingProxyType({})
    # How many input slots, least and most.
    slots_min: int = 1
    slots_max: int = 1
    is_loss: bool = False
    # Its output depends on the other samples of the micro-batch, and on those before them.
    keeps_statistics: bool = False

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        """What the one output slot gives; raises Misfit."""
        raise NotImplementedError

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return []

    def buffers(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return []

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        """Of the forward pass: a multiplication with its addition counts two."""
        return self.infer(values, inputs).element_count

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        """Of the array library, forward and backward, whatever the number of samples."""
        return 4

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        """What stays in memory between forward and backward, without the inputs."""
        return self.infer(values, inputs).size_bytes(1)


def fields_of(**fields: Field) -> Mapping[str, Field]:
    return MappingProxyType(fields)


def size_field(default: int | None = None, *, low: int = 1, high: int = DIMENSION_MAX) -> Field:
    return Field(FieldKind.INT, default, low=low, high=high)


def flag_field(default: bool) -> Field:
    return Field(FieldKind.BOOL, default)


def ratio_field(default: float | None = None) -> Field:
    """From 0 up to, but without, 1."""
    return Field(FieldKind.FLOAT, default, low=0.0, high=1.0 - 1e-6)


def word_field(default: str, *choices: str) -> Field:
    return Field(FieldKind.TEXT, default, choices=choices)


def eps_field(default: float = 1e-5) -> Field:
    return Field(FieldKind.FLOAT, default, low=1e-12, high=1.0)


def need_floats(inputs: Sequence[TensorType]) -> None:
    for slot, given in enumerate(inputs):
        if given.dtype is not Dtype.F32:
            raise Misfit(f"slot {slot} gets {given}, but it takes f32")


def need_rank(given: TensorType, low: int, high: int = RANK_MAX, *, names: str) -> None:
    if not low <= len(given.shape) <= high:
        raise Misfit(f"slot 0 gets {given}, but it takes {names} (without the batch)")


def linear_parameters(prefix: str, features_in: int, features: int, *, bias: bool) -> list[ParameterSpec]:
    """As torch's Linear starts: uniform within 1 / sqrt(inputs)."""
    near = Init(bound=1.0 / sqrt(features_in))
    found = [ParameterSpec(f"{prefix}weight", (features, features_in), near)]
    return [*found, ParameterSpec(f"{prefix}bias", (features,), near)] if bias else found


def norm_parameters(prefix: str, features: int) -> list[ParameterSpec]:
    return [ParameterSpec(f"{prefix}weight", (features,), ONES), ParameterSpec(f"{prefix}bias", (features,), ZEROS)]
