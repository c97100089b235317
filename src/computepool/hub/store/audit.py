"""Batches of the audit chain, the rows that they cover, and what the accounts come to by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.audit import AuditRow, Batch
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("audit")

# Any constant will do, as long as every hub uses the same one.
_ADVISORY_LOCK = 7_263_002
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    batch: Batch
    sealed_at: datetime


@dataclass(frozen=True, slots=True)
class KindTotal:
    balance: int
    account_count: int


async def try_lock(conn: Connection) -> bool:
    """Until the end of the transaction. False: another hub is at it."""
    return bool(await _q.try_lock(conn, key=_ADVISORY_LOCK))


async def find_head(conn: Connection) -> StoredBatch | None:
    row = await _q.find_head(conn)
    return _to_batch(row) if row else None


async def list_batches(conn: Connection, *, first_number: int, limit: int) -> list[StoredBatch]:
    return [_to_batch(row) async for row in _q.list_batches(conn, first_number=first_number, limit_count=limit)]


async def get_last_id(conn: Connection) -> int:
    last_id: int = await _q.get_last_id(conn)
    return last_id


async def list_writers(conn: Connection) -> Mapping[str, bool]:
    """Transactions that may still show transfers with ids handed out before now; True: a prepared one."""
    return {row["name"]: row["is_prepared"] async for row in _q.list_writers(conn)}


async def find_first_id(conn: Connection, *, first_id: int, last_id: int) -> int | None:
    """The least that a transfer has, of these."""
    found: int | None = await _q.find_first_id(conn, first_id=first_id, last_id=last_id)
    return found


async def list_rows(conn: Connection, *, first_id: int, last_id: int, limit: int) -> list[AuditRow]:
    rows = _q.list_rows(conn, first_id=first_id, last_id=last_id, limit_count=limit)
    return [_to_row(row) async for row in rows]


async def insert_batch(conn: Connection, batch: Batch) -> None:
    await _q.insert_batch(
        conn,
        number=batch.number,
        first_id=batch.first_id,
        last_id=batch.last_id,
        row_count=batch.row_count,
        amount_sum=batch.amount_sum,
        first_at=_EPOCH + timedelta(microseconds=batch.first_at_microseconds),
        last_at=_EPOCH + timedelta(microseconds=batch.last_at_microseconds),
        previous_sha256=batch.previous_sha256,
        sha256=batch.sha256,
        fingerprints=batch.fingerprints,
    )


async def list_strays(conn: Connection, *, limit: int) -> list[int]:
    return [row["id"] async for row in _q.list_strays(conn, limit_count=limit)]


async def count_unsealed(conn: Connection, *, last_id: int) -> int:
    count: int = await _q.count_unsealed(conn, last_id=last_id)
    return count


async def list_kind_totals(conn: Connection) -> dict[AccountKind, KindTotal]:
    return {
        AccountKind(row["kind"]): KindTotal(row["balance"], row["account_count"])
        async for row in _q.list_kind_totals(conn)
    }


def _to_batch(row: Any) -> StoredBatch:
    batch = read_record(Batch, row, first_at_microseconds=row["first_us"], last_at_microseconds=row["last_us"])
    return StoredBatch(batch, row["sealed_at"])


def _to_row(row: Any) -> AuditRow:
    return read_record(AuditRow, row, at_microseconds=row["at_us"])
