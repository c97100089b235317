"""Cash that is taken back: refunds and chargebacks, of what is there and of what was spent."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest

from computepool.core.errors import NotFound
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import (
    AccountFrozen,
    PaymentRefused,
)
from computepool.hub.services import cash, freezes, provider_events, top_ups

FIRST = UUID(int=0)
K = AccountKind
Answer = TypeVar("Answer")


async def test_a_refund_of_what_is_unspent_takes_the_credits_first(lab, provider):
    person = await lab.sign_up()
    id = await lab.top_up(person, 100)
    refunded = await top_ups.refund_top_up(lab.pool, lab.operator, id)
    assert refunded.state.value == "refunded"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 0
    # The operator sends the cash, and the provider tells of it, which is old news by then.
    [(_, answer)] = await provider.tell(provider.refund(id))
    assert answer["verdict"] == "old_news"
    assert (await top_ups.refund_top_up(lab.pool, lab.operator, id)).state.value == "refunded"
    assert await lab.fetch("SELECT * FROM account_freezes") == []
    await lab.check_books()


async def test_a_refund_of_what_is_spent_is_refused(lab):
    owner, person = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 100)
    await lab.earn(owner, person, 1)
    with pytest.raises(InsufficientCredits):
        await top_ups.refund_top_up(lab.pool, lab.operator, id)
    assert await lab.get_top_up(id) == "paid"
    unpaid = await lab.request_top_up(person)
    with pytest.raises(PaymentRefused):
        await top_ups.refund_top_up(lab.pool, lab.operator, unpaid.id)
    await lab.check_books()


async def test_a_chargeback_of_a_spent_top_up_leaves_the_books_exact_the_loss_visible_and_the_account_frozen(
    lab, provider
):
    person, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 1_000)
    await lab.earn(owner, person, 900)
    [(_, answer)] = await provider.tell(provider.charge_back(id))
    assert answer["verdict"] == "applied"
    assert await lab.get_top_up(id) == "charged_back"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 0
    assert await lab.get_balance(K.RECEIVABLE, person) == -900 * CREDIT
    assert await lab.get_balance(K.OWNER_AVAILABLE, owner) == 720 * CREDIT, (
        "the owner did the work, and keeps the pay"
    )
    assert await lab.get_balance(K.WORLD) == 0
    async with lab.pool.acquire() as conn:
        with pytest.raises(AccountFrozen, match="frozen since"):
            await freezes.check_not_frozen(conn, person.account_id)
        await freezes.check_not_frozen(conn, owner.account_id)
    [frozen] = await freezes.list_freezes(lab.pool, after=FIRST, limit=10)
    assert (frozen.account_id, frozen.top_up_id) == (person.account_id, id)
    assert await lab.fetch_value("SELECT count(*) FROM hub_changes WHERE subject_id = $1", person.account_id) == 1
    await lab.check_books()


async def test_a_frozen_account_can_top_up_pays_its_debt_with_it_and_is_free_when_the_operator_says_so(lab, provider):
    person, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 1_000)
    await lab.earn(owner, person, 900)
    await provider.tell(provider.charge_back(id))
    await lab.top_up(person, 600)
    assert await lab.get_balance(K.RECEIVABLE, person) == -300 * CREDIT
    await lab.top_up(person, 500)
    assert await lab.get_balance(K.RECEIVABLE, person) == 0
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 200 * CREDIT
    await freezes.lift_freeze(lab.pool, lab.operator, person.account_id)
    async with lab.pool.acquire() as conn:
        await freezes.check_not_frozen(conn, person.account_id)
    with pytest.raises(NotFound):
        await freezes.lift_freeze(lab.pool, lab.operator, person.account_id)
    await lab.check_books()


async def test_a_debt_is_collected_from_what_is_there_earnings_too(lab, provider):
    person, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 1_000)
    await lab.earn(owner, person, 1_000)
    await provider.tell(provider.charge_back(id))
    submitter = await lab.sign_up()
    await lab.top_up(submitter, 500)
    await lab.earn(person, submitter, 500)
    assert await cash.collect_debt(lab.pool, person.account_id) == 600 * CREDIT
    assert await cash.collect_debt(lab.pool, person.account_id) == 600 * CREDIT
    assert await lab.get_balance(K.OWNER_AVAILABLE, person) == 0
    await lab.check_books()


@pytest.mark.parametrize("refund_first", [True, False])
async def test_cash_that_leaves_twice_for_one_top_up_is_booked_twice_in_whatever_order(lab, provider, refund_first):
    person, other = await lab.sign_up(), await lab.sign_up()
    await lab.top_up(other, 500)
    id = await lab.top_up(person, 100)
    events = [provider.refund(id), provider.charge_back(id)]
    answers = await provider.tell(*(events if refund_first else events[::-1]), *events)
    assert [answer["verdict"] for _, answer in answers][:2] == ["applied", "applied"]
    assert await lab.get_top_up(id) == "paid_back_twice"
    assert await lab.get_balance(K.RECEIVABLE, person) == -100 * CREDIT
    await lab.check_books()


async def test_a_refund_at_the_providers_of_what_is_spent_is_owed_and_freezes(lab, provider):
    person, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 100)
    await lab.earn(owner, person, 40)
    await provider.tell(provider.refund(id))
    assert await lab.get_top_up(id) == "refunded"
    assert await lab.get_balance(K.RECEIVABLE, person) == -40 * CREDIT
    assert len(await freezes.list_freezes(lab.pool, after=FIRST, limit=10)) == 1
    await lab.check_books()


async def test_cash_that_is_gone_although_the_books_hold_none_waits_for_cash_and_freezes_at_once(lab, provider):
    """Topped up, spent, cashed out by the owner, charged back: more has left than ever came in."""
    person, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(person, 1_000)
    await lab.earn(owner, person, 1_000)
    await lab.set_details(owner)
    payout = await lab.send(owner, 800)
    await provider.tell(provider.confirm(payout))
    [(_, answer)] = await provider.tell(provider.charge_back(id))
    assert (answer["verdict"], answer["doubt"]) == ("refused", "cash_short")
    assert await lab.get_top_up(id) == "paid"
    assert len(await freezes.list_freezes(lab.pool, after=FIRST, limit=10)) == 1
    assert [d.theirs_minor - d.ours_minor for d in await lab.list_differences()] == [-100_000], "the gap is visible"
    assert await provider_events.hear_short_again(lab.pool, limit=10) == 0
    await lab.top_up(await lab.sign_up(), 900)
    assert await provider_events.hear_short_again(lab.pool, limit=10) == 1
    assert await lab.get_balance(K.RECEIVABLE, person) == -1_000 * CREDIT
    assert await provider_events.list_refused_events(lab.pool, limit=10) == []
    await lab.check_books()
