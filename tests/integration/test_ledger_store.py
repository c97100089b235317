"""The books in SQL: the same answers as in memory, and batches that are taken or refused posting by posting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    owner_pending,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import AMOUNT_MAX, BALANCE_MAX
from computepool.core.ledger.books import Outcome
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.hub.store import ledger
from tests.support.ledger_histories import History, post_on_sql
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

HISTORIES = 60
POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED


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
