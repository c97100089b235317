"""One run told event by event, with hosts that do what they are told: for tests of core/networks/epochs.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.networks.epochs import adopt, decide
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import (
    BeatHeard,
    CheckpointReported,
    Decision,
    Effect,
    Event,
    HostJoined,
    HostPrepared,
    Run,
    RunState,
    Seat,
    SeatFill,
    SeatsFilled,
    StepReported,
    Tell,
    Ticked,
    seat_id,
)

_E = TypeVar("_E")

VNODES = ("embed", "body", "head")


def make_run(*, seats: int = 3, steps: int = 100, vnode_ids: Sequence[str] = VNODES, **changes: Any) -> Run:
    found = {seat_id(index): Seat(seat_id(index)) for index in range(seats)}
    return replace(
        Run(RunId(UUID(int=1)), tuple(vnode_ids), vnode_ids[-1], steps, found, until_step=steps), **changes
    )


class Story:
    """`now` moves only where a test says so."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or make_run()
        self.now = 1_000.0
        self.effects: list[Effect] = []
        self._attempts = 0

    def hear(self, event: Event) -> list[Effect]:
        return self._take(decide(self.run, event, now=self.now))

    def take_over(self) -> list[Effect]:
        """What the next owner makes of it: what is not stored is gone, and the epoch is one higher."""
        seats = {
            id: Seat(id, seat.attempt_id, seat.node_id, seat.numeric_class, seat.address)
            for id, seat in self.run.seats.items()
        }
        run = self.run
        stored = Run(
            id=run.id,
            vnode_ids=run.vnode_ids,
            loss=run.loss,
            steps=run.steps,
            seats=seats,
            replicas=run.replicas,
            exact=run.exact,
            serves=run.serves,
            state=run.state,
            epoch=run.epoch + 1,
            locations=run.locations,
            step=run.step,
            checkpoint_step=run.checkpoint_step,
            reported=run.reported,
            reports_from_epoch=run.reports_from_epoch,
            numeric_class=run.numeric_class,
            inexact_from_step=run.inexact_from_step,
            recoveries=run.recoveries,
        )
        return self._take(adopt(stored, now=self.now))

    def _take(self, decision: Decision) -> list[Effect]:
        self.run = decision.run
        self.effects += decision.effects
        return list(decision.effects)

    def wait(self, seconds: float, *, beats: bool = False) -> list[Effect]:
        """In quarters of a second, as an owner's clock ticks. With `beats`, hosts are heard all the while."""
        found = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            if beats:
                for seat in self.run.taken_seats:
                    if seat.joined:
                        found += self.hear(BeatHeard(seat.id, self.attempt(seat.id), self.run.epoch, seat.watermark))
            found += self.hear(Ticked())
        return found

    # What others do

    def fill(self, *seats: SeatId, numeric_class: str = "avx2", **moves: SeatId) -> list[Effect]:
        """Vacant seats get PNodes; VNodes go to the seats in order at first, and stay on theirs later."""
        wanted = seats or tuple(id for id, seat in self.run.seats.items() if seat.is_vacant)
        fills = tuple(self._to_fill(seat, numeric_class) for seat in wanted)
        if self.run.locations:
            parts = {part: seat for seat in wanted for part in self.run.list_parts(seat)}
        else:
            order = sorted(self.run.seats)
            parts = {
                (vnode_id, 0): order[min(index, len(order) - 1)] for index, vnode_id in enumerate(self.run.vnode_ids)
            }
        parts |= {(vnode_id, 0): seat for vnode_id, seat in moves.items()}
        return self.hear(SeatsFilled(fills, parts))

    def _to_fill(self, seat: SeatId, numeric_class: str) -> SeatFill:
        self._attempts += 1
        node_id = NodeId(UUID(int=1_000 + self._attempts))
        return SeatFill(seat, AttemptId(UUID(int=self._attempts)), node_id, numeric_class)

    def join(self, *seats: SeatId) -> None:
        for seat in seats or [seat.id for seat in self.run.taken_seats if not seat.joined]:
            self.hear(HostJoined(seat, self.attempt(seat), f"{seat}.example:9000"))

    def prepare(self, *seats: SeatId) -> None:
        for seat in seats or [seat.id for seat in self.run.taken_seats]:
            self.hear(HostPrepared(seat, self.attempt(seat), self.run.epoch))

    def start(self) -> Story:
        """Until it runs."""
        if not self.run.locations or any(seat.is_vacant for seat in self.run.taken_seats):
            self.fill()
        self.join()
        self.prepare()
        assert self.run.state is RunState.RUNNING
        return self

    def step(self, *steps: int, seconds: float = 0.1) -> list[Effect]:
        found = []
        for step in steps:
            self.now += seconds
            seat = next(each.seat for each in self.run.locations if each.vnode_id == self.run.loss)
            for each in self.run.taken_seats:
                watermark = each.watermark + 1
                self.hear(BeatHeard(each.id, self.attempt(each.id), self.run.epoch, watermark))
            found += self.hear(StepReported(seat, self.attempt(seat), self.run.epoch, step))
        return found

    def store(self, step: int, *vnode_ids: str, epoch: int | None = None) -> list[Effect]:
        found = []
        for vnode_id in vnode_ids or self.run.vnode_ids:
            seat = next(each.seat for each in self.run.locations if each.vnode_id == vnode_id)
            report = CheckpointReported(seat, self.attempt(seat), epoch or self.run.epoch, step, vnode_id)
            found += self.hear(report)
        return found

    # Looks

    def attempt(self, seat: SeatId) -> AttemptId:
        found = self.run.seats[seat].attempt_id
        assert found is not None
        return found

    def seat_of(self, vnode_id: str) -> SeatId:
        return next(each.seat for each in self.run.locations if each.vnode_id == vnode_id)

    def incarnations(self) -> dict[str, int]:
        return {each.vnode_id: each.incarnation for each in self.run.locations}

    @property
    def told(self) -> list[str]:
        return [effect.message for effect in self.effects if isinstance(effect, Tell)]


def only(kind: type[_E], effects: Sequence[Effect]) -> list[_E]:
    return [effect for effect in effects if isinstance(effect, kind)]
