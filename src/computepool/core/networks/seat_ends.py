"""How the attempts of a run's seats end. The run's owner ends them; what a host says of its own end is only that."""

from __future__ import annotations

from dataclasses import replace

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, Decision, Refusal, Slice
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptEvent, SliceEvent, move_attempt, move_slice


def decide_vacating(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    """The seat is taken from its host, which is told to let go. Somebody else gets it; it counts as no failure."""
    if attempt.state not in ATTEMPT_LIVE:
        return Refusal(f"the attempt is {attempt.state.value} already")
    ended = replace(attempt, state=move_attempt(attempt.state, AttemptEvent.STOPPED), cause=cause)
    waiting = replace(slice_, state=move_slice(slice_.state, SliceEvent.ATTEMPT_ENDED), avoid_node_id=attempt.node_id)
    return Decision(slice=waiting, attempts=(ended,))


def decide_concluding(slice_: Slice, attempt: Attempt) -> Decision | Refusal:
    """The run has reached its end with this host."""
    if attempt.state not in ATTEMPT_LIVE:
        return Refusal(f"the attempt is {attempt.state.value} already")
    ended = replace(attempt, state=move_attempt(attempt.state, AttemptEvent.RESULT_ACCEPTED), cause=None)
    done = replace(slice_, state=move_slice(slice_.state, SliceEvent.RESULT_ACCEPTED), cause=None)
    return Decision(slice=done, attempts=(ended,))
