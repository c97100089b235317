"""What becomes of a run: each event in each situation that matters, and what follows from it."""

from __future__ import annotations

from uuid import UUID

import pytest

from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import Cause
from computepool.core.networks import course, detection, epochs
from computepool.core.networks.run import (
    AnswerMissed,
    BeatHeard,
    CheckpointReported,
    CompleteCheckpoint,
    EndRun,
    FaultReported,
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
    RunState,
    SeatsFilled,
    SendDrop,
    SendPrepare,
    SendProbe,
    SendRun,
    SessionClosed,
    StepReported,
    StopAsked,
    Ticked,
    VacateSeat,
    seat_id,
)
from computepool.core.networks.spec import Exactness
from tests.support.run_story import Story, make_run, only

FIRST, MIDDLE, LAST = seat_id(0), seat_id(1), seat_id(2)


@pytest.fixture
def story() -> Story:
    return Story().start()


def close(story: Story, seat):
    return story.hear(SessionClosed(seat, story.attempt(seat)))


def report(story: Story, by, seat):
    return story.hear(PeerReported(by, seat, story.run.epoch))


# From a spec to steps


def test_a_new_run_asks_for_pnodes_and_again_after_a_second():
    story = Story()
    assert only(PlaceSeats, story.hear(Ticked())) == [PlaceSeats((FIRST, MIDDLE, LAST))]
    assert story.hear(Ticked()) == []
    assert only(PlaceSeats, story.wait(epochs.PLACE_SECONDS)) != []


def test_why_nobody_fits_is_kept_and_told_once():
    story = Story()
    story.hear(NobodyFits(("VNode embed needs 9 GB",)))
    story.hear(NobodyFits(("VNode embed needs 9 GB",)))
    assert story.run.message == "VNode embed needs 9 GB"
    assert story.told == ["waits for a PNode: VNode embed needs 9 GB"]


def test_nobody_is_told_to_prepare_before_every_host_has_joined():
    story = Story()
    story.fill()
    story.join(FIRST, MIDDLE)
    assert only(SendPrepare, story.effects) == []
    story.join(LAST)
    assert [effect.seat for effect in only(SendPrepare, story.effects)] == [FIRST, MIDDLE, LAST]
    assert story.run.state is RunState.PREPARING


def test_nobody_is_told_to_run_before_every_host_is_prepared():
    """A neighbour's first frame must not beat anybody's start."""
    story = Story()
    story.fill()
    story.join()
    story.prepare(FIRST, LAST)
    assert only(SendRun, story.effects) == []
    story.prepare(MIDDLE)
    assert [(e.seat, e.from_step, e.until_step) for e in only(SendRun, story.effects)] == [
        (FIRST, 0, 100),
        (MIDDLE, 0, 100),
        (LAST, 0, 100),
    ]


def test_prepared_for_an_older_epoch_does_not_count(story):
    close(story, FIRST)
    story.wait(detection.PROBE_SECONDS)
    story.fill()
    story.join()
    for seat in (FIRST, MIDDLE, LAST):
        story.hear(HostPrepared(seat, story.attempt(seat), story.run.epoch - 1))
    assert story.run.state is RunState.RECOVERING


def test_a_pnode_that_was_just_taken_leaves_its_seat_vacant_and_is_asked_for_again():
    story = Story()
    story.fill(FIRST, MIDDLE)
    assert only(PlaceSeats, story.wait(epochs.PLACE_SECONDS))[-1] == PlaceSeats((LAST,))


def test_vnodes_that_have_a_host_are_never_moved(story):
    with pytest.raises(ValueError, match="without a host"):
        story.hear(SeatsFilled((), {("body", 0): FIRST}))


# The curve and its checkpoints


def test_a_step_of_the_loss_counts_and_one_from_another_host_does_not(story):
    assert KeepStep(1) in story.step(1)
    forged = StepReported(FIRST, story.attempt(FIRST), story.run.epoch, 2)
    assert story.hear(forged) == []
    assert story.run.step == 1


