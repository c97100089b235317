"""Weights as a file that any program reads: safetensors, under the names of the uncut network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor


def write_weights(state: Mapping[str, Tensor], path: Path) -> int:
    """How many tensors were written."""
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in state.items()}))
    return len(state)
