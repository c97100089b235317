"""What the VNodes of a run take of PNodes, in the order of the network: memory with some to spare, and work."""

from __future__ import annotations

from computepool.core.networks.cost import estimate_vnodes
from computepool.core.networks.first_fit import Need
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.spec import NetworkSpec

# What the library, frames on their way and a checkpoint being written take beyond what is reckoned.
SPARE_PERCENT = 20


def list_needs(spec: NetworkSpec) -> list[Need]:
    """Replica by replica. For a spec without faults."""
    graph, costs = draw_graph(spec), estimate_vnodes(spec)
    per_replica = -(-spec.micro_batches // spec.replicas)
    needs = []
    for replica in range(spec.replicas):
        for vnode_id in graph.order:
            cost = costs[vnode_id]
            # As many micro-batches are in flight as there are stages from here to the loss.
            in_flight = min(per_replica, graph.stages[vnode_id] + 1)
            memory_bytes = cost.memory_bytes(in_flight) * (100 + SPARE_PERCENT) // 100
            needs.append(Need((vnode_id, replica), memory_bytes, float(per_replica * cost.flops)))
    return needs
