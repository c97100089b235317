"""The operator as provider, what the database refuses whatever the code believes, and planted faults found."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import asyncpg
import pytest

from computepool import entropy
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import AccountKind
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.claim import ClaimKind, Verdict
from computepool.core.payments.errors import (
    PaymentRefused,
)
from computepool.core.payments.payout import PayoutState
from computepool.hub.payments.port import PayoutOrder
from computepool.hub.services import cash, payouts, provider_events
from tests.support.earnings import post
from tests.support.payment_lab import MANUAL, PaymentLab
from tests.support.payment_provider import Mood

FIRST = UUID(int=0)
K = AccountKind
Answer = TypeVar("Answer")


# The operator as provider


async def test_the_operator_moves_cash_by_hand_and_says_so_with_a_reference(lab):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 1_000, adapter=lab.providers.get(MANUAL).adapter)
    assert "Pay to bank 1." in top_up.instructions
    assert top_up.provider_reference in top_up.instructions
    heard = await say(lab, ClaimKind.TOP_UP_PAID, top_up.id, 100_000, "UTR 1")
    assert (heard.verdict, heard.repeated) == (Verdict.APPLIED, False)
    assert (await say(lab, ClaimKind.TOP_UP_PAID, top_up.id, 100_000, "UTR 1")).repeated
    owner = await lab.sign_up()
    await lab.earn(owner, person, 1_000)
    await lab.set_details(owner)
    payout = await lab.approve(owner, 800, provider=MANUAL)
    assert await lab.send_all() == 1
    [to_do] = await payouts.list_payouts_in_state(lab.pool, state=PayoutState.SENT, after=FIRST, limit=10)
    assert to_do.id == payout
    assert await lab.reconcile(not_found_seconds=0) == 0, "there is nobody to ask, and silence means nothing"
    await say(lab, ClaimKind.PAYOUT_CONFIRMED, payout, 80_000, "UTR 2")
    assert await lab.get_payout(payout) is PayoutState.CONFIRMED
    await say(lab, ClaimKind.PAYOUT_RETURNED, payout, 80_000, "UTR 3")
    assert await lab.get_payout(payout) is PayoutState.RETURNED
    assert await lab.get_balance(K.WORLD) == -1_000 * CREDIT
    said_by = {row["said_by"] for row in await lab.fetch("SELECT said_by FROM provider_events")}
    assert said_by == {lab.operator.account_id}


async def say(lab: PaymentLab, kind: ClaimKind, id: UUID, amount_minor: int, reference: str):
    return await provider_events.record_by_hand(
        lab.pool,
        lab.operator,
        kind=kind,
        subject_id=id,
        currency="INR",
        amount_minor=amount_minor,
        reference=reference,
    )


async def test_one_reference_vouches_for_one_thing_and_a_slip_can_be_said_again(lab):
    manual = lab.providers.get(MANUAL).adapter
    person = await lab.sign_up()
    one, other = [await lab.request_top_up(person, 20, adapter=manual) for _ in range(2)]
    with pytest.raises(PaymentRefused, match="amount"):
        await say(lab, ClaimKind.TOP_UP_PAID, one.id, 2_001, "UTR 1")
    await say(lab, ClaimKind.TOP_UP_PAID, one.id, 2_000, "UTR 1")
    with pytest.raises(PaymentRefused, match="vouches for something else"):
        await say(lab, ClaimKind.TOP_UP_PAID, other.id, 2_000, "UTR 1")
    with pytest.raises(InvalidRequest, match="reference"):
        await say(lab, ClaimKind.TOP_UP_PAID, other.id, 2_000, " ")
    with pytest.raises(NotFound):
        await say(lab, ClaimKind.PAYOUT_CONFIRMED, other.id, 2_000, "UTR 9")
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT


async def test_the_operator_can_end_what_a_provider_has_left_unknown(lab, provider):
    owner = await lab.make_owner(800)
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    provider.confirm(id)
    await say(lab, ClaimKind.PAYOUT_CONFIRMED, id, 50_000, "seen on the bank's statement")
    assert await lab.get_payout(id) is PayoutState.CONFIRMED
    await lab.check_books()


# What the database holds whatever the code believes


async def test_the_database_refuses_a_second_sending_and_another_amount(lab):
    owner = await lab.make_owner(800)
    id = await lab.send(owner)
    for change in (
        "sent_at = now() + interval '1 s'",
        "state = 'approved', sent_at = NULL",
        "amount_microcredits = 1",
        "amount_minor = 1",
        "currency = 'USD'",
        "provider = 'other'",
    ):
        with pytest.raises(asyncpg.RestrictViolationError):
            await lab.execute(f"UPDATE payouts SET {change} WHERE id = $1", id)
    with pytest.raises(asyncpg.CheckViolationError):
        await lab.execute("UPDATE payouts SET state = 'confirmed' WHERE id = $1", id)
    with pytest.raises(asyncpg.CheckViolationError):
        await lab.execute("UPDATE top_ups SET state = 'charged_back'")


# Controls: planted faults, found by comparing the two books


async def test_control_an_unknown_payout_that_is_sent_again_is_found_by_comparing_the_books(lab, provider):
    """What a hub would do that takes no answer for no payout, at a provider that forgets idempotency keys."""
    owner = await lab.make_owner(800)
    provider.forgets_keys = True
    provider.moods.append(Mood.SILENT_AFTER)
    id = await lab.send(owner)
    assert await lab.get_payout(id) is PayoutState.UNKNOWN
    await lab.adapter.request_payout(PayoutOrder(id, "INR", 50_000, "bank 1"))
    provider.confirm(id)
    await lab.reconcile()
    assert await lab.get_payout(id) is PayoutState.CONFIRMED
    async with lab.pool.acquire() as conn:
        assert await cash.get_cash_held(conn) == 500 * CREDIT, "our books alone know nothing of it"
    [difference] = await lab.list_differences()
    assert (difference.subject_id, difference.ours_minor, difference.theirs_minor) == (id, -50_000, -100_000)
    with pytest.raises(AssertionError):
        await lab.check_books()


async def test_control_an_event_that_is_applied_twice_is_found_by_comparing_the_books(lab, provider):
    """What a hub would do whose keys were made of events and not of top-ups."""
    person = await lab.sign_up()
    id = await lab.top_up(person, 100)
    again = replace(
        verbs.top_up(top_up_id=id, account_id=person.account_id, amount=100 * CREDIT), key=f"{entropy.new_id()}/event"
    )
    async with lab.pool.acquire() as conn, conn.transaction():
        await post(conn, again)
    [difference] = await lab.list_differences()
    assert (difference.subject_id, difference.ours_minor, difference.theirs_minor) == (id, 20_000, 10_000)
    with pytest.raises(AssertionError):
        await lab.check_books()


async def test_control_a_hook_that_forgets_what_it_has_heard_is_stopped_by_state_and_ledger(lab, provider):
    """Without the memory of events a repeated one is old news, and its posting a repetition: nothing moves twice."""
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    event = provider.pay(top_up.id)
    await provider.tell(event)
    await lab.execute("DELETE FROM provider_events")
    [(_, answer)] = await provider.tell(event)
    assert answer["verdict"] == "old_news"
    await lab.execute("DELETE FROM provider_events")
    await lab.execute("UPDATE top_ups SET state = 'requested', paid_at = NULL")
    [(_, answer)] = await provider.tell(event)
    assert answer["verdict"] == "applied", "the state was forgotten too, and still the ledger knows"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT
    await lab.check_books()