def test_a_step_is_complete_when_every_vnode_has_stored_it_and_its_loss_is_known(story):
    story.step(*range(1, 20))
    assert only(CompleteCheckpoint, story.store(20)) == []
    assert only(CompleteCheckpoint, story.step(20)) == [CompleteCheckpoint(20)]
    story.step(*range(21, 41))
    assert only(CompleteCheckpoint, story.store(40, "embed", "body")) == []
    assert story.run.checkpoint_step == 20
    assert only(CompleteCheckpoint, story.store(40, "head")) == [CompleteCheckpoint(40)]
    assert story.run.checkpoint_step == 40


def test_a_report_of_a_vnode_that_its_host_does_not_have_is_not_kept(story):
    story.step(*range(1, 21))
    forged = CheckpointReported(FIRST, story.attempt(FIRST), story.run.epoch, 20, "head")
    assert story.hear(forged) == []
    assert only(KeepReport, story.store(20, "head")) == [KeepReport(20, "head")]


def test_reports_of_an_earlier_epoch_of_the_same_class_still_count(story):
    story.step(*range(1, 21))
    story.store(20, "embed", "body")
    close(story, LAST)
    story.wait(detection.PROBE_SECONDS)
    story.start()
    assert story.run.epoch == 2
    # Done again by another PNode of the class: the same bits.
    assert only(CompleteCheckpoint, story.store(20, "head")) == [CompleteCheckpoint(20)]


def test_reports_from_before_another_class_came_do_not_count():
    story = Story(make_run(exact=Exactness.PREFERRED)).start()
    story.step(*range(1, 21))
    story.store(20, "embed", "body")
    close(story, LAST)
    story.wait(detection.PROBE_SECONDS)
    story.fill(numeric_class="cuda")
    story.start()
    assert story.run.inexact_from_step == 1
    story.step(*range(1, 21))
    assert only(CompleteCheckpoint, story.store(20, "head")) == []
    assert only(CompleteCheckpoint, story.store(20)) == [CompleteCheckpoint(20)]


def test_an_exact_run_takes_no_pnode_of_another_class():
    story = Story(make_run(exact=Exactness.REQUIRED)).start()
    close(story, LAST)
    story.wait(detection.PROBE_SECONDS)
    with pytest.raises(ValueError, match="exact run"):
        story.fill(numeric_class="cuda")


def test_the_last_checkpoint_ends_the_run(story):
    story.step(*range(1, 101))
    assert story.run.state is RunState.RUNNING
    effects = story.store(100)
    assert only(EndRun, effects) == [EndRun(RunState.SUCCEEDED, pays_to_now=True)]
    assert [effect.seat for effect in only(SendDrop, effects)] == [FIRST, MIDDLE, LAST]
    assert story.run.state is RunState.SUCCEEDED


def test_what_is_over_hears_nothing_more(story):
    story.step(*range(1, 101))
    story.store(100)
    assert story.wait(100.0) == []
    assert close(story, FIRST) == []


def test_a_loss_that_comes_late_is_waited_for_and_a_checkpoint_beyond_it_too(story):
    """A session broke: what was on its way comes again after what followed it."""
    story.step(1, 2, 4, 5)
    story.store(5)
    assert (story.run.step, story.run.checkpoint_step) == (2, 0)
    assert only(CompleteCheckpoint, story.step(3)) == [CompleteCheckpoint(5)]
    assert story.run.step == 5


def test_a_loss_that_does_not_arrive_sends_everybody_back_to_the_checkpoint(story):
    """Otherwise the curve would have a hole."""
    story.step(*range(1, 21))
    story.store(20)
    story.step(21, 23)
    story.wait(epochs.GAP_SECONDS - 1.0, beats=True)
    assert story.run.epoch == 1
    story.wait(2.0, beats=True)
    assert story.run.epoch == 2
    story.prepare()
    assert only(SendRun, story.effects)[-1].from_step == 20
    story.step(21, 22, 23)
    assert story.run.step == 23


