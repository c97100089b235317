"""Top-ups against a real provider on a real socket: asked for once, limited, and credited when they are paid."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import asyncpg
import pytest

from computepool.core.errors import IdempotencyMismatch, InvalidRequest, NotFound
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.amount import InvalidAmount
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import (
    CashLimitExceeded,
    CurrencyMismatch,
    ProviderUnavailable,
)
from computepool.hub.http.errors import AWAY
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.hub.services import reconciliation, top_ups
from computepool.hub.store import payments as store
from tests.support.earnings import insist
from tests.support.payment_lab import PAY
from tests.support.payment_provider import SECRET

LAST = UUID(int=2**128 - 1)
K = AccountKind
Answer = TypeVar("Answer")


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
    async with asyncio.timeout(60):
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
