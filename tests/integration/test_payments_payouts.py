"""Payouts from the request to the bank and back, each state once, whatever the provider says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from computepool.core.errors import IdempotencyMismatch, NotFound
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import (
    CashLimitExceeded,
    CurrencyMismatch,
    PaymentRefused,
    PayoutBelowMinimum,
    PayoutCoolingOff,
    PayoutDetailsMissing,
)
from computepool.core.payments.payout import PayoutState
from computepool.hub.services import payouts
from tests.support.earnings import insist
from tests.support.payment_lab import PAY
from tests.support.payment_provider import Mood

K = AccountKind
Answer = TypeVar("Answer")


async def test_a_payout_goes_through_every_state_to_the_bank(lab, provider):
    owner = await lab.make_owner(800)
    payout = await lab.request_payout(owner, 500)
    assert payout.state is PayoutState.RESERVED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 300 * CREDIT
    assert await lab.get_balance(K.PAYOUT_CLEARING) == 500 * CREDIT
    assert await lab.send_all() == 0, "nothing leaves without approval"
    assert (await payouts.approve_payout(lab.pool, lab.operator, payout.id)).state is PayoutState.APPROVED
    assert await lab.send_all() == 1
    assert await lab.get_payout(payout.id) is PayoutState.SENT
    assert provider.orders == [(payout.id, f"payout-{payout.id}")]
    assert provider.entries[payout.id].destination == "bank 1"
    assert await lab.send_all() == 0
    [(_, answer)] = await provider.tell(provider.confirm(payout.id))
    assert answer["verdict"] == "applied"
    assert await lab.get_payout(payout.id) is PayoutState.CONFIRMED
    assert await lab.get_balance(K.PAYOUT_CLEARING) == 0
    kinds = [row["kind"] for row in await lab.fetch("SELECT kind FROM events WHERE kind LIKE 'payout%' ORDER BY id")]
    states = ["requested", "reserved", "approved", "sent", "confirmed"]
    assert kinds == ["payout_details_changed", *(f"payout_{state}" for state in states)]
    await lab.check_books()


async def test_the_same_key_reserves_once_also_at_the_same_moment(lab):
    owner = await lab.make_owner(2_000)
    asks = [insist(lambda: lab.request_payout(owner, 500, key="once")) for _ in range(4)]
    found = await asyncio.gather(*asks)
    assert len({payout.id for payout in found}) == 1
    assert await lab.get_balance(K.PAYOUT_CLEARING) == 500 * CREDIT
    with pytest.raises(IdempotencyMismatch):
        await lab.request_payout(owner, 501, key="once")
    await lab.check_books()


async def test_nobody_is_paid_more_than_they_have_however_often_they_ask(lab):
    lab.terms = replace(lab.terms, payout_count_per_day_max=100)
    owner = await lab.make_owner(1_200)
    asks = [insist(partial(lab.request_payout, owner, 500, key=f"k{number}")) for number in range(5)]
    found = await asyncio.gather(*asks, return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["InsufficientCredits"] * 3 + ["StoredPayout"] * 2
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 200 * CREDIT
    await lab.check_books()


async def test_a_refused_request_leaves_nothing_behind(lab):
    owner = await lab.make_owner(600)
    with pytest.raises(InsufficientCredits):
        await lab.request_payout(owner, 601)
    assert await lab.fetch("SELECT * FROM payouts") == []
    assert (await lab.request_payout(owner, 600)).state is PayoutState.RESERVED


async def test_a_payout_has_a_minimum_a_currency_a_place_and_a_daily_limit(lab):
    owner = await lab.make_owner(2_500)
    with pytest.raises(PayoutBelowMinimum):
        await lab.request_payout(owner, 499)
    with pytest.raises(CurrencyMismatch):
        await lab.request_payout(owner, 500, currency="USD")
    for _ in range(3):
        await lab.request_payout(owner, 500)
    with pytest.raises(CashLimitExceeded):
        await lab.request_payout(owner, 500)
    stranger = await lab.sign_up()
    with pytest.raises(PayoutDetailsMissing):
        await lab.request_payout(stranger, 500)
    await lab.set_details(stranger, currency="USD")
    with pytest.raises(CurrencyMismatch):
        await lab.request_payout(stranger, 500)


async def test_what_is_less_than_a_paisa_stays_with_the_owner(lab):
    owner = await lab.make_owner(800)
    payout = await payouts.request_payout(
        lab.pool, PAY, lab.terms, owner, amount_microcredits=500 * CREDIT + 9_999, currency="INR", idempotency_key="k"
    )
    assert (payout.cash.minor, payout.cash.microcredits) == (50_000, 500 * CREDIT)
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 300 * CREDIT


async def test_changed_details_are_paid_to_after_the_cool_off_and_never_redirect_what_was_asked_for_before(
    lab, provider
):
    owner = await lab.make_owner(2_000)
    before = await lab.approve(owner)
    await lab.set_details(owner, "the thief's bank")
    lab.terms = replace(lab.terms, cool_off_seconds=3_600.0)
    with pytest.raises(PayoutCoolingOff) as refusal:
        await lab.request_payout(owner)
    assert 3_500 < refusal.value.details["retry_after_seconds"] <= 3_600
    await lab.set_details(owner, "the thief's bank")
    await lab.execute("UPDATE payout_details SET created_at = created_at - interval '1 hour'")
    assert (await lab.request_payout(owner)).state is PayoutState.RESERVED, "the same again is no change"
    await lab.send_all()
    assert provider.entries[before].destination == "bank 1"
    bodies = await lab.fetch("SELECT body::text FROM events")
    assert not any("thief" in row["body"] for row in bodies), "the feed knows nothing of where money goes"


async def test_an_owner_may_cancel_and_an_operator_refuse_until_it_is_sent(lab):
    owner, stranger = await lab.make_owner(2_000), await lab.sign_up()
    cancelled, refused, sent = [await lab.request_payout(owner) for _ in range(3)]
    with pytest.raises(NotFound):
        await payouts.cancel_payout(lab.pool, stranger, cancelled.id)
    assert (await payouts.cancel_payout(lab.pool, owner, cancelled.id)).failure == "cancelled by the owner"
    await payouts.approve_payout(lab.pool, lab.operator, refused.id)
    found = await payouts.refuse_payout(lab.pool, lab.operator, refused.id, why="name differs")
    assert (found.state, found.failure) == (PayoutState.FAILED, "refused: name differs")
    await payouts.approve_payout(lab.pool, lab.operator, sent.id)
    await lab.send_all()
    for end in (
        payouts.cancel_payout(lab.pool, owner, sent.id),
        payouts.refuse_payout(lab.pool, lab.operator, sent.id, why="too late"),
        payouts.approve_payout(lab.pool, lab.operator, sent.id),
        payouts.cancel_payout(lab.pool, owner, cancelled.id),
    ):
        with pytest.raises(PaymentRefused):
            await end
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 1_500 * CREDIT
    await lab.check_books()


async def test_a_payout_that_the_provider_refuses_fails_and_its_credits_are_back(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.REFUSE)
    id = await lab.send(owner)
    assert await lab.get_payout(id) is PayoutState.FAILED
    assert await lab.fetch_value("SELECT failure FROM payouts") == "refused by the provider: no such account"
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    await lab.check_books()


async def test_a_payout_that_fails_at_the_bank_gives_its_credits_back_once(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    event = provider.fail(id)
    await provider.tell(event, event, event.under_new_id())
    assert await lab.get_payout(id) is PayoutState.FAILED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    await lab.check_books()


async def test_a_payout_that_comes_back_after_it_was_confirmed_is_the_owners_again(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    confirmed, returned = provider.confirm(id), provider.send_back(id)
    await provider.tell(confirmed, returned, confirmed, returned)
    assert await lab.get_payout(id) is PayoutState.RETURNED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    await lab.check_books()


async def test_the_return_may_be_told_before_the_confirmation(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    confirmed, returned = provider.confirm(id), provider.send_back(id)
    answers = await provider.tell(returned, confirmed)
    assert [answer["verdict"] for _, answer in answers] == ["applied", "old_news"]
    assert await lab.get_payout(id) is PayoutState.RETURNED
    await lab.check_books()


@pytest.mark.parametrize(
    ("lie", "doubt"),
    [
        ({"amount_minor": 49_999}, "amount_mismatch"),
        ({"currency": "USD"}, "currency_mismatch"),
        ({"kind": "top_up.paid"}, "unknown_subject"),
    ],
)
async def test_a_lie_about_a_payout_is_refused_and_the_truth_counts_after_it(lab, provider, lie, doubt):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    truth = provider.confirm(id)
    answers = await provider.tell(truth.under_new_id().lie(**lie), truth)
    assert [(a["verdict"], a["doubt"]) for _, a in answers] == [("refused", doubt), ("applied", None)]
    await lab.check_books()


async def test_a_provider_that_contradicts_itself_is_not_believed_the_second_time(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    await provider.tell(provider.fail(id))
    [(_, answer)] = await provider.tell(provider.confirm(id))
    assert (answer["verdict"], answer["doubt"]) == ("refused", "contradiction")
    assert await lab.get_payout(id) is PayoutState.FAILED
    [difference] = await lab.list_differences()
    assert (difference.ours_minor, difference.theirs_minor) == (0, -50_000), "the comparison shows what it has done"


async def test_nothing_is_believed_of_a_payout_that_was_not_sent(lab, provider):
    owner = await lab.make_owner(800)
    sent, waiting = await lab.send(owner, 400 + 100), await lab.request_payout(await lab.make_owner(800))
    event = provider.confirm(sent)
    answers = await provider.tell(event.lie(id="evt_x", subject_id=str(waiting.id)), event)
    assert [(a["verdict"], a["doubt"]) for _, a in answers] == [("refused", "never_sent"), ("applied", None)]
    await lab.check_books()
