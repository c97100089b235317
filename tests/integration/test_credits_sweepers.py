"""The chores of money: what they do in a turn, how far a turn goes, and that hubs may do them at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.payout import PayoutState
from computepool.hub.payments.port import Providers
from computepool.hub.store.connect import Pool
from computepool.hub.sweepers import payout_runner, settler
from tests.support.earnings import insert_pay, list_faults
from tests.support.payment_lab import PaymentLab
from tests.support.payment_provider import Mood

K = AccountKind


@dataclass
class SmallHub:
    """As much of a hub as these sweepers know."""

    pool: Pool
    providers: Providers


@pytest.fixture
def hub(lab: PaymentLab) -> Any:
    return SmallHub(lab.pool, lab.providers)


async def test_a_turn_releases_batch_after_batch_up_to_its_end(lab, hub):
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    await lab.top_up(submitter, 1_000)
    async with lab.pool.acquire() as conn:
        ids = {"owner_id": owner.account_id, "submitter_id": submitter.account_id}
        await insert_pay(conn, **ids, prices=[CREDIT] * 9)
    with patch.object(settler, "BATCH", 2), patch.object(settler, "BATCHES_MAX", 3):
        assert await settler.run_once(hub) == 6
        assert await settler.run_once(hub) == 3
        assert await settler.run_once(hub) == 0
    async with lab.pool.acquire() as conn:
        assert await list_faults(conn) == []


async def test_a_turn_collects_what_an_owner_owes_before_they_can_use_what_is_released(lab, hub, provider):
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    spent = await lab.top_up(owner, 100)
    await lab.earn(submitter, owner, 100)
    await lab.top_up(submitter, 1_000)
    await provider.tell(provider.charge_back(spent))
    assert await lab.get_balance(K.RECEIVABLE, owner) == -100 * CREDIT
    async with lab.pool.acquire() as conn:
        ids = {"owner_id": owner.account_id, "submitter_id": submitter.account_id}
        await insert_pay(conn, **ids, prices=[200 * CREDIT])
    assert await settler.run_once(hub) == 1
    assert await lab.get_balance(K.RECEIVABLE, owner) == 0
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 60 * CREDIT
    assert await settler.collect_once(hub) == 0
    await lab.check_books()


async def test_hubs_that_send_at_once_send_each_payout_once(lab, hub, provider):
    sent = [await lab.approve(await lab.make_owner(600)) for _ in range(6)]
    assert sum(await asyncio.gather(*(payout_runner.send_once(hub) for _ in range(4)))) == 6
    assert sorted(id for id, _ in provider.orders) == sorted(sent)
    assert {await lab.get_payout(id) for id in sent} == {PayoutState.SENT}


async def test_a_turn_asks_what_became_of_payouts_and_top_ups_that_nobody_told_of(lab, hub, provider):
    provider.moods.append(Mood.ERROR_AFTER)
    unheard = await lab.send(await lab.make_owner(600))
    assert await lab.get_payout(unheard) is PayoutState.UNKNOWN
    provider.confirm(unheard)
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 50)
    provider.pay(top_up.id)
    # No call of a hub's may still be on its way.
    assert await payout_runner.reconcile_once(hub) == 0
    await lab.let_time_pass(unheard, timedelta(minutes=3))
    await lab.execute("UPDATE top_ups SET created_at = created_at - interval '3 minutes' WHERE id = $1", top_up.id)
    assert sum(await asyncio.gather(*(payout_runner.reconcile_once(hub) for _ in range(3)))) == 2
    assert await lab.get_payout(unheard) is PayoutState.CONFIRMED
    assert await lab.get_top_up(top_up.id) == "paid"
    assert len(provider.orders) == 1
    await lab.check_books()


async def test_what_was_refused_for_want_of_cash_is_heard_again_by_whichever_hub(lab, hub, provider):
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    spent = await lab.top_up(submitter, 1_000)
    await lab.earn(owner, submitter, 1_000)
    await lab.set_details(owner)
    await provider.tell(provider.confirm(await lab.send(owner, 800)))
    [(_, answer)] = await provider.tell(provider.charge_back(spent))
    assert answer["doubt"] == "cash_short"
    # It is judged again and again, and told once.
    assert [await payout_runner.hear_again_once(hub) for _ in range(3)] == [0, 0, 0]
    assert await lab.fetch_value("SELECT count(*) FROM events WHERE kind = 'account_frozen'") == 1
    await lab.top_up(await lab.sign_up(), 900)
    heard = await asyncio.gather(*(payout_runner.hear_again_once(hub) for _ in range(4)))
    assert sum(heard) >= 1
    assert await lab.get_top_up(spent) == "charged_back"
    assert await lab.get_balance(K.RECEIVABLE, submitter) == -1_000 * CREDIT
    await lab.check_books()
