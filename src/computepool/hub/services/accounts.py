"""Accounts, keys, sign-up and sign-in."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.low_level import ARGON2_VERSION

from computepool import entropy
from computepool.core.accounts.roles import DEFAULT_ROLES, Role, SignUp
from computepool.core.errors import Forbidden, InvalidRequest, NotFound, SignUpClosed, Unauthenticated
from computepool.core.ids import AccountId, KeyId
from computepool.core.jobs.order import PriorityClass
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import KEY_PREFIX, AccountCaller, hash_secret
from computepool.hub.services.welcome import give_welcome
from computepool.hub.store import accounts as account_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import keys as key_store
from computepool.hub.store.accounts import Account
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.keys import Key

LINK_SECONDS = 24 * 3_600
SIGN_IN_KEY_SECONDS = 30 * 86_400
PASSWORD_LENGTH = range(10, 1_001)
KEYS_MAX = 200
FAIR_WEIGHT_MIN, FAIR_WEIGHT_MAX = 0.01, 100.0

_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}\Z")
_hasher = PasswordHasher()


def make_decoy(hasher: PasswordHasher) -> str:
    """The form of a hash, of no password: to make a real one would take every start of a hub as long as a sign-in."""
    salt, digest = (
        base64.b64encode(entropy.new_bytes(count)).decode().rstrip("=")
        for count in (hasher.salt_len, hasher.hash_len)
    )
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${cost}${salt}${digest}"


# Verified when the account is unknown, so that the answer takes as long as for a known one.
_DECOY_HASH = make_decoy(_hasher)


@dataclass(frozen=True, slots=True)
class NewKey:
    key: Key
    secret: str


async def sign_up(
    pool: Pool, settings: HubSettings, *, email: str, name: str, password: str | None, invite: str | None
) -> tuple[Account, NewKey]:
    email = _check_email(email)
    password_hash = await _hash_password(password) if password is not None else None
    _check_sign_up_mode(settings.sign_up_mode, invite)
    account_id = AccountId(entropy.new_id())
    async with pool.acquire() as conn, conn.transaction():
        await _insert_account(
            conn, settings, account_id, email, name or email.split("@")[0], password_hash, DEFAULT_ROLES
        )
        roles = DEFAULT_ROLES
        if settings.sign_up_mode is SignUp.INVITE:
            roles = await _use_invite(conn, invite or "", account_id)
        key = await _insert_key(conn, account_id, name="first key", roles=roles, expires_seconds=None)
        await event_store.record_events(conn, [NewEvent(kind="account_created", account_id=account_id)])
        account = await account_store.find_account(conn, account_id)
        await give_welcome(conn, settings, account_id)
    assert account is not None
    return account, key


async def ensure_operator(pool: Pool, settings: HubSettings) -> str | None:
    """At the first start: makes the operator and returns the token of a one-time sign-in link.

    Later only when the settings ask for it, for an operator who has lost their key.
    """
    async with pool.acquire() as conn, conn.transaction():
        operator = await account_store.find_first_operator(conn)
        if operator is not None:
            return await _insert_link(conn, operator.id) if settings.operator_link else None
        account_id = AccountId(entropy.new_id())
        await _insert_account(conn, settings, account_id, settings.operator_email, "operator", None, frozenset(Role))
        await event_store.record_events(conn, [NewEvent(kind="account_created", account_id=account_id)])
        token = await _insert_link(conn, account_id)
        await give_welcome(conn, settings, account_id)
        return token


async def sign_in_by_link(pool: Pool, token: str) -> tuple[Account, NewKey]:
    async with pool.acquire() as conn, conn.transaction():
        account_id = await account_store.use_link(conn, token_sha256=hash_secret(token))
        if account_id is None:
            raise Unauthenticated("This link is unknown, used or expired. Ask for a new one; each works once.")
        return await _sign_in(conn, account_id)


async def sign_in_by_password(pool: Pool, *, email: str, password: str) -> tuple[Account, NewKey]:
    async with pool.acquire() as conn:
        account = await account_store.find_account_by_email(conn, email.strip().lower())
    stored = account.password_hash if account and account.password_hash else _DECOY_HASH
    if not await asyncio.to_thread(_is_password, stored, password) or account is None:
        raise Unauthenticated("E-mail and password do not match.")
    async with pool.acquire() as conn, conn.transaction():
        return await _sign_in(conn, account.id)


async def set_password(pool: Pool, caller: AccountCaller, password: str) -> None:
    password_hash = await _hash_password(password)
    async with pool.acquire() as conn, conn.transaction():
        await account_store.set_password(conn, id=caller.account_id, password_hash=password_hash)
        await event_store.record_events(conn, [NewEvent(kind="password_set", account_id=caller.account_id)])


async def create_sign_in_link(pool: Pool, account_id: AccountId) -> str:
    async with pool.acquire() as conn, conn.transaction():
        if await account_store.find_account(conn, account_id) is None:
            raise NotFound("There is no such account.")
        return await _insert_link(conn, account_id)


async def create_invite(pool: Pool, caller: AccountCaller, *, roles: Iterable[Role], expires_seconds: int) -> str:
    if not 60 <= expires_seconds <= 90 * 86_400:
        raise InvalidRequest("An invite lives between a minute and 90 days: set expires_seconds accordingly.")
    token = entropy.new_secret()
    async with pool.acquire() as conn, conn.transaction():
        await account_store.insert_invite(
            conn,
            token_sha256=hash_secret(token),
            created_by=caller.account_id,
            roles=frozenset(roles) or DEFAULT_ROLES,
            expires_seconds=expires_seconds,
        )
    return token


async def get_account(pool: Pool, account_id: AccountId) -> Account:
    async with pool.acquire() as conn:
        account = await account_store.find_account(conn, account_id)
    if account is None:
        raise NotFound("There is no such account.")
    return account


async def list_accounts(
    pool: Pool, *, after: UUID, limit: int, words: str | None = None, suspended: bool | None = None
) -> list[Account]:
    async with pool.acquire() as conn:
        return await account_store.list_accounts(conn, after=after, limit=limit, words=words, suspended=suspended)


async def set_suspended(pool: Pool, caller: AccountCaller, account_id: AccountId, *, suspended: bool) -> Account:
    if suspended and account_id == caller.account_id:
        raise Forbidden("You cannot suspend yourself.")
    kind = "account_suspended" if suspended else "account_resumed"
    async with pool.acquire() as conn, conn.transaction():
        await account_store.set_suspended(conn, id=account_id, suspended=suspended)
        account = await account_store.find_account(conn, account_id)
        if account is None:
            raise NotFound("There is no such account.")
        await event_store.record_events(conn, [NewEvent(kind=kind, account_id=account_id)])
        await hub_store.record_change(conn, ChangeKind.ACCOUNT, account_id)
    return account


async def change_account(
    pool: Pool,
    caller: AccountCaller,
    account_id: AccountId,
    *,
    roles: Iterable[Role] | None,
    queued_slices_max: int | None,
    stored_bytes_max: int | None,
    calls_per_minute_max: int | None,
    fair_weight: float | None = None,
    priority_class_max: PriorityClass | None = None,
    new_nodes_max: int | None = None,
) -> Account:
    """What is None stays as it is."""
    if any(limit is not None and not 0 < limit < 1 << 31 for limit in (queued_slices_max, calls_per_minute_max)):
        raise InvalidRequest("A limit is a positive number below 2^31.")
    if stored_bytes_max is not None and not 0 < stored_bytes_max < 1 << 60:
        raise InvalidRequest("stored_bytes_max is a positive number below 2^60.")
    if new_nodes_max is not None and not 0 <= new_nodes_max < 1 << 31:
        raise InvalidRequest("new_nodes_max is a number from 0 to 2^31.")
    if fair_weight is not None and not FAIR_WEIGHT_MIN <= fair_weight <= FAIR_WEIGHT_MAX:
        raise InvalidRequest(f"fair_weight is a number from {FAIR_WEIGHT_MIN:g} to {FAIR_WEIGHT_MAX:g}.")
    if roles is not None and account_id == caller.account_id and Role.OPERATOR not in roles:
        raise Forbidden("You cannot take the role of operator from yourself.")
    async with pool.acquire() as conn, conn.transaction():
        await account_store.change_account(
            conn,
            id=account_id,
            roles=frozenset(roles) if roles is not None else None,
            queued_slices_max=queued_slices_max,
            stored_bytes_max=stored_bytes_max,
            calls_per_minute_max=calls_per_minute_max,
            fair_weight=fair_weight,
            priority_class_max=priority_class_max,
            new_nodes_max=new_nodes_max,
        )
        account = await account_store.find_account(conn, account_id)
        if account is None:
            raise NotFound("There is no such account.")
        await event_store.record_events(conn, [NewEvent(kind="account_changed", account_id=account_id)])
        await hub_store.record_change(conn, ChangeKind.ACCOUNT, account_id)
    return account


async def create_key(
    pool: Pool, caller: AccountCaller, *, name: str, roles: Iterable[Role], expires_seconds: int | None
) -> NewKey:
    wanted = frozenset(roles) or caller.roles
    if not wanted <= caller.roles:
        missing = ", ".join(sorted(role.value for role in wanted - caller.roles))
        raise Forbidden(f"A key cannot reach further than the key that makes it; you lack: {missing}.")
    if expires_seconds is not None and not 60 <= expires_seconds <= 3_650 * 86_400:
        raise InvalidRequest("expires_seconds must be between 60 and ten years, or absent.")
    async with pool.acquire() as conn, conn.transaction():
        if await key_store.count_live_keys(conn, caller.account_id) >= KEYS_MAX:
            raise InvalidRequest(f"There are {KEYS_MAX} keys already: revoke some that are not in use.")
        return await _insert_key(
            conn, caller.account_id, name=name[:100], roles=wanted, expires_seconds=expires_seconds
        )


async def list_keys(pool: Pool, caller: AccountCaller) -> list[Key]:
    async with pool.acquire() as conn:
        return await key_store.list_keys(conn, account_id=caller.account_id, limit=KEYS_MAX)


async def revoke_key(pool: Pool, caller: AccountCaller, key_id: KeyId) -> None:
    async with pool.acquire() as conn, conn.transaction():
        if not await key_store.revoke_key(conn, id=key_id, account_id=caller.account_id):
            raise NotFound("There is no such key.")
        await event_store.record_events(
            conn, [NewEvent(kind="key_revoked", account_id=caller.account_id, body={"key_id": str(key_id)})]
        )
        await hub_store.record_change(conn, ChangeKind.ACCOUNT, caller.account_id)


async def _use_invite(conn: Connection, invite: str, account_id: AccountId) -> frozenset[Role]:
    """The roles that the invite brings; they become the account's."""
    roles = await account_store.use_invite(conn, token_sha256=hash_secret(invite), used_by=account_id)
    if roles is None:
        raise SignUpClosed("This invite is unknown, used or expired. Ask the operator for a new one.")
    await account_store.change_account(conn, id=account_id, roles=roles)
    return roles


