"""What the VNodes of a run take of PNodes, in the order of the network, and what goes between them."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.networks.cost import IN_FLIGHT_PER_CROSSING, estimate_edges, estimate_vnodes
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.partition import Link
from computepool.core.networks.run import Part
from computepool.core.networks.spec import NetworkSpec

# What the library, frames on their way and a checkpoint being written take beyond what is reckoned.
SPARE_PERCENT = 20


@dataclass(frozen=True, slots=True)
class Need:
    """What one VNode, or one replica of it, takes."""

    part: Part
    memory_bytes: int
    # Of one step.
    flops: float
    # Whoever computes it needs the run's data.
    reads: bool = False
    # It tells the curve and totals the norms of all: what it makes up nobody else computes beside it.
    critical: bool = False


def list_needs(spec: NetworkSpec) -> list[Need]:
    """Replica by replica. For a spec without faults."""
    graph, costs = draw_graph(spec), estimate_vnodes(spec)
    per_replica = -(-spec.micro_batches // spec.replicas)
    needs = []
    for replica in range(spec.replicas):
        for vnode_id in graph.order:
            cost = costs[vnode_id]
            # Should every VNode from here to the loss be on a host of its own.
            in_flight = min(per_replica, graph.stages[vnode_id] * IN_FLIGHT_PER_CROSSING + 1)
            memory_bytes = cost.memory_bytes(in_flight) * (100 + SPARE_PERCENT) // 100
            reads = any(edge.source_name is not None for edge in graph.inputs[vnode_id])
            flops = float(per_replica * cost.flops)
            needs.append(Need((vnode_id, replica), memory_bytes, flops, reads, critical=vnode_id == spec.loss))
    return needs


def list_links(spec: NetworkSpec) -> list[Link]:
    """Bytes per step between the needs of this network, by their numbers."""
    number = {need.part: index for index, need in enumerate(list_needs(spec))}
    per_replica = -(-spec.micro_batches // spec.replicas)
    return [
        Link(number[edge.source, replica], number[edge.target, replica], cost.size_bytes * per_replica)
        for edge, cost in estimate_edges(spec).items()
        for replica in range(spec.replicas)
    ]
