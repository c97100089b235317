"""Who this hub is, its keys, and the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("hub")


@dataclass(frozen=True, slots=True)
class HubFacts:
    hub_id: UUID
    blob_store_id: UUID


@dataclass(frozen=True, slots=True)
class HubKeyRow:
    kid: str
    purpose: str
    secret: bytes
    public_key: bytes | None
    signs_from: datetime
    # Whether its time to sign has come, by the database's clock.
    signs: bool


async def get_or_insert_facts(conn: Connection, *, hub_id: UUID, blob_store_id: UUID) -> HubFacts:
    await _q.insert_facts(conn, hub_id=hub_id, blob_store_id=blob_store_id)
    row = await _q.get_facts(conn)
    return HubFacts(row["hub_id"], row["blob_store_id"])


async def lock_keys(conn: Connection) -> None:
    await _q.lock_keys(conn)


async def insert_key(
    conn: Connection, *, kid: str, purpose: str, secret: bytes, public_key: bytes | None, announce_seconds: float
) -> None:
    await _q.insert_key(
        conn, kid=kid, purpose=purpose, secret=secret, public_key=public_key, announce_seconds=announce_seconds
    )


async def list_keys(conn: Connection) -> list[HubKeyRow]:
    return [HubKeyRow(**row) async for row in _q.list_keys(conn)]


async def retire_keys(conn: Connection, *, kids: list[str], retire_seconds: float) -> None:
    await _q.retire_keys(conn, kids=kids, retire_seconds=retire_seconds)


async def get_now(conn: Connection) -> datetime:
    now: datetime = await _q.get_now(conn)
    return now


async def notify(conn: Connection, topic: str) -> None:
    await _q.notify(conn, topic=topic)


async def record_topic(conn: Connection, topic: str) -> None:
    """Last in its transaction: the row is everybody's."""
    await _q.record_topic(conn, topic=topic)
    await _q.notify(conn, topic=topic)


async def list_topics(conn: Connection) -> dict[str, int]:
    """How often each kind of change has happened."""
    return {row["topic"]: row["version"] async for row in _q.list_topics(conn)}


async def exchange_summaries(
    conn: Connection, *, hub_process_id: UUID, free: dict[str, Any], seconds: float
) -> dict[UUID, dict[str, Any]]:
    """What the other hub processes that were heard lately have free."""
    rows = _q.exchange_summaries(conn, hub_process_id=hub_process_id, free=free, seconds=seconds)
    return {row["hub_process_id"]: row["free"] async for row in rows}


async def delete_summary(conn: Connection, hub_process_id: UUID) -> None:
    await _q.delete_summary(conn, hub_process_id=hub_process_id)
