"""Jobs and what they hold, written in one statement: exact and never deadlocked, however many hubs do it at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import submitter_available
from computepool.hub.services import submissions as submission_service
from computepool.hub.store import accounts as account_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import ledger
from computepool.hub.store.jobs import Job
from computepool.wire.jobs import Requirements
from tests.support.postings import hold, new_job_id, top_up, wait_until_blocked
from tests.support.spine import Spine, open_spine

CREDIT = 1_000_000
# A hundred credits for a hundred seconds.
CEILING = Requirements(ceiling_microcredits_per_hour=3_600 * CREDIT)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


class Planted:
    """The store's queries, with a bug in the one that inserts jobs."""

    def __init__(self, before: str, after: str) -> None:
        self._queries = job_store._q
        assert before in self._queries.insert_jobs.sql
        self._sql = self._queries.insert_jobs.sql.replace(before, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    def insert_jobs(self, conn: Any, **parameters: Any) -> Any:
        return self._queries.driver_adapter.select(conn, "insert_jobs", self._sql, parameters)


@pytest.fixture
def careful_calls(monkeypatch) -> list[int]:
    """How many holds were posted by themselves, call by call."""
    calls: list[int] = []
    really = submission_service._post_each

    async def count(conn: Any, holds: Any) -> None:
        calls.append(len(holds))
        await really(conn, holds)

    monkeypatch.setattr(submission_service, "_post_each", count)
    return calls


async def submit_at_once(spine: Spine, *, hubs: int, batches: int) -> int:
    """How many jobs were taken. Everybody spends what the same six accounts have."""
    accounts = [await spine.sign_up(credits=5_000) for _ in range(6)]

    async def work(hub: Spine, dice: random.Random) -> int:
        taken = 0
        for _ in range(batches):
            people = dice.choices(accounts, k=dice.randint(1, 10))
            batch = [hub.submission(person, requirements=CEILING, wall_seconds=100) for person in people]
            taken += sum(isinstance(answer, Job) for answer in (await hub.submit_all(*batch)).answers)
        return taken

    return sum(await asyncio.gather(*(work(spine.open_second_hub(), random.Random(seed)) for seed in range(hubs))))


async def list_drifts(spine: Spine) -> list[str]:
    async with spine.pool.acquire() as conn:
        return [drift.name for drift in await ledger.list_drifts(conn, limit=100)]


async def available(spine: Spine, account_id: AccountId) -> int:
    async with spine.pool.acquire() as conn:
        account = submitter_available(account_id)
        return (await ledger.get_balances(conn, [account]))[account]


async def test_many_hubs_that_hold_for_the_same_accounts_are_exact_to_the_last_credit(spine):
    taken = await submit_at_once(spine, hubs=6, batches=20)
    # Six times 5,000 credits, a hundred for each; about twice as many were asked for.
    assert taken == 300
    held = await spine.fetch_value("SELECT sum(balance) FROM ledger_accounts WHERE kind = 'submitter_held'")
    assert held == taken * 100 * CREDIT
    assert await list_drifts(spine) == []


async def test_control_balances_made_of_what_was_read_before_lose_what_others_have_held(spine, monkeypatch):
    """Each statement sets what it saw at its beginning, less its own."""
    locked = "SELECT id, balance AS delta FROM accounts_locked"
    seen = "SELECT id, balance AS delta FROM ledger_accounts WHERE id IN (SELECT id FROM accounts_locked)"
    monkeypatch.setattr(job_store, "_q", Planted(locked, seen))
    await submit_at_once(spine, hubs=6, batches=20)
    assert await list_drifts(spine) != []


async def test_control_accounts_locked_in_another_order_on_every_connection_deadlock(spine, monkeypatch):
    shuffled = "ORDER BY md5(id || pg_backend_pid()) FOR UPDATE"
    monkeypatch.setattr(job_store, "_q", Planted("ORDER BY id FOR UPDATE", shuffled))
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await submit_at_once(spine, hubs=6, batches=100)


async def test_the_first_job_of_an_account_is_written_at_once_like_all_others(spine, careful_calls):
    submitter = await spine.sign_up(credits=1_000)
    for _ in range(2):
        await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    assert careful_calls == []


async def test_an_account_that_was_not_opened_after_all_is_opened_then(spine, careful_calls, monkeypatch):
    """Whatever the hub believes: a transfer without both its accounts is none."""
    submitter = await spine.sign_up(credits=1_000)
    really = account_store.list_usage

    async def believe(conn: Any, ids: Any) -> Any:
        return {id: replace(usage, has_held=True) for id, usage in (await really(conn, ids)).items()}

    monkeypatch.setattr(account_store, "list_usage", believe)
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    assert careful_calls == [1]
    assert await available(spine, submitter.account_id) == 900 * CREDIT
    assert await list_drifts(spine) == []


async def test_what_others_took_while_a_batch_waited_refuses_only_those_whom_it_was_about(spine, careful_calls):
    poor, rich = await spine.sign_up(credits=150), await spine.sign_up(credits=1_000)
    batch = [spine.submission(person, requirements=CEILING, wall_seconds=100) for person in (poor, rich)]
    async with spine.pool.acquire() as first, spine.pool.acquire() as watching:
        async with first.transaction():
            spent = hold(new_job_id(), poor.account_id, 100 * CREDIT)
            await ledger.post(first, [spent], writes_jobs=False)
            submitting = asyncio.create_task(spine.submit_all(*batch))
            await wait_until_blocked(watching, 1)
        answers = (await submitting).answers
    assert [isinstance(answer, Job) for answer in answers] == [False, True]
    assert careful_calls == [2]


async def test_what_was_topped_up_while_a_job_waited_can_be_held(spine, careful_calls):
    """The statement's snapshot shows too little; when it gets its lock, the credits are there."""
    submitter = await spine.sign_up(credits=150)
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    submission = spine.submission(submitter, requirements=CEILING, wall_seconds=100)
    allowance = spine.submissions.allowances._known[submitter.account_id]
    allowance.usage = replace(allowance.usage, available=250 * CREDIT)
    async with spine.pool.acquire() as first, spine.pool.acquire() as watching:
        async with first.transaction():
            await ledger.post(first, [top_up(submitter.account_id, 100 * CREDIT)])
            submitting = asyncio.create_task(spine.submit_all(submission))
            await wait_until_blocked(watching, 1)
        [answer] = (await submitting).answers
    assert isinstance(answer, Job)
    assert careful_calls == []
    assert await available(spine, submitter.account_id) == 50 * CREDIT
    assert await list_drifts(spine) == []
