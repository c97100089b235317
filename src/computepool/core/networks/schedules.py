"""The learning rate as a function of the step, and the loss of a step from those of its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, fsum, pi

from computepool.core.networks.spec import OptimizerSpec, Schedule


def rate_at(optimizer: OptimizerSpec, step: int) -> float:
    """For the update that ends this step; steps count from 0."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    if optimizer.schedule is Schedule.CONSTANT:
        return optimizer.lr
    done_ratio = min(1.0, (step - optimizer.warmup_steps) / (optimizer.schedule_steps - optimizer.warmup_steps))
    left_ratio = 0.5 * (1.0 + cos(pi * done_ratio)) if optimizer.schedule is Schedule.COSINE else 1.0 - done_ratio
    return optimizer.lr * (optimizer.lr_end_ratio + (1.0 - optimizer.lr_end_ratio) * left_ratio)


def total_loss(parts: Sequence[float]) -> float:
    """Of a step, from each micro-batch's loss after division by their number: rounded once, so in any order."""
    return fsum(parts)
