"""Networks and runs, for people."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from computepool.core.errors import InvalidRequest
from computepool.core.ids import NetworkId, NodeId, RunId
from computepool.core.networks.run import OVER, FeedKind
from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.blobs import read_pieces
from computepool.hub.rpc.hosting import to_location
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.hub.services import networks as network_service
from computepool.hub.services import plans as plan_service
from computepool.hub.services import runs as run_service
from computepool.hub.services.runs import DATA_FORMAT, DataRef, RunView, TrainOptions
from computepool.hub.store.networks import Network
from computepool.hub.store.runs import FeedLine, RunRow
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

rpcs = Rpcs("NetworkService")

# How often a feed is read while nothing comes.
WATCH_SECONDS = 0.25
# Data that lies elsewhere is fetched before a run starts.
START_SECONDS = 660.0


@rpcs.add("CreateNetwork", Access.SUBMITTER)
async def create_network(call: Call, request: pb.CreateNetworkRequest) -> pb.Network:
    made = await network_service.create_network(
        call.rpc.pool, call.account, request.spec_json, idempotency_key=request.idempotency_key or None
    )
    return _to_network(made)


@rpcs.add("GetNetwork", Access.ACCOUNT)
async def get_network(call: Call, request: pb.GetNetworkRequest) -> pb.Network:
    network_id = NetworkId(read_id(request.id, "network"))
    return _to_network(await network_service.get_network(call.rpc.pool, call.account, network_id))


@rpcs.add("ListNetworks", Access.ACCOUNT)
async def list_networks(call: Call, request: pb.ListNetworksRequest) -> pb.ListNetworksResponse:
    before = read_id(request.before_id, "network") if request.before_id else None
    found = await network_service.list_networks(call.rpc.pool, call.account, before=before, limit=request.limit)
    return pb.ListNetworksResponse(networks=[_to_network(each) for each in found])


@rpcs.add("DeleteNetwork", Access.SUBMITTER)
async def delete_network(call: Call, request: pb.DeleteNetworkRequest) -> pb.DeleteNetworkResponse:
    network_id = NetworkId(read_id(request.id, "network"))
    await network_service.delete_network(call.rpc.pool, call.rpc.blobs, call.account, network_id)
    return pb.DeleteNetworkResponse()


@rpcs.add("PlanNetwork", Access.SUBMITTER)
async def plan_network(call: Call, request: pb.PlanNetworkRequest) -> pb.Plan:
    rpc = call.rpc
    plan = await plan_service.plan_network(
        rpc.pool,
        rpc.hosting.prices,
        rpc.settings,
        call.account,
        NetworkId(read_id(request.network_id, "network")),
        _to_options(request.options),
    )
    return pb.Plan(
        seats=[
            pb.PlannedSeat(
                node_id=str(seat.node_id),
                node_name=seat.node_name,
                vnode_ids=seat.vnode_ids,
                memory_bytes=seat.memory_bytes,
                seconds_per_step=seat.seconds_per_step,
                relayed=seat.relayed,
                fetched_bytes=seat.fetched_bytes,
            )
            for seat in plan.seats
        ],
        edges=[
            pb.PlannedEdge(source=edge.source, target=edge.target, bytes_per_step=edge.bytes_per_step, cut=edge.cut)
            for edge in plan.edges
        ],
        samples_per_second=plan.samples_per_second,
        samples_per_second_one_machine=plan.samples_per_second_one_machine,
        warnings=plan.warnings,
        microcredits_per_hour_max=plan.microcredits_per_hour_max,
    )


@rpcs.add("StartTrain", Access.SUBMITTER, seconds_max=START_SECONDS)
async def start_train(call: Call, request: pb.StartTrainRequest) -> pb.Run:
    rpc = call.rpc
    view = await run_service.start_run(
        rpc.pool,
        rpc.hosting.prices,
        rpc.settings,
        rpc.hosting.fetcher,
        call.account,
        NetworkId(read_id(request.network_id, "network")),
        _to_options(request.options),
        idempotency_key=request.idempotency_key or None,
    )
    return _to_run(view)


@rpcs.add("StopTrain", Access.SUBMITTER)
async def stop_train(call: Call, request: pb.StopTrainRequest) -> pb.Run:
    return _to_run(await run_service.stop_run(call.rpc.pool, call.account, _read_run(request.run_id)))


@rpcs.add("ResumeTrain", Access.SUBMITTER)
async def resume_train(call: Call, request: pb.ResumeTrainRequest) -> pb.Run:
    rpc = call.rpc
    view = await run_service.resume_run(
        rpc.pool,
        rpc.hosting.prices,
        call.account,
        _read_run(request.run_id),
        steps=request.steps,
        serves=request.serve,
    )
    return _to_run(view)


@rpcs.add("GetRun", Access.ACCOUNT)
async def get_run(call: Call, request: pb.GetRunRequest) -> pb.Run:
    return _to_run(await run_service.get_run(call.rpc.pool, call.account, _read_run(request.run_id)))


@rpcs.add("ListRuns", Access.ACCOUNT)
async def list_runs(call: Call, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
    found = await run_service.list_runs(
        call.rpc.pool,
        call.account,
        network_id=NetworkId(read_id(request.network_id, "network")) if request.network_id else None,
        before=read_id(request.before_id, "run") if request.before_id else None,
        limit=request.limit,
    )
    return pb.ListRunsResponse(runs=[_to_row(row) for row in found])


@rpcs.add("WatchTrain", Access.ACCOUNT)
async def watch_train(call: Call, request: pb.WatchTrainRequest) -> AsyncIterator[pb.TrainEvent]:
    """Until the run is over and all of it is told."""
    run_id, after = _read_run(request.run_id), request.after_event_id
    while not call.rpc.closing:
        lines, state = await run_service.read_feed(call.rpc.pool, call.account, run_id, after=after)
        for line in lines:
            after = line.id
            event = _to_event(line)
            if line.kind is FeedKind.PLACEMENT:
                view = await run_service.get_run(call.rpc.pool, call.account, run_id)
                event.placement.extend(to_location(each) for each in view.locations)
            yield event
        if not lines and state in OVER:
            return
        if not lines:
            await asyncio.sleep(WATCH_SECONDS)


@rpcs.add("ListCheckpoints", Access.ACCOUNT)
async def list_checkpoints(call: Call, request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
    found = await run_service.list_checkpoints(call.rpc.pool, call.account, _read_run(request.run_id))
    return pb.ListCheckpointsResponse(
        checkpoints=[
            pb.CheckpointEntry(
                step=each.step,
                complete=each.complete_at is not None,
                audited=each.audited_at is not None,
                size_bytes=each.size_bytes,
                at_micros=_to_micros(each.complete_at or each.first_at),
            )
            for each in found
        ]
    )


@rpcs.add("ExportState", Access.ACCOUNT)
async def export_state(call: Call, request: pb.ExportStateRequest) -> AsyncIterator[pb.BlobPiece]:
    """The VNodes' states one after the other, each under its own hash; whoever asked puts them together."""
    run_id = _read_run(request.run_id)
    _, parts = await run_service.list_state(
        call.rpc.pool, call.account, run_id, checkpoint_step=request.checkpoint_step
    )
    for part in parts:
        async for piece in read_pieces(call.rpc.blobs, part.sha256.hex()):
            piece.run_id = request.run_id
            yield piece


