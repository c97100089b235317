"""One segment at work: a micro-batch's forward and backward as one autograd graph, cut off at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from computepool.core.networks.graph import Graph
from computepool.core.networks.spec import Edge, NetworkSpec
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.frames import ANY_SIZE, FrameLimits, NumbersWentWrong, check_numbers
from computepool.node.vnodes.gating import Gate, Work
from computepool.node.vnodes.gradients import Gathering, Moment, add_in_order
from computepool.node.vnodes.hosting import HostedVNode
from computepool.node.vnodes.seams import enter, leave
from computepool.node.vnodes.segments import Segment


class VNodeFailed(Exception):
    """Its module raised: `__cause__` says what."""

    def __init__(self, vnode_id: str, step: int, micro_batch: int, cause: Exception) -> None:
        super().__init__(f"VNode {vnode_id} failed at step {step}, micro-batch {micro_batch}: {cause}")
        self.vnode_id = vnode_id


class _Feed(NamedTuple):
    """What a slot of a VNode gets: a source by name, one of the segment's inputs by number, or a VNode in it."""

    source_name: str | None = None
    number: int | None = None
    vnode_id: str = ""
    is_shared: bool = False


class _Open(NamedTuple):
    """A micro-batch between its forward and its backward."""

    leaves: list[Tensor]
    outputs: list[Tensor]


class SegmentRun:
    """State of one segment in one epoch. Whoever calls takes care that only one thread computes."""

    def __init__(
        self,
        spec: NetworkSpec,
        graph: Graph,
        segment: Segment,
        vnodes: Sequence[HostedVNode],
        gate: Gate,
        *,
        trained: frozenset[str],
        dataset: Dataset | None,
        limits: FrameLimits,
    ) -> None:
        """`trained`: VNodes whose output depends on a parameter, so that gradients flow back to it."""
        self.segment = segment
        self.vnodes = tuple(vnodes)
        self.gate = gate
        self.is_loss = spec.loss in segment.vnode_ids
        self.inputs: Gathering[Edge, Tensor] = Gathering(segment.inputs)
        self.gradients: Gathering[Edge, Tensor | None] = Gathering(
            [term.name for output in segment.outputs for term in output.terms]
        )
        # Of the step's micro-batches, each after division, in order.
        self.losses: list[float] = []
        # The last step after which its VNodes were stored.
        self.stored_step = gate.step
        # A gradient is the mean over the step, or over a replica's part of it when replicas go on their own.
        self._divisor = len(gate.micro_batches) if spec.local_steps else spec.micro_batches
        self._limits = limits
        self._needs_gradient = [edge.source in trained for edge in segment.inputs]
        self._outputs = [spec.loss] if self.is_loss else [output.vnode_id for output in segment.outputs]
        self._open: dict[int, _Open] = {}
        self._spec = spec
        self._feeds = [(vnode, _name_feeds(graph, segment, vnode.id)) for vnode in vnodes]
        # Only what is read here is picked out of the samples.
        names = {feed.source_name for _, feeds in self._feeds for feed in feeds}
        read = {name: tensor for name, tensor in (dataset.tensors if dataset else {}).items() if name in names}
        self._data = Dataset.from_tensors(read) if read else None

    def find_work(self) -> Work | None:
        """What could be done now, but for what ends a step."""
        gate = self.gate
        micro_batch = gate.next_backward
        if micro_batch is not None and self.gradients.is_complete((gate.step, micro_batch)):
            return Work.BACKWARD
        if gate.is_step_over:
            return Work.UPDATE
        micro_batch = gate.next_forward
        if micro_batch is not None and self.inputs.is_complete((gate.step, micro_batch)):
            return Work.FORWARD
        return None

    def forward(self, moment: Moment, parts: Sequence[Tensor]) -> list[Tensor]:
        """What leaves the segment, cut off, in the order of its outputs; the loss keeps its value instead."""
        step, micro_batch = moment
        leaves = [
            part.detach().requires_grad_(needs) for part, needs in zip(parts, self._needs_gradient, strict=True)
        ]
        found = dict(self._compute(step, micro_batch, leaves))
        outputs = [found[vnode_id] for vnode_id in self._outputs]
        if self.is_loss:
            self.losses.append((outputs[0] / self._spec.micro_batches).item())
            outputs = [outputs[0] / self._divisor]
        if any(check_numbers(output, ANY_SIZE if self.is_loss else self._limits) for output in outputs):
            raise self._blame(step, micro_batch, leaves)
        self._open[micro_batch] = _Open(leaves, outputs)
        return [] if self.is_loss else [output.detach() for output in outputs]

    def backward(self, micro_batch: int, parts: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the inputs, in their order; parameters keep theirs, added up over micro-batches."""
        leaves, outputs = self._open.pop(micro_batch)
        gradients = [None] if self.is_loss else self._add(parts)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad and (self.is_loss or gradient is not None)
        ]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        return [leaf.grad for leaf in leaves]

    def take_losses(self) -> list[float]:
        losses, self.losses = self.losses, []
        return losses

    def _add(self, parts: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradient of each output from its terms."""
        left = iter(parts)
        return [add_in_order(list(islice(left, len(output.terms)))) for output in self.segment.outputs]

    def _compute(self, step: int, micro_batch: int, leaves: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Every VNode with what it puts out, in forward order."""
        given = self._data.batch(self._spec, step, micro_batch) if self._data is not None else {}
        found: dict[str, Tensor] = {}
        for vnode, feeds in self._feeds:
            vnode.module.set_moment(step, micro_batch)
            try:
                output = leave(vnode.module(*_pick(feeds, leaves, given, found)))
            except Exception as error:
                raise VNodeFailed(vnode.id, step, micro_batch, error) from error
            found[vnode.id] = output
            yield vnode.id, output

    @torch.no_grad()
    def _blame(self, step: int, micro_batch: int, leaves: Sequence[Tensor]) -> NumbersWentWrong:
        """Computes once more and looks at every VNode. Their buffers suffer, but this epoch is over anyhow."""
        when = f"at step {step}, micro-batch {micro_batch}"
        for vnode_id, output in self._compute(step, micro_batch, leaves):
            is_loss = vnode_id == self._spec.loss
            fault = check_numbers(output, ANY_SIZE if is_loss else self._limits)
            if fault is not None:
                what = "the loss" if is_loss else "the output"
                return NumbersWentWrong(vnode_id, f"{what} of VNode {vnode_id} is no use {when}: {fault[1]}")
        return NumbersWentWrong(self.segment.first, f"a number in VNode {self.segment.first} went wrong {when}")


def _name_feeds(graph: Graph, segment: Segment, vnode_id: str) -> list[_Feed]:
    """By slot."""
    numbers = {edge: number for number, edge in enumerate(segment.inputs)}
    feeds = []
    for edge in graph.inputs[vnode_id]:
        is_shared = len(graph.consumers[edge.source, edge.source_slot]) > 1
        feeds.append(_Feed(edge.source_name, numbers.get(edge), edge.source, is_shared))
    return feeds


def _pick(
    feeds: Sequence[_Feed], leaves: Sequence[Tensor], given: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> list[Tensor]:
    picked = []
    for feed in feeds:
        if feed.source_name is not None:
            picked.append(given[feed.source_name])
        elif feed.number is not None:
            # A leaf has one reader: it gathers what the module's inner uses give back by itself.
            picked.append(leaves[feed.number])
        else:
            picked.append(enter(found[feed.vnode_id], is_shared=feed.is_shared))
    return picked
