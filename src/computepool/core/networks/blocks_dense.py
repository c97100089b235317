"""Blocks that work on the last dimension or on each element: linear layers, norms over features, activations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from computepool.core.networks.block import (
    Block,
    ParameterSpec,
    eps_field,
    fields_of,
    flag_field,
    linear_parameters,
    need_floats,
    need_rank,
    norm_parameters,
    ratio_field,
    size_field,
    word_field,
)
from computepool.core.networks.fields import Field, FieldKind, Values
from computepool.core.networks.spec import TensorType

LINEAR_CALLS = 13
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")


class Linear(Block):
    name = "linear"
    fields = fields_of(features=size_field(), bias=flag_field(True))

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 1, names="at least one dimension")
        return TensorType((*inputs[0].shape[:-1], values.whole("features")))

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return linear_parameters("", inputs[0].shape[-1], values.whole("features"), bias=values.flag("bias"))

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 2 * inputs[0].element_count * values.whole("features")

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return LINEAR_CALLS


class Mlp(Block):
    """Linear layers with an activation between them, named as a Sequential of them is: 0, 2, 4 ..."""

    name = "mlp"
    fields = fields_of(
        hidden=Field(FieldKind.INTS, low=1),
        features=size_field(),
        activation=word_field("relu", *ACTIVATIONS),
    )

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 1, names="at least one dimension")
        return TensorType((*inputs[0].shape[:-1], values.whole("features")))

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        widths = self.widths(values, inputs[0])
        return [
            parameter
            for number, (narrow, wide) in enumerate(pairwise(widths))
            for parameter in linear_parameters(f"{2 * number}.", narrow, wide, bias=True)
        ]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        widths = self.widths(values, inputs[0])
        rows = inputs[0].element_count // widths[0]
        return rows * sum(2 * one * two for one, two in pairwise(widths))

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        # Each layer with its activation.
        return (LINEAR_CALLS + 4) * (len(values.ints("hidden")) + 1)

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        widths = self.widths(values, inputs[0])
        rows = inputs[0].element_count // widths[0]
        return 4 * rows * (2 * sum(widths[1:-1]) + widths[-1])

    @staticmethod
    def widths(values: Values, given: TensorType) -> tuple[int, ...]:
        return (given.shape[-1], *values.ints("hidden"), values.whole("features"))


class Elementwise(Block):
    """A function of each number."""

    def __init__(self, name: str, fields: dict[str, Field] | None = None, *, flops_each: int = 1) -> None:
        self.name = name
        self.fields = fields or {}
        self._flops_each = flops_each

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        return inputs[0]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return self._flops_each * inputs[0].element_count


class Softmax(Block):
    """Over the last dimension."""

    name = "softmax"

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 1, names="at least one dimension")
        return inputs[0]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 5 * inputs[0].element_count


class LayerNorm(Block):
    """Over the last dimension."""

    name = "layer_norm"
    fields = fields_of(eps=eps_field())

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 1, names="at least one dimension")
        return inputs[0]

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return norm_parameters("", inputs[0].shape[-1])

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 8 * inputs[0].element_count


DENSE: tuple[Block, ...] = (
    Linear(),
    Mlp(),
    LayerNorm(),
    Softmax(),
    Elementwise("relu"),
    Elementwise("gelu", {"approximate": word_field("none", "none", "tanh")}, flops_each=10),
    Elementwise("silu", flops_each=5),
    Elementwise("tanh", flops_each=5),
    Elementwise("sigmoid", flops_each=5),
    Elementwise("leaky_relu", {"slope": Field(FieldKind.FLOAT, 0.01, low=0.0, high=1.0)}),
    Elementwise("dropout", {"p": ratio_field()}, flops_each=3),
    Elementwise("identity", flops_each=0),
)
