"""One host's part of a run: it is driven, computes on one thread, and never waits for a network.

Whoever drives it calls `run_ready` as long as there is something to do, carries the frames that come out to their
seats, and hands in those that arrive with `receive`, from any thread. A run's owner brings it from epoch to epoch:
`prepare` on all hosts first, `start` when all are prepared. Frames may arrive before either; those of an older epoch
or incarnation are refused, those of a newer epoch wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from computepool.core.networks.graph import draw_graph
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import Placement, SeatId, list_placement_faults
from computepool.core.networks.shapes import infer_shapes, list_inputs
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import (
    Checkpoint,
    CheckpointUnreadable,
    CheckpointWriter,
    Packed,
    Snapshot,
    pack,
    take_snapshot,
)
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.digests import SeatDigests, digest_tensor
from computepool.node.vnodes.epoch_run import EpochRun, Job
from computepool.node.vnodes.events import (
    CheckpointReady,
    DigestKnown,
    Event,
    FaultFound,
    LossKnown,
    StepEnded,
)
from computepool.node.vnodes.exchange import Wanted
from computepool.node.vnodes.frames import (
    FrameHead,
    FrameLimits,
    NumbersWentWrong,
    Outgoing,
    Refusal,
    RefusalCode,
)
from computepool.node.vnodes.hosting import HostedVNode
from computepool.node.vnodes.routes import EpochPlan, key_of, list_expected, plan_epoch
from computepool.node.vnodes.segment_run import VNodeFailed


class Progress(NamedTuple):
    """Alive is not the same as getting on: `watermark` grows with every piece of work that was done."""

    epoch: int
    # Of the segment that is furthest behind: its step, and how many of its micro-batches are back.
    step: int
    micro_batch: int
    watermark: int
    is_done: bool


class Engine:
    def __init__(
        self,
        spec: NetworkSpec,
        placement: Placement,
        me: SeatId,
        dataset: Dataset | None,
        *,
        on_event: Callable[[Event], None],
        device: str = "cpu",
        limits: FrameLimits | None = None,
        extra_in_flight: int = 0,
        records_digests: bool = True,
    ) -> None:
        """`on_event` is called from the thread that computes and from the one that writes checkpoints; it must be
        quick, and nothing here waits for what becomes of an event.

        `extra_in_flight`: forwards more per crossing than hosts on the way, for links whose delay is like the work of
        a micro-batch. It costs memory and changes no result.
        """
        self._spec = spec
        self._graph = draw_graph(spec)
        self._shapes = infer_shapes(spec)
        self._inputs = list_inputs(spec, self._shapes)
        self._placement = placement
        self._me = me
        self._dataset = dataset
        self._on_event = on_event
        self._device = torch.device(device)
        self._limits = limits or FrameLimits()
        self._extra_in_flight = extra_in_flight
        self._records_digests = records_digests
        self._hosted: dict[tuple[str, int], HostedVNode] = {}
        self._epoch = 0
        self._run: EpochRun | None = None
        self._digests = SeatDigests(0)
        self._early: list[tuple[FrameHead, Tensor]] = []
        self._watermark = 0
        self._has_fault = False
        self._ended_step = 0
        self._writer = CheckpointWriter(self._tell_checkpoint, self._tell_failed_checkpoint)
        # The first is held for a piece of work or a change of epoch, the second for moments: the shelves.
        self._computing = threading.RLock()
        self._lock = threading.Lock()

    # Orders

    def prepare(
        self,
        epoch: int,
        checkpoint: Checkpoint | None = None,
        *,
        placement: Placement | None = None,
        dataset: Dataset | None = None,
    ) -> None:
        """Builds or reloads this host's VNodes and waits for the start; frames of the epoch are taken from now on.

        Without a checkpoint everything is as the seed has it. Raises CheckpointUnreadable, or ValueError for an order
        that cannot be followed, and stays as it was.
        """
        with self._computing:
            placement = self._placement if placement is None else placement
            if epoch < self._epoch or placement.epoch != epoch:
                raise ValueError(f"epoch {epoch} with a placement of epoch {placement.epoch}; this is {self._epoch}")
            faults = list_placement_faults(self._spec, placement)
            if faults:
                raise ValueError(f"the placement of run {placement.run_id} is not whole: {'; '.join(faults)}")
            dataset = self._dataset if dataset is None else dataset
            plan = plan_epoch(self._spec, self._graph, self._shapes, placement, self._me)
            self._check_samples(placement, dataset)
            self._check_sizes(plan)
            from_step = checkpoint.step if checkpoint is not None else 0
            hosted = self._host_all(placement, checkpoint, plan.list_parameter_names)
            run = EpochRun(
                plan,
                hosted,
                dataset,
                from_step=from_step,
                limits=self._limits,
                extra_in_flight=self._extra_in_flight,
            )
            with self._lock:
                self._hosted, self._placement, self._epoch, self._run = hosted, placement, epoch, run
                self._digests = SeatDigests(from_step)
                early, self._early = self._early, []
            self._dataset, self._has_fault, self._ended_step = dataset, False, from_step
        for head, tensor in early:
            self.receive(head, tensor)

    def start(self, from_step: int, until_step: int) -> bool:
        """Steps from `from_step` up to, without, `until_step`. Repeated in an epoch, it moves the end.

        False if this host has begun the step before which it should stop.
        """
        with self._computing:
            run = self._get_run()
            if from_step != run.from_step:
                raise ValueError(f"prepared from step {run.from_step}, so it cannot start from {from_step}")
            if any(_is_past(each.gate.step, each.gate.forwarded, until_step) for each in run.runs):
                return False
            with self._lock:
                run.set_end(until_step)
            for index, each in enumerate(run.runs):
                # It stood at the new end already, when that was no end.
                if each.gate.step == until_step > from_step and each.stored_step != until_step:
                    self._store(run, index)
            return True

    def drop(self) -> None:
        """Forgets all VNodes and frees their memory; the next `prepare` builds them anew."""
        with self._computing, self._lock:
            self._hosted, self._run, self._early = {}, None, []

    def close(self) -> None:
        self.drop()
        self._writer.close()

    # Frames

    def receive(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        """None: taken. A refusal changes nothing here."""
        if head.run_id != self._placement.run_id:
            return Refusal(RefusalCode.FOREIGN_RUN, f"{head}: of run {head.run_id}; this is {self._placement.run_id}")
        with self._lock:
            run = self._run
            if head.epoch != self._epoch or run is None:
                return self._keep_early(head, tensor)
        refusal = run.exchange.check(head, tensor)
        if refusal is not None:
            return refusal
        digest = digest_tensor(tensor) if self._records_digests else b""
        tensor = tensor.to(self._device, torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype)
        with self._lock:
            if self._run is not run:
                return self._refuse_epoch(head)
            refusal = run.exchange.put(head, tensor)
            if refusal is None and self._records_digests:
                self._digests.record_received(run.exchange.expected[key_of(head)].seat, head, digest)
            return refusal

    # Work

    def run_ready(self) -> list[Outgoing] | None:
        """Does the next piece of work that has all it needs and returns the frames to send, which may be none.

        None: there is nothing to do until a frame or an order comes.
        """
        with self._computing:
            run = self._run
            if run is None or self._has_fault:
                return None
            with self._lock:
                job = run.choose()
            if job is not None:
                try:
                    self._do(run, job)
                except Exception as error:
                    # Whoever drives this must not die of it: a host that beats and does nothing is hard to find.
                    self._stop(run, job, error)
                    return None
            with self._lock:
                frames, run.exchange.outbox = run.exchange.outbox, []
                losses, run.exchange.losses = run.exchange.losses, []
                closed_step = run.closed_step if run.runs else run.from_step
            for step, loss in losses:
                self._on_event(LossKnown(self._epoch, step, loss))
            if self._records_digests:
                self._record(run, frames, losses, closed_step)
            return None if job is None and not frames else frames

    @property
    def progress(self) -> Progress:
        run = self._run
        if run is None or not run.runs:
            return Progress(self._epoch, 0, 0, self._watermark, is_done=run is not None)
        gate = min((each.gate for each in run.runs), key=lambda gate: (gate.step, gate.returned))
        return Progress(self._epoch, gate.step, gate.returned, self._watermark, run.is_done)

    @property
    def prepared_epoch(self) -> int:
        """0: there is nothing that could be started."""
        return self._epoch if self._run is not None else 0

    def list_wanted(self) -> list[Wanted]:
        """Frames of others that this host cannot get on without: who is stuck, seen from here."""
        with self._lock:
            return self._run.exchange.list_wanted() if self._run is not None and not self._run.is_done else []

    def snapshot(self) -> list[Packed]:
        """All VNodes of replica 0 here as they are now, between two steps."""
        with self._computing:
            run = self._get_run()
            steps = {each.gate.step for each in run.runs}
            if len(steps) > 1 or any(not each.gate.is_between_steps for each in run.runs):
                raise ValueError("a snapshot is taken between two steps: start with an end and wait for it")
            return [
                pack(take_snapshot(vnode.id, step, vnode.tensors()))
                for step in steps
                for vnode in self._hosted.values()
                if vnode.replica == 0
            ]

    def flush(self, seconds: float) -> None:
        """Returns when all checkpoints that were taken are told of."""
        self._writer.flush(seconds)

    def _do(self, run: EpochRun, job: Job) -> None:
        outcome = run.compute(job)
        with self._lock:
            has_ended = run.settle(outcome)
        self._watermark += 1
        if has_ended:
            self._end_step(run, job.segment)

    # Ends of steps

    def _end_step(self, run: EpochRun, index: int) -> None:
        segment_run = run.runs[index]
        step = segment_run.gate.step
        if step % self._spec.checkpoint_every == 0 or step == segment_run.gate.until_step:
            self._store(run, index)
        ended = min(each.gate.step for each in run.runs)
        for each in range(self._ended_step, ended):
            self._on_event(StepEnded(self._epoch, each))
        self._ended_step = ended

    def _store(self, run: EpochRun, index: int) -> None:
        """Copies the segment's VNodes at once; the bytes are made in the background."""
        segment_run = run.runs[index]
        step = segment_run.gate.step
        segment_run.stored_step = step
        count = sum(vnode.replica == 0 for vnode in self._hosted.values())
        for vnode in segment_run.vnodes:
            if vnode.replica == 0:
                snapshot = take_snapshot(vnode.id, step, vnode.tensors())
                self._writer.submit(snapshot, epoch=self._epoch, vnodes=count)

    def _record(
        self, run: EpochRun, frames: list[Outgoing], losses: list[tuple[int, float]], closed_step: int
    ) -> None:
        """What leaves, and what is told of it at the steps that are stored."""
        sent = [(frame.seat, frame.head, digest_tensor(frame.tensor)) for frame in frames]
        spans = []
        with self._lock:
            digests = self._digests
            for seat, head, digest in sent:
                digests.record_sent(seat, head, digest)
            for step, loss in losses:
                digests.record_loss(step, loss)
            while digests.step < closed_step:
                digests.close_step()
                if digests.step % self._spec.checkpoint_every == 0:
                    spans.append(digests.take(self._epoch))
            if digests.from_step < digests.step == run.until_step:
                spans.append(digests.take(self._epoch))
        for span in spans:
            self._on_event(DigestKnown(span))

    def _tell_checkpoint(self, packed: Packed, epoch: int) -> None:
        self._on_event(
            CheckpointReady(epoch, packed.step, packed.vnode_id, packed.content, packed.sha256, packed.digest)
        )

    def _tell_failed_checkpoint(self, snapshot: Snapshot, epoch: int, error: Exception) -> None:
        self._on_event(
            FaultFound(epoch, snapshot.vnode_id, snapshot.step, 0, _name_code(error), f"checkpoint: {error}")
        )

    # Epochs

    def _host_all(
        self,
        placement: Placement,
        checkpoint: Checkpoint | None,
        list_parameter_names: Callable[[str], list[str]],
    ) -> dict[tuple[str, int], HostedVNode]:
        """VNodes that stay are loaded in place; without a checkpoint all are built, since the seed is their state."""
        hosted, loaded = {}, []
        for location in placement.at(self._me):
            key = (location.vnode_id, location.replica)
            vnode = self._hosted.get(key) if checkpoint is not None else None
            if vnode is None:
                vnode = HostedVNode(
                    self._spec,
                    location.vnode_id,
                    self._inputs[location.vnode_id],
                    list_parameter_names(location.vnode_id),
                    replica=location.replica,
                    device=self._device,
                )
            if checkpoint is not None:
                if location.vnode_id not in checkpoint.contents:
                    raise CheckpointUnreadable(f"the checkpoint lacks VNode {location.vnode_id}")
                loaded.append((vnode, vnode.read(checkpoint.contents[location.vnode_id])))
            hosted[key] = vnode
        # Only when all of it was found good: a host whose checkpoint is not stays as it was.
        for vnode, tensors in loaded:
            vnode.load(tensors)
        return hosted

    def _check_samples(self, placement: Placement, dataset: Dataset | None) -> None:
        mine = tuple(location.vnode_id for location in placement.at(self._me))
        held = list(dataset.tensors) if dataset is not None else []
        missing = [name for name in self._graph.source_names(mine) if name not in held]
        if missing:
            raise ValueError(f"VNodes here read {', '.join(missing)}; the data has {', '.join(held) or 'nothing'}")

    def _check_sizes(self, plan: EpochPlan) -> None:
        """What nobody would take is better known before the first step than at its end."""
        for key, expected in list_expected(plan).items():
            size_bytes = prod(expected.shape) * expected.dtype.size_bytes
            if size_bytes > self._limits.bytes_max:
                raise ValueError(
                    f"{key.kind.value} frames of VNode {key.source} have {size_bytes} bytes, and at most "
                    f"{self._limits.bytes_max} are taken: make the VNode smaller, or the micro-batches"
                )

    def _keep_early(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        """A neighbour that was prepared before us: what it sends is kept, within limits, until we are."""
        if head.epoch <= self._epoch:
            return self._refuse_epoch(head)
        held_bytes = sum(kept.numel() * kept.element_size() for _, kept in self._early)
        size_bytes = tensor.numel() * tensor.element_size()
        is_full = len(self._early) >= self._limits.early_frames_max
        if is_full or held_bytes + size_bytes > self._limits.early_bytes_max:
            return Refusal(
                RefusalCode.TOO_EARLY,
                f"{head}: of epoch {head.epoch}, which is not prepared here, and no room is left",
            )
        self._early.append((head, tensor))
        return None

    def _refuse_epoch(self, head: FrameHead) -> Refusal:
        return Refusal(RefusalCode.STALE_EPOCH, f"{head}: of epoch {head.epoch}; this is {self._epoch}")

    def _get_run(self) -> EpochRun:
        if self._run is None:
            raise ValueError("not prepared")
        return self._run

    def _stop(self, run: EpochRun, job: Job, error: Exception) -> None:
        """The epoch is over for this host; the run's owner decides what comes next."""
        self._has_fault = True
        vnode_id = run.runs[job.segment].segment.first
        if isinstance(error, NumbersWentWrong | VNodeFailed):
            vnode_id = error.vnode_id
        message = str(error) or type(error).__name__
        self._on_event(FaultFound(self._epoch, vnode_id, *job.moment, _name_code(error), message))


def _is_past(step: int, forwarded: int, until_step: int) -> bool:
    return step > until_step or (step == until_step and forwarded > 0)


def _name_code(error: Exception) -> HostFaultCode:
    if isinstance(error, NumbersWentWrong):
        return HostFaultCode.LOSS_NOT_FINITE
    cause = error.__cause__ if isinstance(error, VNodeFailed) else error
    # A class or a character that the network does not have.
    if isinstance(cause, IndexError):
        return HostFaultCode.DATA_INVALID
    # Torch says it in words when the machine's own memory is full.
    if isinstance(cause, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error):
        return HostFaultCode.OUT_OF_MEMORY
    return HostFaultCode.HOST_BROKEN
