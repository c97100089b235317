"""The samples of a run, by the names of the spec's sources, and which of them each micro-batch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from computepool.core.errors import InvalidRequest
from computepool.core.networks.seeds import batch_indices, share_of
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.modules import TORCH_DTYPES


class Dataset:
    """Tensors of one length; a sample is what stands at one index in all of them."""

    def __init__(self, x: Tensor, y: Tensor | None = None, **more: Tensor) -> None:
        self.tensors: Mapping[str, Tensor] = {"x": x, **({} if y is None else {"y": y}), **more}
        self._check()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Dataset:
        """By names that need not be x and y."""
        found = cls.__new__(cls)
        found.tensors = dict(tensors)
        found._check()
        return found

    @classmethod
    def from_bytes(cls, content: bytes) -> Dataset:
        """A safetensors file, which holds tensors and no code."""
        try:
            return cls.from_tensors(load(content))
        except (SafetensorError, ValueError) as error:
            raise InvalidRequest(
                f"The data is not a safetensors file: {error}. Write it with Dataset.to_bytes."
            ) from None

    def to_bytes(self) -> bytes:
        return save({name: tensor.contiguous() for name, tensor in self.tensors.items()})

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def take(self, indices: Sequence[int], micro_batch: int, micro_batches: int) -> dict[str, Tensor]:
        """The share of one micro-batch of a step's samples, as tensors of their own."""
        chosen = torch.tensor(share_of(indices, micro_batch, micro_batches), dtype=torch.int64)
        return {name: tensor.index_select(0, chosen) for name, tensor in self.tensors.items()}

    def batch(self, spec: NetworkSpec, step: int, micro_batch: int) -> dict[str, Tensor]:
        """What one micro-batch of a step is fed: a function of the spec's seed, wherever it is computed."""
        indices = _recent_indices(spec.seed, step, len(self), spec.batch_size)
        return self.take(indices, micro_batch, spec.micro_batches)

    def _check(self) -> None:
        lengths = {name: len(tensor) if tensor.dim() else 0 for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InvalidRequest(
                f"All tensors need the same number of samples, at least one: {said or 'none is there'}."
            )


@lru_cache(maxsize=8)
def _recent_indices(seed: int, step: int, size: int, batch: int) -> tuple[int, ...]:
    """Kept because every micro-batch of a step asks for the same."""
    return tuple(batch_indices(seed, step, size, batch))


def list_data_faults(spec: NetworkSpec, data: Dataset) -> list[str]:
    """Where data and spec do not fit, each with the source's name."""
    faults = []
    for source in spec.sources:
        tensor = data.tensors.get(source.name)
        if tensor is None:
            faults.append(f"the data has no {source.name}; it has {', '.join(data.tensors)}")
        elif tensor.dtype != TORCH_DTYPES[source.type.dtype] or tuple(tensor.shape[1:]) != source.type.shape:
            given = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape[1:])}"
            faults.append(f"a sample of {source.name} is {given} in the data, but the network takes {source.type}")
        elif tensor.is_floating_point() and not tensor.isfinite().all():
            bad = (~tensor.isfinite()).reshape(len(tensor), -1).any(dim=1)
            first = int(bad.int().argmax())
            faults.append(f"{int(bad.sum()):,} samples of {source.name} hold NaN or infinity, the first is {first:,}")
    return faults
