"""The chain over a real ledger: nothing is missed or sealed twice, however writers overlap; forgeries are found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind
from computepool.core.ledger.audit import BatchFaultKind
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import audit
from computepool.hub.store import audit as audit_store
from computepool.hub.store import ledger
from computepool.hub.store.connect import Pool, create_pool
from tests.support.paid_jobs import forge
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import TestServer, through_pooler

K = BatchFaultKind


class Lab:
    def __init__(self, pool: Pool, dsn: str) -> None:
        self.pool = pool
        self.dsn = dsn

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async with self.pool.acquire() as conn:
            return await conn.fetch(query, *args)

    async def fetch_value(self, query: str, *args: Any) -> Any:
        async with self.pool.acquire() as conn:
            return await conn.fetchval(query, *args)

    async def top_up(self, count: int = 1) -> None:
        for _ in range(count):
            async with self.pool.acquire() as conn, conn.transaction():
                await ledger.post(conn, [new_top_up()])

    async def seal_all(self, *, rows_max: int = audit.ROWS_MAX) -> int:
        sealed = 0
        while count := await audit.seal_batch(self.pool, rows_max=rows_max):
            sealed += count
        return sealed

    async def check(self, **options: Any) -> audit.Check:
        """The whole chain."""
        number, batch_count, row_count = 1, 0, 0
        while True:
            found = await audit.check_batches(self.pool, first_number=number, **options)
            batch_count, row_count = batch_count + found.batch_count, row_count + found.row_count
            if found.next_number is None:
                return audit.Check(batch_count, row_count, found.fault, found.head, None)
            number = found.next_number

    async def list_ids(self) -> list[int]:
        return [row["id"] for row in await self.fetch("SELECT id FROM ledger_transfers ORDER BY id")]


# Transactions that write at the same time touch different rows of the world's account: none waits for another's lock.
LANES = len(SHARDS[AccountKind.WORLD])


def new_top_up(lane: int = 0) -> Posting:
    top_up_id = UUID(int=entropy.new_id().int // LANES * LANES + lane)
    return verbs.top_up(top_up_id=top_up_id, account_id=AccountId(entropy.new_id()), amount=1_000)


@pytest.fixture(params=["as this run goes", "pgbouncer"])
def way(request: pytest.FixtureRequest, postgres: TestServer) -> Iterator[Callable[[str], str]]:
    if request.param == "as this run goes":
        yield through_pooler
        return
    pooler = PgBouncer(postgres.dsn).start()
    yield pooler.through
    pooler.stop()


@pytest.fixture
async def lab(dsn: str) -> AsyncIterator[Lab]:
    pool = await create_pool(dsn, size_max=10)
    yield Lab(pool, dsn)
    await pool.close()


# Sealing


async def test_everything_is_sealed_once_and_the_chain_holds(lab):
    await lab.top_up(5)
    assert await lab.seal_all() == 5
    await lab.top_up(3)
    assert await lab.seal_all() == 3
    assert await lab.seal_all() == 0
    found = await lab.check()
    assert (found.batch_count, found.row_count, found.fault) == (2, 8, None)
    assert found.head is not None
    assert found.head.batch.last_id == max(await lab.list_ids())


async def test_an_empty_ledger_has_no_chain_and_no_fault(lab):
    assert await lab.seal_all() == 0
    found = await lab.check()
    assert (found.batch_count, found.fault, found.head) == (0, None, None)


async def test_a_batch_has_a_limit_and_the_next_begins_where_it_ended(lab):
    await lab.top_up(10)
    assert await lab.seal_all(rows_max=4) == 10
    rows = await lab.fetch("SELECT number, first_id, last_id, row_count FROM audit_batches ORDER BY number")
    assert [row["row_count"] for row in rows] == [4, 4, 2]
    assert all(later["first_id"] == earlier["last_id"] + 1 for earlier, later in pairwise(rows))
    assert (await lab.check(limit=1)).batch_count == 3


async def test_a_long_stretch_of_ids_that_nobody_used_is_passed_over_at_once(lab):
    await lab.top_up()
    await lab.fetch("SELECT setval('ledger_transfers_id_seq', 1000000000000)")
    await lab.top_up(3)
    assert await lab.seal_all(rows_max=2) == 4
    assert [row["row_count"] for row in await lab.fetch("SELECT row_count FROM audit_batches ORDER BY number")] == [
        1,
        2,
        1,
    ]
    assert (await lab.check()).fault is None


async def test_ids_of_rolled_back_transactions_are_gaps_and_no_faults(lab):
    await lab.top_up()
    async with lab.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await ledger.post(conn, [new_top_up(lane) for lane in range(3)])
        await transaction.rollback()
    await lab.top_up()
    assert await lab.seal_all() == 2
    assert (await lab.check()).fault is None


class Writer:
    """A transaction that has written a transfer and takes its time."""

    def __init__(self, lab: Lab, *, lane: int = 1) -> None:
        self._lab = lab
        self._lane = lane
        self._open = True

    async def __aenter__(self) -> Writer:
        self._conn = await self._lab.pool.acquire()
        self._transaction = self._conn.transaction()
        await self._transaction.start()
        await ledger.post(self._conn, [new_top_up(self._lane)])
        return self

    async def commit(self) -> None:
        self._open = False
        await self._transaction.commit()
        await self._lab.pool.release(self._conn)

    async def __aexit__(self, *_: object) -> None:
        if self._open:
            await self._transaction.rollback()
            await self._lab.pool.release(self._conn)


async def test_a_smaller_id_that_is_not_committed_yet_holds_up_the_cut(lab):
    async with Writer(lab) as slow:
        await lab.top_up(2)
        assert await audit.seal_batch(lab.pool, wait_seconds=0.1) == 0
        await slow.commit()
    assert await lab.seal_all() == 3
    assert (await lab.check()).fault is None


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the sealer has seen who writes, and so has chosen what it will seal."""
    event, list_writers = asyncio.Event(), audit_store.list_writers

    async def tell(conn: Any) -> Any:
        found = await list_writers(conn)
        event.set()
        return found

    monkeypatch.setattr(audit_store, "list_writers", tell)
    return event


