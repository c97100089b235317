"""Inputs that the operator has blocked, and the open jobs that are to be stopped by the operator's word."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from computepool.core.ids import AccountId, JobId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("blocked_inputs")


@dataclass(frozen=True, slots=True)
class BlockedInput:
    sha256: bytes
    why: str
    blocked_by: AccountId
    blocked_at: datetime


class OpenJob(NamedTuple):
    id: JobId
    account_id: AccountId


async def insert_blocked_input(conn: Connection, *, sha256: bytes, why: str, blocked_by: AccountId) -> BlockedInput:
    return BlockedInput(**await _q.insert_blocked_input(conn, sha256=sha256, why=why, blocked_by=blocked_by))


async def delete_blocked_input(conn: Connection, sha256: bytes) -> bool:
    return await _q.delete_blocked_input(conn, sha256=sha256) is not None


async def list_blocked_inputs(conn: Connection, *, after: bytes, limit: int) -> list[BlockedInput]:
    return [BlockedInput(**row) async for row in _q.list_blocked_inputs(conn, after=after, limit_count=limit)]


async def list_hashes(conn: Connection, *, seconds: float) -> dict[bytes, bool]:
    """All of them, and whether each was blocked within the last seconds."""
    return {row["sha256"]: row["fresh"] async for row in _q.list_hashes(conn, seconds=seconds)}


async def list_jobs_using(conn: Connection, sha256: bytes, *, after: UUID, limit: int) -> list[OpenJob]:
    rows = _q.list_jobs_using(conn, sha256=sha256, after=after, limit_count=limit)
    return [OpenJob(row["id"], row["account_id"]) async for row in rows]


async def list_jobs_of_suspended(conn: Connection, *, limit: int) -> list[OpenJob]:
    rows = _q.list_jobs_of_suspended(conn, limit_count=limit)
    return [OpenJob(row["id"], row["account_id"]) async for row in rows]
