"""Fair usage on a real database: totals that several hubs add to, and what becomes of charges when it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

import asyncpg
import pytest

from computepool import entropy
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.charging import LeaseTerms
from computepool.core.placement.fair_share import Delta
from computepool.hub.dispatch import fair_share as dispatch_module
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import fair_usage as usage_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool
from tests.support.postgres import wait_for
from tests.support.rows import get_now, insert_account, insert_attempt, insert_job


@pytest.fixture
async def conn(pool: Pool) -> AsyncIterator[asyncpg.Connection]:
    async with pool.acquire() as conn:
        yield conn


def make_grant(account_id: AccountId, seconds: float, id: AttemptId | None = None) -> Grant:
    return Grant(
        id=id or AttemptId(entropy.new_id()),
        account_id=account_id,
        job_id=JobId(entropy.new_id()),
        slice_index=0,
        number=1,
        node_id=NodeId(entropy.new_id()),
        slot=SlotName("cpu:0"),
        expected_seconds=seconds,
        rate_microcredits_per_hour=0,
        terms=LeaseTerms(0, 0),
    )


def make_end(grant: Grant, held_seconds: float, cause: Cause | None = None) -> EndedAttempt:
    return EndedAttempt(
        attempt_id=grant.id,
        account_id=grant.account_id,
        node_id=grant.node_id,
        slot=grant.slot,
        cause=cause,
        expected_seconds=grant.expected_seconds,
        held_seconds=held_seconds,
    )


async def add(conn: asyncpg.Connection, account_id: AccountId, seconds: float, **asks: bool):
    [total] = await usage_store.add_usage(conn, [Delta(account_id, seconds, **asks)])
    return total


async def get_usage(conn: asyncpg.Connection, account_id: AccountId) -> float:
    return (await usage_store.list_usage(conn, limit=100)).get(account_id, 0.0)


# The statement


async def test_what_hubs_add_is_added_up_and_told_with_the_weight(conn):
    account = await insert_account(conn, fair_weight=2.5)
    await add(conn, account, 100.0)
    total = await add(conn, account, -30.0)
    assert total.slot_seconds == pytest.approx(70.0, abs=0.01)
    assert total.weight == 2.5
    assert abs(total.counted_at - await get_now(conn)) < timedelta(seconds=5)


async def test_an_account_that_has_had_nothing_is_told_as_well_and_leaves_no_row(conn):
    account = await insert_account(conn)
    assert (await add(conn, account, 0.0)).slot_seconds == 0.0
    assert await conn.fetchval("SELECT count(*) FROM fair_usage") == 0


async def test_half_of_it_has_faded_after_a_day(conn):
    account = await insert_account(conn)
    await add(conn, account, 1_000.0)
    await conn.execute("UPDATE fair_usage SET counted_at = counted_at - interval '1 day'")
    assert await get_usage(conn, account) == pytest.approx(500.0, abs=0.1)
    assert (await add(conn, account, 100.0)).slot_seconds == pytest.approx(600.0, abs=0.1)


async def test_asking_alone_does_not_move_the_time_that_a_figure_stands_for(conn):
    account = await insert_account(conn)
    first = await add(conn, account, 1_000.0)
    assert await add(conn, account, 0.0) == first


async def test_a_hub_with_an_older_time_does_not_turn_it_back(conn):
    account = await insert_account(conn)
    await add(conn, account, 10.0)
    await conn.execute("UPDATE fair_usage SET counted_at = counted_at + interval '1 hour'")
    ahead = await conn.fetchval("SELECT counted_at FROM fair_usage")
    total = await add(conn, account, 5.0)
    assert (total.slot_seconds, total.counted_at) == (15.0, ahead)


async def test_an_account_that_does_not_exist_spoils_nothing(conn):
    account, stranger = await insert_account(conn), AccountId(entropy.new_id())
    totals = await usage_store.add_usage(conn, [Delta(stranger, 1.0), Delta(account, 2.0)])
    assert [total.account_id for total in totals] == [account]


async def test_the_record_says_how_long_slices_of_open_jobs_run(conn):
    account = await insert_account(conn)
    for seconds, succeeded in ((40.0, 4), (20.0, 1), (0.0, 0)):
        await insert_job(conn, account, slice_count=5, run_seconds_sum=seconds, succeeded_count=succeeded)
    assert (await add(conn, account, 0.0, asks_mean=True)).mean_seconds == pytest.approx(12.0)
    assert (await add(conn, account, 0.0)).mean_seconds is None


async def test_a_node_that_claims_endless_runs_is_not_believed_beyond_the_limit(conn):
    account = await insert_account(conn)
    await insert_job(conn, account, slice_count=5, run_seconds_sum=1e12, succeeded_count=2, wall_seconds=60)
    assert (await add(conn, account, 0.0, asks_mean=True)).mean_seconds == 60.0


async def test_eight_writers_with_the_same_accounts_lose_nothing_and_never_lock_each_other_out(pool):
    async with pool.acquire() as conn:
        accounts = [await insert_account(conn) for _ in range(20)]

    async def write(number: int) -> None:
        order = accounts[number:] + accounts[:number]
        async with pool.acquire() as conn:
            for _ in range(25):
                await usage_store.add_usage(conn, [Delta(account, 1.0) for account in order])

    await asyncio.gather(*(write(number) for number in range(8)))
    async with pool.acquire() as conn:
        usage = await usage_store.list_usage(conn, limit=100)
    assert list(usage.values()) == pytest.approx([200.0] * 20, abs=0.1)


async def test_unsorted_writers_would_lock_each_other_out(pool):
    """The control for the test above: the same, row by row in the order given."""
    async with pool.acquire() as conn:
        accounts = sorted([await insert_account(conn) for _ in range(2)])
        for account in accounts:
            await add(conn, account, 1.0)
    met = asyncio.Barrier(2)

    async def write(order: list[AccountId]) -> None:
        async with pool.acquire() as conn, conn.transaction():
            await add(conn, order[0], 1.0)
            await met.wait()
            await add(conn, order[1], 1.0)

    results = await asyncio.gather(write(accounts), write(accounts[::-1]), return_exceptions=True)
    assert any(isinstance(r, (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)) for r in results)


# A hub's share


async def test_charges_reach_the_database_with_the_next_exchange(pool, conn):
    account = await insert_account(conn)
    share = FairShare(pool)
    grant = make_grant(account, 30.0)
    share.note_granted(grant)
    await share.sync()
    assert await get_usage(conn, account) == pytest.approx(30.0, abs=0.1)
    share.note_ended([make_end(grant, 4.0)])
    await share.sync()
    assert await get_usage(conn, account) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.NODE_VANISHED, Cause.EXIT_CODE])
async def test_whatever_ends_an_attempt_its_account_is_charged_what_it_held(pool, conn, cause):
    account = await insert_account(conn)
    share = FairShare(pool)
    grant = make_grant(account, 30.0)
    share.note_granted(grant)
    share.note_ended([make_end(grant, 12.0, cause)])
    await share.sync()
    assert await get_usage(conn, account) == pytest.approx(12.0, abs=0.1)


async def test_two_hubs_know_of_each_others_charges(pool, conn):
    a, b = await insert_account(conn), await insert_account(conn)
    one, other = FairShare(pool), FairShare(pool)
    for share in (one, other):
        share.plan([a, b], 1)
        await share.sync()
    for _ in range(10):
        other.note_granted(make_grant(a, 100.0))
    await other.sync()
    level = one.effective(a) - one.effective(b)
    await one.sync()
    assert one.effective(a) - one.effective(b) > level
    assert one.plan([a, b], 1) == {b: 1}


async def test_while_the_database_is_away_nothing_is_lost(pool, conn, monkeypatch):
    account = await insert_account(conn)
    share = FairShare(pool)
    share.note_granted(make_grant(account, 30.0))

    async def break_off(*_):
        raise ConnectionError("away")

    with monkeypatch.context() as away:
        away.setattr(usage_store, "add_usage", break_off)
        with pytest.raises(ConnectionError):
            await share.sync()
    share.note_granted(make_grant(account, 5.0))
    await share.sync()
    assert await get_usage(conn, account) == pytest.approx(35.0, abs=0.1)


async def test_the_loop_goes_on_after_a_failure(pool, conn, monkeypatch):
    monkeypatch.setattr(dispatch_module, "SYNC_SECONDS", 0.1)
    account = await insert_account(conn)
    share = FairShare(pool)
    add_usage, failures = usage_store.add_usage, []

    async def fail_once(*args):
        if not failures:
            failures.append(1)
            raise ConnectionError("away")
        return await add_usage(*args)

    monkeypatch.setattr(usage_store, "add_usage", fail_once)
    share.note_granted(make_grant(account, 30.0))
    running = asyncio.create_task(share.run())
    try:
        await wait_for(lambda: get_usage(conn, account), what="the charge")
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert failures
    assert await get_usage(conn, account) == pytest.approx(30.0, abs=0.1)


async def test_a_stranger_is_asked_for_long_before_the_second_is_over(pool, conn, monkeypatch):
    monkeypatch.setattr(dispatch_module, "SYNC_SECONDS", 60.0)
    a, b = await insert_account(conn, fair_weight=3.0), await insert_account(conn)
    share = FairShare(pool)
    running = asyncio.create_task(share.run())
    try:
        share.plan([a, b], 40)
        await wait_for(lambda: share.plan([a, b], 40) == {a: 30, b: 10}, seconds=50, what="the weight")
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_an_attempt_that_outlasts_its_estimate_is_looked_up_and_charged_as_it_runs(pool, conn, monkeypatch):
    account = await insert_account(conn)
    job = await insert_job(conn, account, slice_count=2)
    live = await insert_attempt(conn, job, 0)
    ended = await insert_attempt(conn, job, 1, state="failed", cause="exit_code")
    share, now = FairShare(pool), dispatch_module.clock.seconds()
    monkeypatch.setattr(dispatch_module.clock, "seconds", lambda: now)
    for attempt_id in (live, ended):
        share.note_granted(make_grant(account, 10.0, attempt_id))
    now += 100
    await share.sync()
    # What was charged at the leases; and for the live one, nothing of the kind having ended, twice what it has run.
    assert await get_usage(conn, account) == pytest.approx(20.0 + 2 * 100.0 - 10.0, abs=0.1)


async def test_hubs_that_were_heard_lately_are_counted(pool, conn):
    ids = sorted(entropy.new_id() for _ in range(3))
    for age, id in enumerate(ids):
        await conn.execute(
            "INSERT INTO hub_summaries VALUES ($1, '{}', now() - $2 * interval '4 seconds')", id, float(age)
        )
    assert await usage_store.list_hubs(conn, seconds=5.0) == ids[:2]
