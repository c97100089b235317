"""The tables of slices, attempts and nodes: no dead ends, no ways back from the end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from itertools import product
from typing import Any

import pytest

from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    ATTEMPT_TERMINAL,
    ATTEMPT_TRANSITIONS,
    JOB_TERMINAL,
    SLICE_TERMINAL,
    SLICE_TRANSITIONS,
    AttemptEvent,
    AttemptState,
    IllegalTransition,
    JobState,
    SliceEvent,
    SliceState,
    derive_job_state,
    move_attempt,
    move_slice,
)
from computepool.core.nodes.state import NODE_CHANGES, NodeState, change_node, is_online
from tests.support.builders import NOW

SLICES = (SLICE_TRANSITIONS, SliceState, SliceEvent, SliceState.QUEUED, SLICE_TERMINAL, move_slice)
ATTEMPTS = (ATTEMPT_TRANSITIONS, AttemptState, AttemptEvent, AttemptState.LEASED, ATTEMPT_TERMINAL, move_attempt)
BOTH = pytest.mark.parametrize(
    ("table", "states", "events", "start", "terminal", "move"), [SLICES, ATTEMPTS], ids=["slices", "attempts"]
)


def reach(table: Mapping[tuple[Any, Any], Any], start: Enum) -> set[Enum]:
    reached, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        for (origin, _), target in table.items():
            if origin is state and target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


@BOTH
def test_a_terminal_state_has_no_exit(table, states, events, start, terminal, move):
    assert not [edge for edge in table if edge[0] in terminal]


@BOTH
def test_only_terminal_states_have_no_exit(table, states, events, start, terminal, move):
    assert {state for state in states if not any(edge[0] is state for edge in table)} == terminal


@BOTH
def test_every_state_is_reachable_from_the_start(table, states, events, start, terminal, move):
    assert reach(table, start) == set(states)


@BOTH
def test_every_state_can_come_to_an_end(table, states, events, start, terminal, move):
    assert [state for state in states if not reach(table, state) & terminal] == []


@BOTH
def test_every_event_can_happen_somewhere(table, states, events, start, terminal, move):
    assert {event for _, event in table} == set(events)


@BOTH
def test_a_listed_event_leads_where_the_table_says(table, states, events, start, terminal, move):
    assert {(state, event): move(state, event) for state, event in table} == dict(table)


@BOTH
def test_every_other_event_raises_and_changes_nothing(table, states, events, start, terminal, move):
    before = dict(table)
    for state, event in product(states, events):
        if (state, event) not in before:
            with pytest.raises(IllegalTransition, match=f"{event.value} cannot happen while {state.value}"):
                move(state, event)
    assert dict(table) == before


def test_an_attempt_is_live_lost_or_ended_and_only_one_of_them():
    assert ATTEMPT_LIVE | ATTEMPT_TERMINAL | {AttemptState.LOST} == set(AttemptState)
    assert not ATTEMPT_LIVE & ATTEMPT_TERMINAL
    assert AttemptState.LOST not in ATTEMPT_LIVE | ATTEMPT_TERMINAL


def test_a_lost_attempt_may_still_deliver():
    assert move_attempt(AttemptState.LOST, AttemptEvent.RESULT_ACCEPTED) is AttemptState.SUCCEEDED


@pytest.mark.parametrize(
    ("succeeded", "failed", "cancelled", "started", "state"),
    [
        (0, 0, 0, False, JobState.QUEUED),
        (0, 0, 0, True, JobState.RUNNING),
        (2, 0, 0, True, JobState.RUNNING),
        (0, 2, 0, True, JobState.RUNNING),
        (3, 0, 0, True, JobState.SUCCEEDED),
        (2, 0, 1, True, JobState.CANCELLED),
        (0, 0, 3, False, JobState.CANCELLED),
        (2, 1, 0, True, JobState.FAILED),
        (1, 1, 1, True, JobState.FAILED),
        (0, 3, 0, False, JobState.FAILED),
    ],
)
def test_a_job_is_what_its_three_slices_are(succeeded, failed, cancelled, started, state):
    derived = derive_job_state(
        slice_count=3, succeeded_count=succeeded, failed_count=failed, cancelled_count=cancelled, started=started
    )
    assert derived is state
    assert (derived in JOB_TERMINAL) == (succeeded + failed + cancelled == 3)


CHANGES = ("pause", "drain", "resume", "remove")


def test_a_removed_node_stays_removed():
    assert [change_node(NodeState.REMOVED, change) for change in CHANGES] == [None, None, None, NodeState.REMOVED]


def test_every_state_of_a_node_is_reachable_and_every_node_can_be_removed():
    assert reach(NODE_CHANGES, NodeState.ACTIVE) == set(NodeState)
    assert all(change_node(state, "remove") is NodeState.REMOVED for state in NodeState)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        (NodeState.PAUSED, "pause"),
        (NodeState.DRAINING, "drain"),
        (NodeState.ACTIVE, "resume"),
        (NodeState.REMOVED, "remove"),
    ],
)
def test_asking_a_node_twice_for_the_same_is_no_mistake(state, change):
    assert change_node(state, change) is state


@pytest.mark.parametrize("state", [NodeState.PAUSED, NodeState.DRAINING])
def test_a_node_that_takes_nothing_can_be_resumed(state):
    assert change_node(state, "resume") is NodeState.ACTIVE


@pytest.mark.parametrize("state", NodeState)
def test_an_unknown_change_of_a_node_cannot_be_done(state):
    assert change_node(state, "explode") is None


def test_a_node_is_online_up_to_the_longest_silence_and_not_a_moment_longer():
    silent = timedelta(seconds=60)
    assert is_online(NOW - silent, now=NOW, silence_seconds_max=60)
    assert not is_online(NOW - silent - timedelta(microseconds=1), now=NOW, silence_seconds_max=60)


def test_a_node_that_was_never_heard_is_not_online():
    assert not is_online(None, now=NOW, silence_seconds_max=60)
