"""Disputes over the pay for an attempt: who may open one and when, and what its decision does to the pay.

A dispute freezes what is pending until the operator decides: upheld, everything goes back to the submitter, the fee
too; dismissed, the release goes on. What was released before is out of a submitter's reach; the operator can still
take it back.
"""

from __future__ import annotations

from enum import Enum

from computepool.core.errors import ComputePoolError, Conflict, InvalidRequest, LimitExceeded
from computepool.core.ledger.earning import Earning, EarningState

# That one account may have waiting for the operator, who reads every one.
OPEN_MAX = 20
TEXT_LENGTH_MAX = 300


class DisputeState(str, Enum):
    OPEN = "open"
    UPHELD = "upheld"
    DISMISSED = "dismissed"


class DisputeOrigin(str, Enum):
    """Who or what has doubted the pay."""

    SUBMITTER = "submitter"
    OPERATOR = "operator"
    # The node's receipt does not hold.
    RECEIPT = "receipt"
    # The ledger would not release it.
    BOOKS = "books"
    # Others came to another result.
    AUDIT = "audit"


class DisputeSide(str, Enum):
    """Which of the two a person is."""

    SUBMITTER = "submitter"
    OWNER = "owner"


class DisputeRefused(Conflict):
    """`details.reason`: unpaid, released, reversed, frozen, decided, books."""

    code = "dispute_refused"


def check_text(text: str, *, what: str) -> str:
    if not 1 <= len(text) <= TEXT_LENGTH_MAX or not text.isprintable():
        raise InvalidRequest(f"{what}, in 1 to {TEXT_LENGTH_MAX} printable characters: both sides read it.")
    return text


def find_opening_refusal(earning: Earning, *, was_decided: bool, open_count: int) -> ComputePoolError | None:
    """Why a submitter cannot dispute this pay. `open_count` is how many of theirs wait for a decision."""
    if earning.state is EarningState.RELEASED:
        return DisputeRefused(
            f"The pay for attempt {earning.attempt_id} was held back until {earning.due_at:%Y-%m-%d %H:%M} UTC "
            "and is released: it is too late for a dispute. Tell the operator, who can still take it back.",
            reason="released",
        )
    if earning.state is EarningState.REVERSED:
        return DisputeRefused(f"The pay for attempt {earning.attempt_id} is yours again already.", reason="reversed")
    if earning.state is EarningState.DISPUTED:
        return DisputeRefused(
            f"The pay for attempt {earning.attempt_id} is frozen for another reason, and waits for the operator.",
            reason="frozen",
        )
    if was_decided:
        return DisputeRefused(
            f"Your dispute over attempt {earning.attempt_id} was decided: it was dismissed, and why stands with it.",
            reason="decided",
        )
    if open_count >= OPEN_MAX:
        return LimitExceeded(
            f"{open_count} disputes of yours wait for the operator, as many as may. Come back when one is decided.",
            retry_after_seconds=3_600,
        )
    return None


def find_decision_refusal(state: DisputeState, decision: DisputeState) -> DisputeRefused | None:
    """A decision stands. The same one again changes nothing and is no mistake."""
    if state in (DisputeState.OPEN, decision):
        return None
    return DisputeRefused(f"This dispute is {state.value} already, and that stands.", reason="decided")
