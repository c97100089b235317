"""A placement as it comes over the wire."""

from __future__ import annotations

from collections.abc import Iterable

from computepool.core.networks.placement import Location, Placement, SeatId
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb


def read_placement(run_id: str, epoch: int, locations: Iterable[pb.Location]) -> Placement:
    found = tuple(
        Location(
            vnode_id=each.vnode_id,
            seat=SeatId(each.seat),
            replica=each.replica,
            incarnation=each.incarnation,
            node_id=each.node_id,
            address=each.address,
        )
        for each in locations
    )
    return Placement(run_id=run_id, epoch=epoch, locations=found)
