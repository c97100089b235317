"""Checkpoints of the books and the sums that belong to the newest one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.checkpoint import Checkpoint
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("checkpoints")

# Any constant will do, as long as every hub uses the same one.
_ADVISORY_LOCK = 7_263_004


@dataclass(frozen=True, slots=True)
class EndBatch:
    """A sealed batch that a checkpoint may end at."""

    number: int
    sha256: bytes
    last_id: int
    # The youngest transfer of it and of those before it, after the batch that was asked from; None: there are none.
    last_at: datetime | None


async def try_lock(conn: Connection) -> bool:
    """Until the end of the transaction. False: somebody else is at it."""
    return bool(await _q.try_lock(conn, key=_ADVISORY_LOCK))


async def list_newest(conn: Connection) -> list[Checkpoint]:
    """At most two: the newest, and the one that it follows."""
    return [_read(row) async for row in _q.list_newest(conn)]


async def find_before(conn: Connection, at: datetime) -> Checkpoint | None:
    """The newest whose transfers are all older."""
    row = await _q.find_before(conn, at=at)
    return _read(row) if row else None


async def find_batch_sha256(conn: Connection, number: int) -> bytes | None:
    found: bytes | None = await _q.find_batch_sha256(conn, number=number)
    return found


async def find_last_batch(
    conn: Connection, *, until: datetime, after_number: int, least_number: int
) -> EndBatch | None:
    """The last before which all transfers are older than `until`, and not one before `least_number`."""
    row = await _q.find_last_batch(conn, until=until, after_number=after_number, least_number=least_number)
    return read_record(EndBatch, row) if row else None


async def clear_sums(conn: Connection) -> None:
    await _q.clear_sums(conn)


async def add_to_sums(conn: Connection, *, after_id: int, last_id: int) -> None:
    """Reads the transfers between."""
    await _q.add_to_sums(conn, after_id=after_id, last_id=last_id)
    await _q.drop_empty_sums(conn)


async def digest_sums(conn: Connection) -> bytes:
    found: bytes = await _q.digest_sums(conn)
    return found


async def list_kind_sums(conn: Connection) -> dict[AccountKind, int]:
    return {AccountKind(row["kind"]): row["amount"] async for row in _q.list_kind_sums(conn)}


async def insert_checkpoint(conn: Connection, checkpoint: Checkpoint) -> None:
    await _q.insert_checkpoint(
        conn,
        number=checkpoint.number,
        batch_number=checkpoint.batch_number,
        batch_sha256=checkpoint.batch_sha256,
        last_id=checkpoint.last_id,
        last_at=checkpoint.last_at,
        kind_sums={kind.value: amount for kind, amount in checkpoint.kind_sums.items()},
        sums_sha256=checkpoint.sums_sha256,
        previous_sha256=checkpoint.previous_sha256,
        sha256=checkpoint.sha256,
    )


def _read(row: Any) -> Checkpoint:
    kind_sums = {AccountKind(kind): amount for kind, amount in row["kind_sums"].items()}
    return read_record(Checkpoint, row, kind_sums=kind_sums)
