"""How a step ends for a segment: gradients of all replicas summed, the norm of all of them known, then the update.

The sum of replicas is made where replica 0 lives, in the order of replicas; the scale of clipping where the loss
lives, from the norms of all parameters in the order of the uncut network. Nothing else is waited for. With local
steps replicas do all of that alone, and average their weights at the end of a round.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite

import torch
from torch import Tensor

from computepool.node.vnodes.frames import NumbersWentWrong
from computepool.node.vnodes.gradients import Gathering, add_in_order, flatten
from computepool.node.vnodes.local_steps import is_round_over
from computepool.node.vnodes.optimizers import clip_scale
from computepool.node.vnodes.routes import EpochPlan
from computepool.node.vnodes.segment_run import SegmentRun


class Phase(Enum):
    """What a segment whose micro-batches are all back waits for."""

    NOTHING = "nothing"
    # Of gradients, before the update.
    SUM = "sum"
    SCALE = "scale"
    # Of weights, after it.
    AVERAGE = "average"


@dataclass(slots=True)
class StepResult:
    """What a piece of the end of a step gave, to be handed on."""

    # What to wait for now; None: the step is over.
    wait_for: Phase | None = None
    # By VNode, for replica 0: this replica's gradients, or its weights at the end of a round.
    parts: dict[str, Tensor] = field(default_factory=dict)
    # By VNode, from replica 0: what came of all the parts.
    totals: dict[str, Tensor] = field(default_factory=dict)
    norms: list[float] | None = None


class StepEnd:
    """Of one segment of this host."""

    def __init__(self, plan: EpochPlan, run: SegmentRun) -> None:
        self.run = run
        self.phase = Phase.NOTHING
        self.trainable = [vnode for vnode in run.vnodes if vnode.parameters]
        self._spec = plan.spec
        self._is_home = run.segment.replica == 0
        others = range(1, plan.spec.replicas) if self._is_home else range(1)
        self._has_others = plan.spec.replicas > 1 and bool(self.trainable)
        # By VNode and the replica that sends: the others' parts at replica 0, what came of them elsewhere.
        self.sums: Gathering[tuple[str, int], Tensor] = Gathering(
            [(vnode.id, other) for vnode in self.trainable for other in others] if self._has_others else []
        )
        # The first step whose sum was not taken yet.
        self.sum_step = run.gate.step

    def is_ready(self, scales: dict[int, float]) -> bool:
        if self.phase in (Phase.SUM, Phase.AVERAGE):
            return self.sums.is_complete((self.run.gate.step, 0))
        return self.phase is Phase.NOTHING or self.run.gate.step in scales

    def take_sums(self) -> list[Tensor]:
        if self.phase not in (Phase.SUM, Phase.AVERAGE):
            return []
        self.sum_step = self.run.gate.step + 1
        return self.sums.take((self.run.gate.step, 0))

    def compute(self, parts: Sequence[Tensor], scale: float) -> StepResult:
        """The next piece, and all after it that need not wait."""
        if self.phase is Phase.AVERAGE:
            return StepResult(totals=self._average(parts))
        if self.phase is Phase.NOTHING and self._has_others and self._spec.local_steps == 0:
            own = {} if self._is_home else {vnode.id: flatten(vnode.gradients()) for vnode in self.trainable}
            return StepResult(wait_for=Phase.SUM, parts=own)
        totals = self._sum(parts) if self.phase is Phase.SUM else {}
        if self.phase is not Phase.SCALE and self.trainable and self._spec.optimizer.clip_norm is not None:
            return StepResult(wait_for=Phase.SCALE, totals=totals, norms=self._list_norms())
        self._update(scale)
        if self._has_others and is_round_over(self._spec.local_steps, self.run.gate.step):
            own = {} if self._is_home else {vnode.id: vnode.flat_weights() for vnode in self.trainable}
            return StepResult(wait_for=Phase.AVERAGE, parts=own)
        return StepResult(totals=totals)

    def _sum(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        totals = {}
        for vnode, given in zip(self.trainable, self._deal(parts), strict=True):
            total = add_in_order([flatten(vnode.gradients()), *given]) if self._is_home else given[0]
            if total is None:
                raise RuntimeError(f"VNode {vnode.id} has no gradients to add")
            totals[vnode.id] = total
            vnode.set_gradients(total)
        return totals if self._is_home else {}

    def _average(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        totals = {}
        for vnode, given in zip(self.trainable, self._deal(parts), strict=True):
            totals[vnode.id] = vnode.average([vnode.flat_weights(), *given]) if self._is_home else given[0]
            vnode.set_weights(totals[vnode.id])
        return totals if self._is_home else {}

    def _deal(self, parts: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """The parts of each VNode, in the order of replicas."""
        count = len(parts) // len(self.trainable)
        return [parts[number * count : (number + 1) * count] for number in range(len(self.trainable))]

    def _list_norms(self) -> list[float]:
        found = []
        for vnode in self.trainable:
            norms = dict(vnode.optimizer.norms())
            for name, _ in vnode.parameters:
                norm = norms.get(name, 0.0)
                if not isfinite(norm):
                    step = self.run.gate.step
                    text = f"the gradient of {name} (VNode {vnode.id}) holds NaN or infinity at step {step}"
                    raise NumbersWentWrong(vnode.id, text)
                found.append(norm)
        return found

    def _update(self, scale: float) -> None:
        for vnode in self.trainable:
            vnode.optimizer.step(self.run.gate.step, scale)
            vnode.optimizer.zero_grad()


class ScaleRoot:
    """At the host of the loss: norms of all segments come in, and the scale of the step's gradients goes out."""

    def __init__(self, plan: EpochPlan, replica: int, from_step: int) -> None:
        self._plan = plan
        self._senders = {segment.first: segment.vnode_ids for segment in plan.norm_senders(replica)}
        self.norms: Gathering[str, list[float]] = Gathering(list(self._senders))
        self.step = from_step

    def take_scale(self) -> float | None:
        """Of the current step, once all norms are there; the next step is current then."""
        moment = (self.step, 0)
        if not self.norms.is_complete(moment):
            return None
        found: dict[str, list[float]] = {}
        for vnode_ids, norms in zip(self._senders.values(), self.norms.take(moment), strict=True):
            left = list(norms)
            for vnode_id in vnode_ids:
                count = len(self._plan.parameters[vnode_id])
                found[vnode_id], left = left[:count], left[count:]
        self.step += 1
        # The order of parameters is not that of segments, where branches are interleaved.
        ordered = [norm for vnode_id in self._plan.graph.order for norm in found.get(vnode_id, [])]
        return clip_scale(self._plan.spec.optimizer, ordered)


def floats_to_tensor(values: Sequence[float]) -> Tensor:
    """As the bits of 64-bit floats, so that nothing is rounded on the way."""
    bits = struct.unpack(f"<{len(values)}q", struct.pack(f"<{len(values)}d", *values))
    return torch.tensor(bits, dtype=torch.int64)


def tensor_to_floats(tensor: Tensor) -> list[float]:
    bits = tensor.tolist()
    return list(struct.unpack(f"<{len(bits)}d", struct.pack(f"<{len(bits)}q", *bits)))
