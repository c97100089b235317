"""The order in which a network is computed, and who waits for whom.

The order is one for all: the reference, every host and every audit add gradients in the order that follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from computepool.core.networks.spec import Edge, NetworkSpec


@dataclass(frozen=True, slots=True)
class Graph:
    """A network that was found to have no cycle. All maps hold every VNode."""

    # Forward order: of those that could come next, the one that the spec names first.
    order: tuple[str, ...]
    position: Mapping[str, int]
    # What feeds a VNode, by input slot.
    inputs: Mapping[str, tuple[Edge, ...]]
    # What a VNode feeds, in order of forward use.
    outputs: Mapping[str, tuple[Edge, ...]]
    # Who uses what a slot puts out, in order of forward use: consumer first, then its slot. Sources too ("@x", 0).
    consumers: Mapping[tuple[str, int], tuple[Edge, ...]]
    # Edges on the longest way to the loss; 0 for the loss itself.
    stages: Mapping[str, int]

    def gradient_order(self, vnode_id: str, slot: int = 0) -> tuple[Edge, ...]:
        """The order in which gradients of one output are added: that of its uses, backwards, as autograd does."""
        return self.consumers.get((vnode_id, slot), ())[::-1]

    def producers(self, vnode_id: str) -> list[str]:
        """VNodes that feed this one, each once, by slot."""
        return list(dict.fromkeys(edge.source for edge in self.inputs[vnode_id] if edge.source_name is None))

    def users(self, vnode_id: str) -> list[str]:
        """VNodes that this one feeds, each once, in forward order."""
        return list(dict.fromkeys(edge.target for edge in self.outputs[vnode_id]))

    def ancestors(self, vnode_id: str) -> tuple[str, ...]:
        """The VNode and all that it needs, in forward order: what inference of it computes."""
        wanted = {vnode_id}
        for each in reversed(self.order):
            if each in wanted:
                wanted.update(self.producers(each))
        return tuple(each for each in self.order if each in wanted)

    def source_names(self, vnode_ids: tuple[str, ...]) -> list[str]:
        """Names of the sources that these VNodes read, each once."""
        names = (edge.source_name for each in vnode_ids for edge in self.inputs[each])
        return list(dict.fromkeys(name for name in names if name is not None))


def draw_graph(spec: NetworkSpec) -> Graph:
    """For a spec without faults: edges name VNodes that exist, and there is no cycle."""
    order = order_forward(spec)
    position = {vnode_id: index for index, vnode_id in enumerate(order)}
    inputs: dict[str, list[Edge]] = {vnode_id: [] for vnode_id in order}
    outputs: dict[str, list[Edge]] = {vnode_id: [] for vnode_id in order}
    consumers: dict[tuple[str, int], list[Edge]] = {}
    for edge in sorted(spec.edges, key=lambda edge: (position[edge.target], edge.target_slot)):
        inputs[edge.target].append(edge)
        consumers.setdefault((edge.source, edge.source_slot), []).append(edge)
        if edge.source_name is None:
            outputs[edge.source].append(edge)
    return Graph(
        order=order,
        position=position,
        inputs={vnode_id: tuple(edges) for vnode_id, edges in inputs.items()},
        outputs={vnode_id: tuple(edges) for vnode_id, edges in outputs.items()},
        consumers={slot: tuple(edges) for slot, edges in consumers.items()},
        stages=_measure_stages(spec, order),
    )


def order_forward(spec: NetworkSpec) -> tuple[str, ...]:
    """Shorter than the list of VNodes if there is a cycle: those on it, and behind it, are left out."""
    rank = {vnode.id: index for index, vnode in enumerate(spec.vnodes)}
    users: dict[str, list[str]] = {vnode_id: [] for vnode_id in rank}
    waiting_for = dict.fromkeys(rank, 0)
    for edge in spec.edges:
        if edge.source in rank and edge.target in rank:
            users[edge.source].append(edge.target)
            waiting_for[edge.target] += 1
    ready: list[tuple[int, str]] = []
    for vnode_id, count in waiting_for.items():
        if count == 0:
            heappush(ready, (rank[vnode_id], vnode_id))
    order = []
    while ready:
        _, vnode_id = heappop(ready)
        order.append(vnode_id)
        for user in users[vnode_id]:
            waiting_for[user] -= 1
            if waiting_for[user] == 0:
                heappush(ready, (rank[user], user))
    return tuple(order)


def find_cycle(spec: NetworkSpec) -> list[str]:
    """VNodes along one cycle, the first named again at the end; empty if there is none."""
    ordered = set(order_forward(spec))
    stuck = {vnode.id for vnode in spec.vnodes} - ordered
    if not stuck:
        return []
    # Whoever is stuck waits for another that is stuck: going back from one to the next must come round.
    waits_for = {edge.target: edge.source for edge in spec.edges if edge.target in stuck and edge.source in stuck}
    at = next(vnode.id for vnode in spec.vnodes if vnode.id in stuck)
    seen: list[str] = []
    while at not in seen:
        seen.append(at)
        at = waits_for[at]
    backwards = [*seen[seen.index(at) :], at]
    return backwards[::-1]


def _measure_stages(spec: NetworkSpec, order: tuple[str, ...]) -> dict[str, int]:
    """VNodes that do not lead to the loss, which a spec without faults has none of, count as 0."""
    stages = dict.fromkeys(order, 0)
    leads = {spec.loss}
    incoming: dict[str, list[str]] = {}
    for edge in spec.edges:
        incoming.setdefault(edge.target, []).append(edge.source)
    for vnode_id in reversed(order):
        if vnode_id not in leads:
            continue
        for source in incoming.get(vnode_id, ()):
            if source in stages:
                leads.add(source)
                stages[source] = max(stages[source], stages[vnode_id] + 1)
    return stages
