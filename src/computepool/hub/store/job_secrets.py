"""Secrets of jobs, sealed: this room has no key to them."""

from __future__ import annotations

from collections.abc import Mapping

from computepool.core.ids import JobId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("job_secrets")


async def insert_secrets(conn: Connection, sealed: Mapping[JobId, bytes]) -> None:
    await _q.insert_secrets(conn, job_ids=list(sealed), sealed=list(sealed.values()))


async def delete_ended(conn: Connection, *, limit: int) -> int:
    """Returns of how many jobs."""
    return len([row async for row in _q.delete_ended(conn, limit_count=limit)])