def _check_email(email: str) -> str:
    email = email.strip().lower()
    if not _EMAIL.match(email):
        raise InvalidRequest("Give an e-mail address such as ada@example.org.")
    return email


def _check_sign_up_mode(mode: SignUp, invite: str | None) -> None:
    if mode is SignUp.CLOSED:
        raise SignUpClosed("This hub takes no new accounts. Ask its operator.")
    if mode is SignUp.INVITE and not invite:
        raise SignUpClosed("This hub takes new accounts by invite only. Ask its operator for one.")


async def _hash_password(password: str) -> str:
    if len(password) not in PASSWORD_LENGTH:
        raise InvalidRequest(f"A password has {PASSWORD_LENGTH[0]} to {PASSWORD_LENGTH[-1]} characters.")
    # Slow on purpose, so it must not hold up the event loop.
    return await asyncio.to_thread(_hasher.hash, password)


def _is_password(stored: str, password: str) -> bool:
    try:
        return _hasher.verify(stored, password)
    except (Argon2Error, InvalidHashError):
        return False


async def _insert_account(
    conn: Connection,
    settings: HubSettings,
    account_id: AccountId,
    email: str,
    name: str,
    password_hash: str | None,
    roles: frozenset[Role],
) -> None:
    await account_store.insert_account(
        conn,
        id=account_id,
        email=email,
        name=name[:100],
        password_hash=password_hash,
        roles=roles,
        queued_slices_max=settings.queued_slices_max,
        stored_bytes_max=settings.stored_bytes_max,
        calls_per_minute_max=settings.calls_per_minute_max,
    )


