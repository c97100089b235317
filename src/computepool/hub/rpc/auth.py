"""Who calls an RPC, by the same keys and tokens as REST, read from the call's metadata.

`authorization: Bearer <API key or node token>`; or, from a host, the id and the secret of its lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from computepool.core.accounts.roles import Role
from computepool.core.errors import Forbidden, Unauthenticated
from computepool.core.ids import AttemptId
from computepool.hub.rpc.context import RpcContext
from computepool.hub.services.callers import AccountCaller, LeaseCaller, NodeCaller
from computepool.wire import rpc as wire

Caller: TypeAlias = AccountCaller | NodeCaller | LeaseCaller | None

NODE_CALLS_PER_MINUTE = 60_000
PUBLIC_CALLS_PER_MINUTE = 6_000


class Access(str, Enum):
    """Who may call."""

    PUBLIC = "public"
    ACCOUNT = "account"
    SUBMITTER = "submitter"
    OWNER = "owner"
    OPERATOR = "operator"
    # A node's agent, by its token; the hub's HTTP, to which such calls are passed on, names the caller.
    NODE = "node"
    # A process that a node runs for the hub, by the lease that it holds.
    LEASE = "lease"
    # A host of a run, by the seat token in the stream's first frame.
    SEAT = "seat"


async def name_caller(rpc: RpcContext, access: Access, metadata: Mapping[str, str], *, peer: str) -> Caller:
    """Raises Unauthenticated, Forbidden, StaleLease or RateLimited; HubUnavailable while its plug is pulled."""
    if wire.VERSION in metadata:
        wire.check_version_text(metadata[wire.VERSION])
    if access is Access.LEASE:
        return await _name_lease(rpc, metadata)
    if access in (Access.PUBLIC, Access.SEAT):
        rpc.rate_limits.spend(("public", peer), per_minute=PUBLIC_CALLS_PER_MINUTE)
        return None
    credential = read_credential(metadata)
    if access is Access.NODE:
        return None
    account = await rpc.callers.get_account(credential)
    rpc.rate_limits.spend(account.account_id, per_minute=account.calls_per_minute_max)
    if access is not Access.ACCOUNT and Role(access.value) not in account.roles:
        raise Forbidden(f"This needs the role {access.value}, which this key does not have.")
    return account


async def _name_lease(rpc: RpcContext, metadata: Mapping[str, str]) -> LeaseCaller:
    try:
        attempt_id = AttemptId(UUID(metadata[wire.ATTEMPT_ID]))
    except (KeyError, ValueError):
        raise Unauthenticated(
            f"Give the lease that you hold: metadata {wire.ATTEMPT_ID} and {wire.LEASE_SECRET}."
        ) from None
    caller = await rpc.callers.get_lease(attempt_id, metadata.get(wire.LEASE_SECRET, ""))
    rpc.plugs.check(caller.node_id)
    rpc.rate_limits.spend(caller.attempt_id, per_minute=NODE_CALLS_PER_MINUTE)
    return caller


def read_credential(metadata: Mapping[str, str]) -> str:
    kind, _, value = metadata.get(wire.AUTHORIZATION, "").partition(" ")
    if kind.lower() != "bearer" or not value.strip():
        raise Unauthenticated("Give a credential: metadata authorization: Bearer <API key or node token>.")
    return value.strip()
