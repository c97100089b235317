"""Networks and runs, to look at and to stop. Creating and training them is gRPC's."""

from __future__ import annotations

import struct
from math import isfinite
from uuid import UUID

import msgspec

from computepool.core.ids import NetworkId, RunId
from computepool.core.networks.spec_json import from_json
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import networks as service
from computepool.hub.services import runs as run_service
from computepool.hub.services.runs import RunView
from computepool.hub.store.networks import Network
from computepool.hub.store.runs import FeedLine, RunRow
from computepool.wire import networks as wire

routes = Routes()

PAGE_MAX = 200


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 50
    cursor: UUID | None = None


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True):
    network: UUID | None = None
    limit: int = 50
    cursor: UUID | None = None


class FeedQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: int = 0


@routes.add("GET", "/v1/networks", Access.ACCOUNT, query=PageQuery, answer=wire.NetworkPage)
async def list_networks(call: Call) -> wire.NetworkPage:
    """The caller's networks, newest first; an operator sees everyone's."""
    limit = max(1, min(call.query.limit, PAGE_MAX))
    found = await service.list_networks(call.hub.pool, call.account, before=call.query.cursor, limit=limit)
    cursor = str(found[-1].id) if len(found) == limit else None
    return wire.NetworkPage(networks=[_to_network(each) for each in found], cursor=cursor)


@routes.add("GET", "/v1/networks/{network_id}", Access.ACCOUNT, answer=wire.NetworkDetail)
async def get_network(call: Call) -> wire.NetworkDetail:
    """One network with its VNodes and the edges between them."""
    network = await service.get_network(call.hub.pool, call.account, NetworkId(call.path["network_id"]))
    spec = from_json(network.spec)
    return wire.NetworkDetail(
        network=_to_network(network),
        vnodes=[wire.VNode(id=each.id, block=each.block) for each in spec.vnodes],
        edges=[wire.NetworkEdge(source=each.source, target=each.target) for each in spec.edges],
    )


@routes.add("GET", "/v1/runs", Access.ACCOUNT, query=RunsQuery, answer=wire.RunPage)
async def list_runs(call: Call) -> wire.RunPage:
    """The caller's runs, newest first; an operator sees everyone's."""
    query: RunsQuery = call.query
    limit = max(1, min(query.limit, PAGE_MAX))
    network_id = NetworkId(query.network) if query.network is not None else None
    found = await run_service.list_runs(
        call.hub.pool, call.account, network_id=network_id, before=query.cursor, limit=limit
    )
    cursor = str(found[-1].id) if len(found) == limit else None
    return wire.RunPage(runs=[_to_run(row) for row in found], cursor=cursor)


@routes.add("GET", "/v1/runs/{run_id}", Access.ACCOUNT, answer=wire.RunDetail)
async def get_run(call: Call) -> wire.RunDetail:
    """One run: how far it is, who sits where, and why it waits."""
    return _to_detail(await run_service.get_run(call.hub.pool, call.account, RunId(call.path["run_id"])))


@routes.add("GET", "/v1/runs/{run_id}/feed", Access.ACCOUNT, query=FeedQuery, answer=wire.RunFeed)
async def read_run_feed(call: Call) -> wire.RunFeed:
    """A piece of a run's curve and of what happened to it, oldest first."""
    after = max(0, min(call.query.after, 1 << 60))
    lines, state = await run_service.read_feed(call.hub.pool, call.account, RunId(call.path["run_id"]), after=after)
    return wire.RunFeed(
        lines=[to_line(line) for line in lines], state=state, next_after=lines[-1].id if lines else after
    )


@routes.add("GET", "/v1/runs/{run_id}/checkpoints", Access.ACCOUNT, answer=wire.RunCheckpointPage)
async def list_run_checkpoints(call: Call) -> wire.RunCheckpointPage:
    """A run's checkpoints, newest first."""
    found = await run_service.list_checkpoints(call.hub.pool, call.account, RunId(call.path["run_id"]))
    return wire.RunCheckpointPage(
        checkpoints=[
            wire.RunCheckpoint(
                step=each.step,
                first_at=each.first_at,
                complete_at=each.complete_at,
                audited_at=each.audited_at,
                size_bytes=each.size_bytes,
            )
            for each in found
        ]
    )


@routes.add("POST", "/v1/runs/{run_id}/stop", Access.SUBMITTER, answer=wire.RunDetail)
async def stop_run(call: Call) -> wire.RunDetail:
    """Stop a run after its next checkpoint; it can be resumed."""
    return _to_detail(await run_service.stop_run(call.hub.pool, call.account, RunId(call.path["run_id"])))


def _to_network(network: Network) -> wire.Network:
    return wire.Network(
        id=network.id,
        name=network.name,
        vnode_count=network.vnode_count,
        parameter_count=network.parameter_count,
        created_at=network.created_at,
    )


def _to_run(row: RunRow) -> wire.Run:
    return wire.Run(
        id=row.id,
        network_id=row.network_id,
        network_name=row.network_name,
        job_id=row.job_id,
        state=row.state,
        step=row.step,
        steps=row.steps,
        checkpoint_step=row.checkpoint_step,
        epoch=row.epoch,
        recoveries=row.recoveries,
        inexact_from_step=row.inexact_from_step,
        message=row.message,
        created_at=row.created_at,
        expires_at=row.expires_at,
        finished_at=row.finished_at,
    )


def _to_detail(view: RunView) -> wire.RunDetail:
    return wire.RunDetail(
        run=_to_run(view.row),
        seats=[
            wire.RunSeat(seat=seat.id, node_id=seat.node_id, numeric_class=seat.numeric_class)
            for seat in view.seats.values()
        ],
        placements=[
            wire.RunPlacement(
                vnode_id=each.vnode_id,
                replica=each.replica,
                seat=each.seat,
                incarnation=each.incarnation,
                node_id=view.seats[each.seat].node_id,
            )
            for each in view.locations
        ],
        why=run_service.explain_run(view),
    )


def to_line(line: FeedLine) -> wire.RunLine:
    loss = None
    if line.loss_bits is not None:
        loss = struct.unpack("<d", struct.pack("<q", line.loss_bits))[0]
    return wire.RunLine(
        id=line.id,
        at=line.at,
        kind=line.kind,
        epoch=line.epoch,
        step=line.step,
        message=line.message,
        loss=loss if loss is not None and isfinite(loss) else None,
        samples_per_second=line.samples_per_second if isfinite(line.samples_per_second) else 0.0,
    )
