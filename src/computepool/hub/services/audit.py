"""Seals the ledger in batches, proves to anyone that it adds up, and finds what was changed behind its back.

How no transfer is missed or counted twice: ids are handed out before a transaction commits, so a smaller one may
become visible after a larger one. Whoever writes transfers holds a lock on their table from before the first id until
the end of the transaction. So the sealer reads the greatest id that was handed out, then who holds that lock, and
waits until each of those is gone: from then on all ids up to the one it has read are visible or will never be. It
waits for these alone; those that came later can only have larger ids. A batch covers all ids from the end of the one
before up to there, and one hub at a time seals, so that batches neither overlap nor leave gaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.audit import (
    Batch,
    BatchFault,
    BatchFaultKind,
    find_batch_fault,
    find_known_fault,
    seal,
)
from computepool.hub.services.checkpoints import Start, find_start
from computepool.hub.store import audit as store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.audit import KindTotal, StoredBatch
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.ledger import Drift

# A few hundredths of a second to hash; as much as fits into 64 bits if every amount were the greatest.
ROWS_MAX = 4_000
# Transactions of ours end within milliseconds. Who takes longer than this is waited for the next time.
WAIT_SECONDS = 2.0
LOOK_SECONDS = 0.02
BATCHES_PER_CHECK_MAX = 25
DRIFTS_MAX = 20
# Rows beyond what a batch should have that are looked at: one is enough to know.
SURPLUS_MAX = 100


@dataclass(frozen=True, slots=True)
class Proof:
    """What anyone may know: no figure of any person."""

    totals: Mapping[AccountKind, KindTotal]
    head: StoredBatch | None

    @property
    def balance_sum(self) -> int:
        return sum(total.balance for total in self.totals.values())


@dataclass(frozen=True, slots=True)
class Check:
    """Some batches, recomputed. `next_number` is where to go on; None: this was the end of the chain, or of it."""

    batch_count: int
    row_count: int
    fault: BatchFault | None
    head: StoredBatch | None
    next_number: int | None


@dataclass(frozen=True, slots=True)
class BalanceCheck:
    """Balances and holds against what the transfers come to, and transfers that no batch can cover."""

    drifts: list[Drift]
    stray_ids: list[int]
    unsealed_count: int
    # Checkpoints that are not as they were made.
    checkpoint_faults: tuple[str, ...]
    # The batch that the count began after; None: every transfer was counted.
    counted_from_batch: int | None


async def seal_batch(pool: Pool, *, rows_max: int = ROWS_MAX, wait_seconds: float = WAIT_SECONDS) -> int:
    """The next batch, if there is anything to seal and nobody else is at it. Returns how many rows it has."""
    # Each statement must see what was committed before it began, whatever the database's default is.
    async with pool.acquire() as conn, conn.transaction(isolation="read_committed"):
        if not await store.try_lock(conn):
            return 0
        head = await store.find_head(conn)
        previous = head.batch if head else None
        cut = await _find_cut(conn, wait_seconds=wait_seconds)
        first_id = previous.last_id + 1 if previous else 1
        if cut is None:
            return 0
        # So many ids at a time, which are at most so many rows; a stretch that nobody used is passed over at once.
        first_used = await store.find_first_id(conn, first_id=first_id, last_id=cut)
        if first_used is None:
            return 0
        last_id = min(cut, first_used + rows_max - 1)
        rows = await store.list_rows(conn, first_id=first_id, last_id=last_id, limit=rows_max + SURPLUS_MAX)
        batch = await asyncio.to_thread(seal, previous, last_id=last_id, rows=rows)
        await store.insert_batch(conn, batch)
        return len(rows)


async def _find_cut(conn: Connection, *, wait_seconds: float) -> int | None:
    """An id up to which all is decided; None: somebody is still writing."""
    last_id = await store.get_last_id(conn)
    waited_for = set(await store.list_writers(conn))
    deadline = clock.seconds() + wait_seconds
    while waited_for:
        writers = await store.list_writers(conn)
        # One that was prepared has another name than before: whichever they are, they are waited for.
        waited_for = {name for name, is_prepared in writers.items() if is_prepared or name in waited_for}
        if waited_for and clock.seconds() > deadline:
            return None
        if waited_for:
            await asyncio.sleep(LOOK_SECONDS)
    return last_id


async def prove(pool: Pool) -> Proof:
    async with pool.acquire() as conn:
        return Proof(await store.list_kind_totals(conn), await store.find_head(conn))


async def check_batches(
    pool: Pool, *, first_number: int = 1, limit: int = BATCHES_PER_CHECK_MAX, known: tuple[int, bytes] | None = None
) -> Check:
    """Recomputes batches from their transfers. `known` is a batch's number and a hash that somebody has kept."""
    if first_number < 1:
        raise InvalidRequest("Batches are numbered from 1.")
    limit = max(1, min(limit, BATCHES_PER_CHECK_MAX))
    async with pool.acquire() as conn:
        # The one before is needed for the link to it.
        stored = await store.list_batches(conn, first_number=max(1, first_number - 1), limit=limit + 1)
        head = await store.find_head(conn)
    previous = stored.pop(0).batch if first_number > 1 and stored and stored[0].batch.number < first_number else None
    if first_number > 1 and previous is None:
        return Check(0, 0, _missing(first_number - 1), head, None)
    stored = stored[:limit]
    batch_count = row_count = 0
    for each in stored:
        batch = each.batch
        fault = await _check_batch(pool, previous, batch, known)
        if fault is not None:
            return Check(batch_count, row_count, fault, head, None)
        batch_count, row_count, previous = batch_count + 1, row_count + batch.row_count, batch
    last = previous.number if previous else 0
    is_end = head is None or last >= head.batch.number
    if is_end and known is not None and known[0] > last:
        return Check(batch_count, row_count, _missing(known[0]), head, None)
    return Check(batch_count, row_count, None, head, None if is_end else last + 1)


async def _check_batch(
    pool: Pool, previous: Batch | None, batch: Batch, known: tuple[int, bytes] | None
) -> BatchFault | None:
    async with pool.acquire() as conn:
        rows = await store.list_rows(
            conn, first_id=batch.first_id, last_id=batch.last_id, limit=batch.row_count + SURPLUS_MAX
        )
    fault = await asyncio.to_thread(find_batch_fault, previous, batch, rows)
    if fault is None and known is not None and known[0] == batch.number:
        return find_known_fault(batch, known[1])
    return fault


async def check_balances(pool: Pool, *, from_start: bool = False) -> BalanceCheck:
    """Reads the transfers since the last checkpoint of the books, or with `from_start` every one."""
    async with pool.acquire() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
        head = await store.find_head(conn)
        start = Start() if from_start else await find_start(conn)
        return BalanceCheck(
            drifts=await ledger_store.list_drifts(conn, since=start.newest, limit=DRIFTS_MAX),
            stray_ids=await store.list_strays(conn, limit=DRIFTS_MAX),
            unsealed_count=await store.count_unsealed(conn, last_id=head.batch.last_id if head else 0),
            checkpoint_faults=start.faults,
            counted_from_batch=start.newest.batch_number if start.newest else None,
        )


def _missing(number: int) -> BatchFault:
    return BatchFault(BatchFaultKind.BATCH_MISSING, number, f"Batch {number} is missing.")