# Detection


def test_a_closed_session_makes_a_suspect_that_is_lost_after_two_seconds(story):
    assert only(SendProbe, close(story, MIDDLE)) == [SendProbe(MIDDLE, story.attempt(MIDDLE))]
    assert only(VacateSeat, story.wait(detection.PROBE_SECONDS - 0.25)) == []
    lost = only(VacateSeat, story.wait(0.25))
    assert [(effect.seat, effect.cause) for effect in lost] == [(MIDDLE, Cause.NETWORK_LOST)]
    assert story.run.state is RunState.RECOVERING


def test_a_closed_session_that_a_neighbour_confirms_is_lost_at_once(story):
    close(story, MIDDLE)
    assert [effect.seat for effect in only(VacateSeat, report(story, FIRST, MIDDLE))] == [MIDDLE]


def test_the_order_of_the_two_signs_does_not_matter(story):
    report(story, FIRST, MIDDLE)
    assert [effect.seat for effect in only(VacateSeat, close(story, MIDDLE))] == [MIDDLE]


def test_two_reports_make_a_suspect_and_one_does_not(story):
    assert only(SendProbe, report(story, FIRST, MIDDLE)) == []
    assert only(SendProbe, report(story, FIRST, MIDDLE)) == []
    assert only(SendProbe, report(story, LAST, MIDDLE)) == [SendProbe(MIDDLE, story.attempt(MIDDLE))]
    assert [effect.seat for effect in only(VacateSeat, story.wait(detection.PROBE_SECONDS))] == [MIDDLE]


def test_of_two_hosts_one_report_is_all_that_there_can_be():
    story = Story(make_run(seats=2)).start()
    assert only(SendProbe, report(story, FIRST, MIDDLE)) != []


def test_nobody_reports_himself_and_reports_of_older_epochs_do_not_count(story):
    report(story, MIDDLE, MIDDLE)
    story.hear(PeerReported(FIRST, MIDDLE, story.run.epoch - 1))
    assert story.run.seats[MIDDLE].reporters == frozenset()


def test_a_suspect_that_beats_is_alive_and_all_go_back_because_frames_were_lost(story):
    report(story, FIRST, MIDDLE)
    report(story, LAST, MIDDLE)
    story.hear(BeatHeard(MIDDLE, story.attempt(MIDDLE), story.run.epoch, 7))
    assert only(VacateSeat, story.effects) == []
    assert story.run.epoch == 2
    assert story.incarnations() == {"embed": 1, "body": 1, "head": 1}


def test_a_host_that_cannot_be_reached_twice_is_reached_by_relay():
    story = Story().start()
    for _ in range(detection.LINK_FAULTS_MAX):
        assert story.run.seats[MIDDLE].address != ""
        report(story, FIRST, MIDDLE)
        report(story, LAST, MIDDLE)
        story.hear(BeatHeard(MIDDLE, story.attempt(MIDDLE), story.run.epoch, 7))
        story.prepare()
    assert story.run.seats[MIDDLE].address == ""
    story.hear(HostJoined(MIDDLE, story.attempt(MIDDLE), "again.example:1"))
    assert story.run.seats[MIDDLE].address == ""


def test_whoever_comes_back_within_the_probe_loses_nothing(story):
    story.step(1)
    close(story, MIDDLE)
    story.wait(1.0)
    story.join(MIDDLE)
    assert story.run.epoch == 1
    # It may have missed the order.
    assert only(SendRun, story.effects)[-1] == SendRun(MIDDLE, story.attempt(MIDDLE), 1, 0, 100)
    story.wait(10.0, beats=True)
    assert story.run.epoch == 1


