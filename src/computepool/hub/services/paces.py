"""What runs came to against their estimates, kept for the next plans with the same PNodes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from computepool import clock
from computepool.core.ids import NodeId
from computepool.core.networks.estimate import Machine, estimate_speed, find_frame_seconds
from computepool.core.networks.pace import STEPS_MAX, WARM_STEPS, measure_pace, mix_pace, recall_pace
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import Run
from computepool.core.networks.spec import NetworkSpec
from computepool.hub.store import networks as network_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.networks import PacedPNode


async def note_pace(pool: Pool, run: Run, spec: NetworkSpec) -> None:
    """As it was before its end, when everybody still had its seat."""
    nodes = {seat.id: seat.node_id for seat in run.taken_seats if seat.node_id is not None}
    if len(nodes) < max(2, len(run.taken_seats)):
        return
    newest = STEPS_MAX + WARM_STEPS
    async with pool.acquire() as conn, conn.transaction():
        metrics = await run_store.list_metrics(conn, run.id, after=max(0, run.step - newest), limit=2 * newest)
        ends_at = [each.at for each in metrics if each.epoch == run.epoch and each.at is not None]
        pnodes = await network_store.lock_pnodes(conn, nodes.values())
        if not ends_at or not set(nodes.values()) <= pnodes.keys():
            return
        pace = measure_pace(ends_at, planned_seconds=_plan_seconds(run, spec, nodes, pnodes))
        if pace is None:
            return
        for node_id, pnode in pnodes.items():
            known = recall_pace(pnode.pace_ratio, pnode.paced_at, now=clock.now())
            mixed = mix_pace(known, pace)
            await network_store.set_pace(conn, node_id=node_id, pace_ratio=mixed, paced_at=max(ends_at))


def _plan_seconds(
    run: Run, spec: NetworkSpec, nodes: Mapping[SeatId, NodeId], pnodes: Mapping[NodeId, PacedPNode]
) -> float:
    """Of a step, by figures alone: a pace on top of a pace would be counted twice."""
    seats = sorted(nodes)
    machines = [_to_machine(pnodes[nodes[seat]]) for seat in seats]
    places = {(each.vnode_id, each.replica): seats.index(each.seat) for each in run.locations}
    return estimate_speed(spec, machines, places).seconds_per_step


def _to_machine(pnode: PacedPNode) -> Machine:
    return Machine(
        flops_per_second=pnode.flops_per_second,
        bytes_per_second=pnode.bytes_per_second or inf,
        latency_seconds=pnode.latency_seconds or 0.0,
        frame_seconds=find_frame_seconds(reachable=bool(pnode.address)),
    )
