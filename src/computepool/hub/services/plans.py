"""Where a network would go if it were trained now, what would cross between PNodes, and how fast that would be."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from computepool.core.ids import NetworkId, NodeId
from computepool.core.networks.allocation import PNode, Unplaceable
from computepool.core.networks.cost import estimate_edges
from computepool.core.networks.errors import NoPlacement
from computepool.core.networks.estimate import Machine, estimate_speed, find_frame_seconds
from computepool.core.networks.needs import list_needs
from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.networks import get_visible
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.runs import SeatPlan, TrainOptions, plan_seats
from computepool.hub.services.seats import find_shape
from computepool.hub.store.connect import Pool


@dataclass(frozen=True, slots=True)
class PlannedSeat:
    node_id: NodeId
    # Told to its owner alone.
    node_name: str
    vnode_ids: tuple[str, ...]
    memory_bytes: int
    seconds_per_step: float
    relayed: bool
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    source: str
    target: str
    bytes_per_step: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Plan:
    seats: list[PlannedSeat]
    edges: list[PlannedEdge]
    samples_per_second: float
    samples_per_second_one_machine: float
    warnings: list[str]
    microcredits_per_hour_max: int


async def plan_network(
    pool: Pool,
    prices: PriceBook,
    settings: HubSettings,
    caller: AccountCaller,
    network_id: NetworkId,
    options: TrainOptions,
) -> Plan:
    """Raises NoPlacement with the reasons when nothing fits now."""
    async with pool.acquire() as conn:
        spec = from_json((await get_visible(conn, caller, network_id)).spec)
        found = await plan_seats(conn, prices, settings, spec, options, caller.account_id)
    if isinstance(found, Unplaceable):
        raise NoPlacement(f"The network fits nowhere now: {'; '.join(found.reasons)}.", reasons=list(found.reasons))
    ceiling = find_shape(prices, options.ceiling_microcredits_per_hour).ceiling_microcredits_per_hour or 0
    return _draw(spec, options, caller, found, ceiling)


def _draw(spec: NetworkSpec, options: TrainOptions, caller: AccountCaller, found: SeatPlan, ceiling: int) -> Plan:
    seats, moves = sorted(found.chosen.pnodes), found.chosen.moves
    pnodes = [found.chosen.pnodes[seat] for seat in seats]
    machines = [_to_machine(pnode) for pnode in pnodes]
    estimate = estimate_speed(spec, machines, {part: seats.index(seat) for part, seat in moves.items()})
    busy = [share * estimate.seconds_per_step for share in estimate.busy_share]
    drawn = [
        _draw_seat(spec, options, caller, found, seat, seconds) for seat, seconds in zip(seats, busy, strict=True)
    ]
    warnings = list(estimate.warnings)
    unknown = sum(isinf(pnode.bytes_per_second) for pnode in pnodes)
    if len(seats) > 1 and unknown:
        warnings.append(
            f"what {unknown} of {len(seats)} PNodes can send to others is not known, and is reckoned as no limit"
        )
    return Plan(
        seats=drawn,
        edges=_draw_edges(spec, found),
        samples_per_second=estimate.samples_per_second,
        samples_per_second_one_machine=estimate.samples_per_second_one_machine,
        warnings=warnings,
        microcredits_per_hour_max=len(seats) * ceiling,
    )


def _to_machine(pnode: PNode) -> Machine:
    return Machine(
        flops_per_second=pnode.flops_per_second,
        bytes_per_second=pnode.bytes_per_second,
        latency_seconds=pnode.latency_seconds,
        frame_seconds=find_frame_seconds(reachable=pnode.reachable),
        pace_ratio=pnode.pace_ratio,
    )


def _draw_seat(
    spec: NetworkSpec, options: TrainOptions, caller: AccountCaller, found: SeatPlan, seat: SeatId, seconds: float
) -> PlannedSeat:
    pnode = found.chosen.pnodes[seat]
    needs = [need for need in list_needs(spec) if found.chosen.moves[need.part] == seat]
    owner_id, name = found.found.names[pnode.node_id]
    # Who computes nothing that reads data fetches none.
    size_bytes = sum(ref.size_bytes for ref in options.data) if any(need.reads for need in needs) else 0
    return PlannedSeat(
        node_id=pnode.node_id,
        node_name=name if owner_id == caller.account_id else "",
        vnode_ids=tuple(need.part[0] for need in needs),
        memory_bytes=sum(need.memory_bytes for need in needs),
        seconds_per_step=seconds,
        relayed=not pnode.reachable,
        fetched_bytes=max(0, size_bytes - pnode.held_bytes),
    )


def _draw_edges(spec: NetworkSpec, found: SeatPlan) -> list[PlannedEdge]:
    moves = found.chosen.moves
    return [
        PlannedEdge(
            edge.source,
            edge.target,
            cost.size_bytes * spec.micro_batches,
            any(moves[edge.source, each] != moves[edge.target, each] for each in range(spec.replicas)),
        )
        for edge, cost in estimate_edges(spec).items()
    ]
