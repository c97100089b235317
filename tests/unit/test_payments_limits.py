"""How much cash may move, when, and to whom; what it is worth; and whether two books agree."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.errors import InvalidRequest
from computepool.core.ledger.amount import AMOUNT_MAX
from computepool.core.payments.books import CashMovement, Difference, list_differences
from computepool.core.payments.cash import CREDIT, CashTerms, from_minor, list_term_faults, to_cash
from computepool.core.payments.errors import (
    AccountFrozen,
    AccountOwes,
    CashLimitExceeded,
    CurrencyMismatch,
    PayoutBelowMinimum,
    PayoutCoolingOff,
    PayoutDetailsMissing,
)
from computepool.core.payments.limits import (
    DAY,
    DetailsInForce,
    Moved,
    Standing,
    find_frozen_refusal,
    find_payout_refusal,
    find_standing_refusal,
    find_top_up_refusal,
)
from tests.support.builders import NOW

TERMS = CashTerms()
GOOD = Standing(frozen_at=None, owed_microcredits=0)
OLD_DETAILS = DetailsInForce("INR", NOW - timedelta(days=30))


def refuse_payout(microcredits: int = 500 * CREDIT, *, terms: CashTerms = TERMS, **overrides):
    values = {"standing": GOOD, "details": OLD_DETAILS, "moved": Moved(), "now": NOW}
    return find_payout_refusal(to_cash(microcredits, terms), terms=terms, **{**values, **overrides})


def test_a_payout_of_exactly_the_minimum_is_allowed_and_one_paisa_less_is_not():
    assert refuse_payout(500 * CREDIT) is None
    refusal = refuse_payout(500 * CREDIT - 10_000)
    assert isinstance(refusal, PayoutBelowMinimum)
    assert refusal.details["minimum_microcredits"] == 500 * CREDIT


@pytest.mark.parametrize("minimum", [1, 10 * CREDIT, 2_000 * CREDIT])
def test_the_minimum_is_the_regions(minimum):
    terms = replace(TERMS, payout_microcredits_min=minimum)
    least = max(minimum, terms.microcredits_per_minor_unit)
    assert refuse_payout(least, terms=terms) is None
    assert isinstance(refuse_payout(least - terms.microcredits_per_minor_unit, terms=terms), PayoutBelowMinimum)


def test_what_is_less_than_one_minor_unit_cannot_be_paid_out():
    terms = replace(TERMS, payout_microcredits_min=1)
    assert isinstance(refuse_payout(9_999, terms=terms), PayoutBelowMinimum)


def test_a_day_has_a_limit_that_can_be_used_up_exactly():
    limit = TERMS.payout_microcredits_per_day_max
    assert refuse_payout(moved=Moved(limit - 500 * CREDIT, 1, NOW)) is None
    first_at = NOW - timedelta(hours=20)
    refusal = refuse_payout(moved=Moved(limit - 500 * CREDIT + 1, 1, first_at))
    assert isinstance(refusal, CashLimitExceeded)
    assert refusal.details["retry_after_seconds"] == 4 * 3_600


def test_a_day_has_a_limit_of_payouts_however_small():
    moved = Moved(3, TERMS.payout_count_per_day_max, NOW)
    assert isinstance(refuse_payout(moved=moved), CashLimitExceeded)


def test_a_payout_needs_details():
    assert isinstance(refuse_payout(details=None), PayoutDetailsMissing)


def test_details_for_another_currency_are_refused():
    assert isinstance(refuse_payout(details=replace(OLD_DETAILS, currency="USD")), CurrencyMismatch)


def test_after_a_change_of_details_payouts_wait_for_exactly_the_cool_off():
    cool_off = timedelta(seconds=TERMS.cool_off_seconds)
    assert refuse_payout(details=DetailsInForce("INR", NOW - cool_off)) is None
    refusal = refuse_payout(details=DetailsInForce("INR", NOW - cool_off + timedelta(seconds=90)))
    assert isinstance(refusal, PayoutCoolingOff)
    assert refusal.details["retry_after_seconds"] == 90


def test_a_frozen_account_is_refused_before_anything_else_is_said():
    frozen = Standing(frozen_at=NOW, owed_microcredits=5)
    assert isinstance(refuse_payout(1, standing=frozen, details=None), AccountFrozen)
    assert isinstance(find_frozen_refusal(NOW), AccountFrozen)
    assert find_frozen_refusal(None) is None


def test_an_account_that_owes_is_paid_nothing():
    refusal = find_standing_refusal(Standing(frozen_at=None, owed_microcredits=1_500_000))
    assert isinstance(refusal, AccountOwes)
    assert "1.5 credits" in refusal.message
    assert find_standing_refusal(GOOD) is None


def test_a_top_up_has_a_minimum_and_a_limit_per_day():
    def refuse(microcredits: int, moved: Moved):
        return find_top_up_refusal(to_cash(microcredits, TERMS), terms=TERMS, moved=moved, now=NOW)

    assert refuse(10 * CREDIT, Moved()) is None
    assert isinstance(refuse(9 * CREDIT, Moved()), InvalidRequest)
    assert isinstance(refuse(10 * CREDIT, Moved(100_000 * CREDIT, 1, NOW - DAY / 2)), CashLimitExceeded)
    assert isinstance(refuse(10 * CREDIT, Moved(20, 20, NOW)), CashLimitExceeded)


# What cash is worth


def test_a_credit_is_a_rupee():
    cash = to_cash(500 * CREDIT, TERMS)
    assert (cash.currency, cash.minor, cash.microcredits) == ("INR", 50_000, 500 * CREDIT)


@given(
    microcredits=st.integers(1, AMOUNT_MAX),
    rate=st.one_of(st.integers(1, 10**7), st.sampled_from([10_000, 830_000, 905_001])),
)
def test_cash_never_stands_for_more_credits_than_were_given_and_wastes_less_than_one_unit(microcredits, rate):
    terms = CashTerms(microcredits_per_minor_unit=rate)
    cash = to_cash(microcredits, terms)
    assert 0 <= microcredits - cash.microcredits < rate
    assert from_minor(cash.minor, terms) == cash


def test_terms_as_shipped_have_no_faults():
    assert list_term_faults(TERMS) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"currency": "rupees"},
        {"microcredits_per_minor_unit": 0},
        {"microcredits_per_minor_unit": 10_000.0},
        {"payout_microcredits_min": True},
        {"payout_microcredits_min": 60_000 * CREDIT},
        {"top_up_microcredits_min": AMOUNT_MAX + 1},
        {"payout_count_per_day_max": 0},
        {"cool_off_seconds": -1.0},
    ],
)
def test_terms_that_make_no_sense_are_told(fault):
    [name] = fault
    assert any(name in text or "count per day" in text for text in list_term_faults(replace(TERMS, **fault)))


# Two books

A, B = UUID(int=1), UUID(int=2)


def move(subject: UUID, minor: int, currency: str = "INR") -> CashMovement:
    return CashMovement(subject, currency, minor)


def test_books_that_agree_have_no_differences_in_whatever_order_and_parts():
    ours = [move(A, 500), move(B, -300), move(B, 300)]
    assert list_differences(ours, [move(B, 300), move(A, 200), move(A, 300), move(B, -300)]) == []
    assert list_differences([], []) == []


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        ([move(A, 500), move(A, 500)], Difference(A, "INR", 500, 1_000)),
        ([], Difference(A, "INR", 500, 0)),
        ([move(A, 499)], Difference(A, "INR", 500, 499)),
        ([move(A, 500), move(B, -1)], Difference(B, "INR", 0, -1)),
    ],
)
def test_cash_that_only_one_book_knows_of_is_found(theirs, difference):
    assert list_differences([move(A, 500)], theirs) == [difference]


def test_cash_that_left_twice_and_came_back_once_does_not_look_like_cash_that_left_once():
    assert list_differences([move(A, -5)], [move(A, -5), move(A, -5), move(A, 5)]) == [
        Difference(A, "INR", 0, 5),
        Difference(A, "INR", -5, -10),
    ]


def test_another_currency_is_another_difference():
    assert len(list_differences([move(A, 5)], [move(A, 5, "USD")])) == 2
