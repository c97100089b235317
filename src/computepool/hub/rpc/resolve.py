"""Where a run's VNodes live, who owns the run, and who says that a peer is gone."""

from __future__ import annotations

from computepool.core.errors import NotFound
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import PeerReported
from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.hosting import to_location
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.hub.services.owners import Heard
from computepool.hub.services.runs import locate
from computepool.hub.services.seat_tokens import issue_seat_token
from computepool.hub.services.seats import get_seat
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

rpcs = Rpcs("ResolveService")

REASON_LENGTH_MAX = 500


@rpcs.add("Resolve", Access.LEASE)
async def resolve(call: Call, request: pb.ResolveRequest) -> pb.ResolveResponse:
    """For a host of the run itself. A run that nobody owns is taken over by the hub that is asked."""
    rpc = call.rpc
    seat = await get_seat(rpc.pool, call.lease.attempt_id)
    if request.run_id != str(seat.run_id):
        raise NotFound("There is no such run.")
    if not seat.is_owned:
        await rpc.hosting.owner.claim(seat.run_id)
        seat = await get_seat(rpc.pool, call.lease.attempt_id)
    view = await locate(rpc.pool, seat.run_id)
    seconds = rpc.settings.seat_token_seconds
    token = issue_seat_token(
        rpc.keyring, run_id=request.run_id, seat=seat.seat, epoch=view.row.epoch, seconds=seconds
    )
    return pb.ResolveResponse(
        epoch=view.row.epoch,
        placement=[to_location(each) for each in view.locations],
        owner_address=view.row.owner_address,
        seat_token=token,
        seat_token_seconds=seconds,
        relay_address=rpc.settings.rpc_address,
        hub_keys_signed=rpc.keyring.vouch_for_keys(call.lease.node_id),
    )


@rpcs.add("ReportPeer", Access.LEASE)
async def report_peer(call: Call, request: pb.ReportPeerRequest) -> pb.ReportPeerResponse:
    owner = call.rpc.hosting.owner
    run_id, seat, _ = await owner.admit(call.lease.attempt_id)
    if request.run_id != str(run_id):
        raise NotFound("There is no such run.")
    reported = PeerReported(seat, SeatId(request.seat), request.epoch, request.reason[:REASON_LENGTH_MAX])
    await owner.hear(run_id, Heard(reported))
    return pb.ReportPeerResponse()
