"""Names the caller of a request: an account by its API key, or a node by its token.

Answers are remembered for a few seconds, so a revoked key or a removed node is refused by every hub within
`MEMORY_SECONDS`, without a database round trip per call.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from computepool import clock
from computepool.core.accounts.roles import Role, effective_roles
from computepool.core.errors import AccountSuspended, NodeRemoved, Unauthenticated
from computepool.core.ids import AccountId, KeyId, NodeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.nodes.state import NodeState
from computepool.hub.services.keyring import NODE_TOKEN_TYPE, Keyring
from computepool.hub.store import accounts as account_store
from computepool.hub.store import keys as key_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Pool

MEMORY_SECONDS = 4.0
REMEMBERED_MAX = 100_000
KEY_PREFIX = "cpk_"


@dataclass(frozen=True, slots=True)
class AccountCaller:
    account_id: AccountId
    key_id: KeyId
    roles: frozenset[Role]
    calls_per_minute_max: int
    # The highest class that the account's jobs may ask for.
    priority_class_max: PriorityClass = PriorityClass.NORMAL


@dataclass(frozen=True, slots=True)
class NodeCaller:
    node_id: NodeId
    account_id: AccountId
    # As it was a few seconds ago at most.
    state: NodeState = NodeState.ACTIVE


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Callers:
    def __init__(self, pool: Pool, keyring: Keyring) -> None:
        self._pool = pool
        self._keyring = keyring
        self._remembered: dict[bytes, tuple[float, Any]] = {}
        self._used_keys: set[UUID] = set()

    async def get_account(self, secret: str) -> AccountCaller:
        digest = hash_secret(secret)
        known = self._recall(digest)
        if isinstance(known, AccountCaller):
            return known
        if not secret.startswith(KEY_PREFIX):
            raise Unauthenticated("Give an API key (Authorization: Bearer cpk_...). `computepool login` stores one.")
        async with self._pool.acquire() as conn:
            row = await key_store.find_caller(conn, secret_sha256=digest)
        if row is None:
            raise Unauthenticated("This API key is unknown, expired or revoked. Sign in and make a new one.")
        if row.suspended_at is not None:
            raise AccountSuspended("This account is suspended. Ask the hub's operator.")
        caller = AccountCaller(
            row.account_id,
            row.key_id,
            effective_roles(row.account_roles, row.key_roles),
            row.calls_per_minute_max,
            row.priority_class_max,
        )
        self._used_keys.add(row.key_id)
        self._remember(digest, caller)
        return caller

    async def get_node(self, token: str) -> NodeCaller:
        digest = hash_secret(token)
        known = self._recall(digest)
        if isinstance(known, NodeCaller):
            return known
        hub_id = str(self._keyring.hub_id)
        claims = self._keyring.verify(token, typ=NODE_TOKEN_TYPE, audience=hub_id)
        node_id = NodeId(UUID(claims["sub"]))
        async with self._pool.acquire() as conn:
            node = await node_store.find_node(conn, node_id)
            owner = await account_store.find_account(conn, node.account_id) if node else None
        if node is None or owner is None:
            raise Unauthenticated("This node is unknown here. Enrol it again.")
        if node.state is NodeState.REMOVED:
            raise NodeRemoved("The owner has removed this node. Enrol it again with a new key pair.")
        if owner.suspended_at is not None:
            raise AccountSuspended("The account of this node's owner is suspended. Ask the hub's operator.")
        caller = NodeCaller(node_id, node.account_id, node.state)
        self._remember(digest, caller)
        return caller

    def forget_all(self) -> None:
        """After a revocation on this hub there is no reason to wait."""
        self._remembered.clear()

    def forget_nodes(self) -> None:
        self._remembered = {k: v for k, v in self._remembered.items() if not isinstance(v[1], NodeCaller)}

    async def flush_used_keys(self) -> None:
        used, self._used_keys = self._used_keys, set()
        if used:
            async with self._pool.acquire() as conn:
                await key_store.touch_keys(conn, used)

    def _recall(self, digest: bytes) -> Any:
        entry = self._remembered.get(digest)
        return entry[1] if entry and entry[0] > clock.seconds() else None

    def _remember(self, digest: bytes, caller: Any) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[digest] = (clock.seconds() + MEMORY_SECONDS, caller)
