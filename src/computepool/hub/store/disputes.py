"""Disputes over pay. Whoever changes one holds the lock of its attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.ledger.dispute import DisputeOrigin, DisputeState
from computepool.core.ledger.earning import Earning
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("disputes")


@dataclass(frozen=True, slots=True)
class StoredDispute:
    """With what it is about. Amounts are in microcredits."""

    id: UUID
    origin: DisputeOrigin
    state: DisputeState
    submitter_id: AccountId
    owner_id: AccountId
    attempt_id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    # What the submitter was charged, and the owner's part of that.
    charged_microcredits: int
    earned_microcredits: int
    # When the holdback is over.
    release_at: datetime
    reason: str
    note: str
    opened_at: datetime
    opened_by: AccountId | None
    decided_at: datetime | None
    decided_by: AccountId | None


@dataclass(frozen=True, slots=True)
class DisputeNote:
    """The newest dispute over an attempt's pay, in short."""

    state: DisputeState
    reason: str
    # Why it was decided so.
    note: str


async def insert_disputes(
    conn: Connection,
    opened: Sequence[tuple[UUID, Earning]],
    *,
    origin: DisputeOrigin,
    reason: str,
    opened_by: AccountId | None = None,
) -> None:
    """Ids and what each is about."""
    await _q.insert_disputes(
        conn,
        ids=[id for id, _ in opened],
        attempt_ids=[earning.attempt_id for _, earning in opened],
        submitter_ids=[earning.submitter_id for _, earning in opened],
        owner_ids=[earning.owner_id for _, earning in opened],
        origin=origin,
        reason=reason,
        opened_by=opened_by,
    )


async def decide_dispute(
    conn: Connection, id: UUID, *, state: DisputeState, note: str, decided_by: AccountId | None
) -> None:
    await _q.decide_dispute(conn, id=id, state=state, note=note, decided_by=decided_by)


async def find_dispute(conn: Connection, id: UUID) -> StoredDispute | None:
    row = await _q.find_dispute(conn, id=id)
    return _read(row) if row else None


async def list_of_attempt(conn: Connection, attempt_id: AttemptId) -> list[StoredDispute]:
    """Newest first."""
    return [_read(row) async for row in _q.list_of_attempt(conn, attempt_id=attempt_id)]


async def find_paid_attempt(
    conn: Connection, *, submitter_id: AccountId, job_id: JobId, slice_index: int, number: int | None
) -> AttemptId | None:
    """Of the submitter's own job; without a number the newest of the slice that was paid."""
    found: AttemptId | None = await _q.find_paid_attempt(
        conn, submitter_id=submitter_id, job_id=job_id, slice_index=slice_index, number=number
    )
    return found


async def count_open(conn: Connection, submitter_id: AccountId) -> int:
    """Those that the submitter has opened."""
    count: int = await _q.count_open(conn, submitter_id=submitter_id)
    return count


async def list_of_party(conn: Connection, *, account_id: AccountId, before: UUID, limit: int) -> list[StoredDispute]:
    """Over jobs and nodes of one person, newest first."""
    rows = _q.list_of_party(conn, account_id=account_id, before=before, limit_count=limit)
    return [_read(row) async for row in rows]


async def list_in_state(conn: Connection, *, state: DisputeState, after: UUID, limit: int) -> list[StoredDispute]:
    """Of everybody, oldest first."""
    rows = _q.list_in_state(conn, state=state, after=after, limit_count=limit)
    return [_read(row) async for row in rows]


async def sum_frozen(conn: Connection, owner_id: AccountId) -> int:
    """Of the owner's pending pay, what is in dispute."""
    total: int = await _q.sum_frozen(conn, owner_id=owner_id)
    return total


def read_note(row: Any) -> DisputeNote | None:
    """From a row that has an attempt's newest dispute beside it."""
    if row["dispute_state"] is None:
        return None
    return DisputeNote(DisputeState(row["dispute_state"]), row["dispute_reason"], row["dispute_note"])


def _read(row: Any) -> StoredDispute:
    return read_record(StoredDispute, row, origin=DisputeOrigin(row["origin"]), state=DisputeState(row["state"]))