def _to_options(options: pb.TrainOptions) -> TrainOptions:
    return TrainOptions(
        steps=options.steps,
        data=tuple(DataRef(ref.sha256, ref.uri, ref.size_bytes, ref.format or DATA_FORMAT) for ref in options.data),
        ceiling_microcredits_per_hour=options.ceiling_microcredits_per_hour or None,
        hours_max=options.hours_max or 1,
        seats=options.seats,
        node_ids=tuple(NodeId(read_id(each, "node")) for each in options.node_ids),
        serves=options.serve,
    )


def _to_network(network: Network) -> pb.Network:
    return pb.Network(
        id=str(network.id),
        name=network.name,
        spec_json=network.spec,
        parameter_count=network.parameter_count,
        created_at_micros=_to_micros(network.created_at),
    )


def _to_run(view: RunView) -> pb.Run:
    told = _to_row(view.row)
    told.placement.extend(to_location(each) for each in view.locations)
    told.audits.CopyFrom(pb.AuditCounts(**{outcome.value: count for outcome, count in view.audits.items()}))
    return told


def _to_row(row: RunRow) -> pb.Run:
    return pb.Run(
        id=str(row.id),
        network_id=str(row.network_id),
        job_id=str(row.job_id),
        state=row.state.value,
        epoch=row.epoch,
        step=row.step,
        steps=row.steps,
        checkpoint_step=row.checkpoint_step,
        message=row.message,
        inexact_from_step=row.inexact_from_step,
    )


def _to_event(line: FeedLine) -> pb.TrainEvent:
    loss = 0.0
    if line.loss_bits is not None:
        loss = struct.unpack("<d", struct.pack("<q", line.loss_bits))[0]
    return pb.TrainEvent(
        id=line.id,
        kind=line.kind.value,
        epoch=line.epoch,
        step=line.step,
        loss=loss,
        samples_per_second=line.samples_per_second,
        message=line.message,
        at_micros=_to_micros(line.at),
    )


def _to_micros(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def _read_run(text: str) -> RunId:
    return RunId(read_id(text, "run"))


def read_id(text: str, noun: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest(f"{text[:80]!r} is no id of a {noun}.") from None
