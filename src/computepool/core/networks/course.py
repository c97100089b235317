"""One decision about a run on its way, and the steps that many decisions share: a loss, the next epoch, the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.networks.host_faults import advise
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import (
    Avoidance,
    Effect,
    EndRun,
    FeedKind,
    Run,
    RunState,
    Seat,
    SendDrop,
    SendRun,
    Tell,
    VacateSeat,
)

# How long a node that lost a seat gets no other, unless its agent was started anew.
AVOID_SECONDS = 60.0
# Losses and stalls without a new checkpoint between them.
RECOVERIES_MAX = 20

HAVE_RUN = frozenset({RunState.RUNNING, RunState.RECOVERING, RunState.STOPPING})
AT_WORK = frozenset({RunState.RUNNING, RunState.STOPPING})


class Course:
    """One decision on its way: the run as far as it is changed, and what follows from it."""

    __slots__ = ("effects", "now", "run")

    def __init__(self, run: Run, now: float) -> None:
        self.run = run
        self.now = now
        self.effects: list[Effect] = []

    def change(self, **changes: Any) -> None:
        self.run = replace(self.run, **changes)

    def change_seat(self, seat: SeatId, **changes: Any) -> None:
        self.change(seats={**self.run.seats, seat: replace(self.run.seats[seat], **changes)})

    def do(self, *effects: Effect) -> None:
        self.effects += effects

    def tell(self, kind: FeedKind, message: str, step: int = 0) -> None:
        self.do(Tell(kind, message, step))

    def find(self, event: Any) -> Seat | None:
        """The seat that the event is of; None if it comes from somebody who does not fill it any more."""
        seat = self.run.seats.get(event.seat)
        return seat if seat is not None and seat.attempt_id == event.attempt_id else None


def lose(
    course: Course, seats: Mapping[SeatId, str], *, cause: Cause | None = Cause.NETWORK_LOST, counts: bool = True
) -> None:
    """These seats, each with the reason. `cause` is None where the attempts have ended already."""
    told, moves_vnodes = [], False
    for id, why in seats.items():
        seat, run = course.run.seats[id], course.run
        if seat.attempt_id is None or seat.node_id is None:
            continue
        course.do(SendDrop(id, seat.attempt_id, run.epoch))
        if cause is not None:
            course.do(VacateSeat(id, seat.attempt_id, seat.node_id, cause))
        course.change(seats={**run.seats, id: Seat(id)}, avoided=_avoid(run, seat, course.now))
        parts = run.list_parts(id)
        moves_vnodes = moves_vnodes or bool(parts)
        vnodes = ", ".join(vnode_id for vnode_id, _ in parts[:8])
        told.append(f"{seat} with {vnodes or 'no VNode'} is lost: {why}")
    if moves_vnodes:
        raise_epoch(course, "; ".join(told), counts=counts)
    elif told:
        # It had nothing to do yet: nobody waits for it.
        course.tell(FeedKind.FAILURE, "; ".join(told), course.run.step)


def _avoid(run: Run, seat: Seat, now: float) -> dict[NodeId, Avoidance]:
    """Who is started anew is trusted at once, but not twice within a minute: a machine that falls again and again
    would cost an epoch each time."""
    assert seat.node_id is not None
    kept = {node_id: each for node_id, each in run.avoided.items() if each.until > now}
    boot_id = None if seat.node_id in kept else seat.boot_id
    return {**kept, seat.node_id: Avoidance(now + AVOID_SECONDS, boot_id)}


def raise_epoch(course: Course, why: str, *, counts: bool = True, kind: FeedKind = FeedKind.FAILURE) -> None:
    run = course.run
    course.tell(kind, why, run.step)
    if run.settle_at is not None and (not run.is_serving or run.state is RunState.STOPPING):
        # All steps are stored: nothing is left to be done again, and nobody is to answer.
        return
    if run.state is RunState.STOPPING:
        end(course, RunState.STOPPED, run.message, pays_to_now=True)
        return
    recoveries = run.recoveries + counts
    if recoveries > RECOVERIES_MAX:
        words = f"no new checkpoint in {RECOVERIES_MAX} epochs; the last one began because {why}"
        end(course, RunState.FAILED, f"{words}. {advise('')}", pays_to_now=False)
        return
    course.change(
        epoch=run.epoch + 1,
        state=RunState.RECOVERING if run.state in HAVE_RUN else RunState.PLACING,
        recoveries=recoveries,
        until_step=run.steps,
        ahead=frozenset(),
        place_at=course.now,
        message=why,
        seats={id: replace(seat, prepared_epoch=0, reporters=frozenset()) for id, seat in run.seats.items()},
    )


def end(course: Course, state: RunState, message: str, *, pays_to_now: bool) -> None:
    run = course.run
    course.change(state=state, message=message)
    course.do(EndRun(state, pays_to_now))
    for seat in run.seats.values():
        if seat.attempt_id is not None:
            course.do(SendDrop(seat.id, seat.attempt_id, run.epoch))
    course.tell(FeedKind.STATE, f"{state.value}{': ' if message else ''}{message}", run.checkpoint_step)


def send_run(course: Course) -> None:
    run = course.run
    for seat in run.taken_seats:
        course.do(SendRun(seat.id, attempt_of(seat), run.epoch, run.from_step, run.until_step))


def attempt_of(seat: Seat) -> AttemptId:
    assert seat.attempt_id is not None
    return seat.attempt_id
