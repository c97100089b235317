"""One way of computing, on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from computepool.core.trust.products import Work


class NoEngine(Exception):
    """This way of computing is not to be had here; the message says why."""


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

    def stream(self, byte_count: int) -> int:
        """Copies so many bytes once on the device; how many were read and written."""
