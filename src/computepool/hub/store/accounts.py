"""Accounts, their one-time links, and invites."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from computepool.core.accounts.roles import Role
from computepool.core.errors import NameTaken
from computepool.core.ids import AccountId
from computepool.core.jobs.order import PriorityClass
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("accounts")


@dataclass(frozen=True, slots=True)
class Account:
    id: AccountId
    email: str
    name: str
    password_hash: str | None
    roles: frozenset[Role]
    queued_slices_max: int
    stored_bytes_max: int
    calls_per_minute_max: int
    stored_bytes: int
    created_at: datetime
    suspended_at: datetime | None
    # Its part of the fleet while others wait too, against theirs.
    fair_weight: float
    # The highest class that its jobs may ask for.
    priority_class_max: PriorityClass
    # How many new nodes it may bring in 30 days, by the operator's word; None: as many as others.
    new_nodes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What an account has open and stored, and how much of either it may have."""

    id: AccountId
    queued_slices_max: int
    stored_bytes: int
    stored_bytes_max: int
    # What it can spend, in microcredits, and whether it may.
    available: int
    # Whether it has ever held some of it.
    has_held: bool
    frozen: bool
    open_slices: int


async def insert_account(
    conn: Connection,
    *,
    id: AccountId,
    email: str,
    name: str,
    password_hash: str | None,
    roles: Iterable[Role],
    queued_slices_max: int,
    stored_bytes_max: int,
    calls_per_minute_max: int,
) -> None:
    try:
        await _q.insert_account(
            conn,
            id=id,
            email=email,
            name=name,
            password_hash=password_hash,
            roles=sorted(roles),
            queued_slices_max=queued_slices_max,
            stored_bytes_max=stored_bytes_max,
            calls_per_minute_max=calls_per_minute_max,
        )
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == "accounts_email_unique":
            raise NameTaken("There is an account with this e-mail already: sign in instead.") from None
        raise


async def find_account(conn: Connection, id: AccountId) -> Account | None:
    return _to_account(await _q.get_account(conn, id=id))


async def find_account_by_email(conn: Connection, email: str) -> Account | None:
    return _to_account(await _q.find_account_by_email(conn, email=email))


async def list_named(conn: Connection, *, emails: Iterable[str], ids: Iterable[UUID]) -> dict[AccountId, str]:
    """The addresses of those that there are."""
    rows = _q.list_named(conn, emails=list(emails), ids=list(ids))
    return {row["id"]: row["email"] async for row in rows}


async def find_first_operator(conn: Connection) -> Account | None:
    return _to_account(await _q.find_first_operator(conn))


async def list_accounts(
    conn: Connection, *, after: UUID, limit: int, words: str | None = None, suspended: bool | None = None
) -> list[Account]:
    found = _q.list_accounts(conn, after=after, words=words, suspended=suspended, limit_count=limit)
    rows = [_to_account(row) async for row in found]
    return [row for row in rows if row is not None]


async def set_password(conn: Connection, *, id: AccountId, password_hash: str) -> None:
    await _q.set_password(conn, id=id, password_hash=password_hash)


async def list_usage(conn: Connection, ids: Iterable[AccountId]) -> dict[AccountId, Usage]:
    return {row["id"]: Usage(**row) async for row in _q.list_usage(conn, ids=sorted(ids))}


async def change_account(
    conn: Connection,
    *,
    id: AccountId,
    roles: Iterable[Role] | None = None,
    queued_slices_max: int | None = None,
    stored_bytes_max: int | None = None,
    calls_per_minute_max: int | None = None,
    fair_weight: float | None = None,
    priority_class_max: PriorityClass | None = None,
    new_nodes_max: int | None = None,
) -> None:
    await _q.change_account(
        conn,
        id=id,
        roles=sorted(roles) if roles is not None else None,
        queued_slices_max=queued_slices_max,
        stored_bytes_max=stored_bytes_max,
        calls_per_minute_max=calls_per_minute_max,
        fair_weight=fair_weight,
        priority_class_max=priority_class_max,
        new_nodes_max=new_nodes_max,
    )


async def set_suspended(conn: Connection, *, id: AccountId, suspended: bool) -> None:
    await _q.set_suspended(conn, id=id, suspended=suspended)


async def insert_link(
    conn: Connection, *, token_sha256: bytes, account_id: AccountId, expires_seconds: float
) -> None:
    await _q.insert_link(conn, token_sha256=token_sha256, account_id=account_id, expires_seconds=expires_seconds)


async def use_link(conn: Connection, *, token_sha256: bytes) -> AccountId | None:
    """The account that the link signs in, or None when it is unknown, used or too old."""
    account_id: AccountId | None = await _q.use_link(conn, token_sha256=token_sha256)
    return account_id


async def insert_invite(
    conn: Connection, *, token_sha256: bytes, created_by: AccountId, roles: Iterable[Role], expires_seconds: float
) -> None:
    await _q.insert_invite(
        conn, token_sha256=token_sha256, created_by=created_by, roles=sorted(roles), expires_seconds=expires_seconds
    )


async def use_invite(conn: Connection, *, token_sha256: bytes, used_by: AccountId) -> frozenset[Role] | None:
    row = await _q.use_invite(conn, token_sha256=token_sha256, used_by=used_by)
    return frozenset(Role(r) for r in row["roles"]) if row else None


def _to_account(row: Any) -> Account | None:
    if row is None:
        return None
    roles = frozenset(Role(role) for role in row["roles"])
    return Account(**{**row, "roles": roles, "priority_class_max": PriorityClass(row["priority_class_max"])})
