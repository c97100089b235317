"""Nodes: enrolment and what owners do with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.market.hours import say_hours
from computepool.core.market.offers import Offer
from computepool.core.nodes.state import NodeState, is_online
from computepool.core.trust.claims import slot_of_proof
from computepool.core.trust.identities import find_network
from computepool.hub.http.challenges import to_slot_proof
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import nodes as service
from computepool.hub.services import offers
from computepool.hub.services.challenges import Standing, list_standings
from computepool.hub.services.nodes import NodeWithSlots
from computepool.wire import nodes as wire
from computepool.wire.challenges import SlotProof

routes = Routes()

PAGE_MAX = 500


class NodesQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 100
    cursor: UUID = UUID(int=0)
    state: NodeState | None = None
    online: bool | None = None
    # A part of it.
    name: str | None = None


@routes.add(
    "POST",
    "/v1/nodes",
    Access.OWNER,
    body=wire.EnrolNode,
    answer=wire.EnrolledNode,
    status=201,
    needs_address=True,
)
async def enrol_node(call: Call) -> wire.EnrolledNode:
    """Enrol a machine under the owner's account. The same key pair is the same node."""
    hub = call.hub
    network = find_network(call.address)
    node_id = await service.enrol_node(hub.pool, hub.settings, call.account, call.body, network=network)
    hub.registry.forget(node_id)
    return wire.EnrolledNode(
        node_id=node_id,
        hub_id=hub.keyring.hub_id,
        token=service.issue_token(hub.keyring, hub.settings, node_id),
        token_seconds=hub.settings.node_token_seconds,
        hub_keys=hub.keyring.public_keys(),
    )


@routes.add("POST", "/v1/nodes/token", Access.PUBLIC, body=wire.RenewToken, answer=wire.NodeToken)
async def renew_token(call: Call) -> wire.NodeToken:
    """A fresh node token, for a node that proves it holds its private key."""
    hub = call.hub
    node_id = await service.renew_node(hub.pool, hub.keyring, call.body, network=find_network(call.address))
    return wire.NodeToken(
        token=service.issue_token(hub.keyring, hub.settings, node_id),
        token_seconds=hub.settings.node_token_seconds,
        hub_keys_signed=hub.keyring.vouch_for_keys(node_id),
    )


@routes.add("GET", "/v1/nodes", Access.ACCOUNT, query=NodesQuery, answer=wire.NodePage)
async def list_nodes(call: Call) -> wire.NodePage:
    """The caller's nodes; an operator sees everyone's."""
    query: NodesQuery = call.query
    limit = max(1, min(query.limit, PAGE_MAX))
    found = await service.list_nodes(
        call.hub.pool,
        call.account,
        after=query.cursor,
        limit=limit,
        state=query.state,
        name=query.name,
        online=query.online,
        silence_seconds=call.hub.settings.lease_seconds,
    )
    cursor = str(found[-1].node.id) if len(found) == limit else None
    return wire.NodePage(nodes=[_to_node(call, node) for node in found], cursor=cursor)


@routes.add("GET", "/v1/nodes/{node_id}", Access.ACCOUNT, answer=wire.Node)
async def get_node(call: Call) -> wire.Node:
    """One node with its slots."""
    return _to_node(call, await service.get_node(call.hub.pool, call.account, call.path["node_id"]))


@routes.add("POST", "/v1/nodes/{node_id}/drain", Access.OWNER, answer=wire.Node)
async def drain_node(call: Call) -> wire.Node:
    """Finish what runs, take nothing more; the agent ends then."""
    return await _change(call, wire.NodeChange.DRAIN)


@routes.add("POST", "/v1/nodes/{node_id}/pause", Access.OWNER, answer=wire.Node)
async def pause_node(call: Call) -> wire.Node:
    """Finish what runs, take nothing more until resumed."""
    return await _change(call, wire.NodeChange.PAUSE)


@routes.add("POST", "/v1/nodes/{node_id}/resume", Access.OWNER, answer=wire.Node)
async def resume_node(call: Call) -> wire.Node:
    """Take work again."""
    return await _change(call, wire.NodeChange.RESUME)


@routes.add("POST", "/v1/nodes/{node_id}/remove", Access.OWNER, answer=wire.Node)
async def remove_node(call: Call) -> wire.Node:
    """Refuse this node's token for good; its history stays."""
    node = await _change(call, wire.NodeChange.REMOVE)
    call.hub.callers.forget_all()
    return node


@routes.add("PUT", "/v1/nodes/{node_id}/offer", Access.OWNER, body=wire.SetOffer, answer=wire.Node)
async def set_offer(call: Call) -> wire.Node:
    """Set the conditions at which a node is lent: floor, hours, shortest slices, kinds of jobs, and to whom."""
    hub, node_id = call.hub, call.path["node_id"]
    changed = await offers.set_offer(hub.pool, hub.prices, call.account, node_id, call.body)
    # At this hub it holds once this is answered; the others hear of it.
    await hub.reception.look_at_node(node_id)
    hub.rounds.hear("node")
    return _to_node(call, changed)


async def _change(call: Call, change: wire.NodeChange) -> wire.Node:
    hub, node_id = call.hub, call.path["node_id"]
    changed = await service.change_node_state(hub.pool, call.account, node_id, change.value)
    # At this hub its next claim finds it so, also where nothing is heard of changes but by a timer.
    hub.callers.forget_node(node_id)
    hub.rounds.hear("node")
    return _to_node(call, changed)


def _to_node(call: Call, found: NodeWithSlots) -> wire.Node:
    return to_node(found, silence_seconds=call.hub.settings.lease_seconds)


def to_node(found: NodeWithSlots, *, silence_seconds: float) -> wire.Node:
    node, now = found.node, clock.now()
    standings = list_standings(node, found.proofs)
    return wire.Node(
        id=node.id,
        name=node.name,
        state=node.state,
        online=is_online(node.last_seen_at, now=now, silence_seconds_max=silence_seconds),
        synthetic=node.synthetic,
        isolation=node.isolation,
        hardware=msgspec.convert(node.hardware, wire.Hardware),
        slots=[
            wire.SlotView(
                name=stored.slot.name,
                kind=stored.slot.kind,
                tier=stored.slot.tier,
                vram_bytes=stored.slot.vram_bytes,
                cores=stored.slot.cores,
                ram_bytes=stored.slot.ram_bytes,
                disk_bytes=stored.slot.disk_bytes,
                busy=stored.busy,
                speed_tflops=stored.declared_tflops,
                proof=_to_proof(standings, stored.slot.name),
            )
            for stored in found.slots
        ],
        offer=_to_offer(found.offer, now),
        created_at=node.created_at,
        region=node.region,
        last_seen_at=node.last_seen_at,
        agent_version=node.agent_version,
    )


def _to_proof(standings: Mapping[str, Standing], slot: str) -> SlotProof | None:
    standing = standings.get(slot_of_proof(slot))
    return None if standing is None else to_slot_proof(standing)


def _to_offer(offer: Offer, now: datetime) -> wire.Offer:
    schedule = offer.schedule
    closed = schedule is not None and not schedule.is_open(now)
    return wire.Offer(
        floor_microcredits_per_hour=offer.floor_microcredits_per_hour,
        hours=say_hours(schedule.hours) if schedule else None,
        zone=str(schedule.zone) if schedule else None,
        seconds_min=offer.seconds_min,
        kinds=sorted(offer.kinds),
        audience=offer.audience,
        accounts=sorted(offer.named),
        opens_at=schedule.next_open_at(now) if schedule and closed else None,
    )
