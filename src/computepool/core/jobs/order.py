"""The classes of priority, which stand above the fair share between accounts."""

from __future__ import annotations

from enum import Enum


class PriorityClass(str, Enum):
    """The value is the wire string and the database's label, in the database's order."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {priority_class: rank for rank, priority_class in enumerate(PriorityClass)}
