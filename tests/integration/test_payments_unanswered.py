"""Payouts without an answer: never sent again, found by asking, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.payout import PayoutState
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.hub.services import payouts
from tests.support.earnings import insist
from tests.support.payment_lab import PAY
from tests.support.payment_provider import SECRET, Mood

K = AccountKind
Answer = TypeVar("Answer")


@pytest.mark.parametrize("mood", [Mood.SILENT_AFTER, Mood.ERROR_AFTER, Mood.NONSENSE_AFTER, Mood.CONFLICT_AFTER])
async def test_a_call_without_a_clear_answer_is_unknown_never_sent_again_and_found_confirmed(lab, provider, mood):
    owner = await lab.make_owner(800)
    provider.moods.append(mood)
    id = await lab.send(owner)
    assert await lab.get_payout(id) is PayoutState.UNKNOWN
    assert [await lab.send_all() for _ in range(3)] == [0, 0, 0]
    assert await lab.get_balance(K.PAYOUT_CLEARING) == 500 * CREDIT, "nobody has it until it is known who has"
    provider.confirm(id)
    assert [await lab.reconcile() for _ in range(2)] == [1, 0]
    assert await lab.get_payout(id) is PayoutState.CONFIRMED
    assert len(provider.orders) == 1
    await lab.check_books()


async def test_an_unknown_payout_that_the_provider_works_on_is_sent_and_then_what_it_says(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    await lab.reconcile()
    assert await lab.get_payout(id) is PayoutState.SENT
    await provider.tell(provider.confirm(id))
    assert await lab.get_payout(id) is PayoutState.CONFIRMED
    await lab.check_books()


async def test_an_unknown_payout_is_reconciled_to_failed(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    provider.fail(id)
    assert await lab.reconcile() == 1
    assert await lab.get_payout(id) is PayoutState.FAILED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    await lab.check_books()


async def test_an_unknown_payout_that_came_back_already_is_reconciled_in_one_step(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    provider.confirm(id)
    provider.send_back(id)
    assert await lab.reconcile() == 1
    assert await lab.get_payout(id) is PayoutState.RETURNED
    await lab.check_books()


@pytest.mark.parametrize("mood", [Mood.SILENT_BEFORE, Mood.ERROR_BEFORE])
async def test_a_payout_that_the_provider_never_received_is_waited_for_and_then_failed(lab, provider, mood):
    owner = await lab.make_owner(800)
    provider.moods.append(mood)
    id = await lab.send(owner)
    assert await lab.reconcile() == 0
    assert await lab.get_payout(id) is PayoutState.UNKNOWN, "it may still be on its way"
    await lab.let_time_pass(id, timedelta(hours=2))
    assert await lab.reconcile() == 1
    assert await lab.get_payout(id) is PayoutState.FAILED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    assert len(provider.orders) == 1
    await lab.check_books()


async def test_a_provider_that_had_a_payout_and_has_never_heard_of_it_is_not_believed(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    provider.forget(id)
    await lab.let_time_pass(id, timedelta(days=30))
    assert [await lab.reconcile() for _ in range(2)] == [0, 0]
    assert await lab.get_payout(id) is PayoutState.SENT
    assert await lab.list_doubts() == ["contradiction"], "told once, however often it is asked"


async def test_a_provider_that_lies_when_it_is_asked_is_refused_and_shown(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    provider.confirm(id)
    provider.status_amount_minor = 1
    assert [await lab.reconcile() for _ in range(3)] == [0, 0, 0]
    assert await lab.get_payout(id) is PayoutState.UNKNOWN
    assert await lab.list_doubts() == ["amount_mismatch"]
    provider.status_amount_minor = None
    assert await lab.reconcile() == 1
    await lab.check_books()


async def test_a_hub_that_dies_during_the_call_leaves_an_unknown_payout_that_is_asked_for(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.approve(owner)
    provider.moods.append(Mood.SILENT_AFTER)
    sending = asyncio.create_task(lab.send_all())
    async with asyncio.timeout(60):
        while not provider.orders:
            await asyncio.sleep(0.005)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await lab.get_payout(id) is PayoutState.SENT
    assert await lab.send_all() == 0
    provider.is_mute = True
    assert await lab.reconcile() == 0
    assert await lab.get_payout(id) is PayoutState.UNKNOWN
    provider.is_mute = False
    provider.confirm(id)
    assert await lab.reconcile() == 1
    assert len(provider.orders) == 1
    await lab.check_books()


async def test_a_confirmation_may_be_faster_than_the_answer_to_our_own_call(lab, provider):
    owner = await lab.make_owner(800)
    id = await lab.approve(owner)
    provider.moods.append(Mood.SILENT_AFTER)
    sending = asyncio.create_task(lab.send_all())
    async with asyncio.timeout(60):
        while id not in provider.entries:
            await asyncio.sleep(0.005)
    [(_, answer)] = await provider.tell(provider.confirm(id))
    assert answer["verdict"] == "applied"
    assert await sending == 1
    assert await lab.get_payout(id) is PayoutState.CONFIRMED, "our own time-out does not unsay it"
    await lab.check_books()


async def test_a_provider_that_is_away_is_sent_nothing(lab, provider):
    owner = await lab.make_owner(2_000)
    ids = [await lab.approve(owner) for _ in range(2)]
    provider.is_mute = True
    assert await lab.send_all() == 0
    assert {await lab.get_payout(id) for id in ids} == {PayoutState.APPROVED}
    provider.is_mute = False
    assert await lab.send_all() == 2


async def test_a_payout_that_could_not_even_be_handed_over_fails(lab, provider):
    """It answered the question, and then its door was shut: nothing was sent, and that is certain."""
    owner = await lab.make_owner(800)
    id = await lab.approve(owner)
    nobody = WebhookAdapter(PAY, "http://127.0.0.1:9", secrets=(SECRET,), call_seconds=1)
    lab.adapter.request_payout = nobody.request_payout
    assert await lab.send_all() == 1
    await nobody.close()
    assert await lab.get_payout(id) is PayoutState.FAILED
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 800 * CREDIT
    await lab.check_books()


async def test_two_hubs_that_send_at_the_same_moment_send_once(lab, provider):
    owner = await lab.make_owner(2_000)
    ids = [await lab.approve(owner) for _ in range(3)]
    send = partial(payouts.send_payout, lab.pool, lab.providers.get(PAY))
    await asyncio.gather(*(insist(partial(send, id)) for id in ids for _ in range(3)))
    assert sorted(id for id, _ in provider.orders) == sorted(ids)


async def test_a_payout_that_the_provider_knows_already_is_not_told_again(lab, provider):
    """As after a backup was restored: we have forgotten that it was sent."""
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    await lab.execute("ALTER TABLE payouts DISABLE TRIGGER payouts_refuse_change")
    await lab.execute("UPDATE payouts SET state = 'approved', sent_at = NULL, acknowledged_at = NULL")
    await lab.execute("ALTER TABLE payouts ENABLE TRIGGER payouts_refuse_change")
    assert await lab.send_all() == 1
    assert len(provider.orders) == 1
    await provider.tell(provider.confirm(id))
    assert await lab.get_payout(id) is PayoutState.CONFIRMED
    await lab.check_books()
