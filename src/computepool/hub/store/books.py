"""The figures of a day, where they disagree with the attempts, and the days that were closed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from computepool.core.ids import AccountId, JobId
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.closing import KindLine, TrialLine
from computepool.core.ledger.period import Period
from computepool.core.ledger.transfer import TransferKind
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("books")


@dataclass(frozen=True, slots=True)
class SentPayout:
    id: UUID
    account_id: AccountId
    provider: str
    currency: str
    amount_minor: int
    amount_microcredits: int
    region: str
    destination: str
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class ChargeDifference:
    """What a job's attempts were charged for one owner, or for the fee, and what the ledger has settled."""

    job_id: JobId
    party: str
    charged: int
    settled: int


@dataclass(frozen=True, slots=True)
class Closing:
    day: date
    closed_at: datetime
    closed_by: AccountId
    sha256: bytes


async def list_trial(conn: Connection, period: Period, *, after_id: int) -> list[TrialLine]:
    """Reads the transfers with larger ids up to the period's end."""
    rows = _q.list_trial(conn, after_id=after_id, since=period.since, until=period.until)
    return [TrialLine(AccountKind(row["kind"]), row["opening"], row["gained"], row["lost"]) async for row in rows]


async def list_moved(conn: Connection, period: Period) -> list[KindLine]:
    rows = _q.list_moved(conn, since=period.since, until=period.until)
    return [KindLine(TransferKind(row["kind"]), row["transfer_count"], row["amount"]) async for row in rows]


async def list_sent_payouts(conn: Connection, period: Period, *, limit: int) -> list[SentPayout]:
    rows = _q.list_sent_payouts(conn, since=period.since, until=period.until, limit_count=limit)
    return [read_record(SentPayout, row) async for row in rows]


async def list_charge_differences(conn: Connection, period: Period, *, limit: int) -> list[ChargeDifference]:
    rows = _q.list_charge_differences(conn, since=period.since, until=period.until, limit_count=limit)
    return [read_record(ChargeDifference, row) async for row in rows]


async def insert_closing(conn: Connection, *, day: date, closed_by: AccountId, sha256: bytes) -> bool:
    """False: the day was closed before, and that close stands."""
    return bool((await _q.insert_closing(conn, day=day, closed_by=closed_by, sha256=sha256)).endswith(" 1"))


async def find_closing(conn: Connection, day: date) -> Closing | None:
    row = await _q.find_closing(conn, day=day)
    return read_record(Closing, row) if row else None
