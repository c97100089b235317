"""The networks of tests as somebody would write them in plain PyTorch, and the loop that trains them.

Nothing here uses the modules, the optimizers or the graph of networks: of ours there are only the first weights, the
order of samples and the masks of dropout, which are functions that anybody can call.
"""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from computepool.core.networks.seeds import batch_indices, dropout_seed
from computepool.core.networks.spec import NetworkSpec, OptimizerKind, OptimizerSpec, Schedule
from computepool.node.vnodes.randomness import draw_mask
from tests.support.networks import FEATURES, POSITIONS, VOCABULARY


def write_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))


def write_conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 24)
        self.left = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.Tanh())
        self.right = nn.Sequential(nn.Linear(24, 24), nn.GELU())
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        return self.head(stem + self.left(stem) + self.right(stem))  # type: ignore[no-any-return]


class CharLm(nn.Module):
    """Pre-norm, causal, dropout in five places; `dropout` draws from the moment that the loop sets."""

    def __init__(self, seed: int, p: float = 0.1) -> None:
        super().__init__()
        self.seed, self.p = seed, p
        self.moment = (0, 0)
        self.tokens = nn.Embedding(VOCABULARY, FEATURES)
        self.positions = nn.ParameterDict({"weight": torch.zeros(POSITIONS, FEATURES)})
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(FEATURES, 2, 32, norm_first=True, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, VOCABULARY)

    def drop(self, given: Tensor, path: str) -> Tensor:
        if not self.training:
            return given
        return given * (draw_mask(given.shape, self.p, dropout_seed(self.seed, path, *self.moment)) / (1 - self.p))

    def attend(self, given: Tensor, layer: Any, path: str) -> Tensor:
        batch, positions, features = given.shape
        joined = functional.linear(given, layer.in_proj_weight, layer.in_proj_bias)
        query, key, value = (
            part.view(batch, positions, 2, features // 2).transpose(1, 2) for part in joined.split(features, dim=-1)
        )
        scores = query @ key.transpose(2, 3) * (1.0 / sqrt(features // 2))
        scores = scores + torch.full((positions, positions), float("-inf")).triu(1)
        weights = self.drop(functional.softmax(scores, dim=-1), f"{path}.dropout")
        mixed = (weights @ value).transpose(1, 2).reshape(batch, positions, features)
        return layer.out_proj(mixed)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        found = self.drop(self.tokens(x) + self.positions["weight"], "dropout")
        for number, layer in enumerate(self.blocks):
            path = f"blocks.{number}"
            attended = self.attend(layer.norm1(found), layer.self_attn, f"{path}.self_attn")
            found = found + self.drop(attended, f"{path}.dropout1")
            inner = self.drop(functional.gelu(layer.linear1(layer.norm2(found))), f"{path}.dropout")
            found = found + self.drop(layer.linear2(inner), f"{path}.dropout2")
        return self.head(self.norm(found))  # type: ignore[no-any-return]


def train_by_hand(
    model: nn.Module, spec: NetworkSpec, x: Tensor, y: Tensor, steps: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Gradients accumulated over micro-batches, torch's optimizer and torch's clipping."""
    optimizer = make_optimizer(spec.optimizer, model)
    count = spec.micro_batches
    losses = []
    for step in range(steps):
        indices = torch.tensor(batch_indices(spec.seed, step, len(x), spec.batch_size))
        total = 0.0
        optimizer.zero_grad()
        for number, chosen in enumerate(indices.split(spec.batch_size // count)):
            if isinstance(model, CharLm):
                model.moment = (step, number)
            scores = model(x[chosen])
            loss = functional.cross_entropy(scores.flatten(0, -2), y[chosen].flatten()) / count
            loss.backward()
            total += loss.item()
        if spec.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = schedule(spec.optimizer, step)
        optimizer.step()
        losses.append(total)
    return losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def schedule(optimizer: OptimizerSpec, step: int) -> float:
    if optimizer.schedule is Schedule.CONSTANT:
        return optimizer.lr
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / (optimizer.schedule_steps - optimizer.warmup_steps)
    low = optimizer.lr_end_ratio
    return optimizer.lr * (low + (1.0 - low) * (0.5 * (1.0 + cos(pi * min(1.0, done)))))


def make_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    if spec.kind is OptimizerKind.SGD:
        return torch.optim.SGD(model.parameters(), lr=spec.lr, momentum=spec.momentum)
    cls = torch.optim.Adam if spec.kind is OptimizerKind.ADAM else torch.optim.AdamW
    return cls(model.parameters(), lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
