"""What an audit does to a run: steps that do not count, seats that are lost, and ends that wait for audits."""

from __future__ import annotations

import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.networks import epochs
from computepool.core.networks.run import (
    AuditsSettled,
    Avoidance,
    EndRun,
    ForgetSteps,
    PaySeats,
    RunState,
    SendPrepare,
    SessionClosed,
    StepsRejected,
    StopAsked,
    VacateSeat,
    seat_id,
)
from tests.support.run_story import Story, make_run, only

FIRST, MIDDLE, LAST = seat_id(0), seat_id(1), seat_id(2)


@pytest.fixture
def story() -> Story:
    """Thirty steps are made, and twenty stored."""
    story = Story(make_run(audited=True, steps=40)).start()
    for end in (10, 20):
        story.step(*range(end - 9, end + 1))
        story.store(end)
    story.step(*range(21, 31))
    assert (story.run.step, story.run.checkpoint_step) == (30, 20)
    return story


def reject(story: Story, *, blamed: bool = True, step: int = 10):
    seat = story.run.seats[MIDDLE]
    return story.hear(StepsRejected(MIDDLE, seat.attempt_id, seat.node_id, step, blamed, "it lied"))


def test_steps_that_are_rejected_are_done_again_by_somebody_else(story):
    wrong = story.run.seats[MIDDLE]
    effects = reject(story)
    assert (story.run.step, story.run.checkpoint_step, story.run.epoch) == (10, 10, 2)
    assert only(ForgetSteps, effects) == [ForgetSteps(10, wrong.attempt_id, "it lied")]
    [vacated] = only(VacateSeat, effects)
    assert (vacated.seat, vacated.cause) == (MIDDLE, Cause.WRONG_RESULT)
    # For as long as the run goes on, not only for a minute.
    assert story.run.avoided[wrong.node_id] == Avoidance(float("inf"))
    story.start()
    assert {each.epoch for each in only(SendPrepare, story.effects)} == {1, 2}
    assert story.run.from_step == 10


def test_reports_from_before_do_not_make_a_checkpoint_of_it_again(story):
    story.store(30, "embed", "head")
    reject(story)
    story.start()
    story.step(*range(11, 21))
    story.store(20, epoch=1)
    assert story.run.checkpoint_step == 10
    story.store(20)
    assert story.run.checkpoint_step == 20


def test_who_is_not_blamed_loses_the_seat_and_no_more(story):
    node_id = story.run.seats[MIDDLE].node_id
    effects = reject(story, blamed=False)
    assert only(ForgetSteps, effects) == [ForgetSteps(10, None, "it lied")]
    assert [each.cause for each in only(VacateSeat, effects)] == [Cause.DOUBTED]
    assert story.run.avoided[node_id].until < float("inf")


def test_who_has_left_is_rejected_all_the_same(story):
    seat = story.run.seats[MIDDLE]
    story.hear(SessionClosed(MIDDLE, seat.attempt_id))
    story.wait(3.0)
    assert story.run.seats[MIDDLE].is_vacant
    epoch = story.run.epoch
    effects = story.hear(StepsRejected(MIDDLE, seat.attempt_id, seat.node_id, 10, True, "it lied"))
    assert only(ForgetSteps, effects) == [ForgetSteps(10, seat.attempt_id, "it lied")]
    assert only(VacateSeat, effects) == []
    assert (story.run.checkpoint_step, story.run.epoch) == (10, epoch + 1)


def finish(story: Story):
    story.step(*range(31, 41))
    return story.store(40)


def test_a_run_whose_steps_are_all_stored_ends_when_its_audits_are_settled(story):
    assert only(EndRun, finish(story)) == []
    assert story.run.state is RunState.RUNNING
    assert story.wait(60.0, beats=True) == []
    effects = story.hear(AuditsSettled())
    assert only(EndRun, effects) == [EndRun(RunState.SUCCEEDED, pays_to_now=True)]


def test_a_run_that_is_not_at_its_end_does_not_end_because_audits_are_settled(story):
    assert story.hear(AuditsSettled()) == []


def test_the_last_steps_can_be_rejected_too(story):
    finish(story)
    reject(story, step=30)
    # There was no checkpoint after step 30: what is stored is what counts.
    assert story.run.checkpoint_step == 30
    story.start()
    assert only(EndRun, finish(story)) == []
    assert only(EndRun, story.hear(AuditsSettled())) != []


