"""What becomes of a run: one decision per event. The same run and the same event give the same decision, anywhere.

A loss raises the epoch: only VNodes without a host are placed anew, in a new incarnation, and everybody goes back to
the last checkpoint that all have stored. Who gives orders in an epoch has written that epoch first, so that no two
owners of a run ever give orders in the same one; hosts and frames of older epochs are not listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from computepool.core.jobs.cause import Cause
from computepool.core.networks import detection
from computepool.core.networks.course import AT_WORK, HAVE_RUN, Course, attempt_of, end, lose, raise_epoch, send_run
from computepool.core.networks.detection import find_meeting_step, lose_leaving
from computepool.core.networks.host_faults import FATAL, SEAT_FAULTS, advise
from computepool.core.networks.placement import Location
from computepool.core.networks.rejoin import give_back, look_for_return, move_parts, settle_in
from computepool.core.networks.run import (
    OVER,
    AnswerMissed,
    AuditsOpened,
    AuditsSettled,
    Avoidance,
    BeatHeard,
    CheckpointReported,
    CompleteCheckpoint,
    Decision,
    Event,
    FaultReported,
    FeedKind,
    ForgetSteps,
    HostJoined,
    HostPrepared,
    JobEnded,
    KeepReport,
    KeepStep,
    LeasesLost,
    LeaveAnnounced,
    NobodyFits,
    PaySeats,
    PeerReported,
    PlaceSeats,
    ProbeAnswered,
    Run,
    RunState,
    SeatFill,
    SeatsFilled,
    SendPrepare,
    SessionClosed,
    StepReported,
    StepsRejected,
    StopAsked,
    Ticked,
)
from computepool.core.networks.spec import Exactness

PLACE_SECONDS = 1.0
# What somebody who stops a run waits for.
STOP_SECONDS = 30.0
# How often hosts that serve are paid to where they are: what they did is not done again by anybody.
PAY_SECONDS = 30.0
# How long the loss of a step may come after those of later ones, and how many of those are kept.
GAP_SECONDS = 5.0
AHEAD_MAX = 10_000
# How long a run that has made all its steps waits for audits.
SETTLE_SECONDS = 900.0
NOT_AUDITED = "its last steps were not audited in time"
AVOID_FOREVER = Avoidance(float("inf"))
# Steps beyond the last checkpoint of which reports are kept.
REPORTED_STEPS_MAX = 64


def decide(run: Run, event: Event, *, now: float) -> Decision:
    if run.state in OVER:
        return Decision(run)
    course = Course(run, now)
    _RULES[type(event)](course, event)
    _advance(course)
    return Decision(course.run, tuple(course.effects))


def adopt(run: Run, *, now: float) -> Decision:
    """A new owner, in an epoch of its own: hosts are given time to come over, and everybody starts anew."""
    course = Course(run, now)
    seats = {id: replace(seat, leased_at=now, heard_at=now) for id, seat in run.seats.items()}
    state = RunState.RECOVERING if run.state in HAVE_RUN else RunState.PLACING
    course.change(seats=seats, state=state, until_step=run.steps)
    settle_in(course)
    if run.state is RunState.STOPPING:
        end(course, RunState.STOPPED, "stopped while its hub changed", pays_to_now=True)
    elif run.checkpoint_step >= run.steps and not run.serves:
        # Its last audits went with the owner before.
        end(course, RunState.SUCCEEDED, "its last steps were not audited: its hub changed", pays_to_now=False)
    else:
        _advance(course)
    return Decision(course.run, tuple(course.effects))


def list_locations(run: Run) -> tuple[Location, ...]:
    """The placement with nodes and routes, as hosts and people are told it."""
    return tuple(
        replace(each, node_id=str(run.seats[each.seat].node_id or ""), address=run.seats[each.seat].address)
        for each in run.locations
    )


# Placing


def _fill(course: Course, event: SeatsFilled) -> None:
    run = course.run
    strangers = [seat for seat in event.moves.values() if seat not in run.seats]
    unmovable = [each for each in run.locations if _part(each) in event.moves and not run.seats[each.seat].is_vacant]
    if strangers or unmovable or any(not run.seats[fill.seat].is_vacant for fill in event.fills):
        raise ValueError("only VNodes without a host are placed anew, and only on seats of the run")
    if run.locations:
        course.change(locations=move_parts(run.locations, event.moves), message="")
    else:
        first = tuple(Location(vnode_id, seat, replica) for (vnode_id, replica), seat in event.moves.items())
        course.change(locations=first, home=dict(event.moves), message="")
    for fill in event.fills:
        course.change_seat(
            fill.seat,
            attempt_id=fill.attempt_id,
            node_id=fill.node_id,
            numeric_class=fill.numeric_class,
            boot_id=fill.boot_id,
            leased_at=course.now,
        )
    _mind_class(course, event.fills)
    for fill in event.fills:
        vnodes = ", ".join(vnode_id for vnode_id, _ in course.run.list_parts(fill.seat)[:8])
        words = f"gets {vnodes}" if vnodes else "is filled again, and gets its VNodes with the next checkpoint"
        course.tell(FeedKind.PLACEMENT, f"{course.run.seats[fill.seat]} {words}")


def _mind_class(course: Course, fills: Iterable[SeatFill]) -> None:
    """Bits are equal within one numeric class. Where another comes in, earlier reports fit no later ones."""
    run = course.run
    classes = Counter(fill.numeric_class for fill in fills)
    if not run.numeric_class and classes:
        course.change(numeric_class=classes.most_common(1)[0][0])
    odd = sorted(set(classes) - {course.run.numeric_class})
    if not odd:
        return
    if run.exact is Exactness.REQUIRED:
        raise ValueError(f"an exact run of class {course.run.numeric_class} takes no PNode of {odd[0]}")
    course.change(
        inexact_from_step=run.inexact_from_step or run.checkpoint_step + 1,
        reports_from_epoch=run.epoch,
        reported={},
        step=run.checkpoint_step,
        ahead=frozenset(),
    )
    course.tell(
        FeedKind.PLACEMENT,
        f"from step {course.run.inexact_from_step} the curve is not exact: class {odd[0]} came to "
        f"{course.run.numeric_class}",
        course.run.inexact_from_step,
    )


def _wait(course: Course, event: NobodyFits) -> None:
    message = "; ".join(event.reasons)
    if message != course.run.message:
        course.change(message=message)
        course.tell(FeedKind.STATE, f"waits for a PNode: {message}")


def _advance(course: Course) -> None:
    """The next thing to do on the way to running: place, prepare, run."""
    run, now = course.run, course.now
    if run.state in OVER or run.state in AT_WORK:
        return
    seats = run.taken_seats
    vacant = tuple(seat.id for seat in seats if seat.is_vacant) if run.locations else tuple(sorted(run.seats))
    if vacant:
        if now >= run.place_at:
            course.do(PlaceSeats(vacant))
            course.change(place_at=now + PLACE_SECONDS)
    elif not all(seat.joined for seat in seats):
        return
    elif run.prepare_epoch != run.epoch:
        state = RunState.PREPARING if run.state is RunState.PLACING else run.state
        course.change(prepare_epoch=run.epoch, prepare_at=now, from_step=run.checkpoint_step, state=state)
        course.do(*(SendPrepare(seat.id, attempt_of(seat), run.epoch) for seat in seats))
    elif all(seat.prepared_epoch == run.epoch for seat in seats):
        _start(course)


def _start(course: Course) -> None:
    run, again = course.run, course.run.state is RunState.RECOVERING
    course.change(
        state=RunState.RUNNING,
        until_step=run.steps,
        epoch_step=run.from_step,
        stepped_at=None,
        paid_at=course.now,
        message="",
        seats={id: replace(seat, moved_at=course.now) for id, seat in run.seats.items()},
    )
    send_run(course)
    words = f"goes on from step {run.from_step}" if again else "runs"
    words = f"answers at checkpoint {run.checkpoint_step}" if run.is_serving else words
    course.tell(FeedKind.RECOVERY if again else FeedKind.STATE, f"{words} in epoch {run.epoch}", run.from_step)


# Progress


def _report_step(course: Course, event: StepReported) -> None:
    run, now = course.run, course.now
    if course.find(event) is None or event.epoch != run.epoch or run.state not in AT_WORK:
        return
    if not run.hosts(event.seat, run.loss):
        return
    if event.step > run.step + AHEAD_MAX:
        raise_epoch(course, f"the loss of step {run.step + 1} did not arrive")
        return
    seconds = run.step_seconds
    if run.stepped_at is not None:
        latest = now - run.stepped_at
        seconds = latest if seconds is None else 0.8 * seconds + 0.2 * latest
    course.do(KeepStep(event.step))
    course.change(epoch_step=max(run.epoch_step, event.step), stepped_at=now, step_seconds=seconds)
    _extend_curve(course, event.step)
    _complete(course)


def _extend_curve(course: Course, step: int) -> None:
    """What was on its way when a session broke comes again a moment later, after what followed it."""
    run = course.run
    ahead = run.ahead | {step}
    whole = run.step
    while whole + 1 in ahead:
        whole += 1
    ahead = frozenset(each for each in ahead if each > whole)
    course.change(step=whole, ahead=ahead, ahead_at=run.ahead_at if run.ahead and ahead else course.now)


def _look_for_gap(course: Course) -> None:
    """Or it was lost: then the curve has a hole, and only doing the step again fills it."""
    run = course.run
    if run.ahead and course.now - run.ahead_at > GAP_SECONDS:
        raise_epoch(course, f"the loss of step {run.step + 1} did not arrive")


def _report_checkpoint(course: Course, event: CheckpointReported) -> None:
    run = course.run
    if course.find(event) is None or not run.checkpoint_step < event.step <= run.steps:
        return
    if not run.reports_from_epoch <= event.epoch <= run.epoch:
        return
    if not run.hosts(event.seat, event.vnode_id):
        return
    reported = {**run.reported, event.step: run.reported.get(event.step, frozenset()) | {event.vnode_id}}
    if len(reported) > REPORTED_STEPS_MAX:
        del reported[min(reported)]
    course.do(KeepReport(event.step, event.vnode_id))
    course.change(reported=reported)
    _complete(course)


def _complete(course: Course) -> None:
    """A step counts once every VNode has stored it and the curve is known up to it."""
    run = course.run
    whole = [step for step, by in run.reported.items() if by.issuperset(run.vnode_ids) and step <= run.step]
    if not whole:
        return
    step = max(whole)
    course.change(
        checkpoint_step=step,
        reported={later: by for later, by in run.reported.items() if later > step},
        recoveries=0,
        stalls=0,
        replaced=frozenset(),
    )
    course.do(CompleteCheckpoint(step))
    course.tell(FeedKind.CHECKPOINT, f"step {step} is stored", step)
    if step >= run.steps:
        _end_training(course)
    elif run.state is RunState.STOPPING and step >= run.until_step:
        end(course, RunState.STOPPED, run.message, pays_to_now=True)
    elif run.state is RunState.RUNNING and step >= run.until_step:
        lose_leaving(course)
    else:
        give_back(course)


def _end_training(course: Course) -> None:
    """Everything is stored. Where it is audited, what comes next waits for that; who answers does so meanwhile."""
    run = course.run
    stays = run.is_serving and run.state is not RunState.STOPPING
    course.change(paid_at=course.now)
    if run.audited:
        course.change(settle_at=course.now, message="its last steps are audited")
        course.tell(FeedKind.STATE, "all steps are stored; the last ones are audited", run.checkpoint_step)
    else:
        _finish(course, "")
    if stays:
        lose_leaving(course)


def _finish(course: Course, message: str) -> None:
    """Nobody waits for audits any longer: it ends, or stays to answer."""
    run = course.run
    if not run.is_serving or run.state is RunState.STOPPING:
        end(course, RunState.SUCCEEDED, message, pays_to_now=True)
        return
    if run.settle_at is not None and run.state is RunState.RUNNING:
        course.change(message=message)
    course.change(settle_at=None)
    words = f"all {run.steps} steps are made; answers until it is stopped"
    course.tell(FeedKind.STATE, f"{words}; {message}" if message else words, run.checkpoint_step)


def _open_audits(course: Course, _: AuditsOpened) -> None:
    course.change(audited=True)


def _settle(course: Course, _: AuditsSettled) -> None:
    if course.run.settle_at is not None:
        _finish(course, "")


def _reject(course: Course, event: StepsRejected) -> None:
    """Back to before the first step that is in doubt. What was stored since is void, whoever stored it."""
    run, step = course.run, min(event.step, course.run.checkpoint_step)
    course.change(
        step=step,
        checkpoint_step=step,
        ahead=frozenset(),
        reported={},
        reports_from_epoch=run.epoch + 1,
        settle_at=None,
        avoided={**run.avoided, event.node_id: AVOID_FOREVER} if event.blamed else run.avoided,
    )
    course.do(ForgetSteps(step, event.attempt_id if event.blamed else None, event.message))
    course.tell(FeedKind.AUDIT, f"back to step {step}: {event.message}", step)
    seat = course.find(event)
    if seat is None:
        raise_epoch(course, event.message)
        return
    cause = Cause.WRONG_RESULT if event.blamed else Cause.DOUBTED
    lose(course, {seat.id: event.message}, cause=cause)
    if event.blamed:
        course.change(avoided={**course.run.avoided, event.node_id: AVOID_FOREVER})


def _report_fault(course: Course, event: FaultReported) -> None:
    seat = course.find(event)
    if seat is None or event.epoch != course.run.epoch:
        return
    vnode = f"VNode {event.vnode_id} on " if event.vnode_id else ""
    words = f"{vnode}{seat}: {event.message}"
    if event.code in FATAL:
        end(course, RunState.FAILED, f"{words}. {advise(event.code)}", pays_to_now=True)
    elif event.code in SEAT_FAULTS:
        lose(course, {seat.id: event.message}, cause=SEAT_FAULTS[event.code])
    else:
        raise_epoch(course, words)


# Time


def _tick(course: Course, _: Ticked) -> None:
    for rule in _TIMED:
        if course.run.state not in OVER:
            rule(course)


def _look_at_clock(course: Course) -> None:
    run, now = course.run, course.now
    is_late = run.state is RunState.STOPPING and run.stop_at is not None and now - run.stop_at > STOP_SECONDS
    is_over = run.ends_at is not None and now >= run.ends_at
    if run.settle_at is not None and (is_late or is_over):
        end(course, RunState.SUCCEEDED, NOT_AUDITED, pays_to_now=run.state in AT_WORK)
    elif run.settle_at is not None:
        if now - run.settle_at > SETTLE_SECONDS:
            _finish(course, NOT_AUDITED)
    elif is_late:
        end(course, RunState.STOPPED, run.message, pays_to_now=True)
    elif is_over:
        end(course, RunState.STOPPED, "the hours that were paid for are over", pays_to_now=True)
    elif run.ends_at is not None and now >= run.ends_at - STOP_SECONDS and run.state is RunState.RUNNING:
        _stop(course, StopAsked("the hours that were paid for are nearly over"))


def _pay_service(course: Course) -> None:
    """Who has served for a while without a loss has shown that it can be done: losses are counted anew."""
    run = course.run
    if run.is_serving and run.state is RunState.RUNNING and course.now - run.paid_at >= PAY_SECONDS:
        course.change(paid_at=course.now, recoveries=0)
        course.do(PaySeats())


# The end, and the next epoch


def _stop(course: Course, event: StopAsked) -> None:
    run = course.run
    if run.state is RunState.STOPPING:
        return
    if run.settle_at is not None:
        end(
            course,
            RunState.SUCCEEDED,
            "its last steps were not audited: it was stopped",
            pays_to_now=run.state is RunState.RUNNING,
        )
        return
    if run.is_serving:
        end(course, RunState.SUCCEEDED, event.reason, pays_to_now=run.state is RunState.RUNNING)
        return
    if run.state is not RunState.RUNNING:
        end(course, RunState.STOPPED, event.reason, pays_to_now=True)
        return
    course.change(
        state=RunState.STOPPING,
        stop_at=course.now,
        until_step=min(run.until_step, find_meeting_step(run)),
        message=event.reason,
    )
    send_run(course)
    course.tell(FeedKind.STATE, f"stops after step {course.run.until_step}: {event.reason}", run.step)


def _end_job(course: Course, _: JobEnded) -> None:
    end(course, RunState.STOPPED, "its job was cancelled or has expired", pays_to_now=False)


def _part(location: Location) -> tuple[str, int]:
    return location.vnode_id, location.replica


_TIMED = (
    detection.look_for_silence,
    detection.probe_detached,
    detection.look_for_late,
    detection.look_for_stall,
    look_for_return,
    _look_for_gap,
    _pay_service,
    _look_at_clock,
)
_RULES: Mapping[type, Callable[[Course, Any], None]] = {
    SeatsFilled: _fill,
    NobodyFits: _wait,
    HostJoined: detection.join,
    BeatHeard: detection.beat,
    HostPrepared: detection.prepare,
    SessionClosed: detection.close,
    PeerReported: detection.report_peer,
    ProbeAnswered: detection.answer,
    LeasesLost: detection.lose_leases,
    AnswerMissed: detection.miss_answer,
    LeaveAnnounced: detection.leave,
    CheckpointReported: _report_checkpoint,
    StepReported: _report_step,
    FaultReported: _report_fault,
    StepsRejected: _reject,
    AuditsOpened: _open_audits,
    AuditsSettled: _settle,
    StopAsked: _stop,
    JobEnded: _end_job,
    Ticked: _tick,
}
