"""Amounts of money: whole microcredits, never a fraction, never a float, and never more than can be meant."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NewType

from computepool.core.errors import InvalidRequest

Microcredits = NewType("Microcredits", int)

# A thousand million credits: beyond it somebody has slipped.
AMOUNT_MAX = 10**15
# What one account may come to, so that sums stay far within 64 bits.
BALANCE_MAX = 10**18


class AmountFault(str, Enum):
    """Why something is no amount; stands in the error's details and never changes."""

    NOT_WHOLE = "not_whole"
    ZERO = "zero"
    NEGATIVE = "negative"
    TOO_LARGE = "too_large"


PLAIN_WORDS = {
    AmountFault.NOT_WHOLE: "an amount is a whole number of microcredits",
    AmountFault.ZERO: "an amount is above zero",
    AmountFault.NEGATIVE: "an amount is above zero",
    AmountFault.TOO_LARGE: f"an amount is at most {AMOUNT_MAX:,} microcredits",
}


class InvalidAmount(InvalidRequest):
    """`details.fault` says which AmountFault it is."""

    code = "invalid_amount"


def find_amount_fault(value: object) -> AmountFault | None:
    # True is an int to Python, and no amount to anyone.
    if type(value) is not int:
        return AmountFault.NOT_WHOLE
    if value > 0:
        return AmountFault.TOO_LARGE if value > AMOUNT_MAX else None
    return AmountFault.NEGATIVE if value else AmountFault.ZERO


def to_amount(value: object) -> Microcredits:
    """The value as an amount that can be moved; raises InvalidAmount for everything else."""
    fault = find_amount_fault(value)
    if fault is not None:
        raise InvalidAmount(f"{_show(value)} cannot be moved: {PLAIN_WORDS[fault]}.", fault=fault.value)
    assert isinstance(value, int)
    return Microcredits(value)


def sum_amounts(values: Iterable[int]) -> Microcredits:
    """Of parts that are at or above zero. The sum may be zero, and is no more than can be moved at once."""
    total = 0
    for value in values:
        if type(value) is not int or value < 0:
            fault = AmountFault.NOT_WHOLE if type(value) is not int else AmountFault.NEGATIVE
            raise InvalidAmount(f"{_show(value)} cannot be part of a sum.", fault=fault.value)
        total += value
    if total > AMOUNT_MAX:
        fault = AmountFault.TOO_LARGE
        raise InvalidAmount(f"{total:,} cannot be moved at once: {PLAIN_WORDS[fault]}.", fault=fault.value)
    return Microcredits(total)


def _show(value: object) -> str:
    """Short, whatever somebody sent."""
    if type(value) is not int:
        return f"A value of type {type(value).__name__}"
    return f"{value:,}" if abs(value) < 10**30 else "A number of more than 30 digits"
