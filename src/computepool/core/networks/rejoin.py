"""Seats that were lost when no PNode was free: filled again as soon as one is, and given back what they had.

Nobody waits for that. The others go on while the new host starts, and VNodes change hands at a checkpoint, so that
little is done twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from computepool.core.jobs.cause import Cause
from computepool.core.networks.course import Course, raise_epoch
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import FeedKind, Part, PlaceSeats, Run, RunState, Seat, SendDrop, VacateSeat

# How often a PNode for an idle seat is looked for.
RETURN_SECONDS = 5.0


def list_idle(run: Run) -> list[Seat]:
    """Seats without a VNode that VNodes belong to, filled or not."""
    named = {location.seat for location in run.locations}
    return [run.seats[id] for id in sorted(set(run.home.values())) if id not in named]


def list_home(run: Run, seat: SeatId) -> list[Part]:
    return [part for part, home in run.home.items() if home == seat]


def look_for_return(course: Course) -> None:
    run = course.run
    if run.state is not RunState.RUNNING or run.settle_at is not None or course.now < run.place_at:
        return
    vacant = [seat.id for seat in list_idle(run) if seat.is_vacant]
    if vacant:
        course.change(place_at=course.now + RETURN_SECONDS)
        course.do(PlaceSeats(tuple(vacant[:1])))


def give_back(course: Course) -> None:
    """To those who have come: everybody goes back to the checkpoint that was just completed, and on from there."""
    run = course.run
    if run.state is not RunState.RUNNING or run.settle_at is not None:
        return
    back = [seat for seat in list_idle(run) if seat.joined and seat.suspected_at is None and seat.leaving_at is None]
    if not back:
        return
    ids = {seat.id for seat in back}
    moves = {part: home for part, home in run.home.items() if home in ids}
    who = "; ".join(f"{seat} takes {_name_parts(list_home(run, seat.id))} again" for seat in back)
    raise_epoch(course, who, counts=False, kind=FeedKind.PLACEMENT)
    course.change(locations=move_parts(course.run.locations, moves))


def settle_in(course: Course) -> None:
    """A new owner does not know what belongs where: things stay as they are, and who has nothing to do goes."""
    run = course.run
    named = {location.seat for location in run.locations}
    course.change(home={(each.vnode_id, each.replica): each.seat for each in run.locations})
    for id, seat in run.seats.items():
        if named and id not in named and seat.attempt_id is not None and seat.node_id is not None:
            course.do(SendDrop(id, seat.attempt_id, run.epoch))
            course.do(VacateSeat(id, seat.attempt_id, seat.node_id, Cause.HUB_FAULT))
            course.change(seats={**course.run.seats, id: Seat(id)})


def move_parts(locations: tuple[Location, ...], moves: Mapping[Part, SeatId]) -> tuple[Location, ...]:
    """Each in a new incarnation."""
    return tuple(
        replace(each, seat=moves[each.vnode_id, each.replica], incarnation=each.incarnation + 1)
        if (each.vnode_id, each.replica) in moves
        else each
        for each in locations
    )


def _name_parts(parts: list[Part]) -> str:
    return ", ".join(vnode_id for vnode_id, _ in parts[:8])
