"""Machines that come back: trusted at once after a restart, and given back what had to go to others meanwhile."""

from __future__ import annotations

from uuid import UUID

import pytest

from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.networks import course, detection
from computepool.core.networks.rejoin import RETURN_SECONDS
from computepool.core.networks.run import (
    HostJoined,
    LeaveAnnounced,
    PlaceSeats,
    RunState,
    SeatFill,
    SeatsFilled,
    SendDrop,
    SendPrepare,
    SendRun,
    SessionClosed,
    VacateSeat,
    seat_id,
)
from tests.support.run_story import Story, make_run, only

FIRST, MIDDLE, LAST = seat_id(0), seat_id(1), seat_id(2)
NODE = NodeId(UUID(int=77))


def boot(number: int) -> UUID:
    return UUID(int=900 + number)


def seat_node(story: Story, attempt: int, boot_id: UUID | None) -> None:
    """The same node takes the middle seat, under this start of its agent."""
    fill = SeatFill(MIDDLE, AttemptId(UUID(int=500 + attempt)), NODE, "avx2", boot_id)
    parts = dict.fromkeys(story.run.list_parts(MIDDLE), MIDDLE)
    story.hear(SeatsFilled((fill,), parts))
    story.join()
    story.prepare()


def lose_middle(story: Story) -> None:
    story.hear(SessionClosed(MIDDLE, story.attempt(MIDDLE)))
    story.wait(detection.PROBE_SECONDS)


@pytest.fixture
def story() -> Story:
    return Story().start()


# Trust after a restart


def test_a_lost_node_is_avoided_under_the_start_that_lost_the_seat(story):
    lose_middle(story)
    seat_node(story, 1, boot(1))
    lose_middle(story)
    assert story.run.avoided[NODE] == course.Avoidance(story.now + course.AVOID_SECONDS, boot(1))


def test_whoever_falls_again_within_a_minute_is_avoided_whatever_its_start(story):
    lose_middle(story)
    for number in (1, 2):
        seat_node(story, number, boot(number))
        lose_middle(story)
    assert story.run.avoided[NODE].boot_id is None
    story.start()
    story.step(1, seconds=course.AVOID_SECONDS + 1)
    lose_middle(story)
    seat_node(story, 3, boot(3))
    lose_middle(story)
    assert story.run.avoided[NODE].boot_id == boot(3)


# What belongs to a seat


@pytest.fixture
def piled(story) -> Story:
    """The middle seat was lost when nobody was free: its VNode went to the last one."""
    story.step(*range(1, 11))
    story.store(10)
    lose_middle(story)
    story.hear(SeatsFilled((), {("body", 0): LAST}))
    story.prepare()
    assert (story.run.state, story.seat_of("body")) == (RunState.RUNNING, LAST)
    return story


def fill_middle(story: Story) -> list:
    fill = SeatFill(MIDDLE, AttemptId(UUID(int=601)), NODE, "avx2", boot(1))
    return story.hear(SeatsFilled((fill,), {}))


def test_a_pnode_for_the_empty_seat_is_looked_for_while_the_others_go_on(piled):
    effects = piled.wait(2 * RETURN_SECONDS, beats=True)
    assert only(PlaceSeats, effects) == [PlaceSeats((MIDDLE,))] * 2
    assert (piled.run.state, piled.run.epoch) == (RunState.RUNNING, 2)


def test_nobody_waits_for_it_and_vnodes_come_back_at_the_next_checkpoint(piled):
    fill_middle(piled)
    piled.step(11)
    piled.hear(HostJoined(MIDDLE, piled.attempt(MIDDLE)))
    # It has nothing to prepare yet.
    assert not any(order.seat == MIDDLE and order.epoch == 2 for order in only(SendPrepare, piled.effects))
    piled.step(*range(12, 21))
    assert (piled.run.state, piled.run.epoch) == (RunState.RUNNING, 2)
    effects = piled.store(20)
    assert (piled.run.state, piled.run.epoch, piled.run.recoveries) == (RunState.RECOVERING, 3, 0)
    assert piled.seat_of("body") == MIDDLE
    assert piled.incarnations() == {"embed": 1, "body": 3, "head": 1}
    assert {order.seat for order in only(SendPrepare, effects)} == {FIRST, MIDDLE, LAST}
    piled.prepare()
    assert {order.from_step for order in only(SendRun, piled.effects) if order.epoch == 3} == {20}
    assert any("(PNode " in line and "takes body again" in line for line in piled.told)


def test_a_host_that_has_not_come_when_the_checkpoint_is_there_waits_for_the_next(piled):
    fill_middle(piled)
    piled.step(*range(11, 21))
    piled.store(20)
    assert (piled.run.state, piled.run.epoch) == (RunState.RUNNING, 2)


@pytest.mark.parametrize("how", ["closed", "never came", "its owner is back"])
def test_a_seat_that_has_nothing_yet_is_lost_without_anybody_going_back(piled, how):
    fill_middle(piled)
    if how == "closed":
        piled.hear(HostJoined(MIDDLE, piled.attempt(MIDDLE)))
        piled.hear(SessionClosed(MIDDLE, piled.attempt(MIDDLE)))
        effects = piled.wait(detection.PROBE_SECONDS)
    elif how == "its owner is back":
        piled.hear(HostJoined(MIDDLE, piled.attempt(MIDDLE)))
        effects = piled.hear(LeaveAnnounced(MIDDLE, piled.attempt(MIDDLE)))
    else:
        effects = []
        for _ in range(13):
            piled.step(piled.run.step + 1, seconds=5.0)
            effects += piled.wait(0.25)
    assert [each.seat for each in only(VacateSeat, effects)] == [MIDDLE]
    assert (piled.run.state, piled.run.epoch) == (RunState.RUNNING, 2)
    assert piled.run.seats[MIDDLE].is_vacant


def test_a_run_that_only_serves_waits_for_no_checkpoint():
    story = Story(make_run(steps=3, serves=True)).start()
    story.step(1, 2, 3)
    story.store(3)
    lose_middle(story)
    story.hear(SeatsFilled((), {("body", 0): LAST}))
    story.prepare()
    fill_middle(story)
    story.hear(HostJoined(MIDDLE, story.attempt(MIDDLE)))
    assert (story.run.state, story.run.epoch, story.seat_of("body")) == (RunState.RECOVERING, 3, MIDDLE)


def test_a_new_owner_lets_go_of_whoever_has_nothing_to_do(piled):
    fill_middle(piled)
    attempt_id = piled.attempt(MIDDLE)
    effects = piled.take_over()
    assert [(each.attempt_id, each.cause) for each in only(VacateSeat, effects)] == [(attempt_id, Cause.HUB_FAULT)]
    assert attempt_id in {each.attempt_id for each in only(SendDrop, effects)}
    assert piled.run.seats[MIDDLE].is_vacant
    piled.join()
    piled.prepare()
    assert only(PlaceSeats, piled.wait(2 * RETURN_SECONDS, beats=True)) == []
    assert piled.run.state is RunState.RUNNING
