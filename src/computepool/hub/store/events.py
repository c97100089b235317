"""The one feed of what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from computepool.core.ids import AccountId, JobId, NodeId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("events")

_NOTHING: Mapping[str, Any] = {}


class NewEvent(NamedTuple):
    kind: str
    account_id: AccountId | None = None
    job_id: JobId | None = None
    node_id: NodeId | None = None
    body: Mapping[str, Any] = _NOTHING


@dataclass(frozen=True, slots=True)
class EventRow:
    id: int
    at: datetime
    kind: str
    job_id: UUID | None
    node_id: UUID | None
    body: dict[str, Any]


async def record_events(conn: Connection, events: Sequence[NewEvent]) -> None:
    if not events:
        return
    await _q.insert_events(
        conn,
        kinds=[e.kind for e in events],
        account_ids=[e.account_id for e in events],
        job_ids=[e.job_id for e in events],
        node_ids=[e.node_id for e in events],
        bodies=[e.body for e in events],
    )


async def list_job_events(conn: Connection, *, job_id: JobId, after: int, limit: int) -> list[EventRow]:
    rows = _q.list_job_events(conn, job_id=job_id, after=after, limit_count=limit)
    return [EventRow(**row) async for row in rows]
