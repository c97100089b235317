"""Draws that depend on a seed alone: not on a global generator, nor on what was drawn or built before.

Philox is counted, not shaken: the same seed gives the same words on every machine and with every version. They are
drawn on the CPU, so that the device does not matter either.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from computepool.core.networks.block import Init
from computepool.core.networks.seeds import dropout_seed

# Words of 32 bits per piece, so that the first values of a large parameter need little room beside it.
_PIECE_WORDS = 1 << 20
_FLOAT_BITS = 24


def draw_init(init: Init, shape: tuple[int, ...], seed: int) -> Tensor:
    """First values of a parameter: by operations that every machine rounds alike."""
    if init.bound == 0.0:
        return torch.full(shape, init.center)
    values = np.empty(prod(shape), dtype=np.float32)
    generator = np.random.Philox(key=seed)
    for start in range(0, len(values), _PIECE_WORDS):
        piece = values[start : start + _PIECE_WORDS]
        # From -1 up to, but without, 1 in steps of 2**-23: so far nothing is rounded.
        np.copyto(piece, _draw_words(generator, len(piece)) >> (32 - _FLOAT_BITS))
        piece *= np.float32(2.0 ** (1 - _FLOAT_BITS))
        piece -= np.float32(1.0)
        piece *= np.float32(init.bound)
        piece += np.float32(init.center)
    return torch.from_numpy(values).reshape(shape)


def draw_mask(shape: torch.Size, p: float, seed: int) -> Tensor:
    """Ones, and zeros with probability p."""
    words = _draw_words(np.random.Philox(key=seed), shape.numel())
    return torch.from_numpy((words >= np.uint32(p * 2.0**32)).astype(np.float32)).reshape(shape)


def _draw_words(generator: np.random.Philox, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    pairs = np.asarray(generator.random_raw((count + 1) // 2), dtype="<u8")
    return pairs.view("<u4")[:count].astype(np.uint32, copy=False)


@dataclass(slots=True)
class Moment:
    """Which micro-batch of which step is being computed; all dropouts of a module look at one."""

    step: int = 0
    micro_batch: int = 0


class SeededDropout(nn.Module):
    """Dropout whose mask is a function of (seed, path, step, micro-batch), once it is placed in a network.

    In somebody's own module, which has none of these, it draws as torch's Dropout does.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self._place: tuple[int, str, Moment] | None = None

    def place(self, seed: int, path: str, moment: Moment) -> None:
        """Tells it where it stands in the uncut network."""
        self._place = seed, path, moment

    @property
    def is_active(self) -> bool:
        return self.training and self.p > 0.0

    def forward(self, given: Tensor) -> Tensor:
        if not self.is_active:
            return given
        if self._place is None:
            return functional.dropout(given, self.p)
        seed, path, moment = self._place
        seed = dropout_seed(seed, path, moment.step, moment.micro_batch)
        mask = draw_mask(given.shape, self.p, seed).to(given.device)
        return given * mask.div_(1.0 - self.p)
