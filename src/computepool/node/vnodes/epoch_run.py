"""One epoch on one host: which piece of work is next, and what it gives.

Choosing and handing on are quick and happen under the engine's lock; computing is slow and does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from torch import Tensor

from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.exchange import Exchange
from computepool.node.vnodes.frames import FrameLimits, NumbersWentWrong, check_numbers
from computepool.node.vnodes.gating import Gate, Work
from computepool.node.vnodes.gradients import Moment
from computepool.node.vnodes.hosting import HostedVNode
from computepool.node.vnodes.routes import EpochPlan
from computepool.node.vnodes.segment_run import SegmentRun
from computepool.node.vnodes.segments import Segment
from computepool.node.vnodes.updates import Phase, StepEnd, StepResult


class Job(NamedTuple):
    """A piece of work that was chosen, with all that it needs: nobody else touches these tensors any more."""

    segment: int
    work: Work
    moment: Moment
    parts: list[Tensor | None]
    scale: float = 1.0


@dataclass(slots=True)
class Outcome:
    job: Job
    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    step_result: StepResult | None = None


class EpochRun:
    def __init__(
        self,
        plan: EpochPlan,
        hosted: Mapping[tuple[str, int], HostedVNode],
        dataset: Dataset | None,
        *,
        from_step: int,
        limits: FrameLimits,
        extra_in_flight: int,
    ) -> None:
        self.from_step = from_step
        self._limits = limits

        def make_run(segment: Segment) -> SegmentRun:
            gate = Gate(
                micro_batches=range(segment.replica, plan.spec.micro_batches, plan.spec.replicas),
                in_flight_max=1 + segment.crossings * (1 + extra_in_flight),
                step=from_step,
                until_step=from_step,
            )
            vnodes = [hosted[vnode_id, segment.replica] for vnode_id in segment.vnode_ids]
            return SegmentRun(
                plan.spec, plan.graph, segment, vnodes, gate, trained=plan.trained, dataset=dataset, limits=limits
            )

        self.runs = [make_run(segment) for segment in plan.mine]
        self._ends = [StepEnd(plan, run) for run in self.runs]
        self.exchange = Exchange(plan, self._ends, from_step=from_step, limits=limits)
        # What could be done, most urgent first: kind of work, step, count within it, place in the order, segment.
        self._ready: list[tuple[Work, int, int, int, int]] = []

    def set_end(self, until_step: int) -> None:
        for run in self.runs:
            run.gate.until_step = until_step
        self.exchange.awake.update(range(len(self.runs)))

    @property
    def is_done(self) -> bool:
        return all(run.gate.step >= run.gate.until_step for run in self.runs)

    @property
    def until_step(self) -> int:
        return min((run.gate.until_step for run in self.runs), default=self.from_step)

    @property
    def closed_step(self) -> int:
        """The first step of which anything may still come or go: losses and norms can be later than updates."""
        return min((*(run.gate.step for run in self.runs), *self.exchange.list_open_steps()))

    def choose(self) -> Job | None:
        """The most urgent piece of work that has all it needs; it is taken off the shelves."""
        for index in self.exchange.awake:
            self._enlist(index)
        self.exchange.awake.clear()
        while self._ready:
            index = heappop(self._ready)[-1]
            # Something more urgent may have become possible since; or this was done under another entry.
            work = self._find_work(index)
            if work is not None:
                return self._take(index, work)
        return None

    def compute(self, job: Job) -> Outcome:
        run = self.runs[job.segment]
        if job.work is Work.BACKWARD:
            gradients = run.backward(job.moment[1], job.parts)
            self._check_gradients(run, job.moment, gradients)
            return Outcome(job, gradients=gradients)
        parts = [part for part in job.parts if part is not None]
        if job.work is Work.UPDATE:
            return Outcome(job, step_result=self._ends[job.segment].compute(parts, job.scale))
        return Outcome(job, outputs=run.forward(job.moment, parts))

    def settle(self, outcome: Outcome) -> bool:
        """Hands on what was computed; true if a step of the segment is over."""
        job = outcome.job
        self.exchange.awake.add(job.segment)
        if outcome.step_result is not None:
            return self._settle_step(job, outcome.step_result)
        if job.work is Work.BACKWARD:
            self.exchange.hand_back(job.segment, job.moment, outcome.gradients)
        else:
            self.exchange.hand_on(job.segment, job.moment, outcome.outputs)
        return False

    def _settle_step(self, job: Job, result: StepResult) -> bool:
        gate, end = self.runs[job.segment].gate, self._ends[job.segment]
        end.phase = result.wait_for or Phase.NOTHING
        self.exchange.hand_step(job.segment, gate.step, result)
        if result.wait_for is not None:
            return False
        gate.begin_next_step()
        self.exchange.forget_before(min(run.gate.step for run in self.runs))
        return True

    def _enlist(self, index: int) -> None:
        work = self._find_work(index)
        if work is None:
            return
        run = self.runs[index]
        count = run.gate.returned if work is Work.BACKWARD else run.gate.forwarded
        position = run.segment.position if work is Work.FORWARD else -run.segment.position
        heappush(self._ready, (work, run.gate.step, count, position, index))

    def _find_work(self, index: int) -> Work | None:
        run = self.runs[index]
        work = run.find_work()
        if work is Work.UPDATE and not self._ends[index].is_ready(self.exchange.scales_for(run)):
            return None
        return work

    def _take(self, index: int, work: Work) -> Job:
        run = self.runs[index]
        gate = run.gate
        if work is Work.UPDATE:
            scale = self.exchange.scales_for(run).get(gate.step, 1.0)
            return Job(index, work, (gate.step, 0), list(self._ends[index].take_sums()), scale)
        if work is Work.BACKWARD:
            moment = (gate.step, gate.micro_batches[gate.returned])
            gate.returned += 1
            return Job(index, work, moment, run.gradients.take(moment))
        moment = (gate.step, gate.micro_batches[gate.forwarded])
        gate.forwarded += 1
        return Job(index, work, moment, list(run.inputs.take(moment)))

    def _check_gradients(self, run: SegmentRun, moment: Moment, gradients: list[Tensor | None]) -> None:
        for edge, gradient in zip(run.segment.inputs, gradients, strict=True):
            fault = check_numbers(gradient, self._limits) if gradient is not None else None
            if fault is not None:
                step, micro_batch = moment
                raise NumbersWentWrong(
                    edge.target,
                    f"the gradient that VNode {edge.target} gives back to {edge.source} is no use at step {step}, "
                    f"micro-batch {micro_batch}: {fault[1]}",
                )
