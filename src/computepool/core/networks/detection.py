"""Signs of life: who has joined, who is suspected, who is lost, and who stands still.

A closed session makes a suspect, and so do two hosts who say that they lost a third; a suspect that gives no sign of
life in time is lost. Whoever beats and does not get on is found by the watermark, whoever does not beat by silence.
"""

from __future__ import annotations

from math import ceil

from computepool.core.jobs.cause import Cause
from computepool.core.networks.course import AT_WORK, Course, attempt_of, lose, raise_epoch, send_run
from computepool.core.networks.rejoin import give_back
from computepool.core.networks.run import (
    AnswerMissed,
    BeatHeard,
    HostJoined,
    HostPrepared,
    LeasesLost,
    LeaveAnnounced,
    PeerReported,
    ProbeAnswered,
    Run,
    RunState,
    Seat,
    SendPrepare,
    SendProbe,
    SendRun,
    SessionClosed,
)

BEAT_SECONDS = 5.0
# A host that was not heard for so long is lost, whatever its session looks like.
SILENCE_SECONDS = 15.0
# A suspect has so long to give a sign of life.
PROBE_SECONDS = 2.0
# Without a session a host can be alive, but not for longer than this: it cannot be told anything.
DETACHED_SECONDS = 60.0
# From a lease to the host's first word: its agent hears of it, and starts it.
JOIN_SECONDS = 60.0
# To fetch data and checkpoint and build the modules: as long as it gets on with that, and no longer than the second.
PREPARE_STALL_SECONDS = 20.0
PREPARE_SECONDS = 1_800.0
# Alive but stuck: nobody got on for so long, or for so many times the longest wait that was seen.
STALL_SECONDS = 20.0
STALL_SECONDS_MAX = 600.0
STALL_GAPS = 3.0
# Whoever was asked so long ago, and has done nothing for any request since, will not answer.
ANSWER_SECONDS = 20.0
# What an owner who comes back waits for.
LEAVE_SECONDS = 2.0
# Hosts agree to stop after a step that none of them can have begun: what they do while the order is on its way.
MEETING_SECONDS = 0.5
# Of one seat; from then on it is reached by relay alone.
LINK_FAULTS_MAX = 2
OWNER_BACK = "its owner wants the machine back"


def join(course: Course, event: HostJoined) -> None:
    seat, run = course.find(event), course.run
    if seat is None:
        return
    address = "" if seat.link_faults >= LINK_FAULTS_MAX else event.address
    course.change_seat(seat.id, joined=True, closed_at=None, suspected_at=None, heard_at=course.now, address=address)
    if not run.list_parts(seat.id):
        # While a run trains it waits for the next checkpoint.
        if run.is_serving:
            give_back(course)
        return
    if run.prepare_epoch != run.epoch:
        return
    # It was away for a moment: what it was told meanwhile is told again.
    if seat.prepared_epoch != run.epoch:
        course.do(SendPrepare(seat.id, event.attempt_id, run.epoch))
    elif run.state in AT_WORK:
        course.do(SendRun(seat.id, event.attempt_id, run.epoch, run.from_step, run.until_step))


def beat(course: Course, event: BeatHeard) -> None:
    seat, now = course.find(event), course.now
    if seat is None:
        return
    course.change_seat(seat.id, heard_at=now)
    if event.answering != seat.answering:
        course.change_seat(seat.id, answering=event.answering, answered_at=now)
    if event.epoch == course.run.epoch and event.watermark != seat.watermark:
        gap = now - max(each.moved_at for each in course.run.seats.values())
        course.change_seat(seat.id, watermark=event.watermark, moved_at=now)
        if course.run.state in AT_WORK:
            course.change(gap_seconds_max=max(course.run.gap_seconds_max, gap))
    if seat.joined and seat.suspected_at is not None:
        _clear(course, seat)


