"""Replicas that train on their own for some steps and then average (DiLoCo): for thin links, and not exact.

At the end of a round replica 0 takes the mean of all weights, makes one step with momentum from where the round began
towards it, and sends the result to all. What optimizers keep stays with each replica; a checkpoint holds replica 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# As published for DiLoCo: Nesterov momentum over rounds.
OUTER_RATE = 0.7
OUTER_MOMENTUM = 0.9


def is_round_over(local_steps: int, step: int) -> bool:
    """Whether replicas average after the update of this step."""
    return local_steps > 0 and (step + 1) % local_steps == 0


class OuterStep:
    """Of one VNode at replica 0: where its round began, and the momentum of rounds before it, as flat vectors."""

    def __init__(self, weights: Tensor) -> None:
        self.start = weights.clone()
        self.momentum = torch.zeros_like(weights)

    def average(self, replicas: Sequence[Tensor]) -> Tensor:
        """The weights that all replicas begin the next round with; the sum is made in the order of replicas."""
        total = replicas[0].clone()
        for weights in replicas[1:]:
            total += weights
        change = self.start - total / len(replicas)
        self.momentum.mul_(OUTER_MOMENTUM).add_(change)
        self.start -= OUTER_RATE * (change + OUTER_MOMENTUM * self.momentum)
        return self.start.clone()
