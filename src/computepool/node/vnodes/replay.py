"""What a seat should have done: its VNodes computed once more, from a checkpoint and the frames that reached it.

The seat's own engine is run on another PNode, without a network: frames are handed in from the logs of those who sent
them, and the digests that come out are told. Within one numeric class they are those that the seat told before, or
somebody computed wrongly. Between classes the frames of the first step are compared as numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from computepool.core.networks.audit import SpanDigest
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.digests import SeatDigests, digest_tensor
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import CheckpointReady, DigestKnown, Event, FaultFound
from computepool.node.vnodes.frames import FrameHead, FrameKind, Outgoing
from computepool.node.vnodes.gating import STEPS_AHEAD_MAX
from computepool.node.vnodes.routes import key_of

FLUSH_SECONDS = 600.0

Frames = Sequence[tuple[SeatId, FrameHead, Tensor]]


class ReplayFailed(Exception):
    """Nothing can be said of the seat: frames are missing, or they do not fit the placement."""


@dataclass(frozen=True, slots=True)
class Replay:
    span: SpanDigest
    # Of the state at the end, by VNode.
    states: dict[str, bytes]
    sent: list[Outgoing]


def replay(
    spec: NetworkSpec,
    placement: Placement,
    seat: SeatId,
    frames: Iterable[tuple[FrameHead, Tensor]],
    dataset: Dataset | None,
    *,
    checkpoint: Checkpoint | None,
    until_step: int,
    device: str = "cpu",
    keeps_frames: bool = False,
) -> Replay:
    """All that the seat does from the checkpoint's step (or the first) up to `until_step`."""
    events: list[Event] = []
    sent: list[Outgoing] = []
    engine = Engine(spec, placement, seat, dataset, on_event=events.append, device=device)
    by_step: defaultdict[int, list[tuple[FrameHead, Tensor]]] = defaultdict(list)
    for head, tensor in frames:
        by_step[head.step].append((head, tensor))
    try:
        engine.prepare(placement.epoch, checkpoint)
        engine.start(checkpoint.step if checkpoint is not None else 0, until_step)
        while not _is_told(events, until_step):
            before = engine.progress.watermark
            # Everything of the steps that the engine takes by now: gradients come before its own forwards.
            for step in [each for each in by_step if each <= engine.progress.step + STEPS_AHEAD_MAX]:
                for head, tensor in by_step.pop(step):
                    _hand_in(engine, head, tensor)
            while (given := engine.run_ready()) is not None:
                sent += given if keeps_frames else []
            if engine.progress.watermark == before and not _is_told(events, until_step):
                raise ReplayFailed(_tell_why(engine, events))
        engine.flush(FLUSH_SECONDS)
    finally:
        engine.close()
    [span] = [event.span for event in events if isinstance(event, DigestKnown)]
    states = {
        event.vnode_id: event.digest
        for event in events
        if isinstance(event, CheckpointReady) and event.step == until_step
    }
    return Replay(span, states, sent)


def measure_deviation(ours: Iterable[Outgoing], theirs: Frames, *, step: int) -> float:
    """The largest difference between two frames of the step, as a part of the largest number in the frame."""
    given = {(*key_of(head), head.micro_batch): tensor for _, head, tensor in theirs if head.step == step}
    largest = 0.0
    for frame in ours:
        if frame.head.step != step:
            continue
        other = given.pop((*key_of(frame.head), frame.head.micro_batch), None)
        if other is None or other.shape != frame.tensor.shape:
            return float("inf")
        largest = max(largest, _compare(frame.head.kind, frame.tensor, other))
    return largest if not given else float("inf")


def digest_frames(sent: Frames, received: Frames, *, epoch: int, from_step: int, until_step: int) -> SpanDigest:
    """Of frames that were shown, each with the seat at the other end."""
    digests = SeatDigests(from_step)
    for seat, head, tensor in sent:
        digests.record_sent(seat, head, digest_tensor(tensor))
    for seat, head, tensor in received:
        digests.record_received(seat, head, digest_tensor(tensor))
    while digests.step < until_step:
        digests.close_step()
    return digests.take(epoch)


def _compare(kind: FrameKind, one: Tensor, two: Tensor) -> float:
    if kind in (FrameKind.NORMS, FrameKind.TOTAL):
        # Floats of 64 bits cross as their bits.
        one, two = one.view(torch.float64), two.view(torch.float64)
    if one.numel() == 0 or torch.equal(one, two):
        return 0.0
    if not one.is_floating_point():
        return float("inf")
    one, two = one.double(), two.double()
    return (one - two).abs().max().item() / max(one.abs().max().item(), two.abs().max().item())


def _hand_in(engine: Engine, head: FrameHead, tensor: Tensor) -> None:
    refusal = engine.receive(head, tensor)
    if refusal is not None and not refusal.is_harmless:
        raise ReplayFailed(f"the log holds a frame that no seat takes: {refusal.message}")


def _is_told(events: list[Event], until_step: int) -> bool:
    return any(isinstance(event, DigestKnown) and event.span.until_step >= until_step for event in events)


def _tell_why(engine: Engine, events: list[Event]) -> str:
    faults = [event for event in events if isinstance(event, FaultFound)]
    if faults:
        return f"the replay stopped: {faults[0].message}"
    return f"the log lacks {', '.join(str(wanted) for wanted in engine.list_wanted()[:3])}"
