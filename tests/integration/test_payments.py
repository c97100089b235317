"""Cash in and out against a real provider on a real socket that keeps silent, repeats itself, lies and charges back.

After every story both books are compared: the provider's own list of what it moved, and our ledger.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import asyncpg
import pytest

from computepool import entropy
from computepool.core.errors import IdempotencyMismatch, InvalidRequest, NotFound
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.amount import InvalidAmount
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.claim import ClaimKind, Verdict
from computepool.core.payments.errors import (
    AccountFrozen,
    AccountOwes,
    CashLimitExceeded,
    CurrencyMismatch,
    PaymentRefused,
    PayoutBelowMinimum,
    PayoutCoolingOff,
    PayoutDetailsMissing,
    ProviderUnavailable,
)
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.webhook import REPLAY_WINDOW_SECONDS
from computepool.hub.http.errors import AWAY
from computepool.hub.payments.port import PayoutOrder
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.hub.services import cash, freezes, payouts, provider_events, reconciliation, top_ups
from computepool.hub.store import payments as store
from tests.support.earnings import insist, post
from tests.support.payment_lab import MANUAL, PAY, PaymentLab, open_lab
from tests.support.payment_provider import SECRET, SILENT, Mood, PaymentProvider, run_provider

FIRST = UUID(int=0)
LAST = UUID(int=2**128 - 1)
K = AccountKind
Answer = TypeVar("Answer")


@pytest.fixture
def provider() -> Iterator[PaymentProvider]:
    with run_provider() as provider:
        yield provider


@pytest.fixture
async def lab(dsn: str, provider: PaymentProvider) -> AsyncIterator[PaymentLab]:
    async with open_lab(dsn, provider) as lab:
        yield lab
        # Whatever a story was about, nothing is ever handed out twice.
        assert len({id for id, _ in provider.orders}) == len(provider.orders) or provider.forgets_keys


# Top-ups


async def test_a_top_up_that_is_paid_becomes_credits(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 750)
    assert top_up.pay_url.startswith(provider.url)
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 0
    assert await provider.tell(provider.pay(top_up.id)) == [
        (200, {"verdict": "applied", "doubt": None, "repeated": False})
    ]
    assert await lab.get_top_up(top_up.id) == "paid"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 750 * CREDIT
    await lab.check_books()


async def test_the_same_key_is_the_same_top_up_and_another_amount_is_refused(lab, provider):
    person = await lab.sign_up()
    asks = [insist(lambda: lab.request_top_up(person, 20, key="once")) for _ in range(2)]
    first, second = await asyncio.gather(*asks)
    assert first.id == second.id
    assert len(provider.entries) == 1
    with pytest.raises(IdempotencyMismatch):
        await lab.request_top_up(person, 21, key="once")
    assert (await lab.request_top_up(await lab.sign_up(), 20, key="once")).id != first.id


async def test_a_top_up_that_the_provider_did_not_take_is_asked_for_again_under_its_key(lab, provider):
    person = await lab.sign_up()
    async with asyncio.timeout(20):
        nobody = WebhookAdapter(PAY, "http://127.0.0.1:9", secrets=(SECRET,), call_seconds=1)
        with pytest.raises(ProviderUnavailable):
            await lab.request_top_up(person, 20, key="k", adapter=nobody)
        await nobody.close()
    again = await lab.request_top_up(person, 20, key="k")
    assert list(provider.entries) == [again.id]


@pytest.mark.parametrize("credits", [0, -5, 1.5, True, 10**12])
async def test_an_amount_that_is_none_is_refused(lab, credits):
    person = await lab.sign_up()
    with pytest.raises(InvalidAmount):
        await top_ups.request_top_up(
            lab.pool,
            lab.adapter,
            lab.terms,
            person,
            amount_microcredits=credits if credits in (True, 1.5) else credits * CREDIT,
            currency="INR",
            idempotency_key="k",
        )


async def test_a_top_up_has_limits_a_currency_and_a_key(lab):
    person = await lab.sign_up()
    with pytest.raises(InvalidRequest, match="at least 10"):
        await lab.request_top_up(person, 9)
    with pytest.raises(CurrencyMismatch):
        await lab.request_top_up(person, 20, currency="USD")
    with pytest.raises(InvalidRequest, match="idempotency key"):
        await lab.request_top_up(person, 20, key="x" * 201)
    await lab.request_top_up(person, 99_990)
    with pytest.raises(CashLimitExceeded):
        await lab.request_top_up(person, 11)
    assert [t.cash.minor for t in await top_ups.list_top_ups(lab.pool, person, before=LAST, limit=9)] == [9_999_000]


async def test_requests_at_the_same_moment_do_not_pass_the_limit_together(lab):
    lab.terms = replace(lab.terms, top_up_count_per_day_max=2)
    person = await lab.sign_up()
    asks = [insist(partial(lab.request_top_up, person, 20, key=f"k{number}")) for number in range(5)]
    found = await asyncio.gather(*asks, return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["CashLimitExceeded"] * 3 + ["StoredTopUp"] * 2


async def test_a_request_that_waits_too_long_for_its_turn_leaves_nothing_and_may_come_again(lab):
    person = await lab.sign_up()
    async with lab.pool.acquire() as conn, conn.transaction():
        await store.lock_account(conn, person.account_id)
        with pytest.raises(asyncpg.LockNotAvailableError) as refusal:
            await lab.request_top_up(person, 20, key="k")
    assert isinstance(refusal.value, AWAY)
    assert await lab.fetch("SELECT * FROM top_ups") == []
    assert (await lab.request_top_up(person, 20, key="k")).cash.minor == 2_000


async def test_a_top_up_is_its_owners_to_look_at(lab):
    top_up = await lab.request_top_up(await lab.sign_up())
    with pytest.raises(NotFound):
        await top_ups.get_top_up(lab.pool, await lab.sign_up(), top_up.id)


async def test_a_payment_that_nobody_told_us_of_is_found_by_asking(lab, provider):
    person = await lab.sign_up()
    paid, unpaid = [await lab.request_top_up(person, 20) for _ in range(2)]
    provider.pay(paid.id)

    async def ask() -> int:
        return await reconciliation.reconcile_top_ups(lab.pool, lab.providers, limit=10, quiet_seconds=0)

    assert [await ask() for _ in range(3)] == [1, 0, 0]
    assert (await lab.get_top_up(paid.id), await lab.get_top_up(unpaid.id)) == ("paid", "requested")
    await lab.check_books()


# Words that come twice, late, early, from others, or are lies


async def test_an_event_that_is_told_many_times_counts_once(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell(event, event) + await provider.tell_at_once(*[event] * 6)
    assert {answer["verdict"] for _, answer in answers} == {"applied"}
    assert sum(not answer["repeated"] for _, answer in answers) == 1
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT
    await lab.check_books()


async def test_an_event_that_arrives_on_many_connections_before_it_was_ever_heard_counts_once(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    answers = await provider.tell_at_once(*[provider.pay(top_up.id)] * 8)
    assert [answer["repeated"] for _, answer in answers].count(False) == 1
    await lab.check_books()


async def test_the_same_fact_under_two_ids_counts_once(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell_at_once(event, event.under_new_id(), event.under_new_id())
    assert sorted(answer["verdict"] for _, answer in answers) == ["applied", "old_news", "old_news"]
    await lab.check_books()


async def test_a_forged_event_changes_nothing_and_does_not_take_the_true_ones_id(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    event = provider.pay(top_up.id)
    assert await provider.tell(event, secrets=(b"a secret of my own",)) == [
        (400, {"code": "signature_refused", "why": "forged"})
    ]
    assert await lab.fetch_value("SELECT count(*) FROM provider_events") == 0
    [(_, answer)] = await provider.tell(event)
    assert answer["verdict"] == "applied"
    await lab.check_books()


async def test_an_event_signed_too_long_ago_is_refused_and_can_be_signed_anew(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    [(_, late)] = await provider.tell(event, seconds_ago=REPLAY_WINDOW_SECONDS + 5)
    assert late == {"code": "signature_refused", "why": "late"}
    [(_, anew)] = await provider.tell(event)
    assert anew["verdict"] == "applied"
    await lab.check_books()


async def test_while_secrets_are_changed_both_are_good(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    [(_, answer)] = await provider.tell(provider.pay(top_up.id), secrets=(b"the next secret of ours", SECRET))
    assert answer["verdict"] == "applied"


@pytest.mark.parametrize(
    ("lie", "doubt"),
    [
        ({"amount_minor": 2_001}, "amount_mismatch"),
        ({"amount_minor": 200_000}, "amount_mismatch"),
        ({"currency": "USD"}, "currency_mismatch"),
        ({"subject_id": str(UUID(int=5))}, "unknown_subject"),
        ({"kind": "top_up.doubled"}, "unknown_kind"),
        ({"kind": "payout.confirmed"}, "unknown_subject"),
    ],
)
async def test_a_lie_is_refused_recorded_and_shown_to_the_operator(lab, provider, lie, doubt):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    lying = provider.pay(top_up.id).lie(**lie)
    provider.movements.clear()
    answers = await provider.tell(lying, lying)
    assert [(a["verdict"], a["doubt"], a["repeated"]) for _, a in answers] == [
        ("refused", doubt, False),
        ("refused", doubt, True),
    ]
    assert await lab.get_top_up(top_up.id) == "requested"
    [shown] = await provider_events.list_refused_events(lab.pool, limit=10)
    assert (shown.claim.amount_minor, shown.doubt.value) == (lying.body["amount_minor"], doubt)
    assert await lab.fetch_value("SELECT count(*) FROM events WHERE kind = 'provider_event_refused'") == 1
    await provider_events.review_event(
        lab.pool, lab.operator, provider=PAY, event_id=shown.event_id, note="called them"
    )
    assert await provider_events.list_refused_events(lab.pool, limit=10) == []
    await lab.check_books()


async def test_an_id_that_is_used_for_something_else_is_refused_and_told(lab, provider):
    person = await lab.sign_up()
    one, other = [await lab.request_top_up(person, 20) for _ in range(2)]
    event = provider.pay(one.id)
    second = provider.pay(other.id).lie(id=event.body["id"])
    answers = await provider.tell(event, second)
    assert [(a["verdict"], a["doubt"]) for _, a in answers] == [("applied", None), ("refused", "reused_id")]
    assert await lab.get_top_up(other.id) == "requested"
    assert await lab.fetch_value("SELECT body->>'doubt' FROM events WHERE kind = 'provider_event_refused'") == (
        "reused_id"
    )


async def test_an_event_that_is_no_event_is_refused(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell(event.lie(amount_minor=20.0), event.lie(id="~hand:mine"), event.lie(kind=None))
    assert [(status, answer["code"]) for status, answer in answers] == [(400, "invalid_request")] * 3
    assert await lab.get_top_up(top_up.id) == "requested"


async def test_words_in_the_wrong_order_come_to_the_same(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    given_up, paid, gone = provider.give_up(top_up.id), provider.pay(top_up.id), provider.charge_back(top_up.id)
    answers = await provider.tell(gone, paid, given_up)
    assert [answer["verdict"] for _, answer in answers] == ["applied", "old_news", "old_news"]
    assert await lab.get_top_up(top_up.id) == "charged_back"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 0
    await lab.check_books()


async def test_cash_that_comes_after_all_counts(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    await provider.tell(provider.give_up(top_up.id))
    assert await lab.get_top_up(top_up.id) == "failed"
    await provider.tell(provider.pay(top_up.id))
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT
    await lab.check_books()


# Cash that is taken back


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


# Payouts, from the request to the bank


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


# No answer


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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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


# Standing


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
