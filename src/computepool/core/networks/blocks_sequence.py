"""Blocks for sequences: positions first, then features. The transformer is named as torch's encoder layer is."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from computepool.core.networks.block import (
    ZEROS,
    Block,
    Init,
    Misfit,
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
from computepool.core.networks.fields import Values
from computepool.core.networks.spec import Dtype, TensorType

_SEQUENCE = "positions and features"
_POSITIONS_SPREAD = 0.02
_LAYERS_MAX = 64


class Embedding(Block):
    """Whole numbers below `vocabulary` to vectors. Starts with variance 1, as torch's does."""

    name = "embedding"
    fields = fields_of(vocabulary=size_field(), features=size_field())

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        if inputs[0].dtype not in (Dtype.I64, Dtype.I32):
            raise Misfit(f"slot 0 gets {inputs[0]}, but it takes i64 or i32")
        return TensorType((*inputs[0].shape, values.whole("features")))

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return [
            ParameterSpec("weight", (values.whole("vocabulary"), values.whole("features")), Init(bound=sqrt(3.0)))
        ]


class Positional(Block):
    """Adds a learned vector to each position."""

    name = "positional"

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 2, 2, names=_SEQUENCE)
        return inputs[0]

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return [ParameterSpec("weight", inputs[0].shape, Init(bound=_POSITIONS_SPREAD * sqrt(3.0)))]


class Attention(Block):
    """Of a sequence to itself."""

    name = "attention"
    fields = fields_of(heads=size_field(high=1_024), causal=flag_field(False), dropout=ratio_field(0.0))

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        return infer_attention(values, inputs)

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return attention_parameters("", inputs[0].shape[-1])

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return attention_flops(inputs[0])

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return attention_calls(values)

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return attention_kept_bytes(values, inputs[0])


class Transformer(Block):
    """Norm, attention, add; norm, two linear layers, add."""

    name = "transformer"
    fields = fields_of(
        heads=size_field(high=1_024),
        hidden=size_field(),
        causal=flag_field(False),
        dropout=ratio_field(0.0),
        activation=word_field("gelu", "relu", "gelu"),
        eps=eps_field(),
    )

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        return infer_attention(values, inputs)

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        features, hidden = inputs[0].shape[-1], values.whole("hidden")
        return [
            *attention_parameters("self_attn.", features),
            *linear_parameters("linear1.", features, hidden, bias=True),
            *linear_parameters("linear2.", hidden, features, bias=True),
            *norm_parameters("norm1.", features),
            *norm_parameters("norm2.", features),
        ]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return attention_flops(inputs[0]) + inputs[0].element_count * (4 * values.whole("hidden") + 20)

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return attention_calls(values) + (60 if values.number("dropout") > 0 else 46)

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        positions, features = inputs[0].shape
        dropped = 3 if values.number("dropout") > 0 else 1
        return attention_kept_bytes(values, inputs[0]) + 4 * positions * (
            4 * features + (1 + dropped) * values.whole("hidden")
        )


class Recurrent(Block):
    """Reads a sequence in its order. Gives every position, or the last alone."""

    fields = fields_of(
        features=size_field(),
        layers=size_field(1, high=_LAYERS_MAX),
        sequence=flag_field(True),
    )

    def __init__(self, name: str, *, gates: int, calls_each: int) -> None:
        """`calls_each`: of the array library, for each position and layer."""
        self.name = name
        self._gates = gates
        self._calls_each = calls_each

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 2, 2, names=_SEQUENCE)
        features = values.whole("features")
        return TensorType((inputs[0].shape[0], features) if values.flag("sequence") else (features,))

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        features = values.whole("features")
        near, rows = Init(bound=1.0 / sqrt(features)), self._gates * features
        return [
            parameter
            for layer in range(values.whole("layers"))
            for parameter in (
                ParameterSpec(f"weight_ih_l{layer}", (rows, features if layer else inputs[0].shape[-1]), near),
                ParameterSpec(f"weight_hh_l{layer}", (rows, features), near),
                ParameterSpec(f"bias_ih_l{layer}", (rows,), near),
                ParameterSpec(f"bias_hh_l{layer}", (rows,), near),
            )
        ]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        weights = sum(each.element_count for each in self.parameters(values, inputs) if len(each.shape) == 2)
        return 2 * inputs[0].shape[0] * weights

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        # One position after the other.
        return self._calls_each * inputs[0].shape[0] * values.whole("layers")

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        each = (self._gates + 2) * values.whole("features")
        return 4 * inputs[0].shape[0] * values.whole("layers") * each


def infer_attention(values: Values, inputs: Sequence[TensorType]) -> TensorType:
    need_floats(inputs)
    need_rank(inputs[0], 2, 2, names=_SEQUENCE)
    if inputs[0].shape[1] % values.whole("heads"):
        raise Misfit(f"slot 0 gets {inputs[0]}, whose features do not split into {values.whole('heads')} heads")
    return inputs[0]


def attention_parameters(prefix: str, features: int) -> list[ParameterSpec]:
    return [
        ParameterSpec(f"{prefix}in_proj_weight", (3 * features, features), Init(bound=sqrt(6.0 / (4 * features)))),
        ParameterSpec(f"{prefix}in_proj_bias", (3 * features,), ZEROS),
        ParameterSpec(f"{prefix}out_proj.weight", (features, features), Init(bound=1.0 / sqrt(features))),
        ParameterSpec(f"{prefix}out_proj.bias", (features,), ZEROS),
    ]


def attention_flops(given: TensorType) -> int:
    positions, features = given.shape
    return positions * features * (8 * features + 4 * positions)


def attention_calls(values: Values) -> int:
    # With dropout the weights of all pairs of positions are made one step after the other, not in one call.
    return 92 if values.number("dropout") > 0 else 48


def attention_kept_bytes(values: Values, given: TensorType) -> int:
    positions, features = given.shape
    # Only with dropout are the weights of all pairs of positions kept: as scores, as mask and as their product.
    pairs = 3 * values.whole("heads") * positions * positions if values.number("dropout") > 0 else 0
    return 4 * (5 * positions * features + pairs)


SEQUENCE: tuple[Block, ...] = (
    Embedding(),
    Positional(),
    Attention(),
    Transformer(),
    Recurrent("rnn", gates=1, calls_each=20),
    Recurrent("lstm", gates=4, calls_each=2),
    Recurrent("gru", gates=3, calls_each=48),
)
