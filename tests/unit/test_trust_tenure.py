"""Tenure: how long pay is held back, and what the fee gives back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from computepool.core.trust.tenure import HOLDBACK_MAX, HOLDBACK_MIN, TENURE_FULL, plan_holdback, price_bonus


def test_holdback_shrinks_from_three_days_to_six_hours_and_no_further():
    spans = [plan_holdback(timedelta(days=days)) for days in range(0, 400, 5)]
    assert spans[0] == HOLDBACK_MAX == timedelta(hours=72)
    assert spans[-1] == HOLDBACK_MIN == timedelta(hours=6)
    assert spans == sorted(spans, reverse=True)


def test_an_operator_who_holds_back_for_less_is_obeyed():
    assert plan_holdback(timedelta(0), longest=timedelta(hours=1)) == timedelta(hours=1)
    assert plan_holdback(TENURE_FULL, longest=timedelta(hours=1)) == timedelta(hours=1)


@pytest.mark.parametrize(("days", "bonus"), [(0, 0), (30, 0), (105, 25_000), (180, 50_000), (4_000, 50_000)])
def test_the_bonus_grows_to_five_percent(days, bonus):
    assert price_bonus(1_000_000, 200_000, timedelta(days=days)) == bonus


def test_the_bonus_is_never_more_than_the_fee():
    assert price_bonus(1_000_000, 7, TENURE_FULL) == 7
    assert price_bonus(3, 1, TENURE_FULL) == 0
