"""A look that costs something, repeated only when its last answer is old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from computepool import clock

Found = TypeVar("Found")


class Paced(Generic[Found]):
    def __init__(self, look: Callable[[], Found], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._kept: tuple[float, Found] | None = None

    def get(self) -> Found:
        if self._kept is None or clock.seconds() - self._kept[0] >= self._seconds:
            self._kept = (clock.seconds(), self._look())
        return self._kept[1]