def test_a_host_without_a_session_that_gives_signs_of_life_is_kept_and_asked_again(story):
    """Only its gRPC to the hub is cut; its agent is heard and its peers have it."""
    close(story, MIDDLE)
    for _ in range(5):
        story.hear(ProbeAnswered(MIDDLE, story.attempt(MIDDLE)))
        probes = only(SendProbe, story.wait(detection.PROBE_SECONDS + 0.25, beats=True))
        assert [probe.seat for probe in probes] == [MIDDLE]
    assert story.run.epoch == 1
    story.wait(detection.PROBE_SECONDS)
    assert story.run.epoch == 2


def test_but_not_for_ever(story):
    close(story, MIDDLE)
    while story.run.epoch == 1:
        story.hear(ProbeAnswered(MIDDLE, story.attempt(MIDDLE)))
        story.step(story.run.step + 1)
        story.wait(1.0, beats=True)
    assert "without a session" in " ".join(story.told)


def test_silence_is_a_loss_after_fifteen_seconds(story):
    story.now += detection.SILENCE_SECONDS
    assert only(VacateSeat, story.hear(Ticked())) == []
    story.now += 0.5
    assert len(only(VacateSeat, story.hear(Ticked()))) == 3


def test_a_host_that_never_comes_is_given_up():
    story = Story()
    story.fill()
    story.join(FIRST, MIDDLE)
    effects = story.wait(detection.JOIN_SECONDS + 0.5, beats=True)
    assert [effect.seat for effect in only(VacateSeat, effects)] == [LAST]
    assert story.run.state is RunState.PLACING


def test_a_host_that_is_never_prepared_is_given_up():
    story = Story()
    story.fill()
    story.join()
    story.prepare(FIRST, MIDDLE)
    effects = story.wait(detection.PREPARE_STALL_SECONDS - 0.5, beats=True)
    assert only(VacateSeat, effects) == []
    effects = story.wait(1.0, beats=True)
    assert [effect.seat for effect in only(VacateSeat, effects)] == [LAST]
    assert "did not get on for 20 s" in story.told[-1]


def test_a_host_that_gets_on_with_what_it_fetches_has_its_time_but_not_for_ever():
    story = Story()
    story.fill()
    story.join()
    story.prepare(FIRST, MIDDLE)
    found: list[VacateSeat] = []
    while story.now < 1_000.0 + detection.PREPARE_SECONDS:
        watermark = story.run.seats[LAST].watermark + 1
        story.hear(BeatHeard(LAST, story.attempt(LAST), story.run.epoch, watermark))
        found += only(VacateSeat, story.wait(detection.BEAT_SECONDS, beats=True))
    assert found == []
    assert [effect.seat for effect in only(VacateSeat, story.wait(1.0, beats=True))] == [LAST]


def test_a_lease_that_was_lost_elsewhere_loses_the_seat_and_is_not_ended_twice(story):
    effects = story.hear(LeasesLost(frozenset({story.attempt(FIRST)})))
    assert only(VacateSeat, effects) == []
    assert story.run.seats[FIRST].is_vacant
    assert story.run.epoch == 2


def test_alive_but_stuck_first_starts_everybody_anew_and_then_changes_seats(story):
    story.step(1)
    stalled = story.wait(detection.STALL_SECONDS + 1.0, beats=True)
    assert only(VacateSeat, stalled) == []
    assert story.run.epoch == 2
    story.prepare()
    report(story, FIRST, MIDDLE)
    stalled = story.wait(detection.STALL_SECONDS + 1.0, beats=True)
    assert [effect.seat for effect in only(VacateSeat, stalled)] == [MIDDLE]
    story.start()
    stalled = story.wait(detection.STALL_SECONDS + 1.0, beats=True)
    assert MIDDLE not in [effect.seat for effect in only(VacateSeat, stalled)]


def test_beats_alone_are_not_progress_but_a_growing_watermark_is(story):
    for watermark in range(1, 60):
        story.hear(BeatHeard(FIRST, story.attempt(FIRST), 1, watermark))
        story.wait(1.0, beats=True)
    assert story.run.epoch == 1


# Loss and recovery


