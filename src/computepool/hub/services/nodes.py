"""Nodes: enrolment, tokens, boots, and what owners do with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Any
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from computepool import clock, entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import (
    Conflict,
    InvalidRequest,
    NewNodesLimited,
    NodeRemoved,
    NotFound,
    StaleBoot,
    SyntheticRefused,
    Unauthenticated,
)
from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs.lease import next_boot
from computepool.core.jobs.wants import list_allow_faults
from computepool.core.market.offers import Offer
from computepool.core.nodes.slots import cut_into_slots, list_machine_faults
from computepool.core.nodes.state import NodeState, change_node
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.core.trust.identities import find_identity_refusal
from computepool.hub.config import HubSettings
from computepool.hub.services.attempts import take_losses
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.challenges import grant_slots, plan_sittings, to_machine
from computepool.hub.services.keyring import NODE_TOKEN_TYPE, Keyring, decode_token, from_base64
from computepool.hub.services.pnodes import list_hosting_faults, record_hosting
from computepool.hub.services.stops import stop_poisonous
from computepool.hub.services.transitions import OnEnd, ignore_end, lock_snapshot
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import challenges as challenge_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import offers as offer_store
from computepool.hub.store.challenges import Proof
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.nodes import Node, OfferedSlot
from computepool.wire.nodes import EnrolNode, RenewToken

ASSERTION_SECONDS_MAX = 60
# For newcomers of whom nobody can say when they may come.
UNKNOWN_WAIT = timedelta(hours=1)
_REGION = re.compile(r"[A-Z]{2}\Z")


@dataclass(frozen=True, slots=True)
class NodeWithSlots:
    node: Node
    slots: list[OfferedSlot]
    offer: Offer
    # What it has shown, by the slot that was challenged.
    proofs: dict[str, Proof]


async def enrol_node(
    pool: Pool, settings: HubSettings, caller: AccountCaller, request: EnrolNode, *, network: str | None = None
) -> NodeId:
    """`network`: that the call comes from, if that is known."""
    public_key = _check_public_key(request.public_key)
    if request.synthetic and not settings.demo:
        raise SyntheticRefused(
            "This hub runs on real machines only. Synthetic nodes may join a demo hub: `computepool demo`."
        )
    machine = to_machine(request.hardware, region=request.region, isolation=request.isolation)
    faults = list_machine_faults(machine)
    if request.region is not None and not _REGION.match(request.region):
        faults.append(f"region {request.region!r} is not an ISO-2 country code such as IN or DE")
    texts = [request.name, request.agent_version, request.hardware.cpu_name, request.hardware.instruction_set]
    texts += [text for gpu in request.hardware.gpus for text in (gpu.name, gpu.driver, gpu.vendor, gpu.runtime)]
    if any("\0" in text or len(text) > 300 for text in texts):
        faults.append("a name is over-long or contains a NUL character")
    if not 1 <= len(request.name) <= 100:
        faults.append("name has 1 to 100 characters")
    faults += _list_floor_faults(request.floor_microcredits_per_hour)
    faults += list_hosting_faults(request.hosting)
    faults += list_allow_faults(request.allows)
    if faults:
        raise InvalidRequest("The node cannot be enrolled: " + "; ".join(faults) + ".")
    async with pool.acquire() as conn, conn.transaction():
        await _check_newcomer(conn, settings, caller, public_key, network)
        node_id = await node_store.upsert_node(
            conn,
            id=NodeId(entropy.new_id()),
            account_id=caller.account_id,
            name=request.name,
            public_key=public_key,
            synthetic=request.synthetic,
            isolation=request.isolation,
            region=request.region,
            hardware=msgspec.to_builtins(request.hardware),
            agent_version=request.agent_version[:50],
            floor_microcredits_per_hour=request.floor_microcredits_per_hour,
            allows=request.allows,
            network=network,
        )
        if node_id is None:
            raise Conflict("This key pair belongs to another or a removed node. Make a new one and enrol again.")
        slots = cut_into_slots(node_id, machine)
        granted = await grant_slots(conn, settings, node_id, machine, synthetic=request.synthetic)
        await node_store.replace_slots(
            conn,
            node_id=node_id,
            slots=[replace(slot, tier=each.tier) for slot, each in zip(slots, granted, strict=True)],
            declared_tflops=[each.tflops for each in granted],
        )
        if not request.synthetic:
            await plan_sittings(conn, settings, node_id, machine)
        await record_hosting(conn, node_id, request.hosting)
        await event_store.record_events(
            conn, [NewEvent(kind="node_enrolled", account_id=caller.account_id, node_id=node_id)]
        )
    return node_id


async def _check_newcomer(
    conn: Connection, settings: HubSettings, caller: AccountCaller, public_key: bytes, network: str | None
) -> None:
    """A key that is known is no newcomer. Who may bring how many is for core to say."""
    limit = settings.new_nodes_limit
    if limit is None or await node_store.has_key(conn, public_key):
        return
    await node_store.lock_newcomers(conn)
    owner = await node_store.find_owner_origin(conn, caller.account_id)
    # Where the operator has raised an owner's limit, their network has room for it too.
    near = await node_store.find_network_origin(conn, network, limit=owner.limit)
    now = clock.now()
    refusal = find_identity_refusal(owner=owner, network=near, now=now, usual=limit)
    if refusal is not None:
        wait = UNKNOWN_WAIT if refusal.retry_at is None else refusal.retry_at - now
        raise NewNodesLimited(
            refusal.words, reason=refusal.reason, retry_after_seconds=max(1, ceil(wait.total_seconds()))
        )


def issue_token(keyring: Keyring, settings: HubSettings, node_id: NodeId) -> str:
    now = int(clock.unix_seconds())
    hub_id = str(keyring.hub_id)
    claims = {
        "iss": hub_id,
        "aud": hub_id,
        "sub": str(node_id),
        "iat": now,
        "exp": now + settings.node_token_seconds,
        # Two tokens made in the same second must differ, or forgetting one would forget the other.
        "jti": entropy.new_secret(8),
    }
    return keyring.sign(claims, typ=NODE_TOKEN_TYPE)


async def renew_node(pool: Pool, keyring: Keyring, request: RenewToken, *, network: str | None = None) -> NodeId:
    """The node proves that it holds its private key; nothing else is needed for a new token.

    What its owner allows jobs may have changed since it last said so, and where it calls from.
    """
    node = await _verify_assertion(pool, keyring, request.assertion)
    if network is not None and network != node.network:
        async with pool.acquire() as conn:
            await node_store.set_network(conn, id=node.id, network=network)
    if request.allows is None or set(request.allows) == set(node.allows):
        return node.id
    faults = list_allow_faults(request.allows)
    if faults:
        raise InvalidRequest("What the node allows cannot be used: " + "; ".join(faults) + ".")
    async with pool.acquire() as conn, conn.transaction():
        await node_store.set_allows(conn, id=node.id, allows=request.allows)
        await hub_store.record_change(conn, ChangeKind.NODE, node.id)
    return node.id


async def _verify_assertion(pool: Pool, keyring: Keyring, assertion: str) -> Node:
    try:
        unverified: dict[str, Any] = jwt.decode(assertion, options={"verify_signature": False})
        node_id = NodeId(UUID(str(unverified["sub"])))
    except (jwt.PyJWTError, KeyError, ValueError):
        raise Unauthenticated("The assertion is no JWT that names a node.") from None
    async with pool.acquire() as conn:
        node = await node_store.find_node(conn, node_id)
    if node is None:
        raise Unauthenticated("This node is unknown here. Enrol it again.")
    if node.state is NodeState.REMOVED:
        raise NodeRemoved("The owner has removed this node. Enrol it again with a new key pair.")
    key = Ed25519PublicKey.from_public_bytes(node.public_key)
    claims = decode_token(assertion, key, audience=str(keyring.hub_id), require=("iat", "jti", "iss"))
    if claims["iss"] != str(node_id) or claims["exp"] - claims["iat"] > ASSERTION_SECONDS_MAX:
        raise Unauthenticated("The assertion must be issued by the node itself and live a minute at most.")
    return node


async def record_boot(
    pool: Pool, node_id: NodeId, boot_id: UUID, running: frozenset[AttemptId], *, on_end: OnEnd = ignore_end
) -> bool:
    """A call of a boot that this hub has not seen. True when it is a new start of the agent.

    What the new agent does not list is lost, and lost at once: nobody is working on it any more.
    """
    async with pool.acquire() as conn:
        # Nearly always: a hub asks again after a while, and every hub when it has just started. No lock is needed to
        # see that nothing has changed.
        if await node_store.has_boot(conn, node_id, boot_id):
            return False
    async with pool.acquire() as conn, conn.transaction():
        live = [attempt.id for attempt in await attempt_store.list_live_by_nodes(conn, [node_id])]
        missing = [attempt_id for attempt_id in live if attempt_id not in running]
        snapshot = await lock_snapshot(conn, missing)
        # The node's row comes after slices and attempts in the order of locks.
        node = await node_store.lock_node(conn, node_id)
        if node is None or node.state is NodeState.REMOVED:
            raise NodeRemoved("The owner has removed this node.")
        boots = next_boot(node.boot_id, node.past_boot_ids, boot_id)
        if boots is None:
            raise StaleBoot("A newer start of this agent is calling already. This one must end.")
        if boots[0] == node.boot_id:
            return False
        await node_store.set_boot(conn, id=node_id, boot_id=boots[0], past_boot_ids=boots[1])
        await take_losses(conn, snapshot, missing)
        await snapshot.write(conn)
        await event_store.record_events(
            conn, [NewEvent(kind="node_booted", account_id=node.account_id, node_id=node_id)]
        )
        if missing:
            await hub_store.notify(conn, "queue")
    on_end(snapshot.list_ended())
    await stop_poisonous(pool, snapshot.list_poisonous_jobs(), on_end=on_end)
    return True


async def change_node_state(pool: Pool, caller: AccountCaller, node_id: NodeId, change: str) -> NodeWithSlots:
    async with pool.acquire() as conn, conn.transaction():
        node = await node_store.lock_node(conn, node_id)
        if node is None or not may_see(caller, node):
            raise NotFound("There is no such node.")
        state = change_node(node.state, change)
        if state is None:
            raise Conflict(f"A node that is {node.state.value} cannot {change}.")
        if state is not node.state:
            await node_store.set_state(conn, id=node_id, state=state)
            await event_store.record_events(
                conn, [NewEvent(kind=f"node_{state.value}", account_id=node.account_id, node_id=node_id)]
            )
            await hub_store.record_change(conn, ChangeKind.NODE, node_id)
    return await get_node(pool, caller, node_id)


async def get_node(pool: Pool, caller: AccountCaller, node_id: NodeId) -> NodeWithSlots:
    async with pool.acquire() as conn:
        node = await node_store.find_node(conn, node_id)
        if node is None or not may_see(caller, node):
            raise NotFound("There is no such node.")
        return (await _with_slots(conn, [node]))[0]


async def list_nodes(
    pool: Pool,
    caller: AccountCaller,
    *,
    after: UUID,
    limit: int,
    state: NodeState | None = None,
    name: str | None = None,
    online: bool | None = None,
    silence_seconds: float = 0.0,
) -> list[NodeWithSlots]:
    account_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        nodes = await node_store.list_nodes(
            conn,
            account_id=account_id,
            after=after,
            limit=limit,
            state=state,
            name=name,
            online=online,
            silence_seconds=silence_seconds,
        )
        return await _with_slots(conn, nodes)


def may_see(caller: AccountCaller, node: Node) -> bool:
    return node.account_id == caller.account_id or Role.OPERATOR in caller.roles


async def list_with_slots(conn: Connection, node_ids: Sequence[NodeId]) -> list[NodeWithSlots]:
    """Whoever they belong to."""
    return await _with_slots(conn, await node_store.find_nodes(conn, node_ids))


async def _with_slots(conn: Connection, nodes: list[Node]) -> list[NodeWithSlots]:
    node_ids = [node.id for node in nodes]
    offers = await offer_store.list_offers(conn, node_ids)
    slots: dict[NodeId, list[OfferedSlot]] = {node_id: [] for node_id in node_ids}
    for offered in await node_store.list_candidates(conn, node_ids):
        slots[offered.slot.node_id].append(offered)
    proofs: dict[NodeId, dict[str, Proof]] = {node_id: {} for node_id in node_ids}
    for (node_id, slot), proof in (await challenge_store.list_proofs(conn, node_ids)).items():
        proofs[node_id][slot] = proof
    return [NodeWithSlots(node, slots[node.id], offers[node.id], proofs[node.id]) for node in nodes]


def _list_floor_faults(floor: int) -> list[str]:
    if 0 <= floor <= PRICE_MICROCREDITS_MAX:
        return []
    return [
        f"floor_microcredits_per_hour is {floor}; it is at least 0 and at most {PRICE_MICROCREDITS_MAX:,} "
        "(a credit is 1,000,000)"
    ]


def _check_public_key(text: str) -> bytes:
    try:
        raw = from_base64(text)
        Ed25519PublicKey.from_public_bytes(raw)
    except (ValueError, TypeError):
        raise InvalidRequest("public_key is the node's raw Ed25519 key: 32 bytes, base64url.") from None
    return raw
