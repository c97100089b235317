"""Who may finish a slice, and what becomes of it: each branch of each decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest

from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import NODE_FAULTS, PLAIN_WORDS, REPORTABLE, SPENDS_RETRY, Cause
from computepool.core.jobs.ending import End, Ended, Remedy, explain_end
from computepool.core.jobs.lease import (
    Decision,
    Refusal,
    Slice,
    decide_acknowledgement,
    decide_loss,
    decide_report,
    decide_stop,
    is_to_be_stopped,
    next_boot,
)
from computepool.core.jobs.retry import (
    ATTEMPTS_MAX,
    EXIT_CODE_CHECKPOINTED,
    KILLS_MAX,
    is_job_poisonous,
    is_tried_again,
    spends_retry,
)
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    ATTEMPT_TERMINAL,
    SLICE_DONE,
    AttemptState,
    SliceEvent,
    SliceState,
)
from tests.support.builders import make_attempt, make_report, make_slice, node_number

LIVE = sorted(ATTEMPT_LIVE)
ENDED = sorted(ATTEMPT_TERMINAL)
NOT_THE_SUBMITTERS_FAULT = sorted(REPORTABLE - SPENDS_RETRY)


def decided(outcome: Decision | Refusal) -> Decision:
    assert isinstance(outcome, Decision), outcome
    return outcome


# Reports


@pytest.mark.parametrize("state", LIVE)
def test_a_result_of_a_live_attempt_ends_its_slice(state):
    slice_ = make_slice(state=SliceState(state.value))
    decision = decided(decide_report(slice_, make_attempt(state=state), [], make_report()))
    assert decision.accepted
    assert not decision.repeated
    assert decision.slice == replace(slice_, state=SliceState.SUCCEEDED)
    assert decision.attempts == (make_attempt(state=AttemptState.SUCCEEDED, report_sha256=b"first report"),)


@pytest.mark.parametrize("state", [SliceState.QUEUED, SliceState.LEASED, SliceState.RUNNING])
def test_a_late_result_of_a_lost_attempt_counts_while_the_slice_is_unfinished(state):
    lost = make_attempt(state=AttemptState.LOST, cause=Cause.NODE_VANISHED)
    decision = decided(decide_report(make_slice(state=state), lost, [], make_report()))
    assert decision.accepted
    assert decision.slice.state is SliceState.SUCCEEDED
    assert decision.attempts[0].state is AttemptState.SUCCEEDED
    assert decision.attempts[0].cause is None


def test_a_late_result_supersedes_the_attempt_that_took_over():
    lost = make_attempt(state=AttemptState.LOST, cause=Cause.NODE_VANISHED)
    newer = make_attempt(id=AttemptId(UUID(int=101)), number=2, state=AttemptState.RUNNING)
    decision = decided(decide_report(make_slice(attempt_count=2), lost, [newer], make_report()))
    assert decision.attempts[1:] == (replace(newer, state=AttemptState.CANCELLED, cause=Cause.SUPERSEDED),)


def test_a_result_leaves_siblings_alone_that_are_not_live():
    ended = [make_attempt(id=AttemptId(UUID(int=n)), number=n, state=state) for n, state in enumerate(ENDED, 2)]
    ended.append(make_attempt(id=AttemptId(UUID(int=9)), number=9, state=AttemptState.LOST))
    decision = decided(decide_report(make_slice(), make_attempt(), ended, make_report()))
    assert len(decision.attempts) == 1


@pytest.mark.parametrize(("state", "accepted"), [("succeeded", True), ("failed", False), ("cancelled", False)])
def test_the_same_report_again_gets_the_same_answer_and_changes_nothing(state, accepted):
    slice_ = make_slice(state=SliceState(state))
    attempt = make_attempt(state=AttemptState(state), report_sha256=b"first report")
    assert decide_report(slice_, attempt, [], make_report()) == Decision(
        slice=slice_, accepted=accepted, repeated=True
    )


@pytest.mark.parametrize("state", ENDED)
def test_another_report_of_an_ended_attempt_is_refused(state):
    attempt = make_attempt(state=state, report_sha256=b"first report")
    refusal = decide_report(make_slice(), attempt, [], make_report(sha256=b"second thoughts"))
    assert refusal == Refusal(f"this attempt has ended already ({state.value})")


def test_a_report_of_an_attempt_that_was_stopped_without_one_is_refused():
    stopped = make_attempt(state=AttemptState.CANCELLED, cause=Cause.SUPERSEDED)
    assert isinstance(decide_report(make_slice(), stopped, [], make_report()), Refusal)


@pytest.mark.parametrize("cause", [None, Cause.EXIT_CODE, Cause.OWNER_RETURNED])
@pytest.mark.parametrize("state", sorted(SLICE_DONE))
def test_no_report_of_a_lost_attempt_reaches_a_finished_slice(state, cause):
    lost = make_attempt(state=AttemptState.LOST)
    refusal = decide_report(make_slice(state=state), lost, [], make_report(cause=cause))
    assert refusal == Refusal(f"the slice is {state.value} already")


@pytest.mark.parametrize("cause", sorted(SPENDS_RETRY))
def test_a_failure_of_the_submitters_code_spends_a_retry_and_queues_the_slice_again(cause):
    slice_ = make_slice(retries=1)
    decision = decided(decide_report(slice_, make_attempt(), [], make_report(exit_code=1, cause=cause)))
    assert not decision.accepted
    assert decision.slice == replace(
        slice_, state=SliceState.QUEUED, failure_count=1, avoid_node_id=make_attempt().node_id
    )
    assert decision.attempts == (make_attempt(state=AttemptState.FAILED, cause=cause, report_sha256=b"first report"),)


@pytest.mark.parametrize("cause", sorted(SPENDS_RETRY))
def test_a_failure_beyond_the_last_retry_fails_the_slice_with_its_cause(cause):
    slice_ = make_slice(retries=1, failure_count=1)
    decision = decided(decide_report(slice_, make_attempt(), [], make_report(exit_code=1, cause=cause)))
    assert decision.slice.state is SliceState.FAILED
    assert decision.slice.cause is cause
    assert decision.slice.failure_count == 2


def test_without_retries_the_first_failure_is_the_last():
    decision = decided(
        decide_report(make_slice(retries=0), make_attempt(), [], make_report(exit_code=1, cause=Cause.EXIT_CODE))
    )
    assert decision.slice.state is SliceState.FAILED


def test_a_failure_that_may_be_anothers_doing_is_forgiven_and_spends_no_retry():
    report = make_report(exit_code=1, cause=Cause.EXIT_CODE)
    decision = decided(decide_report(make_slice(retries=0), make_attempt(), [], report, forgiven=True))
    assert (decision.slice.state, decision.slice.failure_count) == (SliceState.QUEUED, 0)
    assert decision.attempts[0].state is AttemptState.FAILED


@pytest.mark.parametrize("cause", NOT_THE_SUBMITTERS_FAULT)
def test_an_end_that_is_not_the_submitters_fault_spends_no_retry(cause):
    slice_ = make_slice(retries=0)
    decision = decided(decide_report(slice_, make_attempt(), [], make_report(exit_code=None, cause=cause)))
    killed_count = int(cause is Cause.GPU_LOST)
    assert decision.slice == replace(
        slice_, state=SliceState.QUEUED, avoid_node_id=make_attempt().node_id, killed_count=killed_count
    )


def test_a_checkpointed_slice_is_queued_again_for_any_node_and_spends_no_retry():
    slice_ = make_slice(retries=0, avoid_node_id=node_number(3))
    report = make_report(exit_code=EXIT_CODE_CHECKPOINTED, cause=Cause.EXIT_CODE)
    decision = decided(decide_report(slice_, make_attempt(), [], report))
    assert decision.slice == replace(slice_, state=SliceState.QUEUED, avoid_node_id=None)
    assert decision.attempts[0].state is AttemptState.FAILED


def test_exit_code_85_is_no_checkpoint_when_something_else_ended_the_attempt():
    report = make_report(exit_code=EXIT_CODE_CHECKPOINTED, cause=Cause.TIMED_OUT)
    assert decided(decide_report(make_slice(retries=0), make_attempt(), [], report)).slice.state is SliceState.FAILED


def test_a_late_failure_of_a_lost_attempt_is_recorded_and_leaves_the_slice_alone():
    slice_ = make_slice(state=SliceState.RUNNING, attempt_count=2, retries=0)
    lost = make_attempt(state=AttemptState.LOST, cause=Cause.NODE_VANISHED)
    decision = decided(decide_report(slice_, lost, [], make_report(exit_code=1, cause=Cause.EXIT_CODE)))
    assert decision.slice == slice_
    assert not decision.accepted
    assert decision.attempts[0].state is AttemptState.FAILED


# Losses


@pytest.mark.parametrize("state", LIVE)
def test_a_lost_attempt_gives_its_slice_back_to_the_queue(state):
    slice_ = make_slice(state=SliceState(state.value), retries=0)
    decision = decided(decide_loss(slice_, make_attempt(state=state), Cause.NODE_VANISHED))
    killed_count = int(state is AttemptState.RUNNING)
    assert decision.slice == replace(
        slice_, state=SliceState.QUEUED, avoid_node_id=make_attempt().node_id, killed_count=killed_count
    )
    assert decision.attempts == (make_attempt(state=AttemptState.LOST, cause=Cause.NODE_VANISHED),)


@pytest.mark.parametrize("state", [AttemptState.LOST, *ENDED])
def test_an_attempt_that_is_not_live_cannot_be_lost(state):
    refusal = decide_loss(make_slice(), make_attempt(state=state), Cause.NODE_VANISHED)
    assert refusal == Refusal(f"the attempt is {state.value} already")


def test_a_slice_that_was_lost_a_hundred_times_is_given_up():
    decision = decided(decide_loss(make_slice(attempt_count=ATTEMPTS_MAX), make_attempt(), Cause.NODE_VANISHED))
    assert decision.slice.state is SliceState.FAILED
    assert decision.slice.cause is Cause.NODE_VANISHED


def test_a_slice_that_was_lost_ninety_nine_times_is_not_given_up():
    decision = decided(decide_loss(make_slice(attempt_count=ATTEMPTS_MAX - 1), make_attempt(), Cause.NODE_VANISHED))
    assert decision.slice.state is SliceState.QUEUED


# Machines that go down


def lose(slice_: Slice, node: int, *, state: AttemptState = AttemptState.RUNNING) -> Slice:
    running = replace(slice_, state=SliceState(state.value))
    attempt = make_attempt(node_id=node_number(node), state=state)
    return decided(decide_loss(running, attempt, Cause.NODE_VANISHED)).slice


def report(slice_: Slice, node: int, cause: Cause, *, state: AttemptState = AttemptState.RUNNING) -> Slice:
    running = replace(slice_, state=SliceState(state.value))
    attempt = make_attempt(node_id=node_number(node), state=state)
    return decided(decide_report(running, attempt, [], make_report(exit_code=None, cause=cause))).slice


def test_a_slice_that_took_down_three_machines_is_not_given_to_a_fourth():
    slice_ = make_slice(retries=20)
    for node in (1, 2):
        slice_ = lose(slice_, node)
        assert (slice_.state, slice_.cause) == (SliceState.QUEUED, None)
    slice_ = lose(slice_, 3)
    assert (slice_.state, slice_.cause, slice_.killed_count) == (SliceState.FAILED, Cause.POISONOUS, KILLS_MAX)
    assert slice_.failure_count == 0


def test_a_lost_gpu_is_a_machine_down_even_before_the_node_has_listed_the_attempt():
    slice_ = report(make_slice(), 1, Cause.GPU_LOST, state=AttemptState.LEASED)
    slice_ = lose(slice_, 2)
    slice_ = report(slice_, 3, Cause.GPU_LOST)
    assert (slice_.state, slice_.cause) == (SliceState.FAILED, Cause.POISONOUS)


def test_a_machine_that_crashes_over_and_over_by_itself_condemns_nobody():
    slice_ = make_slice()
    for _ in range(10):
        slice_ = lose(slice_, 7)
    assert (slice_.state, slice_.killed_count) == (SliceState.QUEUED, 1)


def test_an_assignment_that_was_perhaps_never_received_kills_nobody():
    slice_ = make_slice()
    for node in range(10):
        slice_ = lose(slice_, node, state=AttemptState.LEASED)
    assert (slice_.state, slice_.killed_count) == (SliceState.QUEUED, 0)


@pytest.mark.parametrize("cause", sorted(REPORTABLE - SPENDS_RETRY - {Cause.GPU_LOST}))
def test_an_end_that_a_node_lived_to_tell_of_kills_nobody(cause):
    slice_ = make_slice()
    for node in range(10):
        slice_ = report(slice_, node, cause)
    assert (slice_.state, slice_.killed_count) == (SliceState.QUEUED, 0)


def test_kills_are_counted_over_other_ends_in_between():
    slice_ = make_slice(retries=20)
    for node in (1, 2, 3):
        slice_ = report(lose(slice_, node), node + 10, Cause.EXIT_CODE) if node < 3 else lose(slice_, node)
    assert (slice_.cause, slice_.failure_count) == (Cause.POISONOUS, 2)


def test_a_late_result_of_a_machine_that_was_thought_dead_still_counts():
    slice_ = lose(lose(make_slice(), 1), 2)
    lost = make_attempt(node_id=node_number(1), state=AttemptState.LOST, cause=Cause.NODE_VANISHED)
    assert decided(decide_report(slice_, lost, [], make_report())).slice.state is SliceState.SUCCEEDED


@pytest.mark.parametrize(("poisoned", "succeeded", "poisonous"), [(0, 0, False), (1, 0, True), (1, 1, False)])
def test_a_job_is_poisonous_when_a_slice_is_and_none_ever_succeeded(poisoned, succeeded, poisonous):
    assert is_job_poisonous(poisoned, succeeded) is poisonous


# Stops


@pytest.mark.parametrize(
    ("event", "cause", "state"),
    [
        (SliceEvent.CANCELLED, Cause.CANCELLED, SliceState.CANCELLED),
        (SliceEvent.EXPIRED, Cause.EXPIRED, SliceState.FAILED),
    ],
)
@pytest.mark.parametrize("before", [SliceState.LEASED, SliceState.RUNNING])
def test_a_stopped_slice_takes_its_live_attempt_with_it(before, event, cause, state):
    slice_ = make_slice(state=before)
    attempt = make_attempt(state=AttemptState(before.value))
    decision = decided(decide_stop(slice_, [attempt], event, cause))
    assert decision.slice == replace(slice_, state=state, cause=cause)
    assert decision.attempts == (replace(attempt, state=AttemptState.CANCELLED, cause=cause),)


def test_a_queued_slice_is_stopped_alone():
    decision = decided(decide_stop(make_slice(state=SliceState.QUEUED), [], SliceEvent.CANCELLED, Cause.CANCELLED))
    assert decision.slice.state is SliceState.CANCELLED
    assert decision.attempts == ()


@pytest.mark.parametrize("state", sorted(SLICE_DONE))
def test_a_finished_slice_cannot_be_stopped(state):
    refusal = decide_stop(make_slice(state=state), [], SliceEvent.CANCELLED, Cause.CANCELLED)
    assert refusal == Refusal(f"the slice is {state.value} already")


# Results that are kept back


def test_a_withheld_result_ends_its_attempt_and_not_its_slice():
    slice_, sibling = make_slice(), make_attempt(id=AttemptId(UUID(int=2)), number=2)
    decision = decided(decide_report(slice_, make_attempt(), [sibling], make_report(), withheld=True))
    assert decision.accepted
    assert decision.slice.state is SliceState.VERIFYING
    assert [attempt.state for attempt in decision.attempts] == [AttemptState.SUCCEEDED, AttemptState.CANCELLED]


def test_a_failure_is_never_withheld():
    failed = make_report(exit_code=1, cause=Cause.EXIT_CODE)
    decision = decided(decide_report(make_slice(retries=0), make_attempt(), [], failed, withheld=True))
    assert decision.slice.state is SliceState.FAILED


def test_whoever_still_works_on_a_slice_that_is_being_checked_is_told_to_let_go():
    assert is_to_be_stopped(AttemptState.LOST, SliceState.VERIFYING)


# Acknowledgements


def test_an_attempt_that_its_node_lists_is_running_and_so_is_its_slice():
    slice_, attempt = make_slice(state=SliceState.LEASED), make_attempt(state=AttemptState.LEASED)
    decision = decided(decide_acknowledgement(slice_, attempt))
    assert decision.slice == replace(slice_, state=SliceState.RUNNING)
    assert decision.attempts == (replace(attempt, state=AttemptState.RUNNING),)


@pytest.mark.parametrize("state", [state for state in AttemptState if state is not AttemptState.LEASED])
def test_only_a_leased_attempt_can_be_acknowledged(state):
    assert decide_acknowledgement(make_slice(), make_attempt(state=state)) == Refusal(f"the attempt is {state.value}")


# What a node should let go of


@pytest.mark.parametrize(("attempt", "slice_"), list(product(AttemptState, SliceState)))
def test_a_node_lets_go_of_what_has_ended_and_of_nothing_else(attempt, slice_):
    ended = ("succeeded", "failed", "cancelled")
    over = attempt.value in ended or slice_.value in (*ended, "verifying")
    assert is_to_be_stopped(attempt, slice_) is over


# Boots

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def test_the_first_boot_is_remembered():
    assert next_boot(None, (), A) == (A, ())


def test_the_same_boot_again_changes_nothing():
    assert next_boot(B, (A,), B) == (B, (A,))


def test_a_new_boot_makes_the_present_one_past():
    assert next_boot(B, (A,), C) == (C, (A, B))


@pytest.mark.parametrize("calling", [A, B])
def test_a_past_boot_is_refused(calling):
    assert next_boot(C, (A, B), calling) is None


def test_only_the_newest_past_boots_are_kept():
    assert next_boot(C, (A, B), UUID(int=4), keep=2) == (UUID(int=4), (B, C))


def test_of_a_hundred_boots_the_last_sixteen_are_past():
    current, past = None, ()
    for number in range(100):
        boots = next_boot(current, past, UUID(int=number))
        assert boots is not None
        current, past = boots
    assert past == tuple(UUID(int=number) for number in range(83, 99))


# Retries and causes


@pytest.mark.parametrize(("failures", "retries", "again"), [(0, 0, True), (1, 0, False), (2, 2, True), (3, 2, False)])
def test_a_slice_is_tried_once_more_than_it_has_retries(failures, retries, again):
    assert is_tried_again(failure_count=failures, attempt_count=1, retries=retries) is again


@pytest.mark.parametrize(("attempts", "again"), [(ATTEMPTS_MAX - 1, True), (ATTEMPTS_MAX, False)])
def test_free_attempts_are_not_without_end(attempts, again):
    assert is_tried_again(failure_count=0, attempt_count=attempts, retries=20) is again


def test_success_spends_no_retry():
    assert not spends_retry(None)


def test_only_what_the_submitter_can_mend_spends_a_retry():
    assert {cause for cause in Cause if spends_retry(cause)} == {
        Cause.EXIT_CODE,
        Cause.OUT_OF_MEMORY,
        Cause.TIMED_OUT,
        Cause.PACKAGES_FAILED,
    }


def test_what_only_the_hub_can_know_is_not_for_nodes_to_report():
    assert set(Cause) - REPORTABLE == {
        Cause.SUPERSEDED,
        Cause.NODE_VANISHED,
        Cause.HUB_FAULT,
        Cause.EXPIRED,
        Cause.POISONOUS,
        Cause.WRONG_RESULT,
        Cause.DOUBTED,
    }


def test_no_cause_is_the_fault_of_both_submitter_and_node():
    assert SPENDS_RETRY.isdisjoint(NODE_FAULTS)


@pytest.mark.parametrize("cause", [Cause.OWNER_RETURNED, Cause.CANCELLED, Cause.SUPERSEDED, Cause.INPUT_MISSING])
def test_ends_that_nobody_is_to_blame_for_are_not_the_nodes_fault(cause):
    assert cause not in NODE_FAULTS


def test_every_cause_has_plain_words():
    assert set(PLAIN_WORDS) == set(Cause)


# What a submitter is told of it


def make_end(cause: Cause, slice_cause: Cause, state: AttemptState = AttemptState.LOST) -> End:
    return explain_end(
        Ended(
            cause=cause,
            exit_code=None,
            state=state,
            slice_state=SliceState.FAILED,
            slice_cause=slice_cause,
            failure_count=0,
            attempt_count=3,
            retries=2,
            ram_bytes=1,
            memory_bytes_peak=None,
            wall_seconds=60,
        )
    )


def test_a_poisonous_slice_is_explained_with_what_to_do_next():
    end = make_end(Cause.NODE_VANISHED, Cause.POISONOUS)
    assert "3 times the machine that ran it went silent or lost its GPU" in end.next_words
    assert [each.remedy for each in end.advice] == [Remedy.TRY_ALONE, Remedy.READ_LOG]


def test_a_slice_that_was_stopped_with_its_poisonous_job_is_told_so():
    end = make_end(Cause.POISONOUS, Cause.POISONOUS, AttemptState.CANCELLED)
    assert end.next_words.startswith("The job was stopped as a whole")
    assert end.advice[0].remedy is Remedy.TRY_ALONE
