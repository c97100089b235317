"""The books in SQL, read back: lists by an index, what the database itself refuses, and drifts that are found."""

from __future__ import annotations

import asyncpg
import pytest

from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    accounts_of,
)
from computepool.core.ledger.books import Outcome
from computepool.hub.store import ledger
from tests.support.ledger_rows import IMPOSSIBLE, insert_transfer
from tests.support.postings import hold, new_account_id, new_job_id, post, settle, top_up
from tests.support.rows import insert_account, insert_attempt, insert_job

POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED


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
