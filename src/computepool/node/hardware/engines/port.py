"""One way of computing, on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from computepool.core.trust.products import Work


class NoEngine(Exception):
    """This way of computing is not to be had here; the message says why."""


def say_short(found_bytes: int, wanted_bytes: int) -> str:
    wanted, found = wanted_bytes / (1 << 30), found_bytes / (1 << 30)
    return f"of {wanted:.1f} GiB of memory only {found:.1f} could be filled; close what else uses the card"


def nothing() -> None:
    """What nobody waits for."""


class Engine(Protocol):
    @property
    def name(self) -> str:
        """For people: which library, on what."""

    @property
    def size_least(self) -> int:
        """Of matrices that it is measured by: with smaller ones the time goes to other things than computing."""

    def compute(self, work: Work, *, on_ready: Callable[[], None] = nothing) -> bytes:
        """The folded numbers of all products: for each product, row and strip one little-endian float32.

        `on_ready` is called when the operands are made and the products begin.
        """

    def fill(self, seed: bytes, byte_count: int, indices: Sequence[int]) -> list[int]:
        """Fills so much of the device's memory, all at once, with the pattern of core/trust/memory.py; then reads."""

    def stream(self, byte_count: int) -> int:
        """Copies so many bytes once on the device; how many were read and written."""
