"""The books in SQL: the same answers as in memory, exact under concurrency, never changed, and never deadlocked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    LedgerAccount,
    accounts_of,
    owner_available,
    owner_pending,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import AMOUNT_MAX, BALANCE_MAX
from computepool.core.ledger.books import Outcome
from computepool.core.ledger.charging import charge_attempt
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Posting
from computepool.hub.store import ledger
from computepool.hub.store.connect import create_pool
from tests.support.builders import NOW
from tests.support.ledger_histories import History, post_on_sql
from tests.support.ledger_rows import IMPOSSIBLE, insert_transfer
from tests.support.rows import insert_account, insert_attempt, insert_job

HISTORIES = 60
POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(dsn)
    yield conn
    await conn.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await create_pool(dsn, size_max=8)
    yield pool
    await pool.close()


def top_up(account_id: AccountId, amount: int, id: UUID | None = None) -> Posting:
    return verbs.top_up(top_up_id=id or entropy.new_id(), account_id=account_id, amount=amount)


def hold(job_id: JobId, account_id: AccountId, amount: int) -> Posting:
    made = verbs.hold(job_id=job_id, submitter_id=account_id, amount=amount)
    assert isinstance(made, Posting)
    return made


def settle(job_id: JobId, submitter_id: AccountId, owner_id: AccountId, price: int) -> Posting:
    charges = [charge_attempt(AttemptId(entropy.new_id()), price, fee_ppm=200_000)]
    made = verbs.settle(
        job_id=job_id, submitter_id=submitter_id, owner_id=owner_id, charges=charges, held_remaining=price
    )
    assert isinstance(made, Posting)
    return made


def new_account_id() -> AccountId:
    return AccountId(entropy.new_id())


def new_job_id() -> JobId:
    return JobId(entropy.new_id())


async def post(conn: Any, *postings: Posting, **options: Any) -> list[object]:
    async with conn.transaction():
        outcomes = await ledger.post(conn, postings, **options)
    return [outcome.code if isinstance(outcome, Refusal) else outcome for outcome in outcomes]


async def balance(conn: Any, account: LedgerAccount) -> int:
    return (await ledger.get_balances(conn, [account]))[account]


async def held_remaining(conn: Any, job_id: JobId) -> int:
    return await conn.fetchval("SELECT held_remaining FROM jobs WHERE id = $1", job_id)


# The same books as in memory


async def test_the_same_histories_come_to_the_same_books_on_both_stores(conn):
    for seed in range(HISTORIES):
        await post_on_sql(conn, History(seed).run())


async def test_control_books_that_differ_by_one_microcredit_are_noticed(conn):
    history = History(0).run()
    account = next(account for account, balance in history.books.balances.items() if balance > 1)
    history.books.balances[account] += 1
    with pytest.raises(AssertionError):
        await post_on_sql(conn, history)


async def test_control_answers_that_differ_are_noticed(conn):
    history = History(0).run()
    history.batches[0][1][0] = RefusalCode.FROZEN
    with pytest.raises(AssertionError, match="the same answers"):
        await post_on_sql(conn, history)


# One batch


async def test_postings_move_balances_and_what_jobs_hold(conn):
    submitter, owner = await insert_account(conn), new_account_id()
    job_id = await insert_job(conn, submitter)
    assert await post(conn, top_up(submitter, 1_000), hold(job_id, submitter, 300)) == [POSTED, POSTED]
    assert await post(conn, settle(job_id, submitter, owner, 100)) == [POSTED]
    assert await balance(conn, submitter_available(submitter)) == 700
    assert await balance(conn, submitter_held(submitter)) == await held_remaining(conn, job_id) == 200
    assert await balance(conn, owner_pending(owner)) == 80
    assert await ledger.list_drifts(conn) == []


async def test_nothing_to_post_asks_the_database_nothing():
    assert await ledger.post(None, []) == []


async def test_everything_that_can_be_posted_is_one_statement(pool):
    """Each further statement is a round trip that every submit and completion would wait for."""
    submitter, owner, job_id = new_account_id(), new_account_id(), new_job_id()
    async with pool.acquire() as conn:
        assert await post(conn, top_up(submitter, 1_000)) == [POSTED]
        accounts = [submitter_held(submitter), owner_pending(owner)]
        await ledger.open_accounts(conn, accounts)
        counting = Counting(conn)
        postings = [hold(job_id, submitter, 300), settle(job_id, submitter, owner, 100)]
        assert await ledger.post(counting, postings, writes_jobs=False) == [POSTED, POSTED]
        assert counting.statements == 1
        refused = [hold(new_job_id(), submitter, 10_000), hold(new_job_id(), submitter, 1)]
        outcomes = await ledger.post(counting, refused, writes_jobs=False)
        assert [type(outcome) for outcome in outcomes] == [Refusal, Outcome]
        assert counting.statements == 1 + 3


class Counting:
    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self.statements = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.statements += 1
        return getattr(self._conn, name)


async def test_a_refusal_never_spoils_the_others_and_later_ones_see_earlier_ones(conn):
    rich, poor = new_account_id(), new_account_id()
    jobs = [await insert_job(conn, account) for account in (rich, poor, poor, poor)]
    assert await post(conn, top_up(rich, 500)) == [POSTED]
    answers = await post(
        conn,
        hold(jobs[1], poor, 10),
        hold(jobs[0], rich, 400),
        top_up(poor, 10),
        hold(jobs[2], poor, 10),
        hold(jobs[3], poor, 1),
    )
    short = RefusalCode.INSUFFICIENT_CREDITS
    assert answers == [short, POSTED, POSTED, POSTED, short]
    assert await balance(conn, submitter_available(poor)) == 0
    assert await ledger.list_drifts(conn) == []


async def test_a_replay_is_a_no_op_and_a_differing_one_is_refused(conn):
    person, id = new_account_id(), entropy.new_id()
    assert await post(conn, top_up(person, 5, id)) == [POSTED]
    assert await post(conn, top_up(person, 5, id), top_up(person, 7)) == [REPLAYED, POSTED]
    assert await post(conn, top_up(person, 6, id), top_up(person, 5, id)) == [RefusalCode.DIFFERING_REPLAY, REPLAYED]
    assert await balance(conn, submitter_available(person)) == 12


async def test_one_key_twice_in_a_batch_counts_once(conn):
    person, id = new_account_id(), entropy.new_id()
    answers = await post(conn, top_up(person, 5, id), top_up(person, 5, id), top_up(person, 6, id))
    assert answers == [POSTED, REPLAYED, RefusalCode.DIFFERING_REPLAY]
    assert await balance(conn, submitter_available(person)) == 5


async def test_a_job_never_takes_from_the_hold_of_another(conn):
    submitter, owner = new_account_id(), new_account_id()
    one, other = await insert_job(conn, submitter), await insert_job(conn, submitter)
    await post(conn, top_up(submitter, 100), hold(one, submitter, 40), hold(other, submitter, 60))
    assert await post(conn, settle(one, submitter, owner, 41)) == [RefusalCode.HOLD_EXCEEDED]
    assert await post(conn, settle(one, submitter, owner, 40)) == [POSTED]
    assert (await held_remaining(conn, one), await held_remaining(conn, other)) == (0, 60)


async def test_without_a_job_there_is_nothing_to_hold_for(conn):
    person, job_id = new_account_id(), new_job_id()
    await post(conn, top_up(person, 100))
    with pytest.raises(NotFound, match=str(job_id)):
        await post(conn, hold(job_id, person, 40))
    assert await balance(conn, submitter_available(person)) == 100


async def test_a_caller_that_writes_the_jobs_itself_is_left_to_it(conn):
    person = await insert_account(conn)
    job_id = await insert_job(conn, person)
    await post(conn, top_up(person, 100))
    assert await post(conn, hold(job_id, person, 40), writes_jobs=False) == [POSTED]
    assert await held_remaining(conn, job_id) == 0
    [drift, other] = await ledger.list_drifts(conn)
    assert (drift.name, drift.kept, drift.counted) == (f"hold of job {job_id}", 0, 40)
    assert (other.name, other.kept, other.counted) == (f"holds of account {person}", 40, 0)


async def test_balances_stay_within_what_can_be_counted(conn):
    person = new_account_id()
    batch = [top_up(person, AMOUNT_MAX) for _ in range(BALANCE_MAX // AMOUNT_MAX + 1)]
    assert await post(conn, *batch) == [POSTED] * (len(batch) - 1) + [RefusalCode.BALANCE_TOO_LARGE]
    assert await balance(conn, submitter_available(person)) == BALANCE_MAX
    # A batch that would leave 64 bits on its way is judged, too.
    assert set(await post(conn, *[top_up(person, AMOUNT_MAX) for _ in range(10_000)])) == {
        RefusalCode.BALANCE_TOO_LARGE
    }


async def test_what_is_rolled_back_was_never_there(conn):
    person, id = new_account_id(), entropy.new_id()
    transaction = conn.transaction()
    await transaction.start()
    assert await ledger.post(conn, [top_up(person, 5, id)]) == [POSTED]
    await transaction.rollback()
    assert await ledger.list_transfers(conn, person, limit=10) == []
    assert await post(conn, top_up(person, 6, id)) == [POSTED]


async def test_locked_balances_are_those_of_now_and_stay(pool):
    person = new_account_id()
    accounts = [submitter_available(person), *SHARDS[AccountKind.WORLD]]
    async with pool.acquire() as conn, pool.acquire() as other:
        await post(conn, top_up(person, 5))
        async with conn.transaction():
            assert (await ledger.lock_balances(conn, accounts))[submitter_available(person)] == 5
            waiting = asyncio.create_task(post(other, top_up(person, 1)))
            await wait_until_blocked(conn, 1)
            assert await balance(conn, submitter_available(person)) == 5
        assert await waiting == [POSTED]


# Reading


async def test_a_persons_transfers_are_listed_newest_first_and_page_by_page(conn):
    submitter, owner, stranger = new_account_id(), new_account_id(), new_account_id()
    job_id, other_job = await insert_job(conn, submitter), await insert_job(conn, stranger)
    await post(conn, top_up(submitter, 1_000), top_up(stranger, 1_000))
    await post(conn, hold(job_id, submitter, 300), hold(other_job, stranger, 300))
    await post(conn, settle(job_id, submitter, owner, 100))
    refund = verbs.refund(job_id=job_id, submitter_id=submitter, held_remaining=200)
    await post(conn, refund)
    rows = await ledger.list_transfers(conn, submitter, limit=100)
    kinds = [(row.transfer.kind.value, row.transfer.amount) for row in rows]
    assert kinds == [("refund", 200), ("settle", 20), ("settle", 80), ("hold", 300), ("top_up", 1_000)]
    paged, before = [], None
    while page := await ledger.list_transfers(conn, submitter, before_id=before, limit=2):
        paged += page
        before = page[-1].id
    assert paged == rows
    earned = await ledger.list_transfers(conn, owner, limit=100)
    assert [(row.transfer.kind.value, row.transfer.amount) for row in earned] == [("settle", 80)]


async def test_a_jobs_transfers_are_listed_in_their_order(conn):
    submitter, owner = new_account_id(), new_account_id()
    job_id, other_job = await insert_job(conn, submitter), await insert_job(conn, submitter)
    await post(conn, top_up(submitter, 1_000), hold(job_id, submitter, 300), hold(other_job, submitter, 10))
    await post(conn, settle(job_id, submitter, owner, 100))
    rows = await ledger.list_job_transfers(conn, job_id, limit=100)
    assert [(row.transfer.kind.value, row.transfer.amount) for row in rows] == [
        ("hold", 300),
        ("settle", 80),
        ("settle", 20),
    ]
    assert {row.transfer.job_id for row in rows} == {job_id}


@pytest.mark.parametrize("query", ["list_by_accounts", "list_by_job", "list_by_keys"])
async def test_lists_are_read_by_an_index(conn, query):
    sql = getattr(ledger._q, query).sql
    await conn.execute("SET enable_seqscan = off")
    arguments = {"list_by_accounts": (["x/1"], None, 10), "list_by_job": (new_job_id(), 10), "list_by_keys": (["x"],)}
    plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN {sql}", *arguments[query]))
    assert "Seq Scan on ledger_transfers" not in plan
    assert "Index Cond" in plan


async def test_recomputed_balances_are_the_kept_ones(conn):
    people = [new_account_id() for _ in range(3)]
    await post(conn, *(top_up(person, 10 + n) for n, person in enumerate(people)))
    recomputed = await ledger.recompute(conn)
    kept = await ledger.list_balances(conn, limit=1_000)
    assert recomputed.balances == {account: balance for account, balance in kept.items() if balance}
    assert sum(kept.values()) == 0


async def test_balances_of_those_who_never_had_any_are_zero(conn):
    person = new_account_id()
    assert await ledger.get_balances(conn, accounts_of(person)) == dict.fromkeys(accounts_of(person), 0)


# What the database itself refuses


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_transfers SET amount = amount + 1",
        "UPDATE ledger_transfers SET amount = 1 WHERE key = 'is not there'",
        "DELETE FROM ledger_transfers",
        "TRUNCATE ledger_transfers",
    ],
)
async def test_transfers_never_change(conn, statement):
    await conn.execute(insert_transfer())
    with pytest.raises(asyncpg.RestrictViolationError, match="never change"):
        await conn.execute(statement)
    assert await conn.fetchval("SELECT amount FROM ledger_transfers") == 1


async def test_a_key_is_used_once_for_ever(conn):
    await conn.execute(insert_transfer())
    with pytest.raises(asyncpg.UniqueViolationError):
        await conn.execute(insert_transfer(amount=2))


@pytest.mark.parametrize(("constraint", "statement"), IMPOSSIBLE)
async def test_an_impossible_row_is_refused(conn, constraint, statement):
    job_id = await insert_job(conn, new_account_id())
    await insert_attempt(conn, job_id, 0)
    with pytest.raises(asyncpg.CheckViolationError) as refusal:
        await conn.execute(statement)
    assert refusal.value.constraint_name == constraint


async def test_the_platforms_accounts_are_there_from_the_start(conn):
    found = await ledger.list_balances(conn, limit=1_000)
    assert found == {shard: 0 for shards in SHARDS.values() for shard in shards}


DRIFTS = {
    "a balance": "UPDATE ledger_accounts SET balance = balance + 1 WHERE kind = 'submitter_available'",
    "a hold": "UPDATE jobs SET held_remaining = held_remaining - 1",
    "a transfer without a trace": insert_transfer(target="world/1"),
    "an account": "DELETE FROM ledger_accounts WHERE kind = 'submitter_held'",
}


@pytest.mark.parametrize("statement", DRIFTS.values(), ids=list(DRIFTS))
async def test_control_what_was_changed_by_hand_is_found(conn, statement):
    person = await insert_account(conn)
    job_id = await insert_job(conn, person)
    await post(conn, top_up(person, 100), hold(job_id, person, 40))
    assert await ledger.list_drifts(conn) == []
    await conn.execute(statement)
    assert await ledger.list_drifts(conn) != []


# Many at once


async def wait_until_blocked(conn: Any, count: int) -> None:
    for _ in range(400):
        blocked = await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        if blocked >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


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


async def test_many_hubs_on_the_same_accounts_never_deadlock_and_never_lose_a_microcredit(pool):
    crowd = Crowd(pool, 1)
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