def test_only_lost_vnodes_are_placed_anew_and_all_go_back_to_the_last_complete_checkpoint(story):
    story.step(*range(1, 31))
    story.store(20)
    story.store(30, "embed", "head")
    before = {each.vnode_id: each for each in story.run.locations}
    effects = close(story, MIDDLE) + story.wait(detection.PROBE_SECONDS)
    assert only(PlaceSeats, effects) == [PlaceSeats((MIDDLE,))]
    story.start()
    after = {each.vnode_id: each for each in story.run.locations}
    assert after["embed"] == before["embed"]
    assert after["head"] == before["head"]
    assert after["body"].incarnation == before["body"].incarnation + 1
    assert {effect.from_step for effect in only(SendRun, story.effects)[-3:]} == {20}
    assert {effect.epoch for effect in only(SendRun, story.effects)[-3:]} == {2}


def test_without_a_spare_lost_vnodes_may_go_to_hosts_that_stay(story):
    close(story, MIDDLE)
    story.wait(detection.PROBE_SECONDS)
    story.hear(SeatsFilled((), {("body", 0): LAST}))
    story.prepare()
    assert story.run.state is RunState.RUNNING
    assert story.seat_of("body") == LAST
    assert [seat.id for seat in story.run.taken_seats] == [FIRST, LAST]


def test_what_an_earlier_host_of_the_seat_says_is_not_heard(story):
    old = story.attempt(LAST)
    close(story, LAST)
    story.wait(detection.PROBE_SECONDS)
    story.start()
    for event in (
        StepReported(LAST, old, story.run.epoch, 1),
        CheckpointReported(LAST, old, story.run.epoch, 20, "head"),
        BeatHeard(LAST, old, story.run.epoch, 99),
        SessionClosed(LAST, old),
        FaultReported(LAST, old, story.run.epoch, "head", "loss_not_finite", "nan"),
        LeaveAnnounced(LAST, old),
    ):
        before = story.run
        assert story.hear(event) == []
        assert story.run == before


def test_a_loss_while_recovering_raises_the_epoch_again(story):
    close(story, FIRST)
    story.wait(detection.PROBE_SECONDS)
    story.fill()
    story.join()
    close(story, LAST)
    story.wait(detection.PROBE_SECONDS)
    assert story.run.epoch == 3
    assert only(SendRun, story.effects)[-1].epoch == 1


def test_a_node_that_lost_a_seat_is_avoided_for_a_while(story):
    node_id = story.run.seats[FIRST].node_id
    close(story, FIRST)
    story.wait(detection.PROBE_SECONDS)
    assert story.run.avoided[node_id].until == pytest.approx(story.now + course.AVOID_SECONDS)


def test_a_run_that_never_gets_on_fails_in_the_end_and_says_why(story):
    for _ in range(course.RECOVERIES_MAX):
        close(story, FIRST)
        story.wait(detection.PROBE_SECONDS)
        story.start()
    close(story, FIRST)
    effects = story.wait(detection.PROBE_SECONDS)
    assert only(EndRun, effects) == [EndRun(RunState.FAILED, pays_to_now=False)]
    assert "no new checkpoint in 20 epochs" in story.run.message
    assert "Resume the run" in story.run.message


def test_a_new_checkpoint_makes_earlier_losses_forgotten(story):
    for step in range(1, 41):
        close(story, FIRST)
        story.wait(detection.PROBE_SECONDS)
        story.start()
        story.step(step)
        story.store(step)
    assert story.run.state is RunState.RUNNING
    assert story.run.checkpoint_step == 40


# Faults


def test_a_loss_that_is_no_number_ends_the_run_with_vnode_pnode_and_advice(story):
    fault = FaultReported(LAST, story.attempt(LAST), 1, "head", "loss_not_finite", "the loss of step 7 is nan")
    assert only(EndRun, story.hear(fault)) == [EndRun(RunState.FAILED, pays_to_now=True)]
    node_id = str(UUID(int=1_003))
    for said in ("VNode head", LAST, node_id, "step 7 is nan", "Lower optimizer.lr", "clip_norm"):
        assert said in story.run.message


