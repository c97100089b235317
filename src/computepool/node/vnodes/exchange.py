"""What goes from segment to segment, on this host or by a frame to another; and what arrives, put where it belongs.

Everything here is quick and happens under the engine's lock. Whatever order frames arrive in, sums are made in the
order of the plan: the result does not depend on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from computepool.core.networks.placement import SeatId
from computepool.core.networks.schedules import total_loss
from computepool.core.networks.spec import Edge
from computepool.node.vnodes.frames import (
    FrameHead,
    FrameKind,
    FrameLimits,
    Outgoing,
    Refusal,
    RefusalCode,
    check_numbers,
    name_dtype,
)
from computepool.node.vnodes.gating import STEPS_AHEAD_MAX, Gate
from computepool.node.vnodes.gradients import Gathering, Moment, add_in_order
from computepool.node.vnodes.modules import TORCH_DTYPES
from computepool.node.vnodes.routes import (
    LOSSES_SLOT,
    EpochPlan,
    FrameKey,
    activation_key,
    gradient_key,
    key_of,
    list_expected,
    losses_key,
    norms_key,
    scale_key,
    sum_key,
)
from computepool.node.vnodes.segment_run import SegmentRun
from computepool.node.vnodes.updates import Phase, ScaleRoot, StepEnd, StepResult, floats_to_tensor, tensor_to_floats


class Wanted(NamedTuple):
    """A frame that this host waits for before it can get on."""

    seat: SeatId
    key: FrameKey
    step: int
    micro_batch: int

    def __str__(self) -> str:
        return (
            f"{self.key.kind.value} of VNode {self.key.source} on {self.seat}, step {self.step}, "
            f"micro-batch {self.micro_batch}"
        )


_Put = Callable[[FrameHead, Tensor], Refusal | None]
# Where an input's gradient goes: to a segment here by its number, or into a sum that leaves as a frame.
_GradientRoute = tuple[int, Edge] | tuple[FrameKey, Edge]


class Exchange:
    """Of one epoch of one host. `ends` are the ends of steps of its segments, in the same order as everywhere."""

    def __init__(self, plan: EpochPlan, ends: Sequence[StepEnd], *, from_step: int, limits: FrameLimits) -> None:
        self.plan = plan
        self.outbox: list[Outgoing] = []
        # Of steps that are known whole, for the engine to tell.
        self.losses: list[tuple[int, float]] = []
        # Segments for which something has changed.
        self.awake: set[int] = set(range(len(ends)))
        self._ends = ends
        self._runs = [end.run for end in ends]
        self._limits = limits
        # A replica can be ahead by a whole round before it needs the others.
        self._sums_ahead_max = max(STEPS_AHEAD_MAX, plan.spec.local_steps)
        self._index_of = {
            (vnode_id, run.segment.replica): index
            for index, run in enumerate(self._runs)
            for vnode_id in run.segment.vnode_ids
        }
        roots = sorted({plan.root_of(replica) for replica in range(plan.spec.replicas)}) if plan.clips else []
        self._scales: dict[int, dict[int, float]] = {root: {} for root in roots}
        self._roots = {
            root: ScaleRoot(plan, root, from_step) for root in roots if (plan.spec.loss, root) in self._index_of
        }
        self._losses: Gathering[int, list[float]] = Gathering(list(range(plan.spec.replicas)))
        self._loss_step = from_step
        self._readers = [
            [plan.readers_by_seat(output.vnode_id, run.segment.replica) for output in run.segment.outputs]
            for run in self._runs
        ]
        # Gradients that are added up here and leave as one frame, by its key.
        self._partial_sums: dict[FrameKey, tuple[SeatId, Gathering[Edge, Tensor | None]]] = {}
        self._gradient_routes = [
            [self._route_gradient(edge, run.segment.replica) for edge in run.segment.inputs] for run in self._runs
        ]
        self.expected = list_expected(plan)
        self._puts = {key: self._find_put(key) for key in self.expected}

    def scales_for(self, run: SegmentRun) -> dict[int, float]:
        """Of clipping, by step, as far as they are known."""
        return self._scales.get(self.plan.root_of(run.segment.replica), {})

    def list_open_steps(self) -> list[int]:
        """Of what is gathered here for others, each the first step that is not whole."""
        tells_loss = (self.plan.spec.loss, 0) in self._index_of
        return [*(root.step for root in self._roots.values()), *([self._loss_step] if tells_loss else [])]

    # From segment to segment

    def hand_on(self, index: int, moment: Moment, outputs: Sequence[Tensor]) -> None:
        replica = self._runs[index].segment.replica
        for output, readers in zip(outputs, self._readers[index], strict=True):
            for seat, edges in readers.items():
                if seat != self.plan.me:
                    self._send(seat, activation_key(edges[0], replica), moment, output)
                    continue
                for edge in edges:
                    self._put_input(edge, replica, moment, output)

    def hand_back(self, index: int, moment: Moment, gradients: Sequence[Tensor | None]) -> None:
        for (where, edge), gradient in zip(self._gradient_routes[index], gradients, strict=True):
            if isinstance(where, int):
                self._runs[where].gradients.put(moment, edge, gradient)
                self.awake.add(where)
                continue
            seat, parts = self._partial_sums[where]
            parts.put(moment, edge, gradient)
            if parts.is_complete(moment):
                total = add_in_order(parts.take(moment))
                # An empty tensor says that there is no gradient: whoever made the tensor need not keep it any longer.
                self._send(seat, where, moment, total if total is not None else torch.empty(0))

    def hand_step(self, index: int, step: int, result: StepResult) -> None:
        run = self._runs[index]
        replica = run.segment.replica
        if run.is_loss and run.losses:
            self._hand_losses(step, replica, run.take_losses())
        for vnode_id, part in result.parts.items():
            self._hand_sum(vnode_id, step, part, source=replica, target=0)
        for vnode_id, total in result.totals.items():
            for other in range(1, self.plan.spec.replicas):
                self._hand_sum(vnode_id, step, total, source=0, target=other)
        if result.norms is not None and self.plan.root_of(replica) == replica:
            self._hand_norms(run.segment.first, replica, step, result.norms)

    def forget_before(self, step: int) -> None:
        """No segment here needs scales of earlier steps any more."""
        for scales in self._scales.values():
            for old in [each for each in scales if each < step]:
                del scales[old]

    def _hand_sum(self, vnode_id: str, step: int, tensor: Tensor, *, source: int, target: int) -> None:
        seat = self.plan.placement.seat_of(vnode_id, target)
        if seat != self.plan.me:
            key = sum_key(vnode_id, source=source, target=target)
            self._send(seat, key, (step, 0), tensor, sender_replica=source)
            return
        index = self._index_of[vnode_id, target]
        self._ends[index].sums.put((step, 0), (vnode_id, source), tensor)
        self.awake.add(index)

    def _hand_losses(self, step: int, replica: int, losses: list[float]) -> None:
        loss = self.plan.spec.loss
        seat = self.plan.placement.seat_of(loss)
        if seat != self.plan.me:
            self._send(seat, losses_key(loss, replica), (step, 0), torch.tensor(losses))
            return
        self._losses.put((step, 0), replica, losses)
        self._tell_losses()

    def _tell_losses(self) -> None:
        while self._losses.is_complete((self._loss_step, 0)):
            parts = self._losses.take((self._loss_step, 0))
            self.losses.append((self._loss_step, total_loss([loss for part in parts for loss in part])))
            self._loss_step += 1

    def _hand_norms(self, vnode_id: str, replica: int, step: int, norms: list[float]) -> None:
        root = self._roots.get(replica)
        if root is None:
            loss = self.plan.spec.loss
            key = norms_key(vnode_id, loss, replica)
            self._send(self.plan.placement.seat_of(loss, replica), key, (step, 0), floats_to_tensor(norms))
            return
        root.norms.put((step, 0), vnode_id, norms)
        self._tell_scale(replica, root)

    def _tell_scale(self, replica: int, root: ScaleRoot) -> None:
        step = root.step
        scale = root.take_scale()
        if scale is None:
            return
        for seat, vnode_id in self.plan.scale_readers(replica).items():
            if seat == self.plan.me:
                self._put_scale(replica, step, scale)
            else:
                key = scale_key(self.plan.spec.loss, vnode_id, replica)
                self._send(seat, key, (step, 0), floats_to_tensor([scale]))

    def _put_scale(self, root: int, step: int, scale: float) -> None:
        self._scales[root][step] = scale
        self.awake.update(range(len(self._runs)))

    def _put_input(self, edge: Edge, replica: int, moment: Moment, tensor: Tensor) -> bool:
        index = self._index_of[edge.target, replica]
        self.awake.add(index)
        return self._runs[index].inputs.put(moment, edge, tensor)

    def _route_gradient(self, edge: Edge, replica: int) -> _GradientRoute:
        producer = self.plan.segment_of[edge.source, replica]
        if producer.seat == self.plan.me:
            return self._index_of[edge.source, replica], edge
        output = next(output for output in producer.outputs if output.vnode_id == edge.source)
        term = next(term for term in output.terms if edge in term.edges)
        key = gradient_key(term.name, replica)
        self._partial_sums.setdefault(key, (producer.seat, Gathering(term.edges)))
        return key, edge

    def _send(
        self, seat: SeatId, key: FrameKey, moment: Moment, tensor: Tensor, *, sender_replica: int | None = None
    ) -> None:
        """`sender_replica`: where it is not the one that the frame is named by."""
        placement = self.plan.placement
        if key.kind in (FrameKind.ACTIVATION, FrameKind.GRADIENT) and tensor.dtype == torch.float32:
            tensor = tensor.to(TORCH_DTYPES[self.plan.spec.wire])
        replica = key.replica if sender_replica is None else sender_replica
        head = FrameHead(
            run_id=placement.run_id,
            epoch=placement.epoch,
            kind=key.kind,
            source=key.source,
            source_slot=key.source_slot,
            target=key.target,
            target_slot=key.target_slot,
            replica=key.replica,
            incarnation=placement.incarnation_of(key.source, replica),
            step=moment[0],
            micro_batch=moment[1],
            dtype=name_dtype(tensor),
            shape=tuple(tensor.shape),
        )
        self.outbox.append(Outgoing(seat, head, tensor.cpu().contiguous()))

    # Frames that arrive

    def check(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        """All that can be said of a frame without looking at the state of the run; needs no lock."""
        expected = self.expected.get(key_of(head))
        if expected is None:
            return Refusal(RefusalCode.NO_SUCH_EDGE, f"{head}: nothing like that is sent to {self.plan.me}")
        if head.incarnation != expected.incarnation:
            return Refusal(
                RefusalCode.STALE_INCARNATION,
                f"{head}: sent by incarnation {head.incarnation} of VNode {head.source}; "
                f"{expected.incarnation} is in charge",
            )
        if head.dtype is not expected.dtype or name_dtype(tensor) is not expected.dtype:
            return Refusal(
                RefusalCode.WRONG_DTYPE, f"{head}: dtype {head.dtype.value}; it should be {expected.dtype.value}"
            )
        is_empty = head.kind is FrameKind.GRADIENT and head.shape == (0,)
        if (head.shape != expected.shape and not is_empty) or tuple(tensor.shape) != head.shape:
            return Refusal(
                RefusalCode.WRONG_SHAPE, f"{head}: shape {list(head.shape)}; it should be {list(expected.shape)}"
            )
        size_bytes = tensor.numel() * tensor.element_size()
        if size_bytes > self._limits.bytes_max:
            return Refusal(RefusalCode.TOO_LARGE, f"{head}: {size_bytes} bytes; at most {self._limits.bytes_max}")
        if head.kind in (FrameKind.NORMS, FrameKind.TOTAL):
            fault = None if _are_norms(tensor) else (RefusalCode.NOT_FINITE, "a norm is finite and at least 0")
        else:
            fault = check_numbers(tensor, self._limits)
        return Refusal(fault[0], f"{head}: {fault[1]}") if fault is not None else None

    def put(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        """Takes a frame that passed `check`, unless it came before or is of another time."""
        return self._puts[key_of(head)](head, tensor)

    def _find_put(self, key: FrameKey) -> _Put:
        if key.kind is FrameKind.ACTIVATION:
            return self._make_activation_put(key)
        if key.kind is FrameKind.GRADIENT:
            return self._make_gradient_put(key)
        if key.kind is FrameKind.NORMS:
            return self._make_norms_put(key)
        if key.kind is FrameKind.TOTAL:
            return self._make_scale_put(key)
        return self._put_losses if key.source_slot == LOSSES_SLOT else self._make_sum_put(key)

    def _make_activation_put(self, key: FrameKey) -> _Put:
        edges = self.plan.readers_by_seat(key.source, key.replica)[self.plan.me]
        gate = self._runs[self._index_of[edges[0].target, key.replica]].gate

        def put(head: FrameHead, tensor: Tensor) -> Refusal | None:
            moment = (head.step, head.micro_batch)
            refusal = _refuse_moment(head, gate, is_over=gate.has_forwarded(*moment))
            if refusal is not None:
                return refusal
            fresh = [self._put_input(edge, key.replica, moment, tensor) for edge in edges]
            return None if all(fresh) else _repeat(head)

        return put

    def _make_gradient_put(self, key: FrameKey) -> _Put:
        index = self._index_of[key.target, key.replica]
        run = self._runs[index]
        edge = Edge(key.target, key.source, key.target_slot, key.source_slot)

        def put(head: FrameHead, tensor: Tensor) -> Refusal | None:
            moment = (head.step, head.micro_batch)
            refusal = _refuse_moment(head, run.gate, is_over=run.gate.has_returned(*moment))
            if refusal is not None:
                return refusal
            self.awake.add(index)
            # It may come before our own forward, when somebody replays: it waits here.
            return None if run.gradients.put(moment, edge, tensor if tensor.numel() else None) else _repeat(head)

        return put

    def _make_sum_put(self, key: FrameKey) -> _Put:
        is_part = key.kind is FrameKind.REDUCE
        index = self._index_of[key.target, 0 if is_part else key.replica]
        name = (key.target, key.replica if is_part else 0)
        end = self._ends[index]

        def put(head: FrameHead, tensor: Tensor) -> Refusal | None:
            refusal = _refuse_step(head, end.sum_step, self._sums_ahead_max)
            if refusal is not None:
                return refusal
            self.awake.add(index)
            return None if end.sums.put((head.step, 0), name, tensor) else _repeat(head)

        return put

    def _put_losses(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        refusal = _refuse_step(head, self._loss_step, self._sums_ahead_max)
        if refusal is not None:
            return refusal
        is_fresh = self._losses.put((head.step, 0), head.replica, tensor.tolist())
        self._tell_losses()
        return None if is_fresh else _repeat(head)

    def _make_norms_put(self, key: FrameKey) -> _Put:
        root = self._roots[key.replica]

        def put(head: FrameHead, tensor: Tensor) -> Refusal | None:
            refusal = _refuse_step(head, root.step, STEPS_AHEAD_MAX)
            if refusal is not None:
                return refusal
            is_fresh = root.norms.put((head.step, 0), head.source, tensor_to_floats(tensor))
            self._tell_scale(key.replica, root)
            return None if is_fresh else _repeat(head)

        return put

    def _make_scale_put(self, key: FrameKey) -> _Put:
        scales = self._scales[key.replica]
        gates = [run.gate for run in self._runs if self.plan.root_of(run.segment.replica) == key.replica]

        def put(head: FrameHead, tensor: Tensor) -> Refusal | None:
            refusal = _refuse_step(head, min(gate.step for gate in gates), STEPS_AHEAD_MAX)
            if refusal is not None:
                return refusal
            if head.step in scales:
                return _repeat(head)
            self._put_scale(key.replica, head.step, tensor_to_floats(tensor)[0])
            return None

        return put

    # What is waited for

    def list_wanted(self) -> list[Wanted]:
        """Frames of others without which nothing here can get on, in order of segments."""
        return [wanted for end in self._ends for wanted in self._list_missing(end)]

    def _list_missing(self, end: StepEnd) -> list[Wanted]:
        run = end.run
        gate, replica = run.gate, run.segment.replica
        found: list[tuple[FrameKey, int]] = []
        if gate.next_backward is not None:
            missing = run.gradients.missing((gate.step, gate.next_backward))
            found += [(gradient_key(edge, replica), gate.next_backward) for edge in missing]
        if gate.next_forward is not None:
            arrived = run.inputs.missing((gate.step, gate.next_forward))
            found += [(self._name_activation(edge, replica), gate.next_forward) for edge in arrived]
        if gate.is_step_over and end.phase in (Phase.SUM, Phase.AVERAGE):
            senders = end.sums.missing((gate.step, 0))
            found += [(sum_key(vnode_id, source=other, target=replica), 0) for vnode_id, other in senders]
        if gate.is_step_over and end.phase is Phase.SCALE and gate.step not in self.scales_for(run):
            found += [(key, 0) for key in self._list_missing_norms(self.plan.root_of(replica), gate.step)]
        return [
            Wanted(self.expected[key].seat, key, gate.step, micro_batch)
            for key, micro_batch in found
            if key in self.expected
        ]

    def _list_missing_norms(self, root: int, step: int) -> list[FrameKey]:
        loss = self.plan.spec.loss
        if root in self._roots:
            return [norms_key(vnode_id, loss, root) for vnode_id in self._roots[root].norms.missing((step, 0))]
        return [scale_key(loss, self.plan.scale_readers(root)[self.plan.me], root)]

    def _name_activation(self, edge: Edge, replica: int) -> FrameKey:
        """One frame serves all readers here: it is named by the first of them."""
        return activation_key(self.plan.readers_by_seat(edge.source, replica)[self.plan.me][0], replica)


def _refuse_moment(head: FrameHead, gate: Gate, *, is_over: bool) -> Refusal | None:
    if head.micro_batch not in gate.micro_batches:
        return Refusal(RefusalCode.NO_SUCH_EDGE, f"{head}: replica {head.replica} has no such micro-batch")
    if is_over:
        return _repeat(head)
    if head.step > gate.step + STEPS_AHEAD_MAX:
        return Refusal(RefusalCode.TOO_FAR_AHEAD, f"{head}: this host is at step {gate.step}")
    return None


def _refuse_step(head: FrameHead, step: int, ahead_max: int) -> Refusal | None:
    """Of frames that come once per step."""
    if head.micro_batch != 0:
        return Refusal(RefusalCode.NO_SUCH_EDGE, f"{head}: it is of a whole step, so of micro-batch 0")
    if head.step < step:
        return _repeat(head)
    if head.step > step + ahead_max:
        return Refusal(RefusalCode.TOO_FAR_AHEAD, f"{head}: this host is at step {step}")
    return None


def _repeat(head: FrameHead) -> Refusal:
    return Refusal(RefusalCode.REPEATED, f"{head}: it came before, or that step is over")


def _are_norms(tensor: Tensor) -> bool:
    return all(isfinite(value) and value >= 0.0 for value in tensor_to_floats(tensor))
