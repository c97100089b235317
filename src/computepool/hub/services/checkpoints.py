"""Checkpoints of the books: where a count may begin, and how the next one is made.

A checkpoint ends at a sealed batch. No transfer with an id up to there can still appear, and none of them changes, so
that its sums hold for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from computepool.core.ledger.checkpoint import Checkpoint, find_checkpoint_fault, find_newest_fault, follow
from computepool.hub.store import checkpoints as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.ledger import BEFORE_ALL


@dataclass(frozen=True, slots=True)
class Start:
    """Where to count from. Without a checkpoint: from the first transfer. `faults` are those of others than it."""

    # Its sums by account and hold are at hand.
    newest: Checkpoint | None = None
    # The newest whose transfers are all older than a period.
    before: Checkpoint | None = None
    faults: tuple[str, ...] = ()


async def find_start(conn: Connection, *, since: datetime | None = None) -> Start:
    """What does not hold is not used, and told."""
    newest, fault = await _find_newest(conn)
    faults = [fault] if fault else []
    before = await store.find_before(conn, since) if since else None
    if before is not None:
        batch_sha256 = await store.find_batch_sha256(conn, before.batch_number)
        fault = find_checkpoint_fault(before, batch_sha256=batch_sha256)
        if fault is not None:
            before, faults = None, [*faults, fault]
    return Start(newest, before, tuple(dict.fromkeys(faults)))


async def advance(pool: Pool, *, until: datetime, from_start: bool = False) -> Checkpoint | None:
    """A new checkpoint up to the last sealed batch before `until`; None: there is nothing new to it.

    `from_start` counts all transfers anew: for sums that do not hold any more.
    """
    async with pool.acquire() as conn, conn.transaction():
        if not await store.try_lock(conn):
            return None
        known = await store.list_newest(conn)
        previous = known[0] if known else None
        base = None if from_start else previous
        batch = await store.find_last_batch(
            conn,
            until=until,
            after_number=base.batch_number if base else 0,
            least_number=previous.batch_number if previous else 0,
        )
        if batch is None or batch.last_at is None:
            return None
        if from_start:
            await store.clear_sums(conn)
        await store.add_to_sums(conn, after_id=base.last_id if base else BEFORE_ALL, last_id=batch.last_id)
        checkpoint = follow(
            previous,
            Checkpoint(
                number=0,
                batch_number=batch.number,
                batch_sha256=batch.sha256,
                last_id=batch.last_id,
                last_at=max(batch.last_at, base.last_at) if base else batch.last_at,
                kind_sums=await store.list_kind_sums(conn),
                sums_sha256=await store.digest_sums(conn),
            ),
        )
        await store.insert_checkpoint(conn, checkpoint)
        return checkpoint


async def _find_newest(conn: Connection) -> tuple[Checkpoint | None, str | None]:
    known = await store.list_newest(conn)
    if not known:
        return None, None
    newest, previous = known[0], known[1] if len(known) > 1 else None
    fault = find_newest_fault(
        previous,
        newest,
        batch_sha256=await store.find_batch_sha256(conn, newest.batch_number),
        sums_sha256=await store.digest_sums(conn),
    )
    return (None, fault) if fault else (newest, None)
