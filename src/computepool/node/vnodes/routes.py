"""Who sends what to whom in one epoch, as one host sees it: what it may expect, and where its own tensors go.

Follows from spec and placement alone. A frame that is not in the list of what is expected is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from computepool.core.networks.graph import Graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.shapes import Shapes, list_parameters
from computepool.core.networks.spec import Dtype, Edge, NetworkSpec
from computepool.node.vnodes.frames import FrameHead, FrameKind
from computepool.node.vnodes.segments import Output, Segment, plan_segments

# Slots of sums between replicas: a VNode's gradients (or weights, after a round of local steps), and losses.
WEIGHTS_SLOT = 0
LOSSES_SLOT = 1


class FrameKey(NamedTuple):
    """What tells one kind of frame from all others of an epoch, but for its step and micro-batch."""

    kind: FrameKind
    replica: int
    source: str
    source_slot: int
    target: str
    target_slot: int


class Expected(NamedTuple):
    shape: tuple[int, ...]
    dtype: Dtype
    # Of the VNode that sends it.
    incarnation: int
    seat: SeatId


def key_of(head: FrameHead) -> FrameKey:
    return FrameKey(head.kind, head.replica, head.source, head.source_slot, head.target, head.target_slot)


def activation_key(edge: Edge, replica: int) -> FrameKey:
    return FrameKey(FrameKind.ACTIVATION, replica, edge.source, edge.source_slot, edge.target, edge.target_slot)


def gradient_key(edge: Edge, replica: int) -> FrameKey:
    """Against its edge: whoever reads the tensor sends, whoever made it receives."""
    return FrameKey(FrameKind.GRADIENT, replica, edge.target, edge.target_slot, edge.source, edge.source_slot)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The picture of an epoch that all hosts share, and what of it concerns the host at `me`."""

    spec: NetworkSpec
    graph: Graph
    shapes: Shapes
    placement: Placement
    me: SeatId
    segments: tuple[Segment, ...]
    # By VNode and replica.
    segment_of: Mapping[tuple[str, int], Segment]
    # Names and sizes of parameters by VNode, in the order of the uncut network.
    parameters: Mapping[str, tuple[tuple[str, int], ...]]
    # VNodes whose output depends on a parameter: gradients flow back to them and no further.
    trained: frozenset[str]

    @property
    def mine(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.seat == self.me]

    @property
    def clips(self) -> bool:
        return self.spec.optimizer.clip_norm is not None

    def list_parameter_names(self, vnode_id: str) -> list[str]:
        return [name for name, _ in self.parameters[vnode_id]]

    def count_weights(self, vnode_id: str) -> int:
        return sum(size for _, size in self.parameters[vnode_id])

    def root_of(self, replica: int) -> int:
        """The replica whose loss totals the norms: with local steps each for itself, else one for all."""
        return replica if self.spec.local_steps else 0

    def norm_senders(self, replica: int) -> list[Segment]:
        """Segments whose norms make up the total, in forward order."""
        return [each for each in self.segments if each.replica == replica and self._has_parameters(each)]

    def scale_readers(self, root: int) -> dict[SeatId, str]:
        """By seat: the VNode by which the frame with the scale is addressed, one frame per seat."""
        readers: dict[SeatId, str] = {}
        for segment in self.segments:
            if self.root_of(segment.replica) == root and self._has_parameters(segment):
                readers.setdefault(segment.seat, segment.first)
        return readers

    def readers_by_seat(self, vnode_id: str, replica: int) -> dict[SeatId, list[Edge]]:
        """Of what a VNode puts out: to each other seat goes one frame, named by the first of its edges."""
        readers: dict[SeatId, list[Edge]] = {}
        for edge in self.graph.consumers.get((vnode_id, 0), ()):
            readers.setdefault(self.placement.seat_of(edge.target, replica), []).append(edge)
        return readers

    def _has_parameters(self, segment: Segment) -> bool:
        return any(self.parameters[vnode_id] for vnode_id in segment.vnode_ids)


def plan_epoch(spec: NetworkSpec, graph: Graph, shapes: Shapes, placement: Placement, me: SeatId) -> EpochPlan:
    parameters = {
        vnode_id: tuple((parameter.name, parameter.element_count) for parameter in found)
        for vnode_id, found in list_parameters(spec, shapes).items()
    }
    segments = plan_segments(spec, graph, placement)
    return EpochPlan(
        spec=spec,
        graph=graph,
        shapes=shapes,
        placement=placement,
        me=me,
        segments=segments,
        segment_of={(vnode_id, each.replica): each for each in segments for vnode_id in each.vnode_ids},
        parameters=parameters,
        trained=_find_trained(graph, shapes, parameters),
    )


