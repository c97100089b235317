"""The life of a slice and of an attempt, each as one table. Nothing else in the project decides a transition.

The diagram in docs/concepts/job-states.md is generated from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from computepool.core.errors import ComputePoolError


class SliceState(str, Enum):
    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    VERIFYING = "verifying"  # delivered, and kept back until somebody else has got the same
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SliceEvent(str, Enum):
    LEASE_GRANTED = "lease_granted"
    RUN_STARTED = "run_started"
    ATTEMPT_ENDED = "attempt_ended"  # lost, failed with budget left, or checkpointed: back to the queue
    RESULT_WITHHELD = "result_withheld"
    RESULT_ACCEPTED = "result_accepted"
    RETRIES_SPENT = "retries_spent"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    POISONED = "poisoned"  # another slice of the job took machines down, and none has ever succeeded


class AttemptState(str, Enum):
    LEASED = "leased"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class AttemptEvent(str, Enum):
    ACKNOWLEDGED = "acknowledged"  # the node listed it as running
    RESULT_ACCEPTED = "result_accepted"
    REPORTED_FAILED = "reported_failed"
    WENT_SILENT = "went_silent"
    LEFT_BEHIND = "left_behind"  # went silent with a checkpoint: its slice goes on from there, without it
    STOPPED = "stopped"  # cancelled, superseded or expired


class JobState(str, Enum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S, E = SliceState, SliceEvent
SLICE_TRANSITIONS: Mapping[tuple[SliceState, SliceEvent], SliceState] = {
    (S.QUEUED, E.LEASE_GRANTED): S.LEASED,
    # A late result of a lost attempt finds its slice back in the queue; it counts all the same.
    (S.QUEUED, E.RESULT_ACCEPTED): S.SUCCEEDED,
    (S.QUEUED, E.RESULT_WITHHELD): S.VERIFYING,
    (S.QUEUED, E.EXPIRED): S.FAILED,
    (S.QUEUED, E.CANCELLED): S.CANCELLED,
    (S.QUEUED, E.POISONED): S.FAILED,
    (S.LEASED, E.RUN_STARTED): S.RUNNING,
    (S.LEASED, E.ATTEMPT_ENDED): S.QUEUED,
    (S.LEASED, E.RESULT_ACCEPTED): S.SUCCEEDED,
    (S.LEASED, E.RESULT_WITHHELD): S.VERIFYING,
    (S.LEASED, E.RETRIES_SPENT): S.FAILED,
    (S.LEASED, E.EXPIRED): S.FAILED,
    (S.LEASED, E.CANCELLED): S.CANCELLED,
    (S.LEASED, E.POISONED): S.FAILED,
    (S.RUNNING, E.ATTEMPT_ENDED): S.QUEUED,
    (S.RUNNING, E.RESULT_ACCEPTED): S.SUCCEEDED,
    (S.RUNNING, E.RESULT_WITHHELD): S.VERIFYING,
    (S.RUNNING, E.RETRIES_SPENT): S.FAILED,
    (S.RUNNING, E.EXPIRED): S.FAILED,
    (S.RUNNING, E.CANCELLED): S.CANCELLED,
    (S.RUNNING, E.POISONED): S.FAILED,
    # Nothing else can happen to it: the work is done, and whoever did it is paid once it is known to be right.
    (S.VERIFYING, E.RESULT_ACCEPTED): S.SUCCEEDED,
}

A, AE = AttemptState, AttemptEvent
ATTEMPT_TRANSITIONS: Mapping[tuple[AttemptState, AttemptEvent], AttemptState] = {
    (A.LEASED, AE.ACKNOWLEDGED): A.RUNNING,
    (A.LEASED, AE.RESULT_ACCEPTED): A.SUCCEEDED,
    (A.LEASED, AE.REPORTED_FAILED): A.FAILED,
    (A.LEASED, AE.WENT_SILENT): A.LOST,
    (A.LEASED, AE.LEFT_BEHIND): A.FAILED,
    (A.LEASED, AE.STOPPED): A.CANCELLED,
    (A.RUNNING, AE.RESULT_ACCEPTED): A.SUCCEEDED,
    (A.RUNNING, AE.REPORTED_FAILED): A.FAILED,
    (A.RUNNING, AE.WENT_SILENT): A.LOST,
    (A.RUNNING, AE.LEFT_BEHIND): A.FAILED,
    (A.RUNNING, AE.STOPPED): A.CANCELLED,
    # Lost is not the end: the node may only have been asleep.
    (A.LOST, AE.RESULT_ACCEPTED): A.SUCCEEDED,
    (A.LOST, AE.REPORTED_FAILED): A.FAILED,
    (A.LOST, AE.STOPPED): A.CANCELLED,
}

SLICE_TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
# Nobody needs to work on it any more.
SLICE_DONE = SLICE_TERMINAL | {S.VERIFYING}
ATTEMPT_LIVE = frozenset({A.LEASED, A.RUNNING})
ATTEMPT_TERMINAL = frozenset({A.SUCCEEDED, A.FAILED, A.CANCELLED})
JOB_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class IllegalTransition(ComputePoolError):
    """A broken invariant: some rule let an event reach a state that has no way on from it."""

    code = "illegal_transition"


State = TypeVar("State", SliceState, AttemptState)
Event = TypeVar("Event", SliceEvent, AttemptEvent)


def _move(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[(state, event)]
    except KeyError:
        raise IllegalTransition(f"{event.value} cannot happen while {state.value}") from None


def move_slice(state: SliceState, event: SliceEvent) -> SliceState:
    return _move(SLICE_TRANSITIONS, state, event)


def move_attempt(state: AttemptState, event: AttemptEvent) -> AttemptState:
    return _move(ATTEMPT_TRANSITIONS, state, event)


def derive_job_state(
    *, slice_count: int, succeeded_count: int, failed_count: int, cancelled_count: int, started: bool
) -> JobState:
    """A job is what its slices are; it ends when the last of them does, with the worst of their ends."""
    if succeeded_count + failed_count + cancelled_count < slice_count:
        return JobState.RUNNING if started else JobState.QUEUED
    if failed_count:
        return JobState.FAILED
    return JobState.CANCELLED if cancelled_count else JobState.SUCCEEDED
