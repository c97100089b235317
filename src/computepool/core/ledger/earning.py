"""What an owner has earned with one attempt, and where it stands between payment and freedom.

Pay is pending until the holdback is over: it is the bond against cheating. A dispute stops that clock's effect until
it is decided; late fraud takes the pay back wherever it is by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger.refusal import Refusal, RefusalCode


class EarningState(str, Enum):
    PENDING = "pending"
    DISPUTED = "disputed"
    RELEASED = "released"
    REVERSED = "reversed"


@dataclass(frozen=True, slots=True)
class Earning:
    attempt_id: AttemptId
    job_id: JobId
    submitter_id: AccountId
    owner_id: AccountId
    # All that was paid for the attempt, in one part or in many.
    owner_microcredits: int
    fee_microcredits: int
    # When the holdback is over.
    due_at: datetime
    state: EarningState = EarningState.PENDING


def dispute(earning: Earning) -> Earning | Refusal:
    """Freezes what is pending. What was released is free; only `reverse` reaches it."""
    if earning.state is EarningState.DISPUTED:
        return earning
    if earning.state is not EarningState.PENDING:
        return _not_pending(earning)
    return replace(earning, state=EarningState.DISPUTED)


def dismiss(earning: Earning) -> Earning | Refusal:
    """The dispute was decided for the owner. (Against the owner: `reverse`.)"""
    if earning.state is not EarningState.DISPUTED:
        return _not_pending(earning)
    return replace(earning, state=EarningState.PENDING)


def find_release_refusal(earning: Earning, *, now: datetime) -> Refusal | None:
    if earning.state is EarningState.DISPUTED:
        return Refusal(RefusalCode.DISPUTED, f"The pay for attempt {earning.attempt_id} is in dispute.")
    if earning.state is not EarningState.PENDING:
        return _not_pending(earning)
    if now < earning.due_at:
        return Refusal(RefusalCode.NOT_DUE, f"The pay for attempt {earning.attempt_id} is held back until later.")
    return None


def _not_pending(earning: Earning) -> Refusal:
    code = RefusalCode.REVERSED if earning.state is EarningState.REVERSED else RefusalCode.NOT_PENDING
    return Refusal(code, f"The pay for attempt {earning.attempt_id} is {earning.state.value}.")
