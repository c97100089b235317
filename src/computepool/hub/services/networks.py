"""Networks: create, look, delete. What trains them stands in runs.py."""

from __future__ import annotations

import hashlib
from uuid import UUID

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidSpec,
    LimitExceeded,
    NotFound,
)
from computepool.core.ids import NetworkId, RunId
from computepool.core.networks.cost import count_parameters
from computepool.core.networks.faults import list_spec_faults
from computepool.core.networks.spec_json import from_json, to_json
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.run_blobs import free_blobs
from computepool.hub.store import networks as network_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.networks import Network

IDEMPOTENCY_KEY_LENGTH_MAX = 200
NETWORKS_MAX = 10_000
PAGE_MAX = 200
# The same of one that is somebody else's.
NO_NETWORK = "You have no such network. GET /v1/networks lists yours; create it if it is not among them."


async def create_network(
    pool: Pool, caller: AccountCaller, spec_json: str, *, idempotency_key: str | None = None
) -> Network:
    """Raises InvalidSpec with all that is wrong; what is stored can be built and trained."""
    check_key(idempotency_key)
    spec = from_json(spec_json)
    faults = list_spec_faults(spec)
    if faults:
        words = "; ".join(faults)
        raise InvalidSpec(f"The network cannot be taken: {words}. Change it and create it again.", faults=faults)
    canonical = to_json(spec)
    digest = hashlib.sha256(canonical.encode()).digest()
    async with pool.acquire() as conn, conn.transaction():
        made = await network_store.insert_network(
            conn,
            id=NetworkId(entropy.new_id()),
            account_id=caller.account_id,
            name=spec.name,
            spec=canonical,
            digest=digest,
            vnode_count=len(spec.vnodes),
            parameter_count=count_parameters(spec),
            idempotency_key=idempotency_key,
        )
        if made is not None:
            await _check_count(conn, caller)
            return made
        assert idempotency_key is not None
        known = await network_store.find_by_key(conn, account_id=caller.account_id, idempotency_key=idempotency_key)
    if known is None or known.digest != digest or known.deleted_at is not None:
        raise IdempotencyMismatch(
            "This idempotency key was used for another network. Use a new key for a new network."
        )
    return known


async def get_network(pool: Pool, caller: AccountCaller, network_id: NetworkId) -> Network:
    async with pool.acquire() as conn:
        return await get_visible(conn, caller, network_id)


async def list_networks(pool: Pool, caller: AccountCaller, *, before: UUID | None, limit: int) -> list[Network]:
    account_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        return await network_store.list_networks(
            conn, account_id=account_id, before=before, limit=max(1, min(limit or PAGE_MAX, PAGE_MAX))
        )


async def delete_network(pool: Pool, blobs: LocalBlobs, caller: AccountCaller, network_id: NetworkId) -> None:
    """With the checkpoints of its runs; their curves and what they cost stay."""
    async with pool.acquire() as conn, conn.transaction():
        await get_visible(conn, caller, network_id)
        # Locked, so that no run is started meanwhile.
        network = await network_store.lock_network(conn, network_id)
        if network is None:
            raise NotFound(NO_NETWORK)
        open_count = await run_store.count_open(conn, network_id)
        if open_count:
            raise Conflict(f"{open_count} runs of this network are not over. Stop them first.")
        loose = await run_store.delete_checkpoints(conn, network_id)
        await network_store.delete_network(conn, network_id)
    by_run: dict[RunId, list[bytes]] = {}
    for run_id, sha256 in loose:
        by_run.setdefault(run_id, []).append(sha256)
    for run_id, sha256s in by_run.items():
        await free_blobs(pool, blobs, run_id, network.account_id, sha256s)


async def get_visible(conn: Connection, caller: AccountCaller, network_id: NetworkId) -> Network:
    network = await network_store.find_network(conn, network_id)
    if network is None or (network.account_id != caller.account_id and Role.OPERATOR not in caller.roles):
        raise NotFound(NO_NETWORK)
    return network


def check_key(idempotency_key: str | None) -> None:
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= IDEMPOTENCY_KEY_LENGTH_MAX:
        raise InvalidRequest(f"An idempotency key has 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} characters.")


async def _check_count(conn: Connection, caller: AccountCaller) -> None:
    count = await network_store.count_networks(conn, caller.account_id)
    if count > NETWORKS_MAX:
        raise LimitExceeded(
            f"You have {NETWORKS_MAX:,} networks. Delete some before you create more.", retry_after_seconds=60
        )
