"""A run's VNodes grouped into segments: parts on one seat that are computed as one autograd graph.

Everything here follows from spec and placement alone, so every host draws the same picture of all the others.
Between segments the graph is cut. In which order the gradients of a cut tensor are added stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from computepool.core.networks.graph import Graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import Edge, NetworkSpec


@dataclass(frozen=True, slots=True)
class Term:
    """Gradients that reach a producer as one tensor: one edge's, or those that one seat can add up beforehand."""

    seat: SeatId
    edges: tuple[Edge, ...]

    @property
    def name(self) -> Edge:
        """The edge by which its frame is known."""
        return self.edges[0]


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that leaves its segment."""

    vnode_id: str
    # In order of forward use; all in other segments.
    readers: tuple[Edge, ...]
    # Its gradient: these, added in this order.
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    replica: int
    seat: SeatId
    # In forward order.
    vnode_ids: tuple[str, ...]
    # What other segments feed into it, in forward order of its VNodes, then by slot.
    inputs: tuple[Edge, ...]
    # In forward order; none leaves the segment of the loss.
    outputs: tuple[Output, ...]
    # Changes of seat on the longest way to the loss.
    crossings: int
    # Place in the forward order of the whole network.
    position: int

    @property
    def first(self) -> str:
        """The VNode by which the segment is known."""
        return self.vnode_ids[0]


def plan_segments(spec: NetworkSpec, graph: Graph, placement: Placement) -> tuple[Segment, ...]:
    """Those of all seats, replica by replica, in forward order."""
    return tuple(
        segment for replica in range(spec.replicas) for segment in _plan_replica(spec, graph, placement, replica)
    )


def _plan_replica(spec: NetworkSpec, graph: Graph, placement: Placement, replica: int) -> list[Segment]:
    seat_of = {vnode.id: placement.seat_of(vnode.id, replica) for vnode in spec.vnodes}
    cut = _find_cut(graph, seat_of)
    crossings = _count_crossings(graph, seat_of)
    return [
        Segment(
            replica=replica,
            seat=seat_of[vnode_ids[0]],
            vnode_ids=vnode_ids,
            inputs=tuple(edge for each in vnode_ids for edge in graph.inputs[each] if edge.source in cut),
            outputs=tuple(_describe_output(graph, each, seat_of) for each in vnode_ids if each in cut),
            crossings=max(crossings[each] for each in vnode_ids),
            position=graph.position[vnode_ids[0]],
        )
        for vnode_ids in _join(graph, cut)
    ]


def _describe_output(graph: Graph, vnode_id: str, seat_of: Mapping[str, SeatId]) -> Output:
    terms = _list_terms(graph.gradient_order(vnode_id), seat_of, home=seat_of[vnode_id])
    return Output(vnode_id, _readers(graph, vnode_id), terms)


def _find_cut(graph: Graph, seat_of: Mapping[str, SeatId]) -> set[str]:
    """VNodes whose output leaves their segment: all its readers are in other segments then, else all in its own.

    A tensor that is read on another seat is cut. So is one that has a reader behind more cuts than its producer is:
    computed together, a segment could wait for what depends on itself. Depth counts cuts on the way; it never falls
    along an edge and grows at a cut, so no way leads out of a segment and back into it.
    """
    cut = {
        vnode_id
        for vnode_id in graph.order
        if any(seat_of[edge.target] != seat_of[vnode_id] for edge in _readers(graph, vnode_id))
    }
    while True:
        depth = _count_cuts(graph, cut)
        late = {
            vnode_id
            for vnode_id in graph.order
            if vnode_id not in cut and any(depth[edge.target] > depth[vnode_id] for edge in _readers(graph, vnode_id))
        }
        if not late:
            return cut
        cut |= late


def _count_cuts(graph: Graph, cut: set[str]) -> dict[str, int]:
    depth: dict[str, int] = {}
    for vnode_id in graph.order:
        sources = (edge.source for edge in graph.inputs[vnode_id] if edge.source_name is None)
        depth[vnode_id] = max((depth[source] + (source in cut) for source in sources), default=0)
    return depth


def _join(graph: Graph, cut: set[str]) -> list[tuple[str, ...]]:
    """VNodes that tensors connect which are not cut, each group in forward order, groups by their first."""
    group_of: dict[str, list[str]] = {vnode_id: [vnode_id] for vnode_id in graph.order}
    for vnode_id in graph.order:
        for edge in graph.inputs[vnode_id]:
            if edge.source_name is None and edge.source not in cut:
                large, small = sorted((group_of[edge.source], group_of[vnode_id]), key=len, reverse=True)
                if large is not small:
                    large.extend(small)
                    group_of.update(dict.fromkeys(small, large))
    groups = {id(group): tuple(sorted(group, key=graph.position.__getitem__)) for group in group_of.values()}
    return sorted(groups.values(), key=lambda group: graph.position[group[0]])


def _list_terms(order: Sequence[Edge], seat_of: Mapping[str, SeatId], *, home: SeatId) -> tuple[Term, ...]:
    """Only what comes first in the order may be added elsewhere: (a + b) + c is not a + (b + c)."""
    first = seat_of[order[0].target] if order else home
    together = tuple(takewhile(lambda edge: seat_of[edge.target] == first, order)) if first != home else ()
    apart = tuple(Term(seat_of[edge.target], (edge,)) for edge in order[len(together) :])
    return (Term(first, together), *apart) if together else apart


def _count_crossings(graph: Graph, seat_of: Mapping[str, SeatId]) -> dict[str, int]:
    """By every VNode: how often the longest way from it to the loss goes from one seat to another."""
    counts = dict.fromkeys(graph.order, 0)
    for vnode_id in reversed(graph.order):
        for edge in _readers(graph, vnode_id):
            crosses = seat_of[edge.target] != seat_of[vnode_id]
            counts[vnode_id] = max(counts[vnode_id], counts[edge.target] + crosses)
    return counts


def _readers(graph: Graph, vnode_id: str) -> tuple[Edge, ...]:
    return graph.consumers.get((vnode_id, 0), ())
