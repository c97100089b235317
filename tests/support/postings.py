"""Postings as tests make them, put into a real ledger, and what that comes to."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from computepool import entropy
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    LedgerAccount,
)
from computepool.core.ledger.books import Outcome
from computepool.core.ledger.charging import charge_attempt
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting
from computepool.hub.store import ledger

POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED


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


async def wait_until_blocked(conn: Any, count: int) -> None:
    for _ in range(400):
        # In a transaction the server shows what it has shown before.
        await conn.execute("SELECT pg_stat_clear_snapshot()")
        blocked = await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        if blocked >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")
