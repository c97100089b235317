"""Samples for the networks of tests: drawn from a seed, with something in them to learn."""

from __future__ import annotations

import torch

from computepool.core.networks.spec import Dtype, NetworkSpec
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.modules import TORCH_DTYPES

CLASSES = 10


def make_dataset(spec: NetworkSpec, size: int = 40) -> Dataset:
    """Whole numbers below ten; what is wanted follows from what is given."""
    generator = torch.Generator().manual_seed(1)
    x, y = spec.sources
    shape = (size, *x.type.shape)
    if x.type.dtype is Dtype.F32:
        given = torch.randn(shape, generator=generator)
        wanted = (given.reshape(size, -1)[:, :3].sum(1) * 3).long().remainder(CLASSES)
    else:
        given = torch.randint(0, CLASSES, shape, generator=generator, dtype=TORCH_DTYPES[x.type.dtype])
        wanted = given.roll(-1, 1)
    return Dataset(given, wanted.to(TORCH_DTYPES[y.type.dtype]))


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether both have the same names, and under each the same bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )
