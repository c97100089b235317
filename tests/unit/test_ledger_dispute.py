"""Who may doubt pay and when, and that a decision stands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from computepool.core.errors import InvalidRequest, LimitExceeded
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger.dispute import (
    OPEN_MAX,
    TEXT_LENGTH_MAX,
    DisputeRefused,
    DisputeState,
    check_text,
    find_decision_refusal,
    find_opening_refusal,
)
from computepool.core.ledger.earning import Earning, EarningState

S, E = DisputeState, EarningState


def make_earning(state: EarningState = E.PENDING) -> Earning:
    people = AccountId(UUID(int=3)), AccountId(UUID(int=4))
    at = datetime(2026, 3, 10, 12, tzinfo=UTC)
    return Earning(AttemptId(UUID(int=1)), JobId(UUID(int=2)), *people, 80, 20, at, state)


def find(state: EarningState = E.PENDING, *, was_decided: bool = False, open_count: int = 0) -> Any:
    return find_opening_refusal(make_earning(state), was_decided=was_decided, open_count=open_count)


def test_pending_pay_may_be_doubted_once():
    assert find() is None
    assert find(open_count=OPEN_MAX - 1) is None
    assert find(was_decided=True).details == {"reason": "decided"}


@pytest.mark.parametrize(
    ("state", "reason"), [(E.RELEASED, "released"), (E.REVERSED, "reversed"), (E.DISPUTED, "frozen")]
)
def test_other_pay_may_not_and_the_reason_is_stable(state, reason):
    # What the pay is comes before what the submitter has done: they read the reason that matters.
    for was_decided in (False, True):
        refusal = find(state, was_decided=was_decided, open_count=OPEN_MAX)
        assert isinstance(refusal, DisputeRefused)
        assert refusal.details == {"reason": reason}


def test_a_refusal_for_being_late_says_since_when_and_who_can_help():
    assert "until 2026-03-10 12:00 UTC" in find(E.RELEASED).message
    assert "operator" in find(E.RELEASED).message


def test_an_account_with_as_many_as_may_wait_is_told_to_come_back():
    refusal = find(open_count=OPEN_MAX)
    assert isinstance(refusal, LimitExceeded)
    assert refusal.details["retry_after_seconds"] > 0


@pytest.mark.parametrize("decision", [S.UPHELD, S.DISMISSED])
def test_a_decision_stands(decision):
    other = S.DISMISSED if decision is S.UPHELD else S.UPHELD
    assert find_decision_refusal(S.OPEN, decision) is None
    assert find_decision_refusal(decision, decision) is None
    refusal = find_decision_refusal(other, decision)
    assert refusal is not None
    assert refusal.details == {"reason": "decided"}


@pytest.mark.parametrize("text", ["", "x" * (TEXT_LENGTH_MAX + 1), "a\nb", "a\tb", "\x7f", "\udc80"])
def test_words_that_cannot_be_read_are_refused(text):
    with pytest.raises(InvalidRequest, match="both sides read it"):
        check_text(text, what="Say why")


def test_words_of_every_language_are_taken():
    for text in ("x", "x" * TEXT_LENGTH_MAX, "das Bild ist schwarz", "चित्र काला है"):
        assert check_text(text, what="Say why") == text