def _clear(course: Course, seat: Seat) -> None:
    """Alive, and yet others could not reach it: what was on its way between them is lost."""
    faults = seat.link_faults + 1
    if faults > 2 * LINK_FAULTS_MAX:
        lose(course, {seat.id: f"others could not reach it {faults} times, by relay neither"})
        return
    relayed = faults >= LINK_FAULTS_MAX
    address = "" if relayed else seat.address
    course.change_seat(seat.id, suspected_at=None, reporters=frozenset(), link_faults=faults, address=address)
    by = ", ".join(str(course.run.seats[id]) for id in sorted(seat.reporters))
    raise_epoch(course, f"{by} could not reach {seat}, which is alive" + ("; by relay from now on" * relayed))


def prepare(course: Course, event: HostPrepared) -> None:
    seat = course.find(event)
    if seat is not None and event.epoch == course.run.epoch:
        course.change_seat(seat.id, prepared_epoch=event.epoch, heard_at=course.now)


def close(course: Course, event: SessionClosed) -> None:
    seat = course.find(event)
    if seat is None or not seat.joined:
        return
    course.change_seat(seat.id, joined=False, closed_at=course.now, suspected_at=course.now)
    if seat.reporters:
        lose(course, {seat.id: "its session closed, and others lost it too"})
    else:
        course.do(SendProbe(seat.id, event.attempt_id))


def answer(course: Course, event: ProbeAnswered) -> None:
    seat = course.find(event)
    if seat is None or seat.suspected_at is None:
        return
    if seat.joined:
        _clear(course, seat)
    else:
        course.change_seat(seat.id, suspected_at=None, probe_at=course.now + PROBE_SECONDS)


def report_peer(course: Course, event: PeerReported) -> None:
    run = course.run
    seat, by = run.seats.get(event.seat), run.seats.get(event.by)
    if seat is None or by is None or seat.is_vacant or by.is_vacant or seat is by or event.epoch != run.epoch:
        return
    reporters = seat.reporters | {by.id}
    course.change_seat(seat.id, reporters=reporters)
    if not seat.joined and seat.closed_at is not None:
        lose(course, {seat.id: f"its session closed, and {by} lost it too"})
    elif len(reporters) >= min(2, len(run.taken_seats) - 1) and seat.suspected_at is None and seat.joined:
        course.change_seat(seat.id, suspected_at=course.now)
        course.do(SendProbe(seat.id, attempt_of(seat)))


def lose_leases(course: Course, event: LeasesLost) -> None:
    lost = [seat.id for seat in course.run.seats.values() if seat.attempt_id in event.attempt_ids]
    lose(course, dict.fromkeys(lost, "its lease has ended"), cause=None)


def miss_answer(course: Course, event: AnswerMissed) -> None:
    """Of those that stand still the first in the order of the network is stuck; those after it wait for it.

    While a run trains, its watermark tells who is stuck, and nobody loses a seat for the sake of an answer.
    """
    run = course.run
    if event.epoch != run.epoch or run.state is not RunState.RUNNING or not run.is_serving:
        return
    if event.seconds < ANSWER_SECONDS:
        return
    asked = [run.seats[id] for id in event.seats if id in run.seats and not run.seats[id].is_vacant]
    still = [seat for seat in asked if course.now - max(seat.answered_at, seat.moved_at) >= ANSWER_SECONDS]
    if still:
        lose(course, {still[0].id: f"asked {event.seconds:.0f} s ago, it beats and does nothing for it"})


def leave(course: Course, event: LeaveAnnounced) -> None:
    """Everybody stores one step more if that can be done in time, so that nothing is lost with the seat."""
    seat, run = course.find(event), course.run
    if seat is None or seat.leaving_at is not None:
        return
    course.change_seat(seat.id, leaving_at=course.now)
    if not run.list_parts(seat.id):
        lose(course, {seat.id: OWNER_BACK}, cause=Cause.OWNER_RETURNED, counts=False)
        return
    target = find_meeting_step(run)
    seconds = (target - run.epoch_step) * (run.step_seconds or 0.0)
    if run.state is RunState.STOPPING:
        return
    going = run.state is RunState.RUNNING and run.stepped_at is not None and seat.joined and not run.is_serving
    if not going or seconds > LEAVE_SECONDS / 2:
        lose_leaving(course)
    elif run.until_step > target:
        course.change(until_step=target)
        send_run(course)


