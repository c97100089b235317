"""All that is random in a network is a function of its seed and of a name: no cut and no failure changes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isqrt

_MASK = (1 << 64) - 1
_ROUNDS = 6


def seed_of(seed: int, path: str, *parts: int | str) -> int:
    """63 bits that depend on every argument and on their order. Each part is told apart by kind and length."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, path, *parts):
        text = str(part).encode()
        digest.update(b"%c%d:" % (b"i" if isinstance(part, int) else b"s", len(text)))
        digest.update(text)
    return int.from_bytes(digest.digest(), "little") >> 1


def parameter_seed(seed: int, parameter: str) -> int:
    """Of the first values of a parameter, by its name in the uncut network: path, then name."""
    return seed_of(seed, parameter, "parameter")


def dropout_seed(seed: int, path: str, step: int, micro_batch: int) -> int:
    return seed_of(seed, path, "dropout", step, micro_batch)


def batch_indices(seed: int, step: int, size: int, batch: int) -> list[int]:
    """The samples of one step: every pass over the data is a permutation of its own, and passes follow each other."""
    places = range(step * batch, (step + 1) * batch)
    keys = {number: _round_keys(seed, number) for number in range(places[0] // size, places[-1] // size + 1)}
    return [_permute(place % size, size, keys[place // size]) for place in places]


def share_of(indices: Sequence[int], micro_batch: int, micro_batches: int) -> Sequence[int]:
    """The part of a step's samples that one micro-batch takes."""
    size = len(indices) // micro_batches
    return indices[micro_batch * size : (micro_batch + 1) * size]


def _round_keys(seed: int, pass_number: int) -> list[int]:
    return [seed_of(seed, "", "order", pass_number, number) for number in range(_ROUNDS)]


def _permute(position: int, size: int, keys: list[int]) -> int:
    """A Feistel network over a rectangle that just holds `size` places; whoever leaves `size` walks on.

    One index costs the same for any size, and no table of the data's length is kept.
    """
    width = isqrt(size - 1) + 1
    height = -(-size // width)
    while True:
        left, right = position % width, position // width
        for number, key in enumerate(keys):
            left, right = right, (left + _mix(right ^ key)) % (height if number % 2 else width)
        position = width * right + left
        if position < size:
            return position


def _mix(value: int) -> int:
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 32)
