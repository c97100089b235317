"""Earnings between holdback and release, as attempts keep them, what is made good to whom, and who owes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.make_good import Superseded
from computepool.core.trust.standing import NodeTrust
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record
from computepool.hub.store.validation import to_trust

_q = load_queries("credits")


@dataclass(frozen=True, slots=True)
class DueEarning:
    earning: Earning
    # The node's receipt was looked at and does not hold.
    receipt_refused: bool
    # When its attempt ended, and whether its result is one that is compared with others'.
    earned_at: datetime
    is_checked: bool
    slice_index: int
    # It ended without a result, and left a checkpoint.
    is_saved: bool
    # Of its node.
    trust: NodeTrust


async def take_due(conn: Connection, *, now: datetime, limit: int) -> list[DueEarning]:
    """Locked: nobody else releases them until the transaction has ended."""
    return [_read_due(row) async for row in _q.take_due(conn, now=now, limit_count=limit)]


async def lock_earning(conn: Connection, attempt_id: AttemptId) -> Earning | None:
    """None: nothing was paid for it."""
    row = await _q.lock_earning(conn, attempt_id=attempt_id)
    return _read_earning(row) if row else None


async def change_earnings(conn: Connection, ids: Iterable[UUID], state: EarningState) -> None:
    await _q.change_earnings(conn, ids=list(ids), state=state)


async def put_off(conn: Connection, look_at: Mapping[AttemptId, datetime]) -> None:
    """By attempt: when to look again. Their pay waits for something other than the holdback."""
    await _q.put_off(conn, ids=list(look_at), look_at=list(look_at.values()))


async def take_up(conn: Connection, node_id: NodeId, *, limit: int) -> None:
    """What was put off of this node's pay is due again."""
    await _q.take_up(conn, node_id=node_id, limit_count=limit)


async def sum_waiting(conn: Connection, node_id: NodeId) -> tuple[int, int]:
    """Of how many attempts the pay waits although its holdback is over, and how much it is."""
    row = await _q.sum_waiting(conn, node_id=node_id)
    return row["count"], row["microcredits"]


async def take_superseded(conn: Connection, *, limit: int) -> list[Superseded]:
    """Whose time nobody has made good yet, oldest first. Locked."""
    return [read_record(Superseded, row) async for row in _q.take_superseded(conn, limit_count=limit)]


async def set_made_good(conn: Connection, amounts: Mapping[AttemptId, int]) -> None:
    await _q.set_made_good(conn, ids=list(amounts), microcredits=list(amounts.values()))


async def list_debtors(conn: Connection, *, limit: int) -> list[AccountId]:
    return [row["account_id"] async for row in _q.list_debtors(conn, limit_count=limit)]


def _read_due(row: Any) -> DueEarning:
    return read_record(DueEarning, row, earning=_read_earning(row), trust=to_trust(row))


def _read_earning(row: Any) -> Earning:
    state = EarningState(row["earning_state"])
    return read_record(Earning, row, attempt_id=row["id"], due_at=row["release_at"], state=state)
