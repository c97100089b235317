"""Deadlines on a real database: what presses is raised once, within its account, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from computepool.core.ids import AccountId, JobId
from computepool.core.jobs.deadline import RAISED_PRIORITY, Deadline, expected_run_seconds, is_pressing
from computepool.core.jobs.spec import PRIORITY_RANGE
from computepool.hub.services.deadlines import raise_pressing
from computepool.hub.store import deadlines as deadline_store
from computepool.hub.store.connect import Pool
from tests.support.builders import NOW
from tests.support.rows import get_now, insert_account, insert_job

PRIORITY_MAX = max(PRIORITY_RANGE)


@pytest.fixture
async def conn(pool: Pool) -> AsyncIterator[asyncpg.Connection]:
    async with pool.acquire() as conn:
        yield conn


@pytest.fixture
async def account(conn: asyncpg.Connection) -> AccountId:
    return await insert_account(conn)


async def submit(conn: asyncpg.Connection, account: AccountId, *, in_seconds: float, **columns: Any) -> JobId:
    deadline_at = await get_now(conn) + timedelta(seconds=in_seconds)
    return await insert_job(conn, account, deadline_at=deadline_at, **columns)


async def sweep(pool: Pool, *, jobs_max: int = 100, slices_max: int = 1_000) -> int:
    return await raise_pressing(pool, jobs_max=jobs_max, slices_max=slices_max)


async def list_priorities(conn: asyncpg.Connection, job_id: JobId) -> list[int]:
    rows = await conn.fetch("SELECT priority FROM slices WHERE job_id = $1 ORDER BY slice_index", job_id)
    return [row["priority"] for row in rows]


# The rule


def make_deadline(in_seconds: float, **overrides: Any) -> Deadline:
    values = {"wall_seconds": 3_600, "succeeded_count": 0, "run_seconds_sum": 0.0, **overrides}
    return Deadline(NOW + timedelta(seconds=in_seconds), **values)


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ({}, 60.0),
        ({"wall_seconds": 20}, 20.0),
        ({"succeeded_count": 4, "run_seconds_sum": 40.0}, 10.0),
        ({"succeeded_count": 1, "run_seconds_sum": 9e9}, 3_600.0),
    ],
)
def test_a_run_is_expected_to_take_what_others_of_the_job_took(overrides, seconds):
    assert expected_run_seconds(make_deadline(0, **overrides)) == seconds


@pytest.mark.parametrize(("in_seconds", "pressing"), [(31, False), (29, True), (5, True), (-100, True)])
def test_a_deadline_presses_when_less_than_three_runs_are_left(in_seconds, pressing):
    deadline = make_deadline(in_seconds, succeeded_count=2, run_seconds_sum=20.0)
    assert is_pressing(deadline, now=NOW) is pressing


def test_no_submitter_can_ask_for_the_priority_of_a_raised_slice():
    assert RAISED_PRIORITY > PRIORITY_MAX


@pytest.mark.parametrize("succeeded", [0, 1, 7])
@pytest.mark.parametrize("wall_seconds", [5, 60, 86_400])
@pytest.mark.parametrize("offset", [-2.0, 2.0])
async def test_the_query_finds_what_the_rule_says(conn, account, succeeded, wall_seconds, offset):
    job = {"slice_count": 10, "succeeded_count": succeeded, "run_seconds_sum": 33.0 * succeeded}
    run_seconds = expected_run_seconds(make_deadline(0, wall_seconds=wall_seconds, **_facts(job)))
    id = await submit(conn, account, in_seconds=3 * run_seconds + offset, wall_seconds=wall_seconds, **job)
    found = await deadline_store.list_near(conn, limit=10)
    assert [near.job_id for near in found] == ([id] if offset < 0 else [])
    assert all(is_pressing(near.deadline, now=near.now) for near in found)


def _facts(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in ("succeeded_count", "run_seconds_sum")}


# The sweep


async def test_slices_of_a_pressing_job_are_raised_once_with_one_event(pool, conn, account):
    job = await submit(conn, account, in_seconds=100, slice_count=3)
    assert await sweep(pool) == 3
    assert await list_priorities(conn, job) == [RAISED_PRIORITY] * 3
    assert await sweep(pool) == 0
    [event] = await conn.fetch("SELECT kind, account_id, job_id, body FROM events")
    assert (event["kind"], event["account_id"], event["job_id"]) == ("slices_raised", account, job)
    assert event["body"] == {"slices": [[0, 2]]}


async def test_a_job_that_has_time_or_no_deadline_is_left_alone(pool, conn, account):
    jobs = [await submit(conn, account, in_seconds=3_600), await insert_job(conn, account)]
    assert await sweep(pool) == 0
    assert [await list_priorities(conn, job) for job in jobs] == [[0], [0]]


async def test_only_what_is_queued_is_raised(pool, conn, account):
    job = await submit(conn, account, in_seconds=100, slice_count=3)
    await conn.execute("UPDATE slices SET state = 'leased' WHERE slice_index = 1")
    assert await sweep(pool) == 2
    assert await list_priorities(conn, job) == [RAISED_PRIORITY, 0, RAISED_PRIORITY]


async def test_what_comes_back_to_the_queue_later_is_raised_then(pool, conn, account):
    job = await submit(conn, account, in_seconds=100, slice_count=2)
    await conn.execute("UPDATE slices SET state = 'leased' WHERE slice_index = 1")
    await sweep(pool)
    await conn.execute("UPDATE slices SET state = 'queued' WHERE slice_index = 1")
    assert await sweep(pool) == 1
    assert await list_priorities(conn, job) == [RAISED_PRIORITY] * 2


async def test_raised_slices_come_first_in_their_accounts_run_and_in_no_other(pool, conn, account):
    """The order of the queue: class, then account, then priority. Nobody gets ahead of others by a deadline."""
    stranger = await insert_account(conn)
    older = await insert_job(conn, account, priority=PRIORITY_MAX)
    theirs = await insert_job(conn, stranger, priority=PRIORITY_MAX)
    pressing = await submit(conn, account, in_seconds=10, priority=-10)
    await sweep(pool)
    rows = await conn.fetch("SELECT job_id, account_id FROM slices ORDER BY account_id, priority DESC, queued_at")
    order = {id: [r["job_id"] for r in rows if r["account_id"] == id] for id in (account, stranger)}
    assert order == {account: [pressing, older], stranger: [theirs]}


async def test_a_slice_that_is_being_placed_is_passed_over_and_nobody_waits(pool, conn, account):
    job = await submit(conn, account, in_seconds=100, slice_count=2)
    async with pool.acquire() as placing, placing.transaction():
        await placing.execute("SELECT 1 FROM slices WHERE slice_index = 0 FOR UPDATE")
        async with asyncio.timeout(60):
            assert await sweep(pool) == 1
    assert await list_priorities(conn, job) == [0, RAISED_PRIORITY]


async def test_a_large_job_is_raised_in_steps(pool, conn, account):
    await submit(conn, account, in_seconds=100, slice_count=25)
    assert [await sweep(pool, slices_max=10) for _ in range(4)] == [10, 10, 5, 0]


async def test_jobs_that_were_raised_do_not_stand_in_the_way_of_others(pool, conn, account):
    for seconds in (1, 2, 3):
        await submit(conn, account, in_seconds=seconds)
    await sweep(pool, jobs_max=3)
    later = await submit(conn, account, in_seconds=50)
    assert await sweep(pool, jobs_max=1) == 1
    assert await list_priorities(conn, later) == [RAISED_PRIORITY]


async def test_several_hubs_raise_each_slice_once(pool, conn, account):
    await submit(conn, account, in_seconds=100, slice_count=200)
    raised = await asyncio.gather(*(sweep(pool) for _ in range(5)))
    raised.append(await sweep(pool))
    assert sum(raised) == 200
    slices = await conn.fetch("SELECT body FROM events WHERE kind = 'slices_raised'")
    told = [index for row in slices for first, last in row["body"]["slices"] for index in range(first, last + 1)]
    assert sorted(told) == list(range(200))