async def _insert_link(conn: Connection, account_id: AccountId) -> str:
    token = entropy.new_secret()
    await account_store.insert_link(
        conn, token_sha256=hash_secret(token), account_id=account_id, expires_seconds=LINK_SECONDS
    )
    return token


async def _sign_in(conn: Connection, account_id: AccountId) -> tuple[Account, NewKey]:
    account = await account_store.find_account(conn, account_id)
    assert account is not None
    if account.suspended_at is not None:
        raise Unauthenticated("This account is suspended. Ask the hub's operator.")
    key = await _insert_key(
        conn, account_id, name="sign-in", roles=account.roles, expires_seconds=SIGN_IN_KEY_SECONDS
    )
    await event_store.record_events(conn, [NewEvent(kind="signed_in", account_id=account_id)])
    return account, key


async def _insert_key(
    conn: Connection, account_id: AccountId, *, name: str, roles: Iterable[Role], expires_seconds: int | None
) -> NewKey:
    secret = KEY_PREFIX + entropy.new_secret()
    key = await key_store.insert_key(
        conn,
        id=KeyId(entropy.new_id()),
        account_id=account_id,
        name=name,
        secret_sha256=hash_secret(secret),
        roles=roles,
        expires_seconds=expires_seconds,
    )
    return NewKey(key, secret)