def test_a_pnode_without_memory_loses_its_seat_and_the_run_goes_on(story):
    fault = FaultReported(MIDDLE, story.attempt(MIDDLE), 1, "body", "out_of_memory", "12 GB were needed")
    lost = only(VacateSeat, story.hear(fault))
    assert [(effect.seat, effect.cause) for effect in lost] == [(MIDDLE, Cause.OUT_OF_MEMORY)]
    assert story.start().run.state is RunState.RUNNING


def test_any_other_fault_starts_the_epoch_anew_where_everybody_is(story):
    fault = FaultReported(MIDDLE, story.attempt(MIDDLE), 1, "body", "frame_refused", "a frame was not finite")
    assert only(VacateSeat, story.hear(fault)) == []
    assert story.run.epoch == 2


# Planned loss


def test_an_owner_who_comes_back_waits_for_one_step_that_everybody_stores(story):
    story.step(*range(1, 4))
    effects = story.hear(LeaveAnnounced(MIDDLE, story.attempt(MIDDLE), "owner returned"))
    target = {effect.until_step for effect in only(SendRun, effects)}
    assert len(target) == 1
    [until] = target
    assert 4 < until < 20
    story.step(*range(4, until + 1))
    lost = only(VacateSeat, story.store(until))
    assert [(effect.seat, effect.cause) for effect in lost] == [(MIDDLE, Cause.OWNER_RETURNED)]
    story.start()
    assert only(SendRun, story.effects)[-1].from_step == until
    assert only(SendRun, story.effects)[-1].until_step == 100
    assert story.run.recoveries == 0


def test_but_not_for_longer_than_two_seconds(story):
    story.step(*range(1, 4))
    story.hear(LeaveAnnounced(MIDDLE, story.attempt(MIDDLE)))
    assert only(VacateSeat, story.wait(detection.LEAVE_SECONDS - 0.25, beats=True)) == []
    assert [effect.seat for effect in only(VacateSeat, story.wait(0.75, beats=True))] == [MIDDLE]


def test_a_host_that_leaves_after_its_session_ended_is_not_waited_for(story):
    story.step(1, 2)
    close(story, MIDDLE)
    lost = only(VacateSeat, story.hear(LeaveAnnounced(MIDDLE, story.attempt(MIDDLE))))
    assert [(effect.seat, effect.cause) for effect in lost] == [(MIDDLE, Cause.OWNER_RETURNED)]


def test_where_a_step_takes_too_long_nobody_waits(story):
    story.step(1, 2, seconds=5.0)
    lost = only(VacateSeat, story.hear(LeaveAnnounced(MIDDLE, story.attempt(MIDDLE))))
    assert [effect.seat for effect in lost] == [MIDDLE]


# Stop


def test_a_stop_lets_everybody_store_one_step_and_ends_there(story):
    story.step(*range(1, 4))
    until = only(SendRun, story.hear(StopAsked()))[0].until_step
    assert story.run.state is RunState.STOPPING
    story.step(*range(4, until + 1))
    assert only(EndRun, story.store(until)) == [EndRun(RunState.STOPPED, pays_to_now=True)]
    assert story.run.checkpoint_step == until


def test_a_stop_ends_in_any_case(story):
    story.step(1)
    story.hear(StopAsked())
    effects = story.wait(epochs.STOP_SECONDS + 0.5, beats=True)
    assert only(EndRun, effects) == [EndRun(RunState.STOPPED, pays_to_now=True)]


def test_a_loss_while_stopping_ends_the_run_at_its_last_checkpoint(story):
    story.step(1)
    story.hear(StopAsked())
    close(story, FIRST)
    story.wait(detection.PROBE_SECONDS)
    assert story.run.state is RunState.STOPPED


def test_a_run_that_waits_is_stopped_at_once():
    story = Story()
    assert only(EndRun, story.hear(StopAsked())) == [EndRun(RunState.STOPPED, pays_to_now=True)]


