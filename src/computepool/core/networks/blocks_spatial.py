"""Blocks for pictures: channels, height and width."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from computepool.core.networks.block import (
    ONES,
    ZEROS,
    Block,
    Init,
    Misfit,
    ParameterSpec,
    eps_field,
    fields_of,
    flag_field,
    need_floats,
    need_rank,
    norm_parameters,
    size_field,
)
from computepool.core.networks.fields import Field, FieldKind, Values
from computepool.core.networks.spec import Dtype, TensorType

_PICTURE = "channels, height and width"


def pair_field(default: int | None = None, *, low: int = 1, high: int = 4_096) -> Field:
    pair = None if default is None else (default, default)
    return Field(FieldKind.INTS, pair, low=low, high=high, length_min=2, length_max=2)


class Conv2d(Block):
    name = "conv2d"
    fields = fields_of(
        channels=size_field(),
        kernel=pair_field(),
        stride=pair_field(1),
        padding=pair_field(0, low=0),
        groups=size_field(1),
        bias=flag_field(True),
    )

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 3, 3, names=_PICTURE)
        channels, groups = inputs[0].shape[0], values.whole("groups")
        if channels % groups or values.whole("channels") % groups:
            raise Misfit(
                f"slot 0 gets {inputs[0]}, and neither its channels nor config.channels may break {groups} groups"
            )
        return TensorType((values.whole("channels"), *_slide(values, inputs[0])))

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        height, width = values.pair("kernel")
        narrow = inputs[0].shape[0] // values.whole("groups")
        near = Init(bound=1.0 / sqrt(narrow * height * width))
        found = [ParameterSpec("weight", (values.whole("channels"), narrow, height, width), near)]
        return [*found, ParameterSpec("bias", (values.whole("channels"),), near)] if values.flag("bias") else found

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        height, width = values.pair("kernel")
        narrow = inputs[0].shape[0] // values.whole("groups")
        return 2 * narrow * height * width * self.infer(values, inputs).element_count


class Pool2d(Block):
    """Strides as far as its kernel reaches unless told otherwise: a stride of 0 says so."""

    fields = fields_of(kernel=pair_field(), stride=pair_field(0, low=0), padding=pair_field(0, low=0))

    def __init__(self, name: str) -> None:
        self.name = name

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 3, 3, names=_PICTURE)
        if any(2 * pad > kernel for pad, kernel in zip(values.pair("padding"), values.pair("kernel"), strict=True)):
            raise Misfit("config.padding may be half of config.kernel at most")
        return TensorType((inputs[0].shape[0], *_slide(values, inputs[0])))

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        height, width = values.pair("kernel")
        return height * width * self.infer(values, inputs).element_count

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        # The output, and eight bytes for the place of each maximum.
        return 3 * self.infer(values, inputs).size_bytes(1)


class AdaptiveAvgPool2d(Block):
    """To a picture of the given size, whatever comes in."""

    name = "adaptive_avg_pool2d"
    fields = fields_of(size=pair_field())

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 3, 3, names=_PICTURE)
        return TensorType((inputs[0].shape[0], *values.pair("size")))

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return inputs[0].element_count


class BatchNorm(Block):
    """Over the micro-batch, by channel; keeps running figures for inference."""

    name = "batch_norm"
    fields = fields_of(
        eps=eps_field(),
        momentum=Field(FieldKind.FLOAT, 0.1, low=0.0, high=1.0),
    )
    keeps_statistics = True

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        if len(inputs[0].shape) not in (1, 3):
            raise Misfit(f"slot 0 gets {inputs[0]}, but it takes features, or {_PICTURE} (without the batch)")
        return inputs[0]

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return norm_parameters("", inputs[0].shape[0])

    def buffers(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        channels = inputs[0].shape[0]
        return [
            ParameterSpec("running_mean", (channels,), ZEROS),
            ParameterSpec("running_var", (channels,), ONES),
            ParameterSpec("num_batches_tracked", (), ZEROS, Dtype.I64),
        ]

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 8 * inputs[0].element_count


class GroupNorm(Block):
    name = "group_norm"
    fields = fields_of(groups=size_field(), eps=eps_field())

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        need_rank(inputs[0], 1, names="channels first")
        if inputs[0].shape[0] % values.whole("groups"):
            raise Misfit(f"slot 0 gets {inputs[0]}, whose channels do not split into {values.whole('groups')} groups")
        return inputs[0]

    def parameters(self, values: Values, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return norm_parameters("", inputs[0].shape[0])

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 8 * inputs[0].element_count


def _slide(values: Values, given: TensorType) -> tuple[int, ...]:
    """Height and width after a window has passed over the picture."""
    kernels = values.pair("kernel")
    strides = [stride or kernel for stride, kernel in zip(values.pair("stride"), kernels, strict=True)]
    sizes = [
        (size + 2 * pad - kernel) // stride + 1
        for size, pad, kernel, stride in zip(given.shape[1:], values.pair("padding"), kernels, strides, strict=True)
    ]
    if min(sizes) < 1:
        raise Misfit(f"slot 0 gets {given}, which is smaller than the kernel {kernels[0]} x {kernels[1]}")
    return tuple(sizes)


SPATIAL: tuple[Block, ...] = (
    Conv2d(),
    Pool2d("max_pool2d"),
    Pool2d("avg_pool2d"),
    AdaptiveAvgPool2d(),
    BatchNorm(),
    GroupNorm(),
)
