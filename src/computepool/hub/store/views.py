"""What the rooms of the dashboard show beside the nouns themselves. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, JobId, NodeId
from computepool.core.jobs.state import JobState, SliceState
from computepool.hub.store.attempts import AttemptRow, to_row
from computepool.hub.store.connect import Connection
from computepool.hub.store.live import FeedEvent, to_event
from computepool.hub.store.queries import load_queries

_q = load_queries("views")


@dataclass(frozen=True, slots=True)
class PlacedAttempt:
    attempt: AttemptRow
    job_id: JobId
    node_name: str
    owner_id: AccountId
    # None: the node has no such slot any more.
    tier: str | None


@dataclass(frozen=True, slots=True)
class NodeDay:
    day: date
    earned_microcredits: int
    seconds: int
    attempt_count: int


@dataclass(frozen=True, slots=True)
class Hold:
    id: JobId
    name: str
    state: JobState
    held_remaining: int
    charged_microcredits: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Step:
    """So many at a price; None: at any price."""

    price: int | None
    count: int


@dataclass(frozen=True, slots=True)
class DeskCounts:
    accounts: int
    accounts_suspended: int
    payouts_waiting: int
    disputes_open: int
    freezes: int
    provider_events_refused: int
    hub_processes: int


async def list_job_attempts(
    conn: Connection, job_id: JobId, *, after: tuple[int, int], slice_index: int | None, limit: int
) -> list[PlacedAttempt]:
    rows = _q.list_job_attempts(
        conn,
        job_id=job_id,
        after_slice=after[0],
        after_number=after[1],
        slice_index=slice_index,
        limit_count=limit,
    )
    return [_to_placed(row) async for row in rows]


async def list_node_live(conn: Connection, node_id: NodeId) -> list[PlacedAttempt]:
    return [_to_placed(row) async for row in _q.list_node_live(conn, node_id=node_id)]


async def list_node_ended(
    conn: Connection, node_id: NodeId, *, before: UUID | None, limit: int
) -> list[PlacedAttempt]:
    rows = _q.list_node_ended(conn, node_id=node_id, before=before, limit_count=limit)
    return [_to_placed(row) async for row in rows]


async def list_strip(conn: Connection, job_id: JobId, *, limit: int) -> list[tuple[int, int, SliceState]]:
    rows = _q.list_strip(conn, job_id=job_id, limit_count=limit)
    return [(row["first"], row["last"], SliceState(row["state"])) async for row in rows]


async def list_node_days(conn: Connection, node_id: NodeId, *, days: int) -> list[NodeDay]:
    return [NodeDay(**row) async for row in _q.list_node_days(conn, node_id=node_id, days=days)]


async def list_holds(conn: Connection, account_id: AccountId, *, before: UUID | None, limit: int) -> list[Hold]:
    rows = _q.list_holds(conn, account_id=account_id, before=before, limit_count=limit)
    return [Hold(**{**row, "state": JobState(row["state"])}) async for row in rows]


async def list_asks(
    conn: Connection,
    *,
    tier: str,
    countries: Collection[str],
    is_default: bool,
    silence_seconds: float,
    limit: int,
) -> list[Step]:
    """`countries` of the region; of the default region, those of all others."""
    rows = _q.list_asks(
        conn,
        tier=tier,
        countries=sorted(countries),
        is_default=is_default,
        silence_seconds=silence_seconds,
        limit_count=limit,
    )
    return [Step(**row) async for row in rows]


async def list_bids(
    conn: Connection, *, tier: str, countries: Collection[str], is_default: bool, count_max: int, limit: int
) -> list[Step]:
    rows = _q.list_bids(
        conn,
        tier=tier,
        countries=sorted(countries),
        is_default=is_default,
        count_max=count_max,
        limit_count=limit,
    )
    return [Step(**row) async for row in rows]


async def search_events(
    conn: Connection,
    *,
    before: int,
    ids_max: int,
    kind: str | None,
    account_id: UUID | None,
    job_id: UUID | None,
    node_id: UUID | None,
    limit: int,
) -> list[FeedEvent]:
    rows = _q.search_events(
        conn,
        before=before,
        ids_max=ids_max,
        kind=kind,
        account_id=account_id,
        job_id=job_id,
        node_id=node_id,
        limit_count=limit,
    )
    return [to_event(row) async for row in rows]


async def find_newest_event(conn: Connection) -> int:
    return int(await _q.find_newest_event(conn))


async def count_desk(conn: Connection) -> DeskCounts:
    return DeskCounts(**await _q.count_desk(conn))


def _to_placed(row: Any) -> PlacedAttempt:
    return PlacedAttempt(to_row(row), row["job_id"], row["node_name"], row["owner_id"], row["tier"])
