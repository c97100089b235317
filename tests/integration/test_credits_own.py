"""An account's own money as its services tell it: balances, terms by region, spending earnings, the welcome."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from computepool.core.accounts.roles import SignUp
from computepool.core.errors import ComputePoolError, IdempotencyMismatch, InvalidRequest, NameTaken
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.amount import InvalidAmount
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import AccountFrozen, CurrencyMismatch, PayoutDetailsMissing
from computepool.hub.config import HubSettings
from computepool.hub.services import accounts, freezes, payouts
from computepool.hub.services import credits as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.cash_terms import CashBook
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.hub.store import ledger as ledger_store
from tests.support.payment_lab import PaymentLab, to_caller

K = AccountKind
LAST = UUID(int=2**128 - 1)
BOOK = CashBook(PriceBook(load_rate_card(), holdback_seconds=60), HubSettings(payout_cool_off_seconds=0))


async def get(lab: PaymentLab, person: AccountCaller) -> service.Credits:
    return await service.get_credits(lab.pool, BOOK, person)


async def spend(lab: PaymentLab, person: AccountCaller, microcredits: Any, key: str = "once") -> None:
    await service.spend_earnings(lab.pool, person, amount_microcredits=microcredits, idempotency_key=key)


async def top_up(lab: PaymentLab, person: AccountCaller, key: str, currency: str | None = None) -> Any:
    return await service.request_top_up(
        lab.pool,
        lab.providers,
        BOOK,
        person,
        amount_microcredits=1_700 * CREDIT,
        currency=currency,
        idempotency_key=key,
    )


async def cash_out(lab: PaymentLab, person: AccountCaller, credits: int, currency: str | None = None) -> Any:
    return await service.request_payout(
        lab.pool,
        lab.providers,
        BOOK,
        person,
        amount_microcredits=credits * CREDIT,
        currency=currency,
        idempotency_key=f"cash {credits} {currency}",
    )


async def set_details(lab: PaymentLab, person: AccountCaller, region: str, currency: str | None = None) -> Any:
    return await service.set_payout_details(
        lab.pool, BOOK, person, region=region, currency=currency, destination="bank 1"
    )


# What one has


async def test_balances_stand_where_the_books_have_them(lab):
    owner = await lab.make_owner(800)
    await lab.top_up(owner, 300)
    found = await get(lab, owner)
    assert (found.available, found.held, found.pending, found.earned, found.owed) == (
        300 * CREDIT,
        0,
        0,
        800 * CREDIT,
        0,
    )
    assert found.frozen_at is None
    assert (found.terms.currency, found.terms.payout_microcredits_min) == ("INR", 500 * CREDIT)


async def test_a_new_account_has_nothing_and_the_terms_of_the_house(lab):
    found = await get(lab, await lab.sign_up())
    assert (found.available, found.held, found.pending, found.earned, found.owed) == (0, 0, 0, 0, 0)
    assert found.terms.currency == "INR"


async def test_an_account_that_owes_sees_how_much_and_since_when_it_is_frozen(lab, provider):
    spender, owner = await lab.sign_up(), await lab.sign_up()
    id = await lab.top_up(spender, 1_000)
    await lab.earn(owner, spender, 700)
    await lab.top_up(owner, 1_000)
    await provider.tell(provider.charge_back(id))
    found = await get(lab, spender)
    assert (found.available, found.owed) == (0, 700 * CREDIT)
    assert found.frozen_at is not None


# Terms by region


async def test_the_region_of_the_payout_details_decides_the_currency(lab):
    person = await lab.sign_up()
    assert (await set_details(lab, person, "US")).currency == "USD"
    assert (await get(lab, person)).terms.currency == "USD"
    with pytest.raises(CurrencyMismatch, match="in EUR"):
        await set_details(lab, person, "DE", "INR")
    with pytest.raises(InvalidRequest, match="ISO-2"):
        await set_details(lab, person, "Germany")


async def test_a_top_up_is_priced_in_its_currency(lab):
    person = await lab.sign_up()
    at_home, abroad = await top_up(lab, person, "a"), await top_up(lab, person, "b", "USD")
    assert (at_home.cash.currency, at_home.cash.minor) == ("INR", 170_000)
    # 1 dollar is 85 credits.
    assert (abroad.cash.currency, abroad.cash.minor, abroad.cash.microcredits) == ("USD", 2_000, 1_700 * CREDIT)
    with pytest.raises(CurrencyMismatch, match="INR, EUR, GBP, USD"):
        await top_up(lab, person, "c", "XAU")


async def test_a_payout_is_made_in_the_currency_of_the_details_and_no_other(lab):
    owner = await lab.make_owner(2_000)
    with pytest.raises(CurrencyMismatch):
        await cash_out(lab, owner, 600, "USD")
    assert (await cash_out(lab, owner, 600)).cash.minor == 60_000
    with pytest.raises(PayoutDetailsMissing):
        await cash_out(lab, await lab.sign_up(), 600)


async def test_cashing_out_more_than_was_earned_says_what_there_is(lab):
    owner = await lab.make_owner(800)
    with pytest.raises(InsufficientCredits, match="800 credits") as caught:
        await cash_out(lab, owner, 801)
    assert caught.value.details == {"earned_microcredits": 800 * CREDIT}
    assert await payouts.list_payouts(lab.pool, owner, before=LAST, limit=5) == []


# Spending what one earned


async def test_earnings_that_are_spent_are_credits_for_jobs(lab):
    owner = await lab.make_owner(800)
    await spend(lab, owner, 300_000_001)
    found = await get(lab, owner)
    assert (found.earned, found.available) == (499_999_999, 300_000_001)
    await lab.check_books()


async def test_spending_twice_with_one_key_is_spending_once(lab):
    owner = await lab.make_owner(800)
    await asyncio.gather(*(spend(lab, owner, 300 * CREDIT) for _ in range(5)))
    assert (await get(lab, owner)).earned == 500 * CREDIT
    with pytest.raises(IdempotencyMismatch):
        await spend(lab, owner, 301 * CREDIT)
    # Another account's keys are its own.
    other = await lab.make_owner(800)
    await spend(lab, other, 301 * CREDIT)
    await lab.check_books()


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, 10**15 + 1])
async def test_an_amount_that_is_none_is_not_spent(lab, amount):
    owner = await lab.make_owner(800)
    with pytest.raises(InvalidAmount):
        await spend(lab, owner, amount)


async def test_more_than_was_earned_cannot_be_spent(lab):
    owner = await lab.make_owner(800)
    with pytest.raises(InsufficientCredits, match="800 credits"):
        await spend(lab, owner, 801 * CREDIT)
    with pytest.raises(InvalidRequest, match="idempotency key"):
        await spend(lab, owner, 1, key="")


async def test_a_frozen_account_spends_nothing_and_one_that_owes_pays_first(lab):
    owner = await lab.make_owner(800)
    async with lab.pool.acquire() as conn, conn.transaction():
        await freezes.freeze(conn, owner.account_id, why="a test")
    with pytest.raises(AccountFrozen):
        await spend(lab, owner, CREDIT)
    await freezes.lift_freeze(lab.pool, lab.operator, owner.account_id)
    # Pay that was spent is taken back: it is owed, and more is earned afterwards.
    await spend(lab, owner, 700 * CREDIT)
    await lab.reverse(lab.earnings[-1])
    submitter = await lab.sign_up()
    await lab.top_up(submitter, 1_500)
    await lab.earn(owner, submitter, 1_500)
    assert (await get(lab, owner)).owed == 700 * CREDIT
    await spend(lab, owner, 200 * CREDIT, key="more")
    found = await get(lab, owner)
    assert (found.owed, found.available, found.earned) == (0, 200 * CREDIT, 1_000 * CREDIT)
    await lab.check_books()


# The welcome


async def sign_up(lab: PaymentLab, email: str, **settings: Any) -> AccountCaller:
    account, _ = await accounts.sign_up(
        lab.pool,
        HubSettings(sign_up=SignUp.OPEN, **settings),
        email=email,
        name="new",
        password=None,
        invite=None,
    )
    return to_caller(account.id)


async def test_a_new_account_gets_what_the_settings_say_as_a_top_up_that_stands_in_the_books(lab):
    person = await sign_up(lab, "a@example.org", welcome_microcredits=250_000_000)
    assert (await get(lab, person)).available == 250 * CREDIT
    [row] = await lab.fetch("SELECT provider, state::text, currency, amount_minor, amount_microcredits FROM top_ups")
    assert tuple(row) == ("welcome", "paid", "INR", 25_000, 250 * CREDIT)
    async with lab.pool.acquire() as conn:
        assert await ledger_store.list_drifts(conn) == []
    assert await lab.get_balance(K.WORLD) == -250 * CREDIT


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0),
        ({"demo": True}, 1_000 * CREDIT),
        ({"demo": True, "welcome_microcredits": 0}, 0),
        # Whole paise: what is less than one is not given.
        ({"welcome_microcredits": 9_999}, 0),
        ({"welcome_microcredits": 19_999}, 10_000),
    ],
)
async def test_demo_hubs_give_a_thousand_credits_and_others_nothing_unless_they_say_so(lab, settings, expected):
    person = await sign_up(lab, "a@example.org", **settings)
    assert (await get(lab, person)).available == expected


async def test_a_sign_up_that_fails_gives_nothing(lab):
    await sign_up(lab, "a@example.org", welcome_microcredits=CREDIT)
    with pytest.raises(ComputePoolError) as caught:
        await sign_up(lab, "a@example.org", welcome_microcredits=CREDIT)
    assert isinstance(caught.value, NameTaken)
    assert await lab.get_balance(K.WORLD) == -CREDIT


async def test_the_welcome_does_not_use_up_the_days_limit_for_top_ups(lab):
    person = await sign_up(lab, "a@example.org", welcome_microcredits=10_000_000 * CREDIT)
    assert (await lab.request_top_up(person, 99_000)).cash.minor == 9_900_000