def test_audits_that_never_settle_do_not_keep_a_run_for_ever(story):
    finish(story)
    assert only(EndRun, story.wait(epochs.SETTLE_SECONDS + 1, beats=True)) != []
    assert story.run.state is RunState.SUCCEEDED
    assert "not audited in time" in story.run.message


def test_a_loss_while_audits_settle_starts_nothing_anew(story):
    finish(story)
    epoch = story.run.epoch
    story.hear(SessionClosed(MIDDLE, story.attempt(MIDDLE)))
    story.wait(3.0, beats=True)
    assert story.run.seats[MIDDLE].is_vacant
    assert (story.run.epoch, story.run.state) == (epoch, RunState.RUNNING)
    assert only(EndRun, story.hear(AuditsSettled())) != []


def test_who_stops_a_run_that_waits_for_audits_has_it_at_once(story):
    finish(story)
    story.hear(StopAsked())
    assert story.run.state is RunState.SUCCEEDED


def test_another_owner_does_not_wait_for_audits_that_went_with_the_one_before(story):
    finish(story)
    story.take_over()
    assert story.run.state is RunState.SUCCEEDED


def test_a_run_that_was_to_stop_and_has_made_all_its_steps_has_succeeded_whatever_becomes_of_its_audits():
    story = Story(make_run(audited=True, steps=10)).start()
    story.step(*range(1, 10))
    story.hear(StopAsked())
    story.step(10)
    story.store(10)
    assert (story.run.state, story.run.settle_at) == (RunState.STOPPING, story.now)
    story.wait(epochs.STOP_SECONDS + 1, beats=True)
    assert story.run.state is RunState.SUCCEEDED


# Where it stays to answer


@pytest.fixture
def served() -> Story:
    """All steps are stored, and the last ones are audited."""
    story = Story(make_run(audited=True, serves=True, steps=20)).start()
    for end in (10, 20):
        story.step(*range(end - 9, end + 1))
        story.store(end)
    assert story.run.settle_at is not None
    assert story.told[-1] == "all steps are stored; the last ones are audited"
    return story


def test_a_run_that_serves_only_serves_once_its_last_steps_are_audited(served):
    effects = served.hear(AuditsSettled())
    assert only(EndRun, effects) == []
    assert (served.run.state, served.run.is_serving, served.run.settle_at) == (RunState.RUNNING, True, None)
    assert (served.told[-1], served.run.message) == ("all 20 steps are made; answers until it is stopped", "")


def test_hosts_that_answer_while_they_are_audited_are_paid_and_not_stuck(served):
    effects = served.wait(3 * epochs.PAY_SECONDS, beats=True)
    assert len(only(PaySeats, effects)) == 3
    assert (served.run.state, served.run.epoch) == (RunState.RUNNING, 1)


def test_audits_that_never_settle_do_not_end_a_run_that_serves(served):
    assert only(EndRun, served.wait(epochs.SETTLE_SECONDS + 1, beats=True)) == []
    assert (served.run.state, served.run.settle_at) == (RunState.RUNNING, None)
    assert served.told[-1].endswith("its last steps were not audited in time")


def test_a_host_that_is_lost_while_audits_settle_is_replaced_because_others_ask(served):
    served.hear(SessionClosed(MIDDLE, served.attempt(MIDDLE)))
    served.wait(3.0, beats=True)
    assert (served.run.state, served.run.epoch) == (RunState.RECOVERING, 2)
    served.hear(AuditsSettled())
    assert served.run.state is RunState.RECOVERING
    served.start()
    assert (served.run.is_serving, served.run.settle_at) == (True, None)
    assert served.told[-1] == "answers at checkpoint 20 in epoch 2"


@pytest.mark.parametrize("settled", [False, True])
def test_a_run_that_serves_trains_again_when_its_last_steps_are_rejected(served, settled):
    if settled:
        served.hear(AuditsSettled())
    reject(served, step=10)
    assert (served.run.checkpoint_step, served.run.is_serving, served.run.settle_at) == (10, False, None)
    served.start()
    served.step(*range(11, 21))
    served.store(20)
    assert served.run.settle_at is not None
    served.hear(AuditsSettled())
    assert (served.run.state, served.run.is_serving) == (RunState.RUNNING, True)


def test_who_stops_a_run_that_serves_does_not_wait_for_its_audits(served):
    effects = served.hear(StopAsked())
    assert only(EndRun, effects) == [EndRun(RunState.SUCCEEDED, pays_to_now=True)]
    assert "not audited" in served.run.message


def test_another_owner_lets_a_run_that_serves_go_on(served):
    assert only(EndRun, served.take_over()) == []
    served.start()
    assert served.run.is_serving