def find_meeting_step(run: Run) -> int:
    ahead = 2 if not run.step_seconds else 1 + ceil(MEETING_SECONDS / run.step_seconds)
    return min(run.steps, run.epoch_step + ahead)


def lose_leaving(course: Course) -> None:
    leaving = [seat.id for seat in course.run.seats.values() if seat.leaving_at is not None]
    lose(course, dict.fromkeys(leaving, OWNER_BACK), cause=Cause.OWNER_RETURNED, counts=False)


def look_for_silence(course: Course) -> None:
    lost = {seat.id: _find_silence(seat, course.now) for seat in course.run.seats.values() if not seat.is_vacant}
    lose(course, {id: why for id, why in lost.items() if why})


def _find_silence(seat: Seat, now: float) -> str:
    if seat.suspected_at is not None and now - seat.suspected_at >= PROBE_SECONDS:
        return f"no sign of life for {PROBE_SECONDS:.0f} s after it was suspected"
    if seat.joined and now - seat.heard_at > SILENCE_SECONDS:
        return f"not heard for {SILENCE_SECONDS:.0f} s"
    if not seat.joined and seat.closed_at is None and now - seat.leased_at > JOIN_SECONDS:
        return f"its host did not come within {JOIN_SECONDS:.0f} s"
    if seat.closed_at is not None and now - seat.closed_at > DETACHED_SECONDS:
        return f"without a session for {DETACHED_SECONDS:.0f} s"
    return ""


def probe_detached(course: Course) -> None:
    """Hosts that are alive without a session are asked again and again."""
    for seat in course.run.seats.values():
        if seat.closed_at is not None and seat.suspected_at is None and course.now >= seat.probe_at:
            course.change_seat(seat.id, suspected_at=course.now)
            course.do(SendProbe(seat.id, attempt_of(seat)))


def look_for_late(course: Course) -> None:
    run = course.run
    leaving = [seat.leaving_at for seat in run.seats.values() if seat.leaving_at is not None]
    if leaving and (run.state not in AT_WORK or course.now - min(leaving) > LEAVE_SECONDS):
        lose_leaving(course)
    elif run.state not in AT_WORK and run.prepare_epoch == run.epoch:
        late = [seat for seat in run.taken_seats if seat.prepared_epoch != run.epoch]
        lose(course, {seat.id: why for seat in late if (why := _find_delay(seat, run, course.now))})


def _find_delay(seat: Seat, run: Run, now: float) -> str:
    """A host tells with its beats how it gets on with what it fetches and builds."""
    if now - run.prepare_at > PREPARE_SECONDS:
        return f"not prepared within {PREPARE_SECONDS:.0f} s"
    if now - max(run.prepare_at, seat.moved_at) > PREPARE_STALL_SECONDS:
        return f"not prepared, and did not get on for {PREPARE_STALL_SECONDS:.0f} s"
    return ""


def look_for_stall(course: Course) -> None:
    """Everybody waits for whoever is stuck, so nobody gets on. First all start anew; then seats change hands.

    Whom most others miss goes first, then who has stood still longest; nobody twice before everybody once.
    """
    run = course.run
    # Who only answers gets on when somebody asks, and who waits for audits has nothing left to do.
    if run.state not in AT_WORK or run.is_serving or run.settle_at is not None:
        return
    patience = min(max(STALL_SECONDS, STALL_GAPS * run.gap_seconds_max), STALL_SECONDS_MAX)
    if course.now - max(seat.moved_at for seat in run.taken_seats) <= patience:
        return
    course.change(stalls=run.stalls + 1)
    untried = [seat for seat in run.taken_seats if seat.id not in run.replaced]
    if run.stalls == 0 or not untried:
        raise_epoch(course, f"nobody got on for {patience:.0f} s")
        return
    worst = min(untried, key=lambda seat: (-len(seat.reporters), seat.moved_at, seat.id))
    course.change(replaced=run.replaced | {worst.id})
    lose(course, {worst.id: f"nobody got on for {patience:.0f} s, again"})
