"""Tenure: how long pay is held back, and what the fee gives back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from computepool.core.ledger.charging import LeaseTerms
from computepool.core.ledger.fee import split_price
from computepool.core.trust.tenure import HOLDBACK_MAX, HOLDBACK_MIN, TENURE_FULL, plan_holdback, plan_terms

HOUR = 3_600
USUAL = LeaseTerms(fee_ppm=200_000, holdback_seconds=72 * HOUR)


def test_holdback_shrinks_from_three_days_to_six_hours_and_no_further():
    spans = [plan_holdback(timedelta(days=days)) for days in range(0, 400, 5)]
    assert spans[0] == HOLDBACK_MAX == timedelta(hours=72)
    assert spans[-1] == HOLDBACK_MIN == timedelta(hours=6)
    assert spans == sorted(spans, reverse=True)


def test_an_operator_who_holds_back_for_less_is_obeyed():
    assert plan_holdback(timedelta(0), longest=timedelta(hours=1)) == timedelta(hours=1)
    assert plan_holdback(TENURE_FULL, longest=timedelta(hours=1)) == timedelta(hours=1)


@pytest.mark.parametrize(
    ("days", "fee_ppm", "hours"),
    [(0, 200_000, 72), (30, 200_000, 72), (105, 175_000, 39), (180, 150_000, 6), (4_000, 150_000, 6)],
)
def test_terms_grow_better_to_five_percent_of_the_price_and_six_hours(days, fee_ppm, hours):
    assert plan_terms(USUAL, timedelta(days=days)) == LeaseTerms(fee_ppm, hours * HOUR)


def test_the_bonus_is_never_more_than_the_fee():
    assert plan_terms(LeaseTerms(30_000, 0), TENURE_FULL) == LeaseTerms(0, 0)
    assert split_price(1_000_001, fee_ppm=0) == (1_000_001, 0)


def test_owners_part_and_fee_come_to_the_price_on_every_day():
    parts = [
        split_price(999_983, fee_ppm=plan_terms(USUAL, timedelta(days=days)).fee_ppm) for days in range(0, 400, 3)
    ]
    assert {owner + fee for owner, fee in parts} == {999_983}
    assert parts == sorted(parts), "and the owner's grows"


def test_a_day_is_the_least_that_makes_a_difference():
    assert plan_terms(USUAL, timedelta(days=100, hours=23)).fee_ppm == plan_terms(USUAL, timedelta(days=100)).fee_ppm
