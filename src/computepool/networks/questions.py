"""Files of samples, asked of a run batch by batch, and the file of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from computepool.core.errors import InvalidRequest

if TYPE_CHECKING:
    from computepool.networks.remote import HubRun

OUTPUT = "output"


def answer_file(run: HubRun, inputs: Path, file: Path, *, checkpoint_step: int, batch_size: int) -> tuple[int, int]:
    """How many samples were answered, and at which checkpoint."""
    try:
        tensors = load(inputs.read_bytes())
    except SafetensorError as error:
        raise InvalidRequest(f"{inputs} is no safetensors file: {error}.") from None
    counts = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors.values()}
    if len(counts) != 1 or 0 in counts:
        raise InvalidRequest(f"The tensors of {inputs} must have the same number of samples, and at least one.")
    [count] = counts
    batches = (
        {name: tensor[start : start + batch_size].contiguous() for name, tensor in tensors.items()}
        for start in range(0, count, batch_size)
    )
    answers = list(run.infer_stream(batches, checkpoint_step=checkpoint_step))
    file.write_bytes(save({OUTPUT: torch.cat(answers)}))
    return count, run.inference.checkpoint_step
