"""Trains a small neural network from scratch on two half moons; each slice tries one setting of the grid.

The number of the slice picks the learning rate and the width. The result is `result.json` with the loss curve
and the share of unseen points that the network puts into the right moon.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterator

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WIDTHS = (2, 4, 8, 16)
EPOCHS = 60
POINTS = 120


def numbers(seed: int) -> Iterator[float]:
    """Numbers in [-1, 1) from a fixed rule, so that every machine trains on the same points."""
    state = seed
    while True:
        state = (6364136223846793005 * state + 1442695040888963407) % (1 << 64)
        yield (state >> 11) / (1 << 52) - 1.0


def moons(count: int, noise: Iterator[float]) -> list[tuple[float, float, float]]:
    """Points (x, y) of two interleaved half circles, and 0 or 1 for which of them."""
    points = []
    for i in range(count):
        label = i % 2
        angle = math.pi * (i // 2) / (count // 2)
        x = math.cos(angle) if label == 0 else 1.0 - math.cos(angle)
        y = math.sin(angle) if label == 0 else 0.5 - math.sin(angle)
        points.append((x + 0.25 * next(noise) - 0.5, y + 0.25 * next(noise) - 0.25, float(label)))
    return points


class Network:
    """Two inputs, `width` tanh units, one sigmoid output; plain gradient descent, one point at a time."""

    def __init__(self, width: int, weights: Iterator[float]) -> None:
        self.into = [[next(weights) for _ in range(3)] for _ in range(width)]
        self.out = [next(weights) / math.sqrt(width) for _ in range(width)]
        self.bias = 0.0

    def look(self, x: float, y: float) -> tuple[list[float], float]:
        hidden = [math.tanh(a * x + b * y + c) for a, b, c in self.into]
        total = self.bias + sum(map(operator.mul, self.out, hidden))
        return hidden, 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))

    def learn(self, x: float, y: float, label: float, rate: float) -> float:
        hidden, guess = self.look(x, y)
        error = guess - label
        for i, h in enumerate(hidden):
            pull = error * self.out[i] * (1.0 - h * h)
            self.out[i] -= rate * error * h
            row = self.into[i]
            row[0] -= rate * pull * x
            row[1] -= rate * pull * y
            row[2] -= rate * pull
        self.bias -= rate * error
        right = guess if label else 1.0 - guess
        return -math.log(max(right, 1e-12))


def main() -> None:
    index = int(os.environ["COMPUTEPOOL_SLICE_INDEX"])
    rate, width = RATES[index % len(RATES)], WIDTHS[index // len(RATES) % len(WIDTHS)]
    chance = numbers(seed=20_250 + index)
    shared = numbers(seed=7)
    train, unseen = moons(POINTS, shared), moons(POINTS, shared)
    network = Network(width, chance)
    curve = []
    for epoch in range(EPOCHS):
        loss = sum(network.learn(x, y, label, rate) for x, y, label in train) / len(train)
        curve.append(round(loss, 5))
        if epoch % 15 == 14:
            print(f"epoch {epoch + 1:3d}  loss {loss:.4f}", flush=True)
    right = sum((network.look(x, y)[1] > 0.5) == (label > 0.5) for x, y, label in unseen)
    result = {"rate": rate, "width": width, "accuracy": right / len(unseen), "loss": curve}
    with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "result.json"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    print(f"rate {rate:g}, width {width}: {right} of {len(unseen)} unseen points right")


main()
