"""The books in SQL under many at once: exact, never deadlocked, and nothing spent twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    LedgerAccount,
    accounts_of,
    owner_available,
    submitter_available,
)
from computepool.core.ledger.books import Outcome
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.refusal import RefusalCode
from computepool.core.ledger.transfer import Posting
from computepool.hub.store import ledger
from tests.support.builders import NOW
from tests.support.postings import (
    balance,
    held_remaining,
    hold,
    new_account_id,
    new_job_id,
    post,
    settle,
    top_up,
    wait_until_blocked,
)
from tests.support.rows import insert_account, insert_job

POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED


async def test_a_twin_that_waited_for_the_first_is_a_replay(pool):
    person, id = new_account_id(), entropy.new_id()
    async with pool.acquire() as first, pool.acquire() as second:
        await post(first, top_up(person, 1))
        async with first.transaction():
            assert await ledger.post(first, [top_up(person, 5, id)]) == [POSTED]
            others = asyncio.create_task(post(second, top_up(person, 2), top_up(person, 5, id), top_up(person, 3)))
            await wait_until_blocked(first, 1)
        assert await others == [POSTED, REPLAYED, POSTED]
        assert await balance(first, submitter_available(person)) == 11
        assert await ledger.list_drifts(first) == []


async def test_a_differing_twin_that_waited_for_the_first_is_refused(pool):
    person, id = new_account_id(), entropy.new_id()
    async with pool.acquire() as first, pool.acquire() as second:
        await post(first, top_up(person, 1))
        async with first.transaction():
            assert await ledger.post(first, [top_up(person, 5, id)]) == [POSTED]
            others = asyncio.create_task(post(second, top_up(person, 6, id), top_up(person, 3)))
            await wait_until_blocked(first, 1)
        assert await others == [RefusalCode.DIFFERING_REPLAY, POSTED]
        assert await ledger.list_drifts(first) == []


async def test_a_twin_of_a_hold_that_took_all_there_was_is_a_replay_and_no_overdraft(pool):
    async with pool.acquire() as first, pool.acquire() as second:
        person = await insert_account(first)
        job_id = await insert_job(first, person)
        await post(first, top_up(person, 40))
        async with first.transaction():
            assert await ledger.post(first, [hold(job_id, person, 40)]) == [POSTED]
            twin = asyncio.create_task(post(second, hold(job_id, person, 40)))
            await wait_until_blocked(first, 1)
        assert await twin == [REPLAYED]


async def hold_while_a_top_up_is_written(pool: asyncpg.Pool) -> list[object]:
    """The hold's snapshot shows an empty account; when it gets its lock, the credits are there."""
    async with pool.acquire() as first, pool.acquire() as second:
        person = await insert_account(first)
        job_id = await insert_job(first, person)
        await ledger.open_accounts(first, accounts_of(person))
        async with first.transaction():
            assert await ledger.post(first, [top_up(person, 40)]) == [POSTED]
            waiting = asyncio.create_task(post(second, hold(job_id, person, 40)))
            await wait_until_blocked(first, 1)
        answers = await waiting
        assert await held_remaining(first, job_id) == 40
        assert await ledger.list_drifts(first) == []
        return answers


async def test_what_was_topped_up_while_a_hold_waited_can_be_held(pool):
    assert await hold_while_a_top_up_is_written(pool) == [POSTED]


async def test_control_figures_made_of_the_snapshot_instead_of_the_locked_ones_are_refused(pool, monkeypatch):
    old = "ledger_accounts.balance + after.balance - (SELECT balance FROM accounts_locked a WHERE a.id = after.id)"
    monkeypatch.setattr(ledger, "_q", Planted(ledger._q, "balance = after.balance", f"balance = {old}"))
    with pytest.raises(asyncpg.CheckViolationError):
        await hold_while_a_top_up_is_written(pool)


