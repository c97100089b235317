"""Why the books do not take a posting. Inside core a refusal is a value; at the edge it becomes an error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from computepool.core.errors import ComputePoolError, Conflict


class RefusalCode(str, Enum):
    """Stable: they stand in answers and logs."""

    # There is nothing to do, and nothing wrong: a price of zero, a hold that was used up, one's own node.
    NOTHING_TO_MOVE = "nothing_to_move"
    # Some account does not reach so far.
    INSUFFICIENT_CREDITS = "insufficient_credits"
    # A balance would leave what can be counted.
    BALANCE_TOO_LARGE = "balance_too_large"
    # More than is left of the job's hold.
    HOLD_EXCEEDED = "hold_exceeded"
    # Another posting stands under the same key.
    DIFFERING_REPLAY = "differing_replay"
    FROZEN = "frozen"
    NOT_DUE = "not_due"
    DISPUTED = "disputed"
    # The earning was released or taken back before.
    NOT_PENDING = "not_pending"
    REVERSED = "reversed"


@dataclass(frozen=True, slots=True)
class Refusal:
    code: RefusalCode
    words: str


class InsufficientCredits(Conflict):
    code = "insufficient_credits"


class PostingMismatch(Conflict):
    """A key of the ledger was used before, for something else. Ours to look at: keys are made from ids."""

    code = "posting_mismatch"


class PostingRefused(Conflict):
    """`details.reason` is the refusal's code."""

    code = "posting_refused"


def to_error(refusal: Refusal) -> ComputePoolError:
    if refusal.code is RefusalCode.INSUFFICIENT_CREDITS:
        return InsufficientCredits(refusal.words)
    if refusal.code is RefusalCode.DIFFERING_REPLAY:
        return PostingMismatch(refusal.words)
    return PostingRefused(refusal.words, reason=refusal.code.value)
