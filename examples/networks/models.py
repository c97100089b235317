"""Four small networks and what they learn: digits that are drawn here, and a text that comes with the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from computepool.core.networks.spec import OptimizerKind, OptimizerSpec, Schedule
from computepool.networks import Dataset, Network, Positional, Residual, Transformer
from computepool.networks.digits import SIDE, draw_digits, make_digits

TEXT = Path(__file__).parents[2] / "docs" / "concepts" / "market.md"
POSITIONS = 32
# Line break and printable ASCII; whatever else stands in the text is read as a blank.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))

_STEPS: dict[str, Any] = {"seed": 5, "batch_size": 32, "micro_batches": 4, "checkpoint_every": 20}


def read_text(path: Path = TEXT, *, step: int = 3) -> Dataset:
    """Windows of the text, each with the same window one character later."""
    known = {character: number for number, character in enumerate(CHARACTERS)}
    codes = torch.tensor([known.get(character, known[" "]) for character in path.read_text(encoding="utf-8")])
    starts = range(0, len(codes) - POSITIONS - 1, step)
    return Dataset(
        torch.stack([codes[start : start + POSITIONS] for start in starts]),
        torch.stack([codes[start + 1 : start + POSITIONS + 1] for start in starts]),
    )


def make_mlp(width: int = 64) -> tuple[Network, Dataset]:
    return make_digits(width=width), draw_digits()


def make_conv() -> tuple[Network, Dataset]:
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )
    network = Network.from_torch(
        module,
        sources={"x": f"f32[1,{SIDE},{SIDE}]", "y": "i64[]"},
        loss="cross_entropy",
        name="digits-conv",
        optimizer=OptimizerSpec(OptimizerKind.ADAM, lr=0.003),
        **_STEPS,
    )
    return network, draw_digits(flat=False)


def make_residual(width: int = 48) -> tuple[Network, Dataset]:
    """A branching graph: the cut goes through the residuals, so that two ways meet on another machine."""

    def block() -> Residual:
        return Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    module = nn.Sequential(nn.Linear(SIDE * SIDE, width), block(), block(), nn.LayerNorm(width), nn.Linear(width, 10))
    network = Network.from_torch(
        module,
        sources={"x": f"f32[{SIDE * SIDE}]", "y": "i64[]"},
        loss="cross_entropy",
        split=["1.inner.1", "1.inner.3", "2.inner.1", "4"],
        name="digits-residual",
        optimizer=OptimizerSpec(OptimizerKind.ADAMW, lr=0.003, weight_decay=0.01),
        **_STEPS,
    )
    return network, draw_digits()


def make_chars(features: int = 48, layers: int = 2, steps: int = 400, **options: Any) -> tuple[Network, Dataset]:
    """A character-level transformer with dropout, a schedule and clipping by the norm of all gradients."""
    module = nn.Sequential(
        nn.Embedding(len(CHARACTERS), features),
        Positional(POSITIONS, features),
        *(Transformer(features, heads=4, hidden=2 * features, causal=True, dropout=0.1) for _ in range(layers)),
        nn.LayerNorm(features),
        nn.Linear(features, len(CHARACTERS)),
    )
    network = Network.from_torch(
        module,
        sources={"x": f"i64[{POSITIONS}]", "y": f"i64[{POSITIONS}]"},
        loss="cross_entropy",
        name="chars",
        optimizer=OptimizerSpec(
            OptimizerKind.ADAMW,
            lr=0.005,
            weight_decay=0.01,
            schedule=Schedule.COSINE,
            warmup_steps=20,
            schedule_steps=steps,
            lr_end_ratio=0.1,
            clip_norm=1.0,
        ),
        **{**_STEPS, **options},
    )
    return network, read_text()


MAKERS = {"mlp": make_mlp, "conv": make_conv, "residual": make_residual, "chars": make_chars}