def list_expected(plan: EpochPlan) -> dict[FrameKey, Expected]:
    """Every kind of frame that may reach this host."""
    found: dict[FrameKey, Expected] = {}
    for key, shape, dtype, sender_replica, target_seat in _list_frames(plan):
        sender = plan.placement.find(key.source, sender_replica)
        if sender is not None and target_seat == plan.me and sender.seat != plan.me:
            found[key] = Expected(shape, dtype, sender.incarnation, sender.seat)
    return found


_Frame = tuple[FrameKey, tuple[int, ...], Dtype, int, SeatId]


def _list_frames(plan: EpochPlan) -> Iterator[_Frame]:
    """All frames between all seats: key, shape, dtype, the sender's replica, the receiver's seat."""
    for segment in plan.segments:
        for output in segment.outputs:
            yield from _list_edge_frames(plan, segment, output)
        if plan.spec.replicas > 1:
            yield from _list_sum_frames(plan, segment)
    if plan.clips:
        yield from _list_norm_frames(plan)


def _list_edge_frames(plan: EpochPlan, segment: Segment, output: Output) -> Iterator[_Frame]:
    given = plan.shapes[output.vnode_id, 0]
    shape = (plan.spec.micro_batch_size, *given.shape)
    dtype = plan.spec.wire if given.dtype is Dtype.F32 else given.dtype
    for seat, edges in plan.readers_by_seat(output.vnode_id, segment.replica).items():
        yield activation_key(edges[0], segment.replica), shape, dtype, segment.replica, seat
    for term in output.terms:
        yield gradient_key(term.name, segment.replica), shape, plan.spec.wire, segment.replica, segment.seat


def _list_sum_frames(plan: EpochPlan, segment: Segment) -> Iterator[_Frame]:
    replica = segment.replica
    if replica == 0:
        return
    for vnode_id in segment.vnode_ids:
        size = plan.count_weights(vnode_id)
        home = plan.placement.seat_of(vnode_id)
        if size:
            yield sum_key(vnode_id, source=replica, target=0), (size,), Dtype.F32, replica, home
            yield sum_key(vnode_id, source=0, target=replica), (size,), Dtype.F32, 0, segment.seat
        if vnode_id == plan.spec.loss:
            count = len(range(replica, plan.spec.micro_batches, plan.spec.replicas))
            yield losses_key(vnode_id, replica), (count,), Dtype.F32, replica, home


def _list_norm_frames(plan: EpochPlan) -> Iterator[_Frame]:
    """Floats of 64 bits cross as their bits."""
    loss = plan.spec.loss
    for root in sorted({plan.root_of(replica) for replica in range(plan.spec.replicas)}):
        for segment in plan.norm_senders(root):
            count = sum(len(plan.parameters[vnode_id]) for vnode_id in segment.vnode_ids)
            key = norms_key(segment.first, loss, root)
            yield key, (count,), Dtype.I64, root, plan.placement.seat_of(loss, root)
        for seat, vnode_id in plan.scale_readers(root).items():
            yield scale_key(loss, vnode_id, root), (1,), Dtype.I64, root, seat


def sum_key(vnode_id: str, *, source: int, target: int) -> FrameKey:
    """Between replicas of one VNode: to replica 0 a part, from it the total."""
    kind = FrameKind.REDUCE if target == 0 else FrameKind.REDUCED
    return FrameKey(kind, source or target, vnode_id, WEIGHTS_SLOT, vnode_id, WEIGHTS_SLOT)


def losses_key(loss: str, replica: int) -> FrameKey:
    return FrameKey(FrameKind.REDUCE, replica, loss, LOSSES_SLOT, loss, LOSSES_SLOT)


def norms_key(vnode_id: str, loss: str, root: int) -> FrameKey:
    return FrameKey(FrameKind.NORMS, root, vnode_id, 0, loss, 0)


def scale_key(loss: str, vnode_id: str, root: int) -> FrameKey:
    return FrameKey(FrameKind.TOTAL, root, loss, 0, vnode_id, 0)


def _find_trained(graph: Graph, shapes: Shapes, parameters: Mapping[str, Sequence[object]]) -> frozenset[str]:
    trained: set[str] = set()
    for vnode_id in graph.order:
        depends = bool(parameters[vnode_id]) or any(edge.source in trained for edge in graph.inputs[vnode_id])
        if depends and shapes[vnode_id, 0].dtype.is_float:
            trained.add(vnode_id)
    return frozenset(trained)
