"""Who this hub is, its keys, and the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
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


async def revoke_key(conn: Connection, *, kid: str) -> None:
    await _q.revoke_key(conn, kid=kid)


async def keep_key(conn: Connection, *, kid: str) -> None:
    """It signs from now on, whatever was planned for it."""
    await _q.keep_key(conn, kid=kid)


async def get_now(conn: Connection) -> datetime:
    now: datetime = await _q.get_now(conn)
    return now


async def notify(conn: Connection, topic: str) -> None:
    await _q.notify(conn, topic=topic)


class ChangeKind(str, Enum):
    """What every hub process must hear of."""

    # Some attempt is to be stopped.
    CONTROLS = "controls"
    # A node's state, slots or floor.
    NODE = "node"
    # An account's standing, roles or limits, or one of its keys.
    ACCOUNT = "account"
    # A node was given a lease outside of a round.
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Change:
    id: int
    kind: ChangeKind
    subject_id: UUID | None


async def record_change(conn: Connection, kind: ChangeKind, subject_id: UUID | None = None) -> None:
    await _q.insert_change(conn, kind=kind, subject_id=subject_id)
    await _q.notify(conn, topic=kind.value)


async def list_changes(conn: Connection, *, seconds: float) -> list[Change]:
    """Of the last seconds, in no order."""
    rows = _q.list_changes(conn, seconds=seconds)
    return [Change(row["id"], ChangeKind(row["kind"]), row["subject_id"]) async for row in rows]


async def delete_changes(conn: Connection) -> None:
    await _q.delete_changes(conn)


async def exchange_summaries(
    conn: Connection, *, hub_process_id: UUID, free: dict[str, Any], seconds: float
) -> dict[UUID, dict[str, Any]]:
    """What the other hub processes that were heard lately have free."""
    rows = _q.exchange_summaries(conn, hub_process_id=hub_process_id, free=free, seconds=seconds)
    return {row["hub_process_id"]: row["free"] async for row in rows}


async def delete_summary(conn: Connection, hub_process_id: UUID) -> None:
    await _q.delete_summary(conn, hub_process_id=hub_process_id)
