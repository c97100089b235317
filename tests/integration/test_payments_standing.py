"""Who is frozen or owes is paid nothing; payouts that race reversals; storms after which both books agree."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TypeVar

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import (
    AccountFrozen,
    AccountOwes,
)
from computepool.core.payments.payout import PayoutState
from computepool.hub.services import cash, freezes, payouts, reconciliation
from tests.support.earnings import insist
from tests.support.payment_lab import PAY
from tests.support.payment_provider import SILENT, Mood

K = AccountKind
Answer = TypeVar("Answer")


async def test_a_frozen_account_is_paid_nothing_at_any_step(lab, provider):
    owner = await lab.make_owner(2_000)
    requested, approved = await lab.request_payout(owner), await lab.approve(owner)
    top_up = await lab.top_up(owner, 50)
    await provider.tell(provider.charge_back(top_up))
    with pytest.raises(AccountFrozen):
        await lab.request_payout(owner)
    with pytest.raises(AccountFrozen):
        await payouts.approve_payout(lab.pool, lab.operator, requested.id)
    assert await lab.send_all() == 0
    assert not await payouts.send_payout(lab.pool, lab.providers.get(PAY), approved)
    assert provider.orders == []
    await freezes.lift_freeze(lab.pool, lab.operator, owner.account_id)
    assert await lab.send_all() == 1
    await lab.check_books()


async def test_an_account_that_owes_is_paid_nothing_at_any_step(lab, provider):
    owner = await lab.make_owner(1_600)
    requested, approved = await lab.request_payout(owner, 600), await lab.approve(owner, 600)
    await lab.reverse(lab.earnings[-1])
    assert await lab.get_balance(K.RECEIVABLE, owner) == -1_200 * CREDIT
    with pytest.raises(AccountOwes):
        await lab.request_payout(owner)
    with pytest.raises(AccountOwes):
        await payouts.approve_payout(lab.pool, lab.operator, requested.id)
    assert await lab.send_all() == 0
    assert await lab.get_payout(approved) is PayoutState.APPROVED
    for id in (requested.id, approved):
        await payouts.refuse_payout(lab.pool, lab.operator, id, why="the work was a fraud")
    assert await cash.collect_debt(lab.pool, owner.account_id) == 0
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 0
    await lab.check_books()


async def test_cash_that_is_not_there_is_not_sent(lab, provider):
    """After a chargeback we owe more than we hold."""
    person, owner = await lab.sign_up(), await lab.sign_up()
    top_up = await lab.top_up(person, 1_000)
    await lab.earn(owner, person, 1_000)
    await lab.set_details(owner)
    id = await lab.approve(owner, 800)
    await provider.tell(provider.charge_back(top_up))
    assert await lab.send_all() == 0
    assert await lab.get_payout(id) is PayoutState.APPROVED
    await lab.top_up(await lab.sign_up(), 800)
    assert await lab.send_all() == 1
    await lab.check_books()


@pytest.mark.parametrize("round_number", range(4))
async def test_a_payout_that_races_a_reversal_never_pays_what_was_taken_back_and_the_books_stay_exact(
    lab, round_number
):
    owner = await lab.make_owner(800)
    [earning] = lab.earnings
    asks = [insist(lambda: lab.request_payout(owner, 800, key="once")), insist(lambda: lab.reverse(earning))]
    if round_number % 2:
        asks.reverse()
    answers = await asyncio.gather(*asks, return_exceptions=True)
    outcome = answers[round_number % 2]
    owed = -await lab.get_balance(K.RECEIVABLE, owner)
    if isinstance(outcome, Exception):
        # The reversal was first: there is nothing left to pay out, and nothing is owed.
        assert isinstance(outcome, InsufficientCredits)
        assert owed == 0
    else:
        # The payout was first: what was reserved is owed, so that it is neither approved nor sent.
        assert owed == 800 * CREDIT
        with pytest.raises(AccountOwes):
            await payouts.approve_payout(lab.pool, lab.operator, outcome.id)
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 0
    await lab.check_books()


@pytest.mark.parametrize("seed", range(3))
async def test_after_a_storm_of_repeated_and_shuffled_words_and_silent_calls_both_books_say_the_same(
    lab, provider, seed
):
    rng = random.Random(seed)
    lab.terms = replace(lab.terms, payout_count_per_day_max=100)
    owner, people = await lab.make_owner(8_000), [await lab.sign_up() for _ in range(3)]
    provider.moods.extend([Mood.SILENT_AFTER, *rng.choices([mood for mood in Mood if mood not in SILENT], k=9)])
    paid_out = [await lab.approve(owner, 500 + n) for n in range(10)]
    async with asyncio.timeout(60):
        while len(provider.orders) < 10:
            await lab.send_all()
    events = []
    for id in paid_out:
        if id in provider.entries:
            ends = rng.choice([[provider.confirm], [provider.fail], [provider.confirm, provider.send_back]])
            events += [end(id) for end in ends]
    for _ in range(12):
        top_up = await lab.request_top_up(rng.choice(people), 10 + rng.randrange(90))
        ends = [provider.pay, *rng.choice([[], [], [provider.refund], [provider.charge_back]])]
        events += [end(top_up.id) for end in ends]
    # Some are told twice, some under two ids, and a fifth of them never.
    told = [event for event in events if rng.random() < 0.8]
    told += rng.sample(told, 8) + [event.under_new_id() for event in rng.sample(told, 8)]
    rng.shuffle(told)
    await provider.tell_in_a_storm(told)
    # What is still open is found by asking; that cash came back later is told late.
    for _ in range(3):
        await lab.reconcile(not_found_seconds=0)
        await reconciliation.reconcile_top_ups(lab.pool, lab.providers, limit=100, quiet_seconds=0)
    await provider.tell_in_a_storm([event for event in events if event not in told])
    open_ = await lab.fetch("SELECT id FROM payouts WHERE state IN ('sent', 'unknown')")
    assert [row["id"] for row in open_] == []
    assert await lab.list_doubts() == []
    await lab.check_books()
