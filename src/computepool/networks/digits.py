"""A small network that learns digits which are drawn here: for demo and examples, with nothing to download."""

from __future__ import annotations

import torch
from torch import nn

from computepool.core.networks.spec import OptimizerKind, OptimizerSpec
from computepool.networks.network import Network
from computepool.node.vnodes.data import Dataset

# Five dots wide and seven high, row by row; each row is a number whose bits are the dots.
GLYPHS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
SIDE = 8


def draw_digits(samples: int = 2_000, *, seed: int = 1, noise: float = 0.4, flat: bool = True) -> Dataset:
    """Digits somewhere in a square of 8 by 8 dots, fainter or stronger, under seeded noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    across = torch.randint(0, SIDE - 5 + 1, (samples,), generator=generator)
    down = torch.randint(0, SIDE - 7 + 1, (samples,), generator=generator)
    strength = 0.6 + 0.4 * torch.rand(samples, generator=generator)
    glyphs = torch.tensor([[[row >> (4 - dot) & 1 for dot in range(5)] for row in glyph] for glyph in GLYPHS])
    images = noise * torch.randn(samples, SIDE, SIDE, generator=generator)
    for number in range(samples):
        top, left = int(down[number]), int(across[number])
        images[number, top : top + 7, left : left + 5] += strength[number] * glyphs[labels[number]]
    return Dataset(images.reshape(samples, -1) if flat else images.unsqueeze(1), labels)


def make_digits(*, width: int = 64, lr: float = 0.1, momentum: float = 0.9, checkpoint_every: int = 20) -> Network:
    """Three layers that look at what `draw_digits` draws."""
    module = nn.Sequential(
        nn.Linear(SIDE * SIDE, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, len(GLYPHS)),
    )
    return Network.from_torch(
        module,
        sources={"x": f"f32[{SIDE * SIDE}]", "y": "i64[]"},
        loss="cross_entropy",
        name="digits-mlp",
        optimizer=OptimizerSpec(OptimizerKind.SGD, lr=lr, momentum=momentum),
        seed=5,
        batch_size=32,
        micro_batches=4,
        checkpoint_every=checkpoint_every,
    )
