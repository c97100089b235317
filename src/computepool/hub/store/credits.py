"""Earnings between holdback and release, as attempts keep them, and who owes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId
from computepool.core.ledger.earning import Earning, EarningState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("credits")


@dataclass(frozen=True, slots=True)
class DueEarning:
    earning: Earning
    # The node's receipt was looked at and does not hold.
    receipt_refused: bool


async def take_due(conn: Connection, *, now: datetime, limit: int) -> list[DueEarning]:
    """Locked: nobody else releases them until the transaction has ended."""
    return [_read_due(row) async for row in _q.take_due(conn, now=now, limit_count=limit)]


async def change_earnings(conn: Connection, ids: Iterable[UUID], state: EarningState) -> None:
    await _q.change_earnings(conn, ids=list(ids), state=state)


async def list_debtors(conn: Connection, *, limit: int) -> list[AccountId]:
    return [row["account_id"] async for row in _q.list_debtors(conn, limit_count=limit)]


def _read_due(row: Any) -> DueEarning:
    earning = Earning(
        attempt_id=row["id"],
        job_id=row["job_id"],
        submitter_id=row["submitter_id"],
        owner_id=row["owner_id"],
        owner_microcredits=row["owner_microcredits"],
        fee_microcredits=row["fee_microcredits"],
        due_at=row["release_at"],
        state=EarningState(row["earning_state"]),
    )
    return DueEarning(earning, row["receipt_refused"])
