"""Checkpoints of the books: a count from the last one and one of everything agree, and each finds what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.closing import DifferenceKind, digest_figures
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import audit, books, checkpoints
from computepool.hub.services.books import ClosedDay
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import checkpoints as store
from computepool.hub.store import ledger
from tests.support.paid_jobs import forge, lease, open_paid_spine, run_one, submit
from tests.support.spine import Spine

D = DifferenceKind
FIRST_DAY = date(2026, 3, 10)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn, welcome_microcredits=0) as spine:
        yield spine


@pytest.fixture
async def operator(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=0)


async def close(spine: Spine, operator: AccountCaller, day: date, **options: Any) -> ClosedDay:
    return await books.close_day(spine.pool, operator, day, provider_movements=None, **options)


async def seal(spine: Spine) -> None:
    while await audit.seal_batch(spine.pool, rows_max=3):
        pass


async def live_a_day(spine: Spine, day: date, *, jobs: int = 2, runs: int = 0) -> None:
    """Jobs that end, jobs that go on, and all of it sealed as if it had been written that day."""
    submitter, node = await spine.sign_up(credits=2_000), await spine.enrol(cpu_slots=8)
    for number in range(jobs):
        await submit(spine, submitter)
        await run_one(spine, node, 10.0 + number)
    for _ in range(runs):
        await submit(spine, submitter)
        await lease(spine, node)
    moment = f"{day} 12:00:00+00"
    await forge(spine, f"UPDATE ledger_transfers SET at = '{moment}' WHERE at > '2026-10-01'")
    await spine.fetch(
        f"UPDATE attempts SET finished_at = '{moment}', leased_at = '{moment}'::timestamptz - interval '50 s' "
        "WHERE finished_at > '2026-10-01'"
    )
    await seal(spine)


async def live_and_close(spine: Spine, operator: AccountCaller, days: int = 2) -> list[ClosedDay]:
    found = []
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        await live_a_day(spine, day, runs=1)
        found.append(await close(spine, operator, day))
    return found


async def test_a_close_leaves_a_checkpoint_and_the_next_counts_from_there(spine, operator):
    first, second = await live_and_close(spine, operator)
    assert (first.counted_from_batch, first.differences) == (None, [])
    assert second.counted_from_batch is not None
    assert second.differences == []
    async with spine.pool.acquire() as conn:
        newest, previous = await store.list_newest(conn)
        head = await spine.fetch_value("SELECT max(number) FROM audit_batches")
        assert (newest.number, newest.batch_number, previous.number) == (2, head, 1)
        assert previous.batch_number == second.counted_from_batch
        # Of jobs only those stand in it that hold something still.
        held = await conn.fetch("SELECT name FROM book_sums WHERE starts_with(name, 'job/')")
        assert len(held) == 2


async def test_both_ways_of_counting_come_to_the_same_day_after_day(spine, operator):
    for number in range(3):
        day = FIRST_DAY + timedelta(days=number)
        await live_a_day(spine, day, jobs=1 + number, runs=1)
        quick = await close(spine, operator, day)
        whole = await close(spine, operator, day, from_start=True)
        assert (quick.counted_from_batch is None) == (number == 0)
        assert whole.counted_from_batch is None
        assert (quick.figures, quick.differences, quick.closing) == (whole.figures, [], whole.closing)
        assert whole.differences == []
    # A day of long ago is counted from before it.
    again = await close(spine, operator, FIRST_DAY + timedelta(days=1))
    assert again.counted_from_batch is not None
    assert again.differences == []
    assert digest_figures(again.figures) == again.closing.sha256


async def test_the_audit_of_balances_counts_from_the_checkpoint_too(spine, operator):
    await live_and_close(spine, operator, days=1)
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    quick, whole = await audit.check_balances(spine.pool), await audit.check_balances(spine.pool, from_start=True)
    assert (quick.counted_from_batch is None, whole.counted_from_batch is None) == (False, True)
    assert (quick.drifts, whole.drifts, quick.checkpoint_faults) == ([], [], ())


async def test_without_sealed_batches_there_is_no_checkpoint(spine, operator):
    assert (await close(spine, operator, FIRST_DAY)).differences == []
    assert await spine.fetch_value("SELECT count(*) FROM book_checkpoints") == 0


async def test_a_checkpoint_ends_before_the_first_transfer_of_the_next_day(spine, operator):
    await live_a_day(spine, FIRST_DAY, jobs=1)
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    await close(spine, operator, FIRST_DAY)
    second = await close(spine, operator, FIRST_DAY + timedelta(days=1))
    assert second.counted_from_batch is not None
    query = "SELECT last_at FROM audit_batches WHERE number = $1"
    last_at = await spine.fetch_value(query, second.counted_from_batch)
    assert last_at.date() == FIRST_DAY
    assert second.differences == []


async def test_two_who_close_at_once_leave_one_checkpoint(spine, operator):
    await live_a_day(spine, FIRST_DAY)
    await asyncio.gather(*(close(spine, operator, FIRST_DAY) for _ in range(4)))
    assert await spine.fetch_value("SELECT count(*) FROM book_checkpoints") == 1


# What is wrong is found by each


# What is planted, and what takes it out again.
DRIFTS = [
    f"UPDATE {table} SET {column} = {column} + ({{}}) WHERE {where}"
    for table, column, where in (
        ("ledger_accounts", "balance", "kind = 'owner_pending'"),
        ("ledger_accounts", "balance", "id = 'fee/3'"),
        ("jobs", "held_remaining", "finished_at IS NULL"),
    )
]


async def test_a_drift_is_found_from_the_checkpoint_and_from_the_start(spine, operator):
    await live_and_close(spine, operator, days=1)
    for drift in DRIFTS:
        await spine.fetch(drift.format(3))
        for from_start in (False, True):
            again = await close(spine, operator, FIRST_DAY + timedelta(days=1), from_start=from_start)
            assert (again.counted_from_batch is None) == from_start
            assert D.DRIFT in {each.kind for each in again.differences}
            assert (await audit.check_balances(spine.pool, from_start=from_start)).drifts != []
        # And it is not written into a checkpoint, where it would outlive the repair.
        assert await spine.fetch_value("SELECT count(*) FROM book_checkpoints") == 1
        await spine.fetch(drift.format(-3))
        assert (await audit.check_balances(spine.pool)).drifts == []


@pytest.mark.parametrize("from_start", [False, True])
async def test_a_transfer_that_was_changed_since_the_checkpoint_is_found_by_both(spine, operator, from_start):
    await live_and_close(spine, operator, days=1)
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    await forge(spine, "UPDATE ledger_transfers SET amount = amount - 7 WHERE kind = 'settle' AND at > '2026-03-11'")
    found = await close(spine, operator, FIRST_DAY + timedelta(days=1), from_start=from_start)
    assert D.DRIFT in {each.kind for each in found.differences}


async def test_a_transfer_that_was_changed_before_the_checkpoint_is_the_whole_counts_and_the_chains_to_find(
    spine, operator
):
    """Also shows that a close does not read what lies before its checkpoint."""
    await live_and_close(spine, operator, days=1)
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    await forge(spine, "UPDATE ledger_transfers SET amount = amount - 7 WHERE kind = 'settle' AND at < '2026-03-11'")
    day = FIRST_DAY + timedelta(days=1)
    assert (await close(spine, operator, day)).differences == []
    assert D.DRIFT in {each.kind for each in (await close(spine, operator, day, from_start=True)).differences}
    assert (await audit.check_balances(spine.pool)).drifts == []
    assert (await audit.check_balances(spine.pool, from_start=True)).drifts != []
    assert (await audit.check_batches(spine.pool)).fault is not None


FORGERIES = {
    "a sum": ("UPDATE book_sums SET amount = amount + 1 WHERE starts_with(name, 'world/')", None),
    "a sum that is gone": ("DELETE FROM book_sums WHERE starts_with(name, 'job/')", None),
    "the checkpoint": ("UPDATE book_checkpoints SET last_id = last_id - 1", "book_checkpoints"),
    "the kinds": ("UPDATE book_checkpoints SET kind_sums = kind_sums || '{\"fee\": 1}'", "book_checkpoints"),
    "the link": ("UPDATE book_checkpoints SET previous_sha256 = sha256", "book_checkpoints"),
    "the batch": ("UPDATE audit_batches SET sha256 = previous_sha256 WHERE number > 1", "audit_batches"),
}


@pytest.mark.parametrize("what", FORGERIES)
async def test_a_checkpoint_that_was_changed_is_told_and_everything_is_counted_instead(spine, operator, what):
    await live_and_close(spine, operator, days=1)
    statement, table = FORGERIES[what]
    await (forge(spine, statement, table=table) if table else spine.fetch(statement))
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    day = FIRST_DAY + timedelta(days=1)
    found = await close(spine, operator, day)
    assert {each.kind for each in found.differences} == {D.CHECKPOINT}
    balances = await audit.check_balances(spine.pool)
    assert (len(balances.checkpoint_faults), balances.counted_from_batch, balances.drifts) == (1, None, [])
    # Counted from the start everything agrees, and that makes a checkpoint which holds for all that comes.
    assert (await close(spine, operator, day, from_start=True)).differences == []
    after = await close(spine, operator, day + timedelta(days=1))
    assert (after.differences, after.counted_from_batch is None) == ([], False)
    assert (await audit.check_balances(spine.pool)).checkpoint_faults == ()


@pytest.mark.parametrize("statement", ["UPDATE book_checkpoints SET number = 9", "DELETE FROM book_checkpoints"])
async def test_the_database_refuses_to_change_a_checkpoint(spine, operator, statement):
    await live_and_close(spine, operator, days=1)
    with pytest.raises(asyncpg.RestrictViolationError):
        await spine.fetch(statement)


# Planted bugs


async def test_control_a_checkpoint_that_counts_something_twice_is_caught(spine, operator, monkeypatch):
    await live_and_close(spine, operator, days=1)
    await live_a_day(spine, FIRST_DAY + timedelta(days=1), jobs=1)
    add_to_sums = store.add_to_sums

    async def add_too_much(conn: Any, *, after_id: int, last_id: int) -> None:
        await add_to_sums(conn, after_id=max(0, after_id - 2), last_id=last_id)

    monkeypatch.setattr(store, "add_to_sums", add_too_much)
    await close(spine, operator, FIRST_DAY + timedelta(days=1))
    await live_a_day(spine, FIRST_DAY + timedelta(days=2), jobs=1)
    found = await close(spine, operator, FIRST_DAY + timedelta(days=2))
    assert D.DRIFT in {each.kind for each in found.differences}


async def test_control_a_checkpoint_up_to_what_is_not_sealed_misses_a_transfer_and_is_caught(
    spine, operator, monkeypatch
):
    """A transaction that has its ids and is not committed: the ids after its own are counted, its own never."""
    await live_a_day(spine, FIRST_DAY, jobs=1)
    submitter = await spine.sign_up(credits=0)
    async with spine.pool.acquire() as slow:
        transaction = slow.transaction()
        await transaction.start()
        await ledger.post(slow, [_top_up(submitter.account_id, lane=1)])
        async with spine.pool.acquire() as conn, conn.transaction():
            await ledger.post(conn, [_top_up(operator.account_id, lane=2)])
        last_id = await spine.fetch_value("SELECT max(id) FROM ledger_transfers")
        find_last_batch = store.find_last_batch

        async def go_too_far(conn: Any, **options: Any) -> Any:
            found = await find_last_batch(conn, **options)
            return store.EndBatch(found.number, found.sha256, last_id, found.last_at)

        monkeypatch.setattr(store, "find_last_batch", go_too_far)
        await checkpoints.advance(spine.pool, until=(await spine.fetch_value("SELECT now()")) + timedelta(days=1))
        await transaction.commit()
    assert (await audit.check_balances(spine.pool)).drifts != []
    assert (await audit.check_balances(spine.pool, from_start=True)).drifts == []


def _top_up(account_id: AccountId, *, lane: int) -> Posting:
    """In a lane of its own it waits for nobody's row of the world's account."""
    id = UUID(int=entropy.new_id().int // 16 * 16 + lane)
    return verbs.top_up(top_up_id=id, account_id=account_id, amount=1_000)
