"""The end of the holdback: each earning becomes its owner's once, however many hubs look after it."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    owner_available,
    owner_pending,
    receivable,
    submitter_available,
)
from computepool.core.ledger.earning import EarningState
from computepool.hub.services import debts, releases
from computepool.hub.store import credits as store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.queries import load_queries
from tests.support.earnings import earn, find_faults, get_balance, give_credits, list_states, make_people, post


@pytest.fixture
def pool(patient_pool: Pool) -> Pool:
    return patient_pool


async def test_what_is_due_becomes_its_owners_and_what_is_not_stays_pending(pool):
    submitter, [owner] = await make_people(pool)
    due = await earn(pool, owner, submitter, 100, 203)
    later = await earn(pool, owner, submitter, 500, due_seconds_ago=-60)
    released = await releases.release_due(pool, limit=10)
    assert released == releases.Released(2, due.owner_microcredits, frozenset({owner}))
    assert await get_balance(pool, owner_available(owner)) == due.owner_microcredits == 80 + 162
    assert await get_balance(pool, owner_pending(owner)) == later.owner_microcredits
    assert await list_states(pool, due) == ["released", "released"]
    assert await list_states(pool, later) == ["pending"]
    assert await releases.release_due(pool, limit=10) == releases.Released()
    assert await find_faults(pool) == []


async def test_one_posting_frees_what_an_owner_earned_with_a_job(pool):
    submitter, [one, other] = await make_people(pool, 2)
    pay = await earn(pool, one, submitter, 100, 100, 100)
    await earn(pool, other, submitter, 100)
    await releases.release_due(pool, limit=10)
    async with pool.acquire() as conn:
        rows = await conn.fetch("SELECT job_id, attempt_id, amount FROM ledger_transfers WHERE kind = 'release'")
    assert sorted((row["amount"], row["attempt_id"] is None) for row in rows) == [(80, False), (240, True)]
    assert {row["job_id"] for row in rows if row["amount"] == 240} == {pay.job_id}


async def test_an_owners_part_of_nothing_is_released_without_a_transfer(pool):
    submitter, [owner] = await make_people(pool)
    # The fee is rounded up: of one microcredit nothing is left.
    pay = await earn(pool, owner, submitter, 1)
    assert pay.owner_microcredits == 0
    assert (await releases.release_due(pool, limit=10)).attempt_count == 1
    assert await list_states(pool, pay) == ["released"]
    assert await find_faults(pool) == []


async def test_pay_waits_for_its_receipt_and_is_disputed_when_that_does_not_hold(pool):
    submitter, [owner] = await make_people(pool)
    waiting = await earn(pool, owner, submitter, 100, receipt="unverified")
    good = await earn(pool, owner, submitter, 200, receipt="verified")
    bad = await earn(pool, owner, submitter, 400, receipt="refused")
    assert (await releases.release_due(pool, limit=10)).microcredits == good.owner_microcredits
    states = [await list_states(pool, pay) for pay in (waiting, good, bad)]
    assert states == [["pending"], ["released"], ["disputed"]]
    async with pool.acquire() as conn:
        events = await conn.fetch("SELECT account_id, job_id, body FROM events WHERE kind = 'dispute_opened'")
    assert {(event["account_id"], event["job_id"]) for event in events} == {(owner, None), (submitter, bad.job_id)}
    assert all("receipt" in event["body"]["why"] for event in events)
    # It is not looked at again, and stands in nobody's way.
    assert await releases.release_due(pool, limit=1) == releases.Released()
    assert await find_faults(pool) == []


async def test_what_the_books_refuse_is_disputed_and_holds_up_nobody(pool):
    submitter, [poor, owner] = await make_people(pool, 2)
    never_paid = await earn(pool, poor, submitter, 100, settled=False, due_seconds_ago=600)
    pay = await earn(pool, owner, submitter, 100)
    released = await releases.release_due(pool, limit=10)
    assert (released.microcredits, released.owner_ids) == (pay.owner_microcredits, {owner})
    assert await list_states(pool, never_paid) == ["disputed"]
    assert await get_balance(pool, owner_available(poor)) == 0
    async with pool.acquire() as conn:
        assert await ledger_store.list_drifts(conn) == []


async def test_a_batch_is_no_larger_than_its_limit_and_the_oldest_come_first(pool):
    submitter, [owner] = await make_people(pool)
    young = await earn(pool, owner, submitter, 10, 10, due_seconds_ago=1)
    old = await earn(pool, owner, submitter, 20, 20, due_seconds_ago=100)
    assert (await releases.release_due(pool, limit=2)).microcredits == old.owner_microcredits
    assert await list_states(pool, young) == ["pending", "pending"]


# Many hubs


async def release_all(pools: list[Pool], *, limit: int) -> int:
    """Every hub goes on until it finds nothing."""

    async def go_on(pool: Pool) -> int:
        total = 0
        while True:
            released = await releases.release_due(pool, limit=limit)
            total += released.microcredits
            if not released.attempt_count:
                return total

    async with asyncio.timeout(60):
        return sum(await asyncio.gather(*(go_on(pool) for pool in pools)))


async def test_hubs_that_release_at_once_pay_each_earning_once(pool):
    chance = random.Random(7)
    submitter, owners = await make_people(pool, 6)
    pays = [
        await earn(pool, chance.choice(owners), submitter, *(chance.randrange(1, 1_000) for _ in range(5)))
        for _ in range(40)
    ]
    total = await release_all([pool] * 6, limit=7)
    assert total == sum(pay.owner_microcredits for pay in pays)
    assert {state for pay in pays for state in await list_states(pool, pay)} == {"released"}
    assert await find_faults(pool) == []


_change_earnings = store.change_earnings


async def forget_to_change(conn: Any, ids: Any, state: EarningState) -> None:
    """A planted bug: the money moves, and the attempts never hear of it."""
    if state is not EarningState.RELEASED:
        await _change_earnings(conn, ids, state)


async def test_control_a_hub_that_forgets_what_it_released_is_caught(pool):
    submitter, [owner] = await make_people(pool)
    await earn(pool, owner, submitter, 100, 100)
    # Somebody else's pending pay of the same owner is what a second release would take.
    await earn(pool, owner, submitter, 1_000, due_seconds_ago=-600)
    with patch.object(store, "change_earnings", forget_to_change):
        await releases.release_due(pool, limit=2)
        for _ in range(2):
            await releases.release_due(pool, limit=1)
    assert await find_faults(pool) != []


async def test_control_hubs_that_do_not_lock_what_they_release_are_caught(pool):
    submitter, [owner] = await make_people(pool)
    await earn(pool, owner, submitter, 100, 100)
    sound = load_queries("credits").take_due.sql
    planted = sound.replace(" FOR NO KEY UPDATE OF a SKIP LOCKED", "")
    assert planted != sound, "the guard to take out is not there any more"
    have_read = asyncio.Barrier(2)

    async def take_unlocked(conn: Any, *, now: datetime, limit: int) -> list[store.DueEarning]:
        rows = await conn.fetch(planted, now, limit)
        await have_read.wait()
        return [store._read_due(row) for row in rows]

    with patch.object(store, "take_due", take_unlocked):
        async with asyncio.timeout(60):
            await asyncio.gather(releases.release_due(pool, limit=2), releases.release_due(pool, limit=1))
    assert await find_faults(pool) != []


# What owners owe


async def owe(pool: Pool, account_id: AccountId, microcredits: int) -> None:
    """As after a chargeback of credits that were spent."""
    top_up_id = entropy.new_id()
    async with pool.acquire() as conn, conn.transaction():
        world = await ledger_store.lock_balances(conn, SHARDS[AccountKind.WORLD])
        await post(
            conn,
            verbs.chargeback(
                top_up_id=top_up_id, account_id=account_id, amount=microcredits, available=0, world=world
            ),
        )


async def test_who_owes_pays_out_of_what_is_released(pool):
    submitter, [debtor, owner] = await make_people(pool, 2)
    await owe(pool, debtor, 100)
    for person in (debtor, owner):
        await earn(pool, person, submitter, 200)
    released = await releases.release_due(pool, limit=10)
    assert await debts.collect_debts(pool, released.owner_ids) == 1
    assert await get_balance(pool, receivable(debtor)) == 0
    assert await get_balance(pool, owner_available(debtor)) == 60
    assert await get_balance(pool, owner_available(owner)) == 160
    assert await debts.collect_debts(pool, released.owner_ids) == 0
    async with pool.acquire() as conn:
        assert await ledger_store.list_drifts(conn) == []


async def test_debtors_who_have_something_are_found_and_those_who_have_nothing_are_left_alone(pool):
    _, [rich, poor, sound] = await make_people(pool, 3)
    for person in (rich, poor):
        await owe(pool, person, 100)
    async with pool.acquire() as conn, conn.transaction():
        for person in (rich, sound):
            await give_credits(conn, person, 30)
    assert await debts.collect_all_debts(pool, limit=10) == 1
    assert await get_balance(pool, receivable(rich)) == -70
    assert await get_balance(pool, submitter_available(rich)) == 0
    assert await get_balance(pool, submitter_available(sound)) == 30
    # Nothing is left to take.
    assert await debts.collect_all_debts(pool, limit=10) == 0
