"""Logs as pieces of one growing stream per attempt."""

from __future__ import annotations

from computepool.core.ids import AttemptId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("logs")


async def lock_log_bytes(conn: Connection, attempt_id: AttemptId) -> int:
    return int(await _q.lock_log_bytes(conn, attempt_id=attempt_id))


async def append_chunk(conn: Connection, *, attempt_id: AttemptId, start_offset: int, content: bytes) -> None:
    await _q.insert_chunk(conn, attempt_id=attempt_id, start_offset=start_offset, content=content)
    await _q.set_log_bytes(conn, attempt_id=attempt_id, log_bytes=start_offset + len(content))


async def list_chunks(
    conn: Connection, *, attempt_id: AttemptId, from_offset: int, limit: int
) -> list[tuple[int, bytes]]:
    rows = _q.list_chunks(conn, attempt_id=attempt_id, from_offset=from_offset, limit_count=limit)
    return [(row["start_offset"], row["content"]) async for row in rows]
