"""Real engines in one process, joined by queues: frames are delayed and overtake each other across edges, seeded.

Plays the network, the clock of each machine and as much of a run's owner as a test needs: it keeps what engines tell,
kills a host, places its VNodes anew and starts the next epoch from the last checkpoint that all VNodes have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from computepool.core.networks.placement import Placement, SeatId, move
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint, read_weights
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import CheckpointReady, DigestKnown, Event, FaultFound, LossKnown, StepEnded
from computepool.node.vnodes.frames import FrameHead, Outgoing, Refusal, to_bytes, to_tensor

FLUSH_SECONDS = 30.0
_Lane = tuple[SeatId, SeatId, str, str, str]


@dataclass
class Parcel:
    seat: SeatId
    head: FrameHead
    content: bytes


@dataclass
class Cluster:
    spec: NetworkSpec
    samples: Dataset
    placement: Placement
    seed: int = 0
    # How much rather an engine computes than a frame arrives.
    haste: float = 0.5
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    # May change or drop what is on its way: returns the parcels that travel instead.
    meddle: Callable[[Parcel], list[Parcel]] | None = None

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self._random = Random(self.seed)
        self.engines: dict[SeatId, Engine] = {}
        self.lanes: dict[_Lane, deque[Parcel]] = {}
        self.events: list[tuple[SeatId, Event]] = []
        self.losses: dict[int, float] = {}
        # Losses that a later epoch gave otherwise for the same step.
        self.contradictions: list[tuple[int, float, float]] = []
        self.checkpoints: dict[int, dict[str, bytes]] = {0: {}}
        self.refusals: list[tuple[SeatId, Refusal]] = []
        self.dead: set[SeatId] = set()
        self.delivered = 0
        self._was_done: bool | None = None
        for seat in self.placement.seats:
            self._seat(seat)

    # The run's owner

    def prepare(self, step: int = 0) -> None:
        checkpoint = Checkpoint(step, self.checkpoints[step]) if step else None
        for engine in self.engines.values():
            engine.prepare(self.placement.epoch, checkpoint, placement=self.placement)

    def start(self, until_step: int, *, from_step: int = 0) -> None:
        for engine in self.engines.values():
            assert engine.start(from_step, until_step)

    def train(self, steps: int) -> None:
        """From the seed to the end, without trouble."""
        self.prepare()
        self.start(steps)
        self.run()

    def kill(self, seat: SeatId) -> None:
        """Its frames that are under way still arrive; what is sent to it from now on vanishes without an error."""
        engine = self.engines.pop(seat)
        # What it had stored is stored, however slow the machine.
        engine.flush(FLUSH_SECONDS)
        engine.close()
        self.dead.add(seat)
        self.lanes = {lane: parcels for lane, parcels in self.lanes.items() if lane[1] != seat}

    def recover(self, moves: Mapping[tuple[str, int], SeatId], until_step: int) -> int:
        """The next epoch from the last complete checkpoint, which is returned."""
        self.placement = move(self.placement, moves)
        for seat in self.placement.seats:
            if seat not in self.engines:
                self._seat(seat)
        for seat in [seat for seat in self.engines if seat not in self.placement.seats]:
            self.engines.pop(seat).close()
        step = self.complete_step
        self.prepare(step)
        self.start(until_step, from_step=step)
        return step

    @property
    def complete_step(self) -> int:
        """The newest step that every VNode has stored."""
        for engine in self.engines.values():
            engine.flush(FLUSH_SECONDS)
        names = {vnode.id for vnode in self.spec.vnodes}
        return max(step for step, held in self.checkpoints.items() if step == 0 or set(held) == names)

    def weights(self, step: int) -> dict[str, Tensor]:
        assert self.complete_step >= step
        found: dict[str, Tensor] = {}
        for vnode_id, content in self.checkpoints[step].items():
            found |= read_weights(content, vnode_id)
        return found

    # The world

    def run(self, *, ticks_max: int = 1_000_000, until: Callable[[], bool] | None = None) -> None:
        """Till nothing moves any more, or `until` says so: then some engine is ahead and frames are under way."""
        idle: set[SeatId] = set()
        for _ in range(ticks_max):
            if until is not None and until():
                return
            busy = [seat for seat in self.engines if seat not in idle]
            lanes = [lane for lane, parcels in self.lanes.items() if parcels]
            if not busy and not lanes:
                for engine in self.engines.values():
                    engine.flush(FLUSH_SECONDS)
                return
            if busy and (not lanes or self._random.random() < self.haste):
                seat = self._random.choice(busy)
                if not self._work(seat):
                    idle.add(seat)
            else:
                lane = self._random.choice(lanes)
                self._deliver(self.lanes[lane].popleft())
                idle.discard(lane[1])
        raise AssertionError(f"still moving after {ticks_max} ticks")

    @property
    def is_done(self) -> bool:
        """Also after `close`: whether it was."""
        if self._was_done is not None:
            return self._was_done
        return all(engine.progress.is_done for engine in self.engines.values())

    @property
    def curve(self) -> list[float]:
        return [self.losses[step] for step in sorted(self.losses)]

    @property
    def faults(self) -> list[FaultFound]:
        return [event for _, event in self.events if isinstance(event, FaultFound)]

    @property
    def digests(self) -> list[DigestKnown]:
        return [event for _, event in self.events if isinstance(event, DigestKnown)]

    def ended_steps(self, seat: SeatId) -> list[int]:
        return [event.step for at, event in self.events if at == seat and isinstance(event, StepEnded)]

    def close(self) -> None:
        self._was_done = self.is_done
        for engine in self.engines.values():
            engine.close()

    def _seat(self, seat: SeatId) -> None:
        self.engines[seat] = Engine(
            self.spec,
            self.placement,
            seat,
            self.samples,
            on_event=lambda event: self._hear(seat, event),
            **self.engine_options,
        )

    def _work(self, seat: SeatId) -> bool:
        frames = self.engines[seat].run_ready()
        for outgoing in frames or []:
            self._post(seat, outgoing)
        return frames is not None

    def _post(self, seat: SeatId, outgoing: Outgoing) -> None:
        head = outgoing.head
        parcel = Parcel(outgoing.seat, head, bytes(to_bytes(outgoing.tensor)))
        for each in self.meddle(parcel) if self.meddle is not None else [parcel]:
            if each.seat not in self.dead:
                lane = (seat, each.seat, head.kind.value, f"{head.source}:{head.replica}", head.target)
                self.lanes.setdefault(lane, deque()).append(each)

    def _deliver(self, parcel: Parcel) -> None:
        self.delivered += 1
        engine = self.engines.get(parcel.seat)
        if engine is None:
            return
        tensor = to_tensor(parcel.content, parcel.head.dtype, parcel.head.shape)
        refusal = engine.receive(parcel.head, tensor)
        if refusal is not None:
            self.refusals.append((parcel.seat, refusal))

    def _hear(self, seat: SeatId, event: Event) -> None:
        self.events.append((seat, event))
        if isinstance(event, LossKnown):
            before = self.losses.get(event.step)
            if before is not None and before != event.loss:
                self.contradictions.append((event.step, before, event.loss))
            self.losses[event.step] = event.loss
        elif isinstance(event, CheckpointReady):
            self.checkpoints.setdefault(event.step, {})[event.vnode_id] = event.content
