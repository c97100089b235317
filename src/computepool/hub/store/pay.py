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
from computepool.hub.store.queries import load_queries

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
    facts: PayFacts


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
    return PaidAttempt(
        id=row["id"],
        job_id=row["job_id"],
        slice_index=row["slice_index"],
        number=row["number"],
        slot=row["slot"],
        rate_card_version=row["rate_card_version"],
        release_at=row["release_at"],
        counted_at=row["counted_at"],
        facts=PayFacts(
            state=AttemptState(row["state"]),
            cause=Cause(row["cause"]) if row["cause"] else None,
            leased_at=row["leased_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            expires_at=row["expires_at"],
            run_seconds=row["run_seconds"],
            wall_seconds=row["wall_seconds"],
            is_own=row["owner_id"] == row["submitter_id"],
            rate_microcredits_per_hour=row["rate_microcredits_per_hour"],
            fee_ppm=row["fee_ppm"],
            charged_microcredits=row["charged_microcredits"],
            fee_microcredits=row["fee_microcredits"],
            earning_state=EarningState(row["earning_state"]) if row["earning_state"] else None,
            moved=Moved(
                own_microcredits=row["own_microcredits"],
                job_earned_microcredits=row["job_earned_microcredits"],
                job_settled_microcredits=row["job_settled_microcredits"],
                reversed_microcredits=row["reversed_microcredits"],
            ),
        ),
    )