def test_a_job_that_was_cancelled_stops_its_run_and_pays_to_the_checkpoint(story):
    assert only(EndRun, story.hear(JobEnded())) == [EndRun(RunState.STOPPED, pays_to_now=False)]


def test_hours_that_are_paid_for_end_with_a_stored_step_if_they_can():
    story = Story(make_run(ends_at=2_000.0)).start()
    story.step(1, 2)
    story.now = 2_000.0 - epochs.STOP_SECONDS
    for seat in (FIRST, MIDDLE, LAST):
        story.hear(BeatHeard(seat, story.attempt(seat), 1, 99))
    until = only(SendRun, story.hear(Ticked()))[0].until_step
    story.step(*range(3, until + 1))
    story.store(until)
    assert story.run.state is RunState.STOPPED
    assert "nearly over" in story.run.message


def test_and_end_in_any_case():
    story = Story(make_run(ends_at=1_010.0))
    story.wait(10.0)
    assert story.run.state is RunState.STOPPED


# Another owner


def test_a_takeover_starts_everybody_anew_in_its_own_epoch_and_moves_nobody(story):
    story.step(*range(1, 26))
    story.store(20)
    story.store(25, "embed")
    incarnations = story.incarnations()
    assert only(SendPrepare, story.take_over()) == []
    assert story.run.state is RunState.RECOVERING
    story.start()
    assert story.incarnations() == incarnations
    assert {(e.epoch, e.from_step) for e in only(SendRun, story.effects)[-3:]} == {(2, 20)}
    # What was stored before still counts.
    story.step(*range(21, 26))
    assert only(CompleteCheckpoint, story.store(25, "body", "head")) == [CompleteCheckpoint(25)]


def test_hosts_have_time_to_come_over_and_those_who_do_not_are_lost(story):
    story.take_over()
    story.join(FIRST, MIDDLE)
    effects = story.wait(detection.JOIN_SECONDS + 0.5, beats=True)
    assert [effect.seat for effect in only(VacateSeat, effects)] == [LAST]


def test_a_takeover_of_a_run_that_was_stopping_ends_it(story):
    story.step(1)
    story.hear(StopAsked())
    assert only(EndRun, story.take_over()) == [EndRun(RunState.STOPPED, pays_to_now=True)]


def test_a_host_of_nobody_is_nobody():
    story = Story()
    stranger = AttemptId(UUID(int=99))
    assert story.hear(HostJoined(seat_id(7), stranger)) != []
    assert seat_id(7) not in story.run.seats


# Answers after the last step


@pytest.fixture
def served() -> Story:
    """A run of three steps that has made them, and stays."""
    story = Story(make_run(steps=3, serves=True)).start()
    story.step(1, 2, 3)
    story.store(3)
    assert story.run.is_serving
    return story


def test_a_run_that_serves_stays_when_its_steps_are_made(served):
    assert served.run.state is RunState.RUNNING
    assert only(EndRun, served.effects) == []
    assert served.told[-1] == "all 3 steps are made; answers until it is stopped"


def test_a_run_that_does_not_serve_ends_with_its_last_step():
    story = Story(make_run(steps=3)).start()
    story.step(1, 2, 3)
    assert only(EndRun, story.store(3)) == [EndRun(RunState.SUCCEEDED, pays_to_now=True)]


def test_who_only_answers_is_not_stuck(served):
    effects = served.wait(detection.STALL_SECONDS_MAX, beats=True)
    assert (served.run.state, served.run.epoch) == (RunState.RUNNING, 1)
    assert only(VacateSeat, effects) == []


def ask(story: Story, *seats, seconds: float = detection.ANSWER_SECONDS) -> list:
    """Somebody has waited so long, and tells it as a hub does, while hosts beat."""
    for seat in story.run.taken_seats:
        story.hear(BeatHeard(seat.id, story.attempt(seat.id), story.run.epoch, seat.watermark, seat.answering))
    return story.hear(AnswerMissed(story.run.epoch, seats or (FIRST, MIDDLE, LAST), seconds))