async def test_the_sealer_waits_for_it_and_goes_on_when_it_ends(lab, looked):
    async with Writer(lab) as slow:
        await lab.top_up(2)
        sealing = asyncio.create_task(audit.seal_batch(lab.pool, wait_seconds=20.0))
        await looked.wait()
        assert not sealing.done()
        await slow.commit()
    assert await sealing == 3


async def test_those_who_begin_to_write_later_are_not_waited_for(lab, looked):
    async with Writer(lab) as early:
        sealing = asyncio.create_task(audit.seal_batch(lab.pool, wait_seconds=20.0))
        await looked.wait()
        async with Writer(lab, lane=2) as late:
            await early.commit()
            assert await sealing == 1
            await late.commit()
    assert await lab.seal_all() == 1
    assert (await lab.check()).fault is None


async def is_sealing(lab: Lab) -> bool:
    return bool(await lab.fetch_value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"))


async def test_whoever_only_reads_or_writes_elsewhere_holds_nobody_up(lab):
    await lab.top_up()
    async with lab.pool.acquire() as conn, conn.transaction():
        await conn.fetch("SELECT * FROM ledger_transfers")
        await conn.execute("INSERT INTO hub_changes (kind) VALUES ('node')")
        assert await audit.seal_batch(lab.pool, wait_seconds=0.1) == 1


async def test_control_a_sealer_that_does_not_wait_misses_a_transfer_and_the_check_finds_it(lab, monkeypatch):
    async def cut_at_once(conn: Any, **_: Any) -> int:
        return await audit_store.get_last_id(conn)

    monkeypatch.setattr(audit, "_find_cut", cut_at_once)
    async with Writer(lab) as slow:
        await lab.top_up(2)
        assert await audit.seal_batch(lab.pool) == 2
        await slow.commit()
    assert await lab.seal_all() == 0
    fault = (await lab.check()).fault
    assert fault is not None
    assert (fault.kind, fault.transfer_id) == (K.TRANSFER_ADDED, min(await lab.list_ids()))


async def test_one_hub_at_a_time_seals_also_behind_a_transaction_pooler(dsn, way, postgres):
    pools = [await create_pool(way(dsn_of(dsn, postgres)), size_max=2) for _ in range(4)]
    lab = Lab(pools[0], dsn)
    try:
        await lab.top_up(12)
        sealed = await asyncio.gather(*(audit.seal_batch(pool, rows_max=5) for pool in pools for _ in range(2)))
        sealed.append(await lab.seal_all(rows_max=5))
        assert sum(sealed) == 12
        found = await lab.check()
        assert (found.row_count, found.fault) == (12, None)
        # Nothing is left behind on a server that somebody else will use next.
        assert not await is_sealing(lab)
    finally:
        for pool in pools:
            await pool.close()


def dsn_of(dsn: str, postgres: TestServer) -> str:
    """Directly at the server, whichever way this test run goes."""
    return postgres.dsn_of(dsn.split("?")[0].rsplit("/", 1)[1])


async def test_storms_of_overlapping_writers_leave_no_gap(lab):
    """Writers begin, draw ids and end in every order, some roll back; sealers work all the time."""
    seeds = random.Random(7)
    writing = True

    async def write(lane: int, pause_before: float, pause_after: float, commits: bool) -> None:
        async with lab.pool.acquire() as conn:
            transaction = conn.transaction()
            await transaction.start()
            try:
                await asyncio.sleep(pause_before)
                await ledger.post(conn, [new_top_up(lane)])
                await asyncio.sleep(pause_after)
            finally:
                await (transaction.commit() if commits else transaction.rollback())

    async def seal() -> int:
        sealed = 0
        while writing:
            sealed += await audit.seal_batch(lab.pool, rows_max=7, wait_seconds=0.2)
            await asyncio.sleep(0.005)
        return sealed

    sealers = [asyncio.create_task(seal()) for _ in range(2)]
    plans = [(seeds.uniform(0, 0.03), seeds.uniform(0, 0.03), seeds.random() < 0.85) for _ in range(150)]
    for start in range(0, len(plans), 6):
        await asyncio.gather(*(write(lane, *plan) for lane, plan in enumerate(plans[start : start + 6])))
    writing = False
    sealed = sum(await asyncio.gather(*sealers)) + await lab.seal_all()
    assert sealed == len(await lab.list_ids()) == sum(commits for _, _, commits in plans)
    found = await lab.check()
    assert (found.row_count, found.fault) == (sealed, None)


# Forgeries


@pytest.fixture
async def sealed(lab: Lab) -> Lab:
    """Three batches of four transfers, and two that are not sealed."""
    for _ in range(3):
        await lab.top_up(4)
        # So that there are ids in the ranges that nobody used.
        await lab.fetch("SELECT nextval('ledger_transfers_id_seq')")
        await lab.seal_all()
    await lab.top_up(2)
    return lab


async def test_a_transfer_that_was_changed_is_named(sealed):
    ids = await sealed.list_ids()
    await forge(sealed, "UPDATE ledger_transfers SET amount = amount - 1 WHERE id = $1", ids[5])
    found = await sealed.check()
    assert found.fault is not None
    assert (found.fault.kind, found.fault.batch_number, found.fault.transfer_id) == (K.TRANSFER_CHANGED, 2, ids[5])
    assert found.batch_count == 1


@pytest.mark.parametrize("column", ["key = key || 'x'", "at = at + interval '1 microsecond'", "leg = leg + 1"])
async def test_whatever_was_changed_of_it_is_noticed(sealed, column):
    await forge(sealed, f"UPDATE ledger_transfers SET {column} WHERE id = $1", (await sealed.list_ids())[0])
    found = await sealed.check()
    assert found.fault is not None
    assert found.fault.kind is K.TRANSFER_CHANGED


async def test_a_transfer_that_was_deleted_is_named(sealed):
    ids = await sealed.list_ids()
    await forge(sealed, "DELETE FROM ledger_transfers WHERE id = $1", ids[9])
    found = await sealed.check()
    assert found.fault is not None
    assert (found.fault.kind, found.fault.batch_number, found.fault.transfer_id) == (K.TRANSFER_MISSING, 3, ids[9])


INSERT = (
    "INSERT INTO ledger_transfers (id, key, leg, kind, source_id, target_id, amount) OVERRIDING SYSTEM VALUE "
    "SELECT $1, 'forged', 0, kind, source_id, target_id, amount FROM ledger_transfers ORDER BY id LIMIT 1"
)


async def test_a_transfer_that_was_inserted_into_a_gap_is_named(sealed):
    gap = await sealed.fetch_value("SELECT last_id FROM audit_batches WHERE number = 2")
    await forge(sealed, INSERT, gap)
    found = await sealed.check()
    assert found.fault is not None
    assert (found.fault.kind, found.fault.batch_number, found.fault.transfer_id) == (K.TRANSFER_ADDED, 2, gap)


@pytest.mark.parametrize("id", [0, -5, 10**9])
async def test_a_transfer_with_an_id_that_was_never_handed_out_is_found(sealed, id):
    await forge(sealed, INSERT, id)
    assert (await audit.check_balances(sealed.pool)).stray_ids == [id]


async def test_a_transfer_that_was_inserted_like_any_other_is_found_by_the_balances(sealed):
    """It is sealed in good faith: but no balance has moved with it."""
    next_id = await sealed.fetch_value("SELECT nextval('ledger_transfers_id_seq')")
    await forge(sealed, INSERT, next_id)
    await sealed.seal_all()
    assert (await sealed.check()).fault is None
    found = await audit.check_balances(sealed.pool)
    assert len(found.drifts) == 2
    assert all(abs(drift.kept - drift.counted) == 1_000 for drift in found.drifts)


async def test_a_balance_that_was_changed_is_found(sealed):
    await sealed.fetch("UPDATE ledger_accounts SET balance = balance + 5 WHERE kind = 'fee' AND shard = 3")
    found = await audit.check_balances(sealed.pool)
    assert [drift.name for drift in found.drifts] == ["account fee/3", "sum of all accounts"]


async def test_honest_books_have_no_drift_and_know_what_is_not_sealed(sealed):
    found = await audit.check_balances(sealed.pool)
    assert (found.drifts, found.stray_ids, found.unsealed_count) == ([], [], 2)


@pytest.mark.parametrize(
    ("statement", "kind", "number"),
    [
        ("UPDATE audit_batches SET sha256 = previous_sha256 WHERE number = 2", K.BATCH_CHANGED, 2),
        ("UPDATE audit_batches SET amount_sum = 1 WHERE number = 1", K.BATCH_CHANGED, 1),
        ("UPDATE audit_batches SET last_at = last_at + interval '1 year' WHERE number = 1", K.BATCH_CHANGED, 1),
        ("DELETE FROM audit_batches WHERE number = 1", K.BATCH_MISSING, 1),
        ("DELETE FROM audit_batches WHERE number = 2", K.BATCH_MISSING, 2),
    ],
)
async def test_a_batch_that_was_changed_or_deleted_is_named(sealed, statement, kind, number):
    await forge(sealed, statement, table="audit_batches")
    for limit in (1, 50):
        found = await sealed.check(limit=limit)
        assert found.fault is not None
        assert (found.fault.kind, found.fault.batch_number) == (kind, number)


async def test_a_tail_that_was_cut_off_is_found_by_a_hash_that_was_kept(sealed):
    proof = await audit.prove(sealed.pool)
    assert proof.head is not None
    known = (proof.head.batch.number, proof.head.batch.sha256)
    assert (await sealed.check(known=known)).fault is None
    await forge(sealed, "DELETE FROM audit_batches WHERE number = 3", table="audit_batches")
    assert (await sealed.check()).fault is None
    found = await sealed.check(known=known)
    assert found.fault is not None
    assert (found.fault.kind, found.fault.batch_number) == (K.BATCH_MISSING, 3)


async def test_a_chain_that_was_made_anew_is_found_by_a_hash_that_was_kept(sealed):
    proof = await audit.prove(sealed.pool)
    assert proof.head is not None
    known = (proof.head.batch.number, proof.head.batch.sha256)
    await forge(sealed, "UPDATE ledger_transfers SET amount = 1 WHERE id = $1", (await sealed.list_ids())[0])
    await forge(sealed, "DELETE FROM audit_batches", table="audit_batches")
    await sealed.seal_all(rows_max=4)
    assert (await sealed.check()).fault is None
    found = await sealed.check(known=known)
    assert found.fault is not None
    assert found.fault.kind is K.HASH_UNKNOWN


@pytest.mark.parametrize("statement", ["UPDATE audit_batches SET row_count = 1", "DELETE FROM audit_batches"])
async def test_the_database_refuses_to_change_a_batch(sealed, statement):
    with pytest.raises(asyncpg.RestrictViolationError):
        await sealed.fetch(statement)


# The public proof


async def test_the_proof_shows_that_all_accounts_come_to_zero_by_kind(sealed):
    proof = await audit.prove(sealed.pool)
    assert proof.balance_sum == 0
    assert proof.totals[AccountKind.WORLD].balance == -14_000
    assert proof.totals[AccountKind.SUBMITTER_AVAILABLE].balance == 14_000
    assert proof.totals[AccountKind.FEE].account_count == 16


async def test_books_that_do_not_come_to_zero_cannot_hide_it(sealed):
    await sealed.fetch("UPDATE ledger_accounts SET balance = balance + 7 WHERE kind = 'fee' AND shard = 0")
    assert (await audit.prove(sealed.pool)).balance_sum == 7


async def test_a_batch_is_found_without_reading_the_whole_ledger(lab):
    """By the summaries of pages; a tree with an entry for every row would cost every submit and completion."""
    await lab.top_up()
    async with lab.pool.acquire() as conn, conn.transaction():
        # As hubs have it that speak to the server itself: the table of a test is too small to choose by its size.
        await conn.execute("SET LOCAL enable_seqscan = off")
        plan = await conn.fetch("EXPLAIN SELECT * FROM ledger_transfers WHERE id >= 5 AND id <= 9 ORDER BY id")
    assert any("ledger_transfers_range_idx" in row[0] for row in plan)
