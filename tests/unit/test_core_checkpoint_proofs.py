"""Who has proven a checkpoint, when a slice goes on without it, and what that makes of its saver."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from computepool.core.ids import AccountId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.checkpoint_proofs import (
    Doubt,
    Lack,
    Story,
    Try,
    Verdict,
    find_doubt,
    find_lack,
    is_blamed,
    judge,
)
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED
from computepool.core.jobs.state import SLICE_TERMINAL, AttemptState, SliceState
from computepool.core.trust.release import PROOF_PAY_WAIT, PayWait, find_proof_wait
from computepool.core.trust.words import say_proof_wait
from tests.support.builders import NOW

SUBMITTER, SAVER, ANNA, BO, CHEN = (AccountId(UUID(int=n)) for n in range(1, 6))

LEFT: dict[str, Any] = {"state": AttemptState.FAILED, "cause": Cause.OWNER_RETURNED, "has_saved": True}
FAILED: dict[str, Any] = {"state": AttemptState.FAILED, "cause": Cause.EXIT_CODE, "exit_code": 1}
LOST: dict[str, Any] = {"state": AttemptState.LOST, "cause": Cause.NODE_VANISHED}
RUNS: dict[str, Any] = {"state": AttemptState.RUNNING}
DONE: dict[str, Any] = {"state": AttemptState.SUCCEEDED, "has_delivered": True}


def tell(*tries: tuple[AccountId, dict[str, Any]], **story: Any) -> Story:
    """What happened to a slice, attempt by attempt: whose it was, and how it ended."""
    made = tuple(
        Try(
            **{
                "number": number,
                "owner_id": owner_id,
                "cause": None,
                "exit_code": None,
                "has_delivered": False,
                "has_saved": False,
                **end,
            }
        )
        for number, (owner_id, end) in enumerate(tries, start=1)
    )
    return Story(**{"slice_state": SliceState.QUEUED, "submitter_id": SUBMITTER, "tries": made, **story})


def doubt(story: Story) -> Doubt | None:
    return find_doubt(story, story.tries[-1])


def left_out(after: int) -> dict[str, Any]:
    return {**LEFT, "left_out_after": after}


FORGED = (SAVER, left_out(3)), (ANNA, FAILED), (BO, FAILED)


def delivered(*tries: tuple[AccountId, dict[str, Any]], **story: Any) -> Story:
    return tell(*tries, **{"slice_state": SliceState.SUCCEEDED, "can_resume": True, **story})


def judged(story: Story) -> Verdict | None:
    return judge(story, story.tries[0])


# What proves one


def test_a_checkpoint_is_proven_by_whoever_else_saves_more_or_by_a_result_that_began_with_it():
    assert tell((SAVER, LEFT), (ANNA, RUNS)).proven == frozenset()
    assert tell((SAVER, LEFT), (ANNA, {**RUNS, "has_saved": True})).proven == {1}
    assert tell((SAVER, LEFT), (ANNA, DONE)).proven == {1}
    assert tell((SAVER, LEFT), (SAVER, DONE)).proven == {1}


def test_nobody_proves_a_checkpoint_by_saving_more_of_their_own():
    assert tell((SAVER, LEFT), (SAVER, LEFT), (SAVER, LEFT)).proven == frozenset()
    assert tell((SAVER, LEFT), (SAVER, LEFT), (ANNA, LEFT)).proven == {1, 2}


def test_what_was_left_out_proves_nothing_that_it_began_with():
    assert tell((ANNA, LEFT), (SAVER, left_out(4)), (BO, FAILED), (CHEN, FAILED)).proven == frozenset()


def test_an_attempt_begins_with_the_newest_checkpoint_that_was_not_left_out_before_it():
    story = tell((ANNA, LEFT), (SAVER, left_out(4)), (BO, LOST), (CHEN, FAILED), (BO, RUNS))
    assert [base.number if base else None for base in story.bases.values()] == [None, 1, 2, 2, 1]


# When it is doubted


def test_the_first_stranger_who_fails_on_a_checkpoint_is_forgiven_and_it_is_tried_again():
    assert doubt(tell((SAVER, LEFT), (ANNA, FAILED))) == Doubt()


def test_after_the_second_the_slice_begins_without_it():
    assert doubt(tell((SAVER, LEFT), (ANNA, FAILED), (BO, FAILED))) == Doubt((1,), None)
    assert doubt(tell((CHEN, LEFT), (SAVER, LEFT), (ANNA, FAILED), (BO, FAILED))) == Doubt((2,), 1)


def test_what_one_owner_saved_in_a_row_is_left_out_together_and_sheds_no_witness():
    story = tell((CHEN, LEFT), (SAVER, LEFT), (ANNA, FAILED), (SAVER, LEFT), (BO, FAILED))
    assert doubt(story) == Doubt((4, 2), 1)


@pytest.mark.parametrize(
    "end",
    [
        {**FAILED, "exit_code": EXIT_CODE_CHECKPOINTED},
        {**FAILED, "cause": Cause.OUT_OF_MEMORY},
        {**FAILED, "cause": Cause.TIMED_OUT},
        {**FAILED, "cause": Cause.NODE_VANISHED},
        {**FAILED, "has_saved": True},
    ],
    ids=["asks to be queued again", "out of memory", "too long", "vanished", "after it has saved"],
)
def test_only_a_program_that_fails_before_it_has_saved_speaks_against_what_it_began_with(end):
    assert doubt(tell((SAVER, LEFT), (ANNA, end))) is None


def test_neither_ones_own_failure_nor_one_on_a_proven_checkpoint_nor_one_on_nothing_is_forgiven():
    assert doubt(tell((SAVER, LEFT), (SAVER, FAILED))) is None
    assert doubt(tell((SAVER, LEFT), (ANNA, LEFT), (ANNA, FAILED))) is None
    assert doubt(tell((SAVER, FAILED), (ANNA, FAILED))) is None


def test_two_who_play_together_are_left_out_one_after_the_other():
    """The second has "gone on" from what the first made up."""
    pair = (SAVER, LEFT), (CHEN, left_out(4)), (ANNA, FAILED), (BO, FAILED)
    assert doubt(tell(*pair, (ANNA, FAILED))) == Doubt()
    assert doubt(tell(*pair, (ANNA, FAILED), (BO, FAILED))) == Doubt((1,), None)
    story = delivered((SAVER, left_out(6)), *pair[1:], (ANNA, FAILED), (BO, FAILED), (ANNA, DONE))
    assert [judge(story, each) for each in story.tries[:2]] == [Verdict.FORGED, Verdict.FORGED]


# What it comes to


def test_it_was_forged_if_two_strangers_failed_on_it_and_a_third_delivered_without_it():
    assert judged(delivered(*FORGED, (CHEN, DONE))) is Verdict.FORGED


def test_nobody_is_blamed_on_the_word_of_one():
    assert judged(delivered((SAVER, left_out(3)), (ANNA, FAILED), (ANNA, FAILED), (BO, DONE))) is Verdict.UNDECIDED


def test_nobody_is_blamed_on_the_word_of_the_submitter():
    story = delivered((SAVER, left_out(3)), (ANNA, FAILED), (SUBMITTER, FAILED), (BO, DONE))
    assert judged(story) is Verdict.UNDECIDED


def test_nobody_is_blamed_where_the_program_may_be_one_that_never_goes_on():
    assert judged(delivered(*FORGED, (CHEN, DONE), can_resume=False)) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "without",
    [((CHEN, FAILED), (CHEN, DONE)), ((CHEN, {**FAILED, "has_saved": True}), (CHEN, DONE))],
    ids=["at once", "as far on as the one that saved it"],
)
def test_a_program_that_fails_without_it_too_clears_it(without):
    assert judged(delivered(*FORGED, *without)) is Verdict.CLEARED


def test_control_the_saver_does_not_clear_itself_by_failing_on_purpose():
    assert judged(delivered(*FORGED, (SAVER, FAILED), (CHEN, DONE))) is Verdict.FORGED


def test_whoever_was_lost_and_delivers_late_what_began_with_it_clears_it():
    story = delivered((SAVER, left_out(4)), (CHEN, DONE), (ANNA, FAILED), (BO, FAILED))
    assert judged(story) is Verdict.CLEARED


@pytest.mark.parametrize("state", sorted(SLICE_TERMINAL - {SliceState.SUCCEEDED}))
def test_a_slice_that_is_never_delivered_blames_nobody(state):
    assert judged(delivered(*FORGED, (CHEN, RUNS), slice_state=state)) is Verdict.CLEARED


@pytest.mark.parametrize("state", sorted(set(SliceState) - SLICE_TERMINAL))
def test_nothing_is_judged_before_the_slice_has_ended(state):
    assert judged(delivered(*FORGED, (CHEN, DONE), slice_state=state)) is None


def test_what_one_owner_did_in_a_row_is_blamed_once():
    story = delivered((SAVER, left_out(4)), (SAVER, left_out(4)), (ANNA, FAILED), (BO, FAILED), (CHEN, DONE))
    assert [judge(story, each) for each in story.tries[:2]] == [Verdict.FORGED, Verdict.FORGED]
    assert [is_blamed(story, each) for each in story.tries[:2]] == [False, True]


# Pay


@pytest.mark.parametrize(
    ("story", "lack"),
    [
        (tell((SAVER, LEFT)), Lack.PROOF),
        (tell((SAVER, LEFT), (ANNA, FAILED)), Lack.PROOF),
        (tell((SAVER, LEFT), (SAVER, LEFT)), Lack.PROOF),
        (tell((SAVER, LEFT), (ANNA, LEFT)), None),
        (tell((SAVER, LEFT), slice_state=SliceState.VERIFYING), Lack.PROOF),
        (tell((SAVER, LEFT), slice_state=SliceState.CANCELLED), None),
        (tell((SAVER, LEFT), slice_state=SliceState.FAILED), None),
        (tell(*FORGED), Lack.VERDICT),
        (tell(*FORGED, slice_state=SliceState.SUCCEEDED), Lack.VERDICT),
        (tell((SAVER, {**left_out(3), "verdict": Verdict.CLEARED})), None),
        (tell((SAVER, {**left_out(3), "verdict": Verdict.UNDECIDED})), None),
        (tell((SAVER, {**left_out(3), "verdict": Verdict.FORGED})), Lack.VERDICT),
        (tell((SAVER, FAILED)), None),
    ],
)
def test_pay_for_a_checkpoint_waits_for_proof_or_for_the_end_of_its_slice(story, lack):
    assert find_lack(story, story.tries[0]) is lack


def test_pay_waits_a_month_for_somebody_to_go_on_and_without_end_for_a_verdict():
    late = NOW + PROOF_PAY_WAIT
    assert find_proof_wait(None, earned_at=NOW, now=NOW) is None
    assert find_proof_wait(Lack.PROOF, earned_at=NOW, now=late - timedelta(seconds=1)) == PayWait(late)
    assert find_proof_wait(Lack.PROOF, earned_at=NOW, now=late) is None
    assert find_proof_wait(Lack.VERDICT, earned_at=NOW, now=late) == PayWait(None)


def test_an_owner_is_told_what_the_pay_waits_for():
    assert "gone on from its checkpoint" in say_proof_wait(PayWait(NOW))
    assert "could not go on" in say_proof_wait(PayWait(None))


def test_control_a_rule_that_asks_for_one_witness_would_blame_on_the_word_of_one(monkeypatch):
    monkeypatch.setattr("computepool.core.jobs.checkpoint_proofs.WITNESSES_MIN", 1)
    story = delivered((SAVER, left_out(2)), (ANNA, FAILED), (ANNA, DONE))
    assert judged(story) is Verdict.FORGED
    assert judged(replace(story, submitter_id=ANNA)) is Verdict.UNDECIDED
