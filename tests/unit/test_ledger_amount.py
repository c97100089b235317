"""Amounts: whole, above zero, within bounds; everything else is refused with a reason that does not change."""

from __future__ import annotations

import pytest

from computepool.core.ledger.amount import AMOUNT_MAX, InvalidAmount, sum_amounts, to_amount


@pytest.mark.parametrize("value", [1, 7, 1_000_000, AMOUNT_MAX])
def test_a_whole_number_of_microcredits_is_an_amount(value):
    assert to_amount(value) == value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (0, "zero"),
        (-1, "negative"),
        (-(10**30), "negative"),
        (AMOUNT_MAX + 1, "too_large"),
        (2**63, "too_large"),
        (10**400, "too_large"),
        (1.0, "not_whole"),
        (0.1, "not_whole"),
        (float("nan"), "not_whole"),
        (float("inf"), "not_whole"),
        (True, "not_whole"),
        ("1", "not_whole"),
        (None, "not_whole"),
    ],
)
def test_everything_else_is_refused_with_its_fault(value, fault):
    with pytest.raises(InvalidAmount) as refusal:
        to_amount(value)
    assert refusal.value.details == {"fault": fault}
    assert len(refusal.value.message) < 200


def test_a_sum_of_nothing_is_zero():
    assert sum_amounts([]) == 0


def test_a_sum_is_exact_up_to_the_most_that_can_be_moved():
    assert sum_amounts([AMOUNT_MAX - 1, 0, 1]) == AMOUNT_MAX
    with pytest.raises(InvalidAmount, match="at once"):
        sum_amounts([AMOUNT_MAX, 1])


@pytest.mark.parametrize("part", [-1, 0.5, True])
def test_a_sum_has_no_part_that_is_not_whole_or_below_zero(part):
    with pytest.raises(InvalidAmount):
        sum_amounts([5, part])
