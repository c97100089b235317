"""The lives of top-ups and payouts: every word in every state, in every order, once and twice."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations, product
from uuid import UUID

import pytest

from computepool.core.ledger.amount import Microcredits
from computepool.core.payments.cash import Cash
from computepool.core.payments.claim import (
    PAYOUT_WORDS,
    TOP_UP_WORDS,
    Claim,
    ClaimKind,
    Doubt,
    Payout,
    TopUp,
    digest_claim,
    judge_payout_claim,
    judge_top_up_claim,
)
from computepool.core.payments.life import Life
from computepool.core.payments.payout import (
    NOT_FOUND_SECONDS,
    PAYOUT_LIFE,
    PAYOUT_OPEN_AT_PROVIDER,
    PAYOUT_TERMINAL,
    PayoutState,
    PayoutWord,
    judge_not_found,
)
from computepool.core.payments.top_up import TOP_UP_LIFE, TopUpState, TopUpWord
from tests.support.builders import NOW

SUBJECT = UUID(int=7)
CASH = Cash("INR", 50_000, Microcredits(500_000_000))


def follow(life: Life, state, words) -> tuple:
    """The state after these words, and the words that counted, in the order they did."""
    counted = []
    for word in words:
        for step in life.plan(state, word) or ():
            counted.append(step.word)
            state = step.state
    return state, counted


def reachable(life: Life, start) -> set:
    found, edges = {start}, life.transitions.items()
    while more := {end for (begin, _), end in edges if begin in found} - found:
        found |= more
    return found


# Payouts


def test_every_state_of_a_payout_can_be_reached():
    assert reachable(PAYOUT_LIFE, PayoutState.REQUESTED) == set(PayoutState)


@pytest.mark.parametrize("state", PayoutState)
def test_every_payout_can_still_end(state):
    assert reachable(PAYOUT_LIFE, state) & PAYOUT_TERMINAL


def find_ways_to_send_again(life: Life) -> list:
    """Every way on which `sent` could be said, and with it the provider called, after it was said once."""
    after_sent = {end for (_, word), end in life.transitions.items() if word is PayoutWord.SENT}
    later = {state for start in after_sent for state in reachable(life, start)}
    return [state for state in later if life.plan(state, PayoutWord.SENT) is not None]


def test_no_way_leads_to_a_second_sending():
    assert find_ways_to_send_again(PAYOUT_LIFE) == []


def test_control_a_way_back_from_unknown_to_approved_would_be_found():
    planted = {**PAYOUT_LIFE.transitions, (PayoutState.UNKNOWN, PayoutWord.NO_ANSWER): PayoutState.APPROVED}
    assert find_ways_to_send_again(Life(planted, {}, {})) == [PayoutState.APPROVED]


@pytest.mark.parametrize("state", sorted(PAYOUT_TERMINAL - {PayoutState.CONFIRMED}))
def test_what_has_ended_stays_as_it_is(state):
    assert not [PAYOUT_LIFE.plan(state, word) for word in PayoutWord if PAYOUT_LIFE.plan(state, word)]


def test_the_only_word_that_moves_a_confirmed_payout_is_that_it_came_back():
    moving = [word for word in PayoutWord if PAYOUT_LIFE.plan(PayoutState.CONFIRMED, word)]
    assert moving == [PayoutWord.RETURNED]


@pytest.mark.parametrize("state", [PayoutState.SENT, PayoutState.UNKNOWN])
@pytest.mark.parametrize(
    "words", list(permutations([PayoutWord.ACCEPTED, PayoutWord.CONFIRMED, PayoutWord.RETURNED]))
)
def test_the_words_of_a_returned_payout_count_once_each_in_whatever_order_they_come(state, words):
    end, counted = follow(PAYOUT_LIFE, state, words * 2)
    assert end is PayoutState.RETURNED
    assert [word for word in counted if word is not PayoutWord.ACCEPTED] == [
        PayoutWord.CONFIRMED,
        PayoutWord.RETURNED,
    ]


def test_control_without_implied_words_an_early_return_would_be_lost():
    forgetful = Life(PAYOUT_LIFE.transitions, {}, PAYOUT_LIFE.old_news)
    end, _ = follow(forgetful, PayoutState.SENT, [PayoutWord.RETURNED, PayoutWord.CONFIRMED])
    assert end is PayoutState.CONFIRMED


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (PayoutState.FAILED, PayoutWord.CONFIRMED),
        (PayoutState.FAILED, PayoutWord.RETURNED),
        (PayoutState.CONFIRMED, PayoutWord.FAILED),
        (PayoutState.RETURNED, PayoutWord.FAILED),
        (PayoutState.RESERVED, PayoutWord.SENT),
        (PayoutState.SENT, PayoutWord.CANCELLED),
        (PayoutState.UNKNOWN, PayoutWord.CANCELLED),
        (PayoutState.UNKNOWN, PayoutWord.SENT),
    ],
)
def test_a_word_that_cannot_follow_is_a_contradiction(state, word):
    assert PAYOUT_LIFE.plan(state, word) is None


@pytest.mark.parametrize("state", sorted(PAYOUT_TERMINAL))
def test_the_end_of_our_own_call_may_come_after_the_provider_has_said_how_it_ended(state):
    assert PAYOUT_LIFE.plan(state, PayoutWord.NO_ANSWER) == ()


def test_a_payout_that_the_provider_does_not_know_is_waited_for_and_then_counts_as_never_received():
    sent_at = NOW - timedelta(seconds=NOT_FOUND_SECONDS)
    early = judge_not_found(sent_at=sent_at + timedelta(seconds=1), acknowledged_at=None, now=NOW)
    assert (early, judge_not_found(sent_at=sent_at, acknowledged_at=None, now=NOW)) == (None, PayoutWord.FAILED)


def test_a_provider_that_has_taken_a_payout_and_then_does_not_know_it_is_never_believed():
    sent_at = NOW - timedelta(days=365)
    assert judge_not_found(sent_at=sent_at, acknowledged_at=sent_at, now=NOW) is None


def test_what_is_open_at_the_provider_is_what_it_can_still_decide():
    decided_by_provider = {
        begin for (begin, word), _ in PAYOUT_LIFE.transitions.items() if word in set(PAYOUT_WORDS.values())
    }
    assert decided_by_provider - {PayoutState.CONFIRMED} == PAYOUT_OPEN_AT_PROVIDER


# Top-ups


def test_every_state_of_a_top_up_can_be_reached():
    assert reachable(TOP_UP_LIFE, TopUpState.REQUESTED) == set(TopUpState)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ([TopUpWord.PAID], TopUpState.PAID),
        ([TopUpWord.FAILED, TopUpWord.PAID], TopUpState.PAID),
        ([TopUpWord.PAID, TopUpWord.REFUNDED], TopUpState.REFUNDED),
        ([TopUpWord.PAID, TopUpWord.CHARGED_BACK], TopUpState.CHARGED_BACK),
        ([TopUpWord.PAID, TopUpWord.REFUNDED, TopUpWord.CHARGED_BACK], TopUpState.PAID_BACK_TWICE),
        ([TopUpWord.OPENED, TopUpWord.FAILED, TopUpWord.PAID, TopUpWord.CHARGED_BACK], TopUpState.CHARGED_BACK),
    ],
)
def test_a_top_up_ends_the_same_in_whatever_order_its_words_come_and_none_counts_twice(words, end):
    cash_words = {TopUpWord.PAID, TopUpWord.REFUNDED, TopUpWord.CHARGED_BACK}
    for order in permutations(words):
        found, counted = follow(TOP_UP_LIFE, TopUpState.REQUESTED, [*order, *order])
        assert found is end, order
        moved = [word for word in counted if word in cash_words]
        assert sorted(moved) == sorted(cash_words & set(words)), order
        assert moved[0] is TopUpWord.PAID, "nothing can be paid back before it was paid"


def test_no_word_about_a_top_up_is_ever_a_contradiction():
    """Each tells of cash that has moved or has not; none of them can make another untrue."""
    odd = [(s, w) for s, w in product(TopUpState, TopUpWord) if TOP_UP_LIFE.plan(s, w) is None]
    assert odd == []


# Claims


def make_claim(kind: str = ClaimKind.TOP_UP_PAID, **overrides) -> Claim:
    values = {"kind": kind, "subject_id": SUBJECT, "currency": "INR", "amount_minor": 50_000, "reference": "r"}
    return Claim(**{**values, **overrides})


TOP_UP = TopUp("pay", CASH, TopUpState.REQUESTED)
PAYOUT = Payout("pay", CASH, PayoutState.SENT, NOW)

LIES = [
    ({"amount_minor": 50_001}, Doubt.AMOUNT_MISMATCH),
    ({"amount_minor": 49_999}, Doubt.AMOUNT_MISMATCH),
    ({"currency": "USD"}, Doubt.CURRENCY_MISMATCH),
    ({"kind": "top_up.doubled"}, Doubt.UNKNOWN_KIND),
    ({"kind": "payout.doubled"}, Doubt.UNKNOWN_KIND),
]


@pytest.mark.parametrize(("lie", "doubt"), LIES)
@pytest.mark.parametrize("kind", TOP_UP_WORDS)
def test_a_lie_about_a_top_up_is_not_believed_whatever_it_claims(kind, lie, doubt):
    assert judge_top_up_claim(TOP_UP, make_claim(**{"kind": kind, **lie}), provider="pay") is doubt


@pytest.mark.parametrize(("lie", "doubt"), LIES)
@pytest.mark.parametrize("kind", PAYOUT_WORDS)
def test_a_lie_about_a_payout_is_not_believed_whatever_it_claims(kind, lie, doubt):
    assert judge_payout_claim(PAYOUT, make_claim(**{"kind": kind, **lie}), provider="pay") is doubt


def test_a_word_about_the_other_noun_is_not_believed():
    assert judge_top_up_claim(TOP_UP, make_claim("payout.confirmed"), provider="pay") is Doubt.UNKNOWN_KIND
    assert judge_payout_claim(PAYOUT, make_claim("top_up.paid"), provider="pay") is Doubt.UNKNOWN_KIND


def test_a_provider_has_no_say_in_what_another_does():
    assert judge_top_up_claim(TOP_UP, make_claim(), provider="other") is Doubt.OTHER_PROVIDER
    assert judge_payout_claim(PAYOUT, make_claim("payout.confirmed"), provider="other") is Doubt.OTHER_PROVIDER


@pytest.mark.parametrize("state", [PayoutState.RESERVED, PayoutState.APPROVED, PayoutState.FAILED])
@pytest.mark.parametrize("kind", PAYOUT_WORDS)
def test_nothing_is_believed_of_a_payout_that_was_never_sent(state, kind):
    unsent = Payout("pay", CASH, state, None)
    assert judge_payout_claim(unsent, make_claim(kind), provider="pay") is Doubt.NEVER_SENT


def test_a_true_word_leads_on():
    [step] = judge_top_up_claim(TOP_UP, make_claim(), provider="pay")
    assert step.state is TopUpState.PAID
    [step] = judge_payout_claim(PAYOUT, make_claim("payout.confirmed"), provider="pay")
    assert step.state is PayoutState.CONFIRMED


def test_a_contradiction_is_told():
    failed = Payout("pay", CASH, PayoutState.FAILED, NOW)
    assert judge_payout_claim(failed, make_claim("payout.confirmed"), provider="pay") is Doubt.CONTRADICTION


def test_every_kind_of_claim_means_one_word():
    assert set(TOP_UP_WORDS) | set(PAYOUT_WORDS) == set(ClaimKind)
    assert set(TOP_UP_WORDS) & set(PAYOUT_WORDS) == set()


def test_claims_that_differ_have_different_digests():
    claims = [make_claim(**lie) for lie in ({}, *(lie for lie, _ in LIES), {"reference": "s"})]
    assert len({digest_claim(claim) for claim in claims}) == len(claims)
    assert digest_claim(make_claim()) == digest_claim(make_claim())
