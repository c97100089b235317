"""What a seat should have done: its VNodes computed once more, from a checkpoint and the frames that reached it.

The seat's own engine is run on another PNode, without a network: frames are handed in from a log, what it would send
is thrown away, and the digests that come out are compared with those that the seat told. Within one numeric class
they are equal or somebody computed wrongly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import DigestKnown, Event, FaultFound
from computepool.node.vnodes.frames import FrameHead
from computepool.node.vnodes.gating import STEPS_AHEAD_MAX


class ReplayFailed(Exception):
    """Nothing can be said of the seat: frames are missing, or they do not fit the placement."""


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
) -> list[DigestKnown]:
    """The digests of all VNodes of the seat, from the checkpoint's step (or the first) up to `until_step`."""
    events: list[Event] = []
    engine = Engine(spec, placement, seat, dataset, on_event=events.append, device=device)
    by_step: defaultdict[int, list[tuple[FrameHead, Tensor]]] = defaultdict(list)
    for head, tensor in frames:
        by_step[head.step].append((head, tensor))
    try:
        engine.prepare(placement.epoch, checkpoint)
        engine.start(checkpoint.step if checkpoint is not None else 0, until_step)
        while not engine.progress.is_done:
            before = engine.progress.watermark
            # Everything of the steps that the engine takes by now: gradients come before its own forwards.
            for step in [each for each in by_step if each <= engine.progress.step + STEPS_AHEAD_MAX]:
                for head, tensor in by_step.pop(step):
                    _hand_in(engine, head, tensor)
            while engine.run_ready() is not None:
                pass
            if engine.progress.watermark == before:
                raise ReplayFailed(_tell_why(engine, events))
    finally:
        engine.close()
    return [event for event in events if isinstance(event, DigestKnown)]


def _hand_in(engine: Engine, head: FrameHead, tensor: Tensor) -> None:
    refusal = engine.receive(head, tensor)
    if refusal is not None and not refusal.is_harmless:
        raise ReplayFailed(f"the log holds a frame that no seat takes: {refusal.message}")


def _tell_why(engine: Engine, events: list[Event]) -> str:
    faults = [event for event in events if isinstance(event, FaultFound)]
    if faults:
        return f"the replay stopped: {faults[0].message}"
    return f"the log lacks {', '.join(str(wanted) for wanted in engine.list_wanted()[:3])}"