def get_on(story: Story, *seats) -> None:
    """They do something for a request, and say so with their beats."""
    for seat in seats:
        mark = story.run.seats[seat].answering + 1
        story.hear(BeatHeard(seat, story.attempt(seat), story.run.epoch, 0, mark))


def test_of_those_who_serve_the_first_that_was_asked_and_does_nothing_is_replaced(served):
    served.wait(detection.ANSWER_SECONDS, beats=True)
    get_on(served, FIRST)
    effects = ask(served)
    assert [(each.seat, each.cause) for each in only(VacateSeat, effects)] == [(MIDDLE, Cause.NETWORK_LOST)]
    assert "asked 20 s ago, it beats and does nothing for it" in served.told[-1]
    served.start()
    assert served.told[-1] == "answers at checkpoint 3 in epoch 2"


def test_who_gets_on_however_slowly_is_not_replaced(served):
    for _ in range(10):
        served.wait(detection.ANSWER_SECONDS / 2, beats=True)
        get_on(served, FIRST, MIDDLE, LAST)
        assert only(VacateSeat, ask(served, seconds=300.0)) == []


def test_nobody_is_replaced_for_a_request_that_was_just_asked_or_of_another_epoch(served):
    served.wait(600.0, beats=True)
    assert only(VacateSeat, ask(served, seconds=detection.ANSWER_SECONDS - 0.1)) == []
    assert only(VacateSeat, served.hear(AnswerMissed(0, (FIRST,), 60.0))) == []


def test_while_a_run_trains_nobody_loses_a_seat_for_an_answer(story):
    story.wait(detection.ANSWER_SECONDS - 1, beats=True)
    assert only(VacateSeat, ask(story, seconds=60.0)) == []


def test_control_a_host_that_does_not_say_what_it_does_for_requests_is_taken_for_stuck(served):
    served.wait(detection.ANSWER_SECONDS, beats=True)
    assert [each.seat for each in only(VacateSeat, ask(served))] == [FIRST]


def test_hosts_that_serve_are_paid_again_and_again(served):
    effects = served.wait(10 * epochs.PAY_SECONDS, beats=True)
    assert len(only(PaySeats, effects)) == 10


def test_a_host_that_is_lost_while_it_serves_is_replaced_and_all_load_the_last_checkpoint(served):
    close(served, MIDDLE)
    served.wait(detection.PROBE_SECONDS)
    assert served.run.state is RunState.RECOVERING
    served.start()
    orders = [order for order in only(SendRun, served.effects) if order.epoch == 2]
    assert {(order.from_step, order.until_step) for order in orders} == {(3, 3)}
    assert served.told[-1] == "answers at checkpoint 3 in epoch 2"
    assert served.run.recoveries == 1
    served.wait(epochs.PAY_SECONDS, beats=True)
    assert served.run.recoveries == 0


def test_an_owner_who_comes_back_waits_for_no_step_of_a_run_that_serves(served):
    effects = served.hear(LeaveAnnounced(MIDDLE, served.attempt(MIDDLE), "back"))
    assert [(effect.seat, effect.cause) for effect in only(VacateSeat, effects)] == [(MIDDLE, Cause.OWNER_RETURNED)]


def test_a_run_that_serves_ends_at_once_when_it_is_stopped_and_has_succeeded(served):
    effects = served.hear(StopAsked())
    assert only(EndRun, effects) == [EndRun(RunState.SUCCEEDED, pays_to_now=True)]


def test_a_run_is_resumed_to_serve_without_a_step_to_make():
    story = Story(make_run(steps=3, step=3, checkpoint_step=3, serves=True, epoch=5)).start()
    assert {(order.from_step, order.until_step) for order in only(SendRun, story.effects)} == {(3, 3)}
    assert story.told[-1] == "answers at checkpoint 3 in epoch 5"