async def test_the_last_credits_are_held_once_however_many_want_them(pool):
    person = new_account_id()
    async with pool.acquire() as conn:
        await post(conn, top_up(person, 100))

    async def try_to_hold() -> list[object]:
        async with pool.acquire() as conn:
            return await post(conn, hold(new_job_id(), person, 60), writes_jobs=False)

    answers = [answer for [answer] in await asyncio.gather(*(try_to_hold() for _ in range(8)))]
    assert sorted(map(str, answers)) == sorted(map(str, [POSTED] + [RefusalCode.INSUFFICIENT_CREDITS] * 7))


class Crowd:
    """Connections that all post on the same few accounts, many at once."""

    def __init__(self, pool: asyncpg.Pool, seed: int) -> None:
        self.pool = pool
        self.dice = random.Random(seed)
        self.people = [new_account_id() for _ in range(6)]
        # Waits that would never have ended by themselves.
        self.circles = 0
        self.failures: list[Exception] = []
        self.posted = 0

    async def run(self, *, hubs: int, batches: int) -> None:
        await asyncio.gather(*(self.work(batches) for _ in range(hubs)))

    async def work(self, batches: int) -> None:
        for _ in range(batches):
            postings = [self.draw() for _ in range(self.dice.randint(1, 12))]
            try:
                async with self.pool.acquire() as conn, conn.transaction():
                    outcomes = await ledger.post(conn, postings, writes_jobs=False)
                    # Others come between the post and the end of its transaction.
                    await asyncio.sleep(0)
                self.posted += outcomes.count(POSTED)
            except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
                self.circles += 1
                return
            except asyncpg.PostgresError as error:
                self.failures.append(error)

    def draw(self) -> Posting:
        one, other = self.dice.sample(self.people, 2)
        kind = self.dice.choice(["top_up", "hold", "hold", "settle", "settle", "refund", "spend"])
        amount = self.dice.randint(1, 200)
        if kind == "top_up":
            return top_up(one, amount)
        if kind == "hold":
            return hold(new_job_id(), one, amount)
        if kind == "settle":
            return settle(new_job_id(), one, other, amount)
        made = (
            verbs.refund(job_id=new_job_id(), submitter_id=one, held_remaining=amount)
            if kind == "refund"
            else verbs.spend_earnings(spend_id=entropy.new_id(), account_id=one, amount=amount)
        )
        assert isinstance(made, Posting)
        return made

    async def list_drifts(self) -> Sequence[str]:
        """Without those of holds: the crowd's jobs are not there."""
        async with self.pool.acquire() as conn:
            return [d.name for d in await ledger.list_drifts(conn, limit=100) if not d.name.startswith("hold")]


async def test_many_hubs_on_the_same_accounts_never_deadlock_and_never_lose_a_microcredit(patient_pool):
    """With patience: on a busy machine an honest wait may be long, and a circle is found by the database."""
    crowd = Crowd(patient_pool, 1)
    await crowd.run(hubs=8, batches=40)
    assert (crowd.circles, crowd.failures) == (0, [])
    assert crowd.posted > 300
    assert await crowd.list_drifts() == []


