"""Days of owners: what their machines did for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

from computepool.core.ids import AccountId
from computepool.core.live.leaderboard import Measure
from computepool.core.trust.reputation import Reliability
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("leaderboard")


@dataclass(frozen=True, slots=True)
class LeaderRow:
    account_id: AccountId
    # None: none was chosen.
    pseudonym: str | None
    value: int


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    account_id: AccountId
    pseudonym: str | None
    reliability: Reliability


async def list_counted(conn: Connection, *, since: date) -> dict[date, datetime]:
    return {row["day"]: row["counted_at"] async for row in _q.list_counted(conn, since=since)}


async def try_lock(conn: Connection) -> bool:
    return bool(await _q.try_lock(conn))


async def count_day(conn: Connection, day: date, *, links: Mapping[AccountId, AccountId], now: datetime) -> None:
    await _q.delete_day(conn, day=day)
    await _q.count_day(conn, day=day, linked_ids=list(links), group_ids=list(links.values()))
    await _q.set_counted(conn, day=day, counted_at=now)


async def list_leaders(conn: Connection, *, measure: Measure, since: date, limit: int) -> list[LeaderRow]:
    rows = _q.list_leaders(conn, measure=measure.value, since=since, limit_count=limit)
    return [LeaderRow(**row) async for row in rows]


async def list_evidence(conn: Connection, *, since: date, limit: int) -> list[EvidenceRow]:
    return [
        EvidenceRow(
            row["account_id"], row["pseudonym"], Reliability(row["finished"], row["failed"], 0, row["counted_at"])
        )
        async for row in _q.list_evidence(conn, since=since, limit_count=limit)
    ]


async def find_counted_at(conn: Connection) -> datetime | None:
    at: datetime | None = await _q.find_counted_at(conn)
    return at
