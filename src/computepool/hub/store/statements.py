"""Lines and sums of statements: of an account and a job by transfers, of a job and a node by attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.accounts import AccountKind, LedgerAccount, account_from_id, accounts_of
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.period import Period
from computepool.core.ledger.statement import RouteSum
from computepool.core.ledger.transfer import TransferKind
from computepool.hub.store.connect import Connection
from computepool.hub.store.disputes import DisputeNote, read_note
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("statements")

_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TransferLine:
    id: int
    at: datetime
    kind: TransferKind
    source: LedgerAccount
    target: LedgerAccount
    amount: int
    job_id: UUID | None
    attempt_id: UUID | None
    payout_id: UUID | None
    top_up_id: UUID | None


@dataclass(frozen=True, slots=True)
class AccountSum:
    kind: AccountKind
    opening: int
    closing: int


@dataclass(frozen=True, slots=True)
class ChargeLine:
    """An attempt and what it cost."""

    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    slot: str
    state: AttemptState
    cause: Cause | None
    leased_at: datetime
    finished_at: datetime | None
    # As the node claims.
    run_seconds: float | None
    wall_seconds: int
    rate_microcredits_per_hour: int | None
    slice_price_microcredits: int | None
    rate_card_version: str | None
    charged_microcredits: int
    fee_microcredits: int
    earning_state: EarningState | None
    release_at: datetime | None
    dispute: DisputeNote | None
    # Of a seat of a run: what it is paid to at most. None: an ordinary attempt.
    checkpoint_seconds: int | None = None
    # Of an ordinary attempt: what its last accepted checkpoint holds.
    saved_seconds: int = 0


@dataclass(frozen=True, slots=True)
class NodeSum:
    """All attempts of a node within a period whose pay stands alike; None: that cost nothing."""

    earning_state: EarningState | None
    attempt_count: int
    charged: int
    fee: int


async def list_account_lines(
    conn: Connection, account_id: AccountId, period: Period, *, after_id: int, limit: int
) -> list[TransferLine]:
    """Everything that moved to, from or within one person's accounts, in the order it was written."""
    first, last = await _find_range(conn, period)
    rows = _q.list_account_lines(
        conn,
        ids=_ids_of(account_id),
        after_id=max(after_id, first),
        last_id=last,
        since=period.since,
        until=period.until,
        limit_count=limit,
    )
    return [_to_transfer(row) async for row in rows]


async def list_account_sums(conn: Connection, account_id: AccountId, period: Period) -> list[AccountSum]:
    """Of the accounts that the person has used."""
    first, _ = await _find_range(conn, period)
    rows = _q.list_account_sums(conn, ids=_ids_of(account_id), after_id=first, since=period.since, until=period.until)
    return [AccountSum(AccountKind(row["kind"]), row["opening"], row["closing"]) async for row in rows]


async def list_job_lines(conn: Connection, job_id: JobId, *, after_id: int, limit: int) -> list[TransferLine]:
    rows = _q.list_job_lines(conn, job_id=job_id, after_id=after_id, limit_count=limit)
    return [_to_transfer(row) async for row in rows]


async def list_job_routes(conn: Connection, job_id: JobId) -> list[RouteSum]:
    rows = _q.list_job_routes(conn, job_id=job_id)
    return [
        RouteSum(TransferKind(row["kind"]), AccountKind(row["source"]), AccountKind(row["target"]), row["amount"])
        async for row in rows
    ]


async def list_job_charges(
    conn: Connection, job_id: JobId, *, after: tuple[int, int], limit: int
) -> list[ChargeLine]:
    rows = _q.list_job_charges(
        conn, job_id=job_id, after_slice_index=after[0], after_number=after[1], limit_count=limit
    )
    return [_to_charge(row) async for row in rows]


async def list_node_charges(
    conn: Connection, node_id: NodeId, *, until: datetime, after: tuple[datetime, UUID], limit: int
) -> list[ChargeLine]:
    """In the order they ended; `after` is where the period begins, or the last one of the page before."""
    rows = _q.list_node_charges(
        conn, node_id=node_id, until=until, after_at=after[0], after_id=after[1], limit_count=limit
    )
    return [_to_charge(row) async for row in rows]


async def list_node_sums(conn: Connection, node_id: NodeId, period: Period) -> list[NodeSum]:
    rows = _q.list_node_sums(conn, node_id=node_id, since=period.since, until=period.until)
    return [
        NodeSum(_to_earning_state(row["earning_state"]), row["attempt_count"], row["charged"], row["fee"])
        async for row in rows
    ]


async def _find_range(conn: Connection, period: Period) -> tuple[int, int]:
    row = await _q.find_range(conn, since=period.since, until=period.until)
    return row["after_id"] or 0, _ID_MAX if row["last_id"] is None else row["last_id"]


def _ids_of(account_id: AccountId) -> Sequence[str]:
    return [account.id for account in accounts_of(account_id)]


def _to_transfer(row: Any) -> TransferLine:
    return read_record(
        TransferLine,
        row,
        kind=TransferKind(row["kind"]),
        source=account_from_id(row["source_id"]),
        target=account_from_id(row["target_id"]),
    )


def _to_charge(row: Any) -> ChargeLine:
    return read_record(
        ChargeLine,
        row,
        state=AttemptState(row["state"]),
        cause=Cause(row["cause"]) if row["cause"] else None,
        charged_microcredits=row["charged_microcredits"] or 0,
        fee_microcredits=row["fee_microcredits"] or 0,
        earning_state=_to_earning_state(row["earning_state"]),
        dispute=read_note(row),
    )


def _to_earning_state(label: str | None) -> EarningState | None:
    return EarningState(label) if label else None
