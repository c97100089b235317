"""What attempts were paid, with all that it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.explain import Moved, PayFacts
from computepool.hub.store.connect import Connection
from computepool.hub.store.disputes import DisputeNote, read_note
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("pay")


@dataclass(frozen=True, slots=True)
class PaidAttempt:
    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    slot: str
    rate_card_version: str | None
    release_at: datetime | None
    # When it ended; while it runs, when it was leased.
    counted_at: datetime
    # Its result is one that is compared with others'.
    is_checked: bool
    # It ended without a result, and left a checkpoint.
    is_saved: bool
    facts: PayFacts
    dispute: DisputeNote | None


async def list_pay(
    conn: Connection,
    *,
    node_id: NodeId,
    until: datetime,
    after: tuple[datetime, UUID],
    limit: int,
) -> list[PaidAttempt]:
    """In the order they ended; `after` is where the period begins, or the last one of the page before."""
    rows = _q.list_pay(conn, node_id=node_id, until=until, after_at=after[0], after_id=after[1], limit_count=limit)
    return [_to_paid(row) async for row in rows]


def _to_paid(row: Any) -> PaidAttempt:
    facts = read_record(
        PayFacts,
        row,
        state=AttemptState(row["state"]),
        cause=Cause(row["cause"]) if row["cause"] else None,
        is_own=row["owner_id"] == row["submitter_id"],
        earning_state=EarningState(row["earning_state"]) if row["earning_state"] else None,
        moved=read_record(Moved, row),
    )
    return read_record(PaidAttempt, row, facts=facts, dispute=read_note(row))
