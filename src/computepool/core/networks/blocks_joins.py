"""Blocks that join several inputs, that only change shapes, and the heads that a run is trained by."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from computepool.core.networks.block import Block, Misfit, fields_of, need_floats, need_rank
from computepool.core.networks.fields import Field, FieldKind, Values
from computepool.core.networks.spec import RANK_MAX, SLOTS_MAX, Dtype, TensorType


class Elementwise(Block):
    """Sum or product of inputs of one shape."""

    slots_min = 2
    slots_max = SLOTS_MAX

    def __init__(self, name: str) -> None:
        self.name = name

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        for slot, given in enumerate(inputs):
            if given != inputs[0]:
                raise Misfit(f"slot {slot} gets {given}, but slot 0 gets {inputs[0]}: they must be the same")
        return inputs[0]


class Concat(Block):
    """Along one dimension, the last unless told otherwise; the batch is not counted."""

    name = "concat"
    fields = fields_of(dim=Field(FieldKind.INT, -1, low=-RANK_MAX, high=RANK_MAX - 1))
    slots_min = 2
    slots_max = SLOTS_MAX

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        shape = list(inputs[0].shape)
        dim = count_dim(values.whole("dim"), inputs[0])
        for slot, given in enumerate(inputs):
            if [*given.shape[:dim], 0, *given.shape[dim + 1 :]] != [*shape[:dim], 0, *shape[dim + 1 :]]:
                raise Misfit(
                    f"slot {slot} gets {given}, which differs from slot 0, {inputs[0]}, beyond dimension {dim}"
                )
        shape[dim] = sum(given.shape[dim] for given in inputs)
        return TensorType(tuple(shape))


class Flatten(Block):
    """Everything but the batch into one dimension."""

    name = "flatten"

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        return TensorType((inputs[0].element_count,), inputs[0].dtype)

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 0

    def calls(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 3

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 0


class Reshape(Flatten):
    name = "reshape"
    fields = fields_of(shape=Field(FieldKind.INTS, low=1, length_max=RANK_MAX))

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        shape = values.ints("shape")
        if prod(shape) != inputs[0].element_count:
            raise Misfit(
                f"slot 0 gets {inputs[0]} with {inputs[0].element_count:,} numbers, but config.shape holds "
                f"{prod(shape):,}"
            )
        return TensorType(shape, inputs[0].dtype)


class Transpose(Block):
    """Two dimensions change places; the batch is not counted."""

    name = "transpose"
    fields = fields_of(dims=Field(FieldKind.INTS, low=-RANK_MAX, high=RANK_MAX - 1, length_min=2, length_max=2))

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        shape = list(inputs[0].shape)
        first, second = (count_dim(dim, inputs[0]) for dim in values.pair("dims"))
        shape[first], shape[second] = shape[second], shape[first]
        return TensorType(tuple(shape), inputs[0].dtype)

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 0


class Loss(Block):
    """What the network says in slot 0, what it should have said in slot 1; the mean over all of it."""

    slots_min = 2
    slots_max = 2
    is_loss = True

    def flops(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return 8 * inputs[0].element_count

    def kept_bytes(self, values: Values, inputs: Sequence[TensorType]) -> int:
        return inputs[0].size_bytes(1)


class CrossEntropy(Loss):
    """Classes in the last dimension of slot 0, the right one as a whole number in slot 1."""

    name = "cross_entropy"

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        scores, wanted = inputs
        need_floats([scores])
        need_rank(scores, 1, names="classes in the last dimension")
        if wanted.dtype not in (Dtype.I64, Dtype.I32) or wanted.shape != scores.shape[:-1]:
            right = TensorType(scores.shape[:-1], Dtype.I64)
            raise Misfit(f"slot 1 gets {wanted}, but to go with {scores} in slot 0 it takes {right}")
        return TensorType(())


class Difference(Loss):
    """Two tensors of one shape."""

    def __init__(self, name: str) -> None:
        self.name = name

    def infer(self, values: Values, inputs: Sequence[TensorType]) -> TensorType:
        need_floats(inputs)
        if inputs[0] != inputs[1]:
            raise Misfit(f"slot 1 gets {inputs[1]}, but slot 0 gets {inputs[0]}: they must be the same")
        return TensorType(())


def count_dim(dim: int, given: TensorType) -> int:
    """From the front, whichever end it was counted from."""
    rank = len(given.shape)
    if not -rank <= dim < rank:
        raise Misfit(f"slot 0 gets {given}, which has no dimension {dim} (the batch is not counted)")
    return dim % rank


JOINS: tuple[Block, ...] = (
    Elementwise("add"),
    Elementwise("mul"),
    Concat(),
    Flatten(),
    Reshape(),
    Transpose(),
    CrossEntropy(),
    Difference("mse"),
    Difference("bce"),
)
