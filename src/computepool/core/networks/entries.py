"""Where a request for inference enters a placed network, and where its answer leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.networks.graph import Graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec

# The target of the frame that carries an answer, on the seat that asked.
ANSWER = "@answer"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a request and a seat that needs it: one frame serves all readers there, named by the first."""

    seat: SeatId
    source_name: str
    target: str
    target_slot: int


def list_entries(spec: NetworkSpec, graph: Graph, placement: Placement, replica: int = 0) -> list[Entry]:
    """For the VNodes that the output needs: those behind it, such as the loss, take no part."""
    entries: dict[tuple[SeatId, str], Entry] = {}
    for vnode_id in graph.ancestors(spec.output[0]):
        seat = placement.seat_of(vnode_id, replica)
        for edge in graph.inputs[vnode_id]:
            if edge.source_name is not None:
                entry = Entry(seat, edge.source_name, vnode_id, edge.target_slot)
                entries.setdefault((seat, edge.source_name), entry)
    return list(entries.values())
