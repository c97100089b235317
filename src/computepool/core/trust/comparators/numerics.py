"""Whether two nodes may be asked for the same bits: only within one numerics class."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.trust.comparators.compare import Comparator, ComparatorKind


@dataclass(frozen=True, slots=True)
class NumericsClass:
    """What the last bits of a sum depend on."""

    # Of the GPU (or, without one, of the processor): ada, ampere, x86-64-v3.
    architecture: str
    driver: str
    # Of what computes: numpy 2.4 with its BLAS, torch 2.8.
    library: str
    threads: int


def may_judge(comparator: Comparator, *, computes_floats: bool, one: NumericsClass, other: NumericsClass) -> bool:
    """Whether a difference between the two is evidence at all. A tolerance holds across classes, bits do not."""
    return comparator.kind is not ComparatorKind.EXACT or not computes_floats or one == other
