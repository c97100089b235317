"""Who may finish a slice, and what becomes of it: one decision per report, loss or cancellation.

Everything here takes a snapshot and returns changes; nothing is looked up and nothing is written.
A node's report is a claim, checked against the hub's own record before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from computepool.core.ids import AttemptId, JobId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.retry import (
    ATTEMPTS_MAX,
    EXIT_CODE_CHECKPOINTED,
    HARMLESS_SECONDS,
    KILLS_MAX,
    is_kill,
    is_tried_again,
    spends_retry,
)
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    ATTEMPT_TERMINAL,
    SLICE_DONE,
    AttemptEvent,
    AttemptState,
    SliceEvent,
    SliceState,
    move_attempt,
    move_slice,
)


@dataclass(frozen=True, slots=True)
class Slice:
    job_id: JobId
    index: int
    state: SliceState
    attempt_count: int
    failure_count: int
    retries: int
    cause: Cause | None = None
    # The node whose attempt ended badly last: the next try prefers another one.
    avoid_node_id: NodeId | None = None
    # How often a machine went down while it ran this.
    killed_count: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    slot: SlotName
    state: AttemptState
    cause: Cause | None = None
    # Digest of the report that ended it: the same report again gets the same answer again.
    report_sha256: bytes | None = None
    # Whole seconds of its work that the last accepted checkpoint holds.
    saved_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of an attempt that it ended."""

    exit_code: int | None
    cause: Cause | None
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """The changed records, to be written together. `accepted` is the answer for the caller."""

    slice: Slice
    attempts: tuple[Attempt, ...] = ()
    accepted: bool = True
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The report does not count: another attempt owns the slice, or the slice has ended."""

    reason: str


def decide_report(
    slice_: Slice,
    attempt: Attempt,
    siblings: Sequence[Attempt],
    report: Report,
    *,
    withheld: bool = False,
    forgiven: bool = False,
) -> Decision | Refusal:
    """Judge a completion. `siblings` are the slice's other attempts that may still be live.

    `withheld`: a result is kept back until somebody else has got the same. `forgiven`: a failure that may be
    another's doing, by what it began with, spends no retry.
    """
    if attempt.state in ATTEMPT_TERMINAL:
        if attempt.report_sha256 == report.sha256:
            return Decision(slice=slice_, accepted=attempt.state is AttemptState.SUCCEEDED, repeated=True)
        return Refusal(f"this attempt has ended already ({attempt.state.value})")
    if slice_.state in SLICE_DONE:
        return Refusal(f"the slice is {slice_.state.value} already")
    if report.cause is None:
        return _accept(slice_, attempt, siblings, report, withheld=withheld)
    return _record_failure(slice_, attempt, report, report.cause, forgiven=forgiven)


def decide_last_report(
    slice_: Slice, attempt: Attempt, siblings: Sequence[Attempt], report: Report
) -> Decision | Refusal:
    """The same when there is no money for another try: a failure ends the slice."""
    decision = decide_report(replace(slice_, attempt_count=ATTEMPTS_MAX), attempt, siblings, report)
    if isinstance(decision, Refusal):
        return decision
    return replace(decision, slice=replace(decision.slice, attempt_count=slice_.attempt_count))


def decide_loss(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    """The node went silent, or came back without the attempt. Its slice goes to the queue again.

    One with a checkpoint is paid for it and is over: whoever comes next goes on from there. Without one it may yet be
    the first to deliver.
    """
    if attempt.state not in ATTEMPT_LIVE:
        return Refusal(f"the attempt is {attempt.state.value} already")
    event = AttemptEvent.LEFT_BEHIND if attempt.saved_seconds else AttemptEvent.WENT_SILENT
    ended = replace(attempt, state=move_attempt(attempt.state, event), cause=cause)
    return Decision(slice=_requeue_or_fail(slice_, attempt, cause), attempts=(ended,))


def decide_last_loss(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    """The same when there is no money for another try."""
    decision = decide_loss(replace(slice_, attempt_count=ATTEMPTS_MAX), attempt, cause)
    if isinstance(decision, Refusal):
        return decision
    return replace(decision, slice=replace(decision.slice, attempt_count=slice_.attempt_count))


def decide_stop(slice_: Slice, live: Sequence[Attempt], event: SliceEvent, cause: Cause) -> Decision | Refusal:
    """Cancel or expire a slice together with whatever still runs for it. What was delivered stays delivered."""
    if slice_.state in SLICE_DONE:
        return Refusal(f"the slice is {slice_.state.value} already")
    stopped = tuple(_stop(attempt, cause) for attempt in live)
    return Decision(slice=replace(slice_, state=move_slice(slice_.state, event), cause=cause), attempts=stopped)


def decide_acknowledgement(slice_: Slice, attempt: Attempt) -> Decision | Refusal:
    """The node lists the attempt as running for the first time."""
    if attempt.state is not AttemptState.LEASED:
        return Refusal(f"the attempt is {attempt.state.value}")
    return Decision(
        slice=replace(slice_, state=move_slice(slice_.state, SliceEvent.RUN_STARTED)),
        attempts=(replace(attempt, state=move_attempt(attempt.state, AttemptEvent.ACKNOWLEDGED)),),
    )


def _accept(
    slice_: Slice, attempt: Attempt, siblings: Sequence[Attempt], report: Report, *, withheld: bool
) -> Decision:
    succeeded = replace(
        attempt,
        state=move_attempt(attempt.state, AttemptEvent.RESULT_ACCEPTED),
        cause=None,
        report_sha256=report.sha256,
    )
    # A lost attempt delivered after all: nobody needs what those do who work on the slice by now.
    beaten = tuple(_stop(s, Cause.SUPERSEDED) for s in siblings if s.state in ATTEMPT_LIVE)
    event = SliceEvent.RESULT_WITHHELD if withheld else SliceEvent.RESULT_ACCEPTED
    ended = replace(slice_, state=move_slice(slice_.state, event), cause=None)
    return Decision(slice=ended, attempts=(succeeded, *beaten))


def _record_failure(slice_: Slice, attempt: Attempt, report: Report, cause: Cause, *, forgiven: bool) -> Decision:
    failed = replace(
        attempt,
        state=move_attempt(attempt.state, AttemptEvent.REPORTED_FAILED),
        cause=cause,
        report_sha256=report.sha256,
    )
    if attempt.state is AttemptState.LOST:
        # The slice has moved on without this attempt; its failure is history, not news.
        return Decision(slice=slice_, attempts=(failed,), accepted=False)
    checkpointed = report.exit_code == EXIT_CODE_CHECKPOINTED and cause is Cause.EXIT_CODE
    if checkpointed and slice_.attempt_count < ATTEMPTS_MAX:
        queued = replace(slice_, state=move_slice(slice_.state, SliceEvent.ATTEMPT_ENDED), avoid_node_id=None)
        return Decision(slice=queued, attempts=(failed,), accepted=False)
    requeued = _requeue_or_fail(slice_, attempt, cause, forgiven=forgiven)
    return Decision(slice=requeued, attempts=(failed,), accepted=False)


def _requeue_or_fail(slice_: Slice, attempt: Attempt, cause: Cause, *, forgiven: bool = False) -> Slice:
    failure_count = slice_.failure_count + (1 if spends_retry(cause) and not forgiven else 0)
    killed_count = slice_.killed_count + (1 if _is_further_kill(slice_, attempt, cause) else 0)
    again = is_tried_again(failure_count=failure_count, attempt_count=slice_.attempt_count, retries=slice_.retries)
    final = cause
    if killed_count >= KILLS_MAX:
        again, final = False, Cause.POISONOUS
    event = SliceEvent.ATTEMPT_ENDED if again else SliceEvent.RETRIES_SPENT
    return replace(
        slice_,
        state=move_slice(slice_.state, event),
        failure_count=failure_count,
        killed_count=killed_count,
        cause=None if again else final,
        avoid_node_id=attempt.node_id,
    )


def _is_further_kill(slice_: Slice, attempt: Attempt, cause: Cause) -> bool:
    """The same machine twice in a row counts once: one that crashes by itself, alone on a grid, condemns nobody.

    Nor does one that went down after a long stretch of work that was saved: a job of weeks sees many machines go.
    """
    if attempt.saved_seconds >= HARMLESS_SECONDS:
        return False
    return is_kill(cause, attempt.state) and attempt.node_id != slice_.avoid_node_id


def _stop(attempt: Attempt, cause: Cause) -> Attempt:
    return replace(attempt, state=move_attempt(attempt.state, AttemptEvent.STOPPED), cause=cause)


def is_to_be_stopped(attempt_state: AttemptState, slice_state: SliceState) -> bool:
    """Whether a node that still runs this attempt should be told to let go.

    A lost attempt goes on while its slice is unfinished: it may yet be the first to deliver.
    """
    return attempt_state in ATTEMPT_TERMINAL or slice_state in SLICE_DONE


def next_boot(
    current: UUID | None, past: Sequence[UUID], calling: UUID, *, keep: int = 16
) -> tuple[UUID, tuple[UUID, ...]] | None:
    """The boot ids to remember after a call, or None when the caller is an agent that was replaced.

    Boot ids carry no order, so that a wrong clock on the node cannot matter: the hub remembers the past ones.
    """
    if current == calling:
        return calling, tuple(past)
    if calling in past:
        return None
    remembered = (*past, current) if current is not None else tuple(past)
    return calling, remembered[-keep:]