class Planted:
    """The store's queries, with a bug in the one that posts."""

    def __init__(self, queries: Any, before: str, after: str) -> None:
        assert before in queries.post_all.sql
        self._queries = queries
        self._sql = queries.post_all.sql.replace(before, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    async def post_all(self, conn: Any, **parameters: Any) -> Any:
        adapter = self._queries.driver_adapter
        return await adapter.select_one(conn, "post_all", self._sql, parameters)


async def test_control_locks_in_another_order_on_every_connection_deadlock(pool, monkeypatch):
    before = "FROM accounts_wanted)\n     ORDER BY id FOR UPDATE"
    after = "FROM accounts_wanted)\n     ORDER BY md5(id || pg_backend_pid()) FOR UPDATE"
    monkeypatch.setattr(ledger, "_q", Planted(ledger._q, before, after))
    crowd = Crowd(pool, 1)
    await crowd.run(hubs=8, batches=40)
    assert crowd.circles > 0


async def test_control_without_the_guard_the_check_of_the_database_still_holds(pool, monkeypatch):
    guard = "a.id IS NOT NULL AND a.balance BETWEEN w.at_least AND w.at_most"
    monkeypatch.setattr(ledger, "_q", Planted(ledger._q, guard, "a.id IS NOT NULL"))
    crowd = Crowd(pool, 1)
    await crowd.run(hubs=2, batches=20)
    assert {type(error) for error in crowd.failures} == {asyncpg.CheckViolationError}
    assert await crowd.list_drifts() == []


async def test_control_a_balance_that_is_written_from_what_was_read_is_noticed(pool):
    """Two connections that read, add up and write: the second forgets the first."""
    person = new_account_id()
    async with pool.acquire() as one, pool.acquire() as other:
        await post(one, top_up(person, 100))
        account = submitter_available(person)
        read = await balance(other, account)
        await post(one, top_up(person, 7))
        await other.execute("UPDATE ledger_accounts SET balance = $2 WHERE id = $1", account.id, read)
        assert [drift.name for drift in await ledger.list_drifts(one)] == [
            f"account {account.id}",
            "sum of all accounts",
        ]


async def test_an_account_is_opened_by_many_at_once(pool):
    """The first use of the same new accounts, on every connection at the same moment."""
    for _ in range(10):
        people = [new_account_id() for _ in range(4)]

        async def first_use(people: list[AccountId] = people) -> list[object]:
            shuffled = random.sample(people, len(people))
            async with pool.acquire() as conn:
                return await post(conn, *(top_up(person, 5) for person in shuffled))

        for answers in await asyncio.gather(*(first_use() for _ in range(8))):
            assert answers == [POSTED] * 4
        async with pool.acquire() as conn:
            balances = await ledger.get_balances(conn, [submitter_available(person) for person in people])
        assert set(balances.values()) == {40}
        assert await ledger_is_exact(pool)


async def ledger_is_exact(pool: asyncpg.Pool) -> bool:
    async with pool.acquire() as conn:
        return await ledger.list_drifts(conn) == []


async def test_earnings_are_not_spent_twice_by_payout_and_reversal(pool):
    """A payout and a reversal race for the same released pay: whoever is second finds less."""
    submitter, owner, job_id = new_account_id(), new_account_id(), new_job_id()
    paid = settle(job_id, submitter, owner, 100)
    earning = Earning(paid.attempt_id, job_id, submitter, owner, 80, 20, NOW)
    async with pool.acquire() as conn:
        released = verbs.release(earnings=[earning], now=NOW)
        batch = [top_up(submitter, 100), hold(job_id, submitter, 100), paid, released]
        assert await post(conn, *batch, writes_jobs=False) == [POSTED] * 4

    async def cash_out() -> list[object]:
        async with pool.acquire() as conn:
            return await post(conn, verbs.payout_reserve(payout_id=entropy.new_id(), account_id=owner, amount=60))

    async def take_back() -> list[object]:
        fees = SHARDS[AccountKind.FEE]
        touched = [*accounts_of(owner), *accounts_of(submitter), *fees]
        async with pool.acquire() as conn, conn.transaction():
            balances = await ledger.lock_balances(conn, touched)
            made = verbs.reverse(
                earning=replace(earning, state=EarningState.RELEASED),
                available=balances[owner_available(owner)],
                fees={fee: balances[fee] for fee in fees},
            )
            assert isinstance(made, Posting)
            return await ledger.post(conn, [made], writes_jobs=False)

    [cashed], [taken] = await asyncio.gather(cash_out(), take_back())
    assert taken is POSTED
    assert cashed in (POSTED, RefusalCode.INSUFFICIENT_CREDITS)
    async with pool.acquire() as conn:
        owed = -await balance(conn, LedgerAccount(AccountKind.RECEIVABLE, owner))
        assert owed == (60 if cashed is POSTED else 0)
        assert await balance(conn, submitter_available(submitter)) == 100
