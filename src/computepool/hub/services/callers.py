"""Names the caller of a request: an account by its API key, a node by its token, or the holder of a lease.

Answers are remembered, without a database round trip per call. A key is good for a few seconds; a node for as long
as this hub hears of all changes, and no longer than a key when it does not. So a revoked key or a removed node is
refused by every hub within `MEMORY_SECONDS`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from uuid import UUID

from computepool import clock
from computepool.core.accounts.roles import Role, effective_roles
from computepool.core.errors import AccountSuspended, ComputePoolError, NodeRemoved, StaleLease, Unauthenticated
from computepool.core.ids import AccountId, AttemptId, JobId, KeyId, NodeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import ATTEMPT_LIVE
from computepool.core.nodes.state import NodeState
from computepool.hub.services.keyring import NODE_TOKEN_TYPE, Keyring
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import keys as key_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.ids import to_driver_id

log = logging.getLogger("computepool.callers")

MEMORY_SECONDS = 4.0
# A key that is used when it has so long left is looked up again meanwhile, so that nobody waits for that.
RENEWAL_SECONDS = 0.5
REMEMBERED_MAX = 100_000
NODES_REMEMBERED_MAX = 400_000
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


@dataclass(frozen=True, slots=True)
class LeaseCaller:
    """Who holds a live attempt and proves it by the lease's secret: a process that a node runs for the hub."""

    attempt_id: AttemptId
    node_id: NodeId
    job_id: JobId
    slice_index: int
    # Of whoever submitted the job.
    account_id: AccountId


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Callers:
    def __init__(self, pool: Pool, keyring: Keyring) -> None:
        self._pool = pool
        self._keyring = keyring
        self._remembered: dict[bytes, tuple[float, AccountCaller]] = {}
        self._renewals: dict[bytes, asyncio.Task[None]] = {}
        # How often keys were forgotten: what was read before that is not remembered after it.
        self._forgotten_count = 0
        # Until when it is good without having heard of changes, and the node.
        self._nodes: dict[NodeId, tuple[float, NodeCaller]] = {}
        # By digest, which is a tenth of the token: until when it is good, and whose it is.
        self._tokens: dict[bytes, tuple[float, NodeId]] = {}
        # The hub's keys that these were verified with.
        self._kids = keyring.kids
        self._leases: dict[AttemptId, tuple[float, LeaseCaller]] = {}
        self._heard_at = float("-inf")
        self._used_keys: set[UUID] = set()

    def recall_account(self, secret: str) -> AccountCaller | None:
        digest, now = hash_secret(secret), clock.seconds()
        entry = self._remembered.get(digest)
        if entry is None or entry[0] <= now:
            return None
        if entry[0] < now + RENEWAL_SECONDS and digest not in self._renewals:
            self._renewals[digest] = asyncio.create_task(self._renew(secret, digest))
        return entry[1]

    async def _renew(self, secret: str, digest: bytes) -> None:
        try:
            await self._look_up(secret, digest)
        except ComputePoolError:
            # It was revoked, or its account suspended.
            self._remembered.pop(digest, None)
        except Exception as error:
            log.warning("key_not_renewed error=%r", error)
        finally:
            del self._renewals[digest]

    async def get_account(self, secret: str) -> AccountCaller:
        return self.recall_account(secret) or await self._look_up(secret, hash_secret(secret))

    async def _look_up(self, secret: str, digest: bytes) -> AccountCaller:
        if not secret.startswith(KEY_PREFIX):
            raise Unauthenticated("Give an API key (Authorization: Bearer cpk_...). `computepool login` stores one.")
        forgotten_count, started = self._forgotten_count, clock.seconds()
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
        if forgotten_count == self._forgotten_count:
            self._remember(digest, caller, as_of=started)
        return caller

    def recall_node(self, token: str) -> NodeCaller | None:
        known = self._nodes.get(self._read_token(token))
        if known is None:
            return None
        # Remembered for longer than a key: a node calls every half minute, and every hub hears of what becomes of it.
        # While nothing could be heard, what is remembered counts no longer than a key does.
        now = clock.seconds()
        return known[1] if known[0] > now or self._heard_at > now - MEMORY_SECONDS else None

    async def get_node(self, token: str) -> NodeCaller:
        known = self.recall_node(token)
        if known is not None:
            return known
        node_id = self._read_token(token)
        async with self._pool.acquire() as conn:
            standing = await node_store.find_standing(conn, node_id)
        if standing is None:
            raise Unauthenticated("This node is unknown here. Enrol it again.")
        if standing.state is NodeState.REMOVED:
            raise NodeRemoved("The owner has removed this node. Enrol it again with a new key pair.")
        if standing.suspended_at is not None:
            raise AccountSuspended("The account of this node's owner is suspended. Ask the hub's operator.")
        caller = NodeCaller(node_id, standing.account_id, standing.state)
        if len(self._nodes) >= NODES_REMEMBERED_MAX:
            self._nodes.clear()
        self._nodes[node_id] = (clock.seconds() + MEMORY_SECONDS, caller)
        return caller

    async def get_lease(self, attempt_id: AttemptId, secret: str) -> LeaseCaller:
        # Asked every time, and first: what is remembered is remembered for the holder of the secret.
        if not self._keyring.is_lease_secret(attempt_id, secret):
            raise Unauthenticated("This is not the secret of that lease.")
        known = self._leases.get(attempt_id)
        if known is not None and known[0] > clock.seconds():
            return known[1]
        async with self._pool.acquire() as conn:
            held = await attempt_store.find_held(conn, attempt_id)
        if held is None or held.state not in ATTEMPT_LIVE:
            raise StaleLease("This attempt is over or has been taken over. Forget it.")
        caller = LeaseCaller(held.id, held.node_id, held.job_id, held.slice_index, held.account_id)
        if len(self._leases) >= REMEMBERED_MAX:
            self._leases.clear()
        self._leases[attempt_id] = (clock.seconds() + MEMORY_SECONDS, caller)
        return caller

    def _read_token(self, token: str) -> NodeId:
        """A signature is checked once; it does not change. But a key may be revoked, and all that it has signed."""
        if self._kids is not self._keyring.kids:
            self._kids = self._keyring.kids
            self._tokens.clear()
        digest = hash_secret(token)
        known = self._tokens.get(digest)
        if known is not None and known[0] > clock.unix_seconds():
            return known[1]
        claims = self._keyring.verify(token, typ=NODE_TOKEN_TYPE, audience=str(self._keyring.hub_id))
        node_id = NodeId(to_driver_id(UUID(claims["sub"])))
        if len(self._tokens) >= NODES_REMEMBERED_MAX:
            self._tokens.clear()
        self._tokens[digest] = (claims["exp"], node_id)
        return node_id

    def forget_all(self) -> None:
        """After a revocation on this hub there is no reason to wait."""
        self._forgotten_count += 1
        self._remembered.clear()
        self._nodes.clear()

    def forget_node(self, node_id: UUID) -> None:
        self._nodes.pop(NodeId(node_id), None)

    def forget_account(self, account_id: UUID) -> None:
        """Its keys and its nodes."""
        self._forgotten_count += 1
        self._remembered = {k: v for k, v in self._remembered.items() if v[1].account_id != account_id}
        self._nodes = {k: v for k, v in self._nodes.items() if v[1].account_id != account_id}

    def note_heard(self) -> None:
        """All changes up to this moment have been heard of."""
        self._heard_at = clock.seconds()

    async def flush_used_keys(self) -> None:
        used, self._used_keys = self._used_keys, set()
        if used:
            async with self._pool.acquire() as conn:
                await key_store.touch_keys(conn, used)

    def _remember(self, digest: bytes, caller: AccountCaller, *, as_of: float) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[digest] = (as_of + MEMORY_SECONDS, caller)
