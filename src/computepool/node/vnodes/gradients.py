"""Parts that arrive in any order and are put together in one: what makes the sum of gradients the same every time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

Name = TypeVar("Name", bound=Hashable)
Part = TypeVar("Part")

# Step and micro-batch.
Moment = tuple[int, int]


class Gathering(Generic[Name, Part]):
    """For each moment the same named parts. They may come early and mixed; they are taken together, in order."""

    __slots__ = ("_names", "_open")

    def __init__(self, names: Sequence[Name]) -> None:
        self._names = tuple(names)
        self._open: dict[Moment, dict[Name, Part]] = {}

    def put(self, moment: Moment, name: Name, part: Part) -> bool:
        """False if this part is there already; the first one stays."""
        parts = self._open.setdefault(moment, {})
        if name in parts:
            return False
        parts[name] = part
        return True

    def is_complete(self, moment: Moment) -> bool:
        return len(self._open.get(moment, ())) == len(self._names)

    def take(self, moment: Moment) -> list[Part]:
        """All parts of a complete moment, in the order of their names; they are forgotten here."""
        parts = self._open.pop(moment, {})
        return [parts[name] for name in self._names]

    def missing(self, moment: Moment) -> list[Name]:
        parts = self._open.get(moment, {})
        return [name for name in self._names if name not in parts]

    def __len__(self) -> int:
        """Moments of which something is there."""
        return len(self._open)


def add_in_order(parts: Sequence[Tensor | None]) -> Tensor | None:
    """((a + b) + c): the order decides the bits. Parts that gave no gradient are left out, as autograd does."""
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    total = given[0] + given[1]
    for part in given[2:]:
        total += part
    return total


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One dense vector of all, so that a VNode's gradients cross in one frame."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse, each in memory of its own."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.clone().view_as(tensor) for piece, tensor in zip(pieces, like, strict=True)]
