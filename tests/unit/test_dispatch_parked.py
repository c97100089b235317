"""Parked calls: each is answered once, with all that is meant for it, and not while leases are on their way."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.ids import AttemptId
from computepool.core.nodes.state import NodeState
from computepool.hub.dispatch.parked import Dismissals, ParkedCall, ParkedCalls, Tidings
from computepool.wire.attempts import Controls
from tests.support.builders import make_attempt, node_number

NODE, OTHER = node_number(1), node_number(2)


class Heard:
    """The other end of a call: what it was answered with."""

    def __init__(self) -> None:
        self.answers: list[Tidings] = []

    def park(self, *free_slots: str, node_id=NODE, **options: Any) -> ParkedCall:
        return ParkedCall(
            node_id=node_id,
            free_slots=frozenset(free_slots),
            running=frozenset(),
            answer=lambda call: self.answers.append(call.tidings),
            parked_at=0.0,
            **options,
        )


@pytest.fixture
def heard() -> Heard:
    return Heard()


# One call


def test_a_call_waits_until_there_is_something_to_say(heard):
    call = heard.park("cpu:0")
    assert (call.open, heard.answers) == (True, [])
    call.add_lease(lease := make_attempt())
    assert (call.open, [t.leased for t in heard.answers]) == (False, [[lease]])


def test_a_call_that_is_held_is_answered_when_the_last_lease_is_written(heard):
    call = heard.park("cpu:0", "cpu:1")
    call.hold()
    call.hold()
    leases = [make_attempt(id=AttemptId(UUID(int=number))) for number in (1, 2)]
    call.add_lease(leases[0])
    call.release()
    assert heard.answers == []
    call.add_lease(leases[1])
    call.release()
    assert [t.leased for t in heard.answers] == [leases]


def test_a_call_that_was_held_for_nothing_goes_on_waiting(heard):
    call = heard.park("cpu:0")
    call.hold()
    call.release()
    assert (call.open, heard.answers) == (True, [])


def test_a_call_is_dismissed_with_whatever_there_is_but_not_while_it_is_held(heard):
    call = heard.park("cpu:0")
    call.hold()
    call.dismiss()
    assert heard.answers == []
    call.add_lease(lease := make_attempt())
    call.release()
    assert [t.leased for t in heard.answers] == [[lease]]


def test_a_dismissed_call_without_news_is_answered_with_nothing(heard):
    heard.park("cpu:0").dismiss()
    [tidings] = heard.answers
    assert not tidings


def test_controls_are_news_too(heard):
    heard.park().control(Controls(drain=True))
    [tidings] = heard.answers
    assert (tidings.controls, bool(tidings)) == (Controls(drain=True), True)


def test_leases_and_controls_travel_together_when_they_come_together(heard):
    call = heard.park("cpu:0")
    call.hold()
    call.control(Controls(pause=True))
    call.add_lease(lease := make_attempt())
    call.release()
    [tidings] = heard.answers
    assert (tidings.leased, tidings.controls) == ([lease], Controls(pause=True))


async def test_the_timer_of_a_call_ends_with_its_answer(heard):
    dismissals, call, other = Dismissals(), heard.park("cpu:0"), heard.park("cpu:0", node_id=OTHER)
    dismissals.add(call, 60)
    assert call.due == {call}
    due = call.due
    call.add_lease(make_attempt())
    assert (call.due, due) == (None, set())
    dismissals.add(other, 60)
    other.close()
    assert other.due is None


async def test_calls_are_dismissed_when_their_time_is_up_and_not_before(heard):
    dismissals, loop = Dismissals(), asyncio.get_running_loop()
    started, ended = loop.time(), {}
    for seconds in (0.0, 0.01, 0.12):
        call = ParkedCall(
            NODE, frozenset(), frozenset(), lambda c: ended.setdefault(c.parked_at, loop.time()), seconds
        )
        dismissals.add(call, seconds)
    while len(ended) < 3:
        await asyncio.sleep(0.01)
    assert list(ended)[-1] == 0.12
    assert all(at - started >= seconds - 0.005 for seconds, at in ended.items())


@pytest.mark.parametrize(
    ("state", "takes"),
    [(NodeState.ACTIVE, True), (NodeState.PAUSED, False), (NodeState.DRAINING, False), (NodeState.REMOVED, False)],
)
def test_only_a_node_in_service_takes_work_and_only_while_its_call_is_open(heard, state, takes):
    call = heard.park("cpu:0", state=state)
    assert call.takes_work is takes
    call.dismiss()
    assert call.takes_work is False


STEPS = st.lists(st.sampled_from(["hold", "release", "lease", "control", "dismiss"]), max_size=20)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(STEPS)
def test_whatever_happens_a_call_is_answered_at_most_once_and_never_while_it_is_held(steps):
    heard, held = Heard(), 0
    call = heard.park("cpu:0")
    dismissed = False
    for step in steps:
        if step == "release" and not held:
            continue
        before = len(heard.answers)
        if step == "hold":
            held += 1
            call.hold()
        elif step == "release":
            held -= 1
            call.release()
        elif step == "lease":
            call.add_lease(make_attempt())
        elif step == "control":
            call.control(Controls(pause=True))
        else:
            dismissed = True
            call.dismiss()
        assert len(heard.answers) <= 1
        if len(heard.answers) > before:
            assert held == 0, "never while a lease may be on its way"
            assert dismissed or heard.answers[0], "never for nothing"
    for _ in range(held):
        call.release()
    call.dismiss()
    assert len(heard.answers) == 1, "and in the end it is answered"


# Many calls


def test_a_newer_call_of_a_node_takes_the_place_of_the_one_before(heard):
    calls, later = ParkedCalls(), Heard()
    first, second = heard.park("cpu:0"), later.park("cpu:0")
    calls.park(first)
    calls.park(second)
    assert (calls.find(NODE), len(calls)) == (second, 1)
    assert (len(heard.answers), later.answers) == (1, [])
    assert calls.find_offering(NODE, "cpu:0") is second


def test_a_lease_that_was_written_for_the_call_before_is_delivered_by_the_newer_one(heard):
    calls, later = ParkedCalls(), Heard()
    first, second = heard.park("cpu:0"), later.park("cpu:0")
    calls.park(first)
    first.hold()
    calls.park(second)
    assert heard.answers == [], "it is held until the lease is written"
    calls.find_offering(NODE, "cpu:0").add_lease(lease := make_attempt())
    first.release()
    assert [t.leased for t in later.answers] == [[lease]]
    assert [t.leased for t in heard.answers] == [[]]


def test_a_call_that_leaves_takes_its_slots_along(heard):
    calls = ParkedCalls()
    calls.park(call := heard.park("cpu:0", "cpu:1"))
    assert sorted(calls.leave(call)) == ["cpu:0", "cpu:1"]
    assert (calls.find(NODE), calls.find_offering(NODE, "cpu:0"), len(calls)) == (None, None, 0)
    assert calls.leave(call) == [], "twice is no mistake"


def test_a_call_that_leaves_late_does_not_take_what_a_newer_one_offers(heard):
    calls = ParkedCalls()
    first, second = heard.park("cpu:0", "cpu:1"), Heard().park("cpu:1")
    calls.park(first)
    calls.park(second)
    assert calls.leave(first) == ["cpu:0"]
    assert (calls.find(NODE), calls.find_offering(NODE, "cpu:1")) == (second, second)


def test_nobody_is_found_where_the_call_has_been_answered(heard):
    calls = ParkedCalls()
    calls.park(call := heard.park("cpu:0"))
    call.dismiss()
    assert (calls.find(NODE), calls.find_offering(NODE, "cpu:0"), list(calls)) == (None, None, [])


def test_nodes_do_not_get_in_each_others_way(heard):
    calls = ParkedCalls()
    one, other = heard.park("cpu:0"), Heard().park("cpu:0", node_id=OTHER)
    calls.park(one)
    calls.park(other)
    assert (calls.find_offering(NODE, "cpu:0"), calls.find_offering(OTHER, "cpu:0")) == (one, other)
    assert set(calls) == {one, other}


def test_on_shutdown_everybody_is_told_to_call_again(heard):
    calls = ParkedCalls()
    for number in range(5):
        calls.park(heard.park("cpu:0", node_id=node_number(number)))
    calls.dismiss_all()
    assert (len(heard.answers), list(calls)) == (5, [])


# Claims, which come with a completion beside the parked call


def test_a_claim_stands_beside_the_nodes_parked_call(heard):
    calls, claimed = ParkedCalls(), Heard()
    calls.park(parked := heard.park("cpu:1"))
    calls.park(claim := claimed.park("cpu:0", claim=True))
    assert (calls.find(NODE), calls.find_offering(NODE, "cpu:0")) == (parked, claim)
    assert (heard.answers, len(calls)) == ([], 1)
    assert calls.leave(claim) == ["cpu:0"]
    assert calls.find(NODE) is parked


def test_a_slot_that_a_claim_names_too_is_the_parked_calls_again_when_the_claim_leaves(heard):
    calls, claimed = ParkedCalls(), Heard()
    calls.park(parked := heard.park("cpu:1", "cpu:2"))
    calls.park(claim := claimed.park("cpu:0", "cpu:1", "cpu:2", claim=True))
    assert calls.find_offering(NODE, "cpu:1") is claim
    claim.dismiss()
    assert calls.leave(claim) == ["cpu:0"], "the others are still offered"
    assert calls.find_offering(NODE, "cpu:1") is calls.find_offering(NODE, "cpu:2") is parked
    assert sorted(calls.leave(parked)) == ["cpu:1", "cpu:2"]
