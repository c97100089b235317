"""API keys. Only hashes of the secrets are here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.accounts.roles import Role
from computepool.core.ids import AccountId, KeyId
from computepool.core.jobs.order import PriorityClass
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("keys")


@dataclass(frozen=True, slots=True)
class Key:
    id: KeyId
    account_id: AccountId
    name: str
    roles: frozenset[Role]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class CallerRow:
    key_id: KeyId
    account_id: AccountId
    key_roles: frozenset[Role]
    account_roles: frozenset[Role]
    suspended_at: datetime | None
    calls_per_minute_max: int
    # The highest class that the account's jobs may ask for.
    priority_class_max: PriorityClass


async def insert_key(
    conn: Connection,
    *,
    id: KeyId,
    account_id: AccountId,
    name: str,
    secret_sha256: bytes,
    roles: Iterable[Role],
    expires_seconds: float | None,
) -> Key:
    row = await _q.insert_key(
        conn,
        id=id,
        account_id=account_id,
        name=name,
        secret_sha256=secret_sha256,
        roles=sorted(roles),
        expires_seconds=expires_seconds,
    )
    return _to_key(row)


async def find_caller(conn: Connection, *, secret_sha256: bytes) -> CallerRow | None:
    row = await _q.find_caller(conn, secret_sha256=secret_sha256)
    if row is None:
        return None
    roles = {name: frozenset(Role(r) for r in row[name]) for name in ("key_roles", "account_roles")}
    return CallerRow(**{**row, **roles, "priority_class_max": PriorityClass(row["priority_class_max"])})


async def list_keys(conn: Connection, *, account_id: AccountId, limit: int) -> list[Key]:
    return [_to_key(row) async for row in _q.list_keys(conn, account_id=account_id, limit_count=limit)]


async def count_live_keys(conn: Connection, account_id: AccountId) -> int:
    return int(await _q.count_live_keys(conn, account_id=account_id))


async def revoke_key(conn: Connection, *, id: KeyId, account_id: AccountId) -> bool:
    return await _q.revoke_key(conn, id=id, account_id=account_id) is not None


async def touch_keys(conn: Connection, ids: Iterable[UUID]) -> None:
    await _q.touch_keys(conn, ids=sorted(ids))


def _to_key(row: Any) -> Key:
    return Key(**{**row, "roles": frozenset(Role(role) for role in row["roles"])})
