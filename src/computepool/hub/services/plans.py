"""Where a network would go if it were trained now, what would cross between PNodes, and how fast that would be."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.ids import NetworkId, NodeId
from computepool.core.networks.cost import estimate_edges
from computepool.core.networks.errors import NoPlacement
from computepool.core.networks.first_fit import PNode, Unplaceable
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
    seats = {seat: _draw_seat(spec, options, caller, found, seat) for seat in sorted(found.chosen.pnodes)}
    slowest = max(seat.seconds_per_step for seat in seats.values())
    # A pipeline is full only between its filling and its draining.
    bubble = (spec.micro_batches + len(seats) - 1) / spec.micro_batches
    flops = sum(need.flops for need in list_needs(spec))
    fastest = max(pnode.flops_per_second for pnode in found.chosen.pnodes.values())
    split, alone = spec.batch_size / (slowest * bubble), spec.batch_size * fastest / flops
    warnings = []
    if len(seats) > 1 and split < alone:
        warnings.append(
            f"one machine that holds all of it would be faster ({alone:.1f} samples/s against {split:.1f}): split "
            "only what does not fit"
        )
    return Plan(list(seats.values()), _draw_edges(spec, found), split, alone, warnings, len(seats) * ceiling)


def _draw_seat(
    spec: NetworkSpec, options: TrainOptions, caller: AccountCaller, found: SeatPlan, seat: SeatId
) -> PlannedSeat:
    pnode: PNode = found.chosen.pnodes[seat]
    needs = [need for need in list_needs(spec) if found.chosen.moves[need.part] == seat]
    owner_id, name = found.found.names[pnode.node_id]
    return PlannedSeat(
        node_id=pnode.node_id,
        node_name=name if owner_id == caller.account_id else "",
        vnode_ids=tuple(need.part[0] for need in needs),
        memory_bytes=sum(need.memory_bytes for need in needs),
        seconds_per_step=sum(need.flops for need in needs) / pnode.flops_per_second,
        relayed=not pnode.reachable,
        fetched_bytes=max(0, sum(ref.size_bytes for ref in options.data) - pnode.held_bytes),
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
