"""What a job may declare about when two results agree. Apart from the comparing, which costs time to import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from computepool.core.trust.comparators.tolerance import USUAL, Tolerance


class ComparatorKind(str, Enum):
    EXACT = "exact"
    NUMERIC = "numeric"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Comparator:
    kind: ComparatorKind = ComparatorKind.EXACT
    tolerance: Tolerance = USUAL
    # Of exact ones: the same bits on every kind of machine, as whole numbers and texts have.
    anywhere: bool = False
    # Of the kind COMMAND: what says it, in a sandbox.
    command: tuple[str, ...] = ()
