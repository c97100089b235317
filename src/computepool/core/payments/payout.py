"""The life of a payout. Cash that may have left is never sent again: from `sent` there is no way back to `approved`.

`sent` is written before the provider is called, so that a hub that dies during the call has not forgotten it. A call
without an answer makes it `unknown`; only the provider's own word, asked for by our id, leads out of that.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

from computepool.core.payments.life import Life, Step


class PayoutState(str, Enum):
    REQUESTED = "requested"  # seen only inside the transaction that reserves
    RESERVED = "reserved"  # the credits are set aside; waits for the operator
    APPROVED = "approved"
    SENT = "sent"  # handed to the provider, or about to be
    UNKNOWN = "unknown"  # the provider may or may not have it
    CONFIRMED = "confirmed"
    FAILED = "failed"  # no cash has left; the credits are back
    RETURNED = "returned"  # the bank sent it back after it was confirmed


class PayoutWord(str, Enum):
    # Ours.
    RESERVED = "reserved"
    APPROVED = "approved"
    REFUSED = "refused"  # by the operator
    CANCELLED = "cancelled"  # by the owner
    SENT = "sent"
    NO_ANSWER = "no_answer"
    # The provider's.
    ACCEPTED = "accepted"  # it has the order and works on it
    CONFIRMED = "confirmed"
    FAILED = "failed"
    RETURNED = "returned"


PayoutStep = Step[PayoutState, PayoutWord]

S, W = PayoutState, PayoutWord
PAYOUT_LIFE = Life(
    transitions={
        (S.REQUESTED, W.RESERVED): S.RESERVED,
        (S.RESERVED, W.APPROVED): S.APPROVED,
        (S.RESERVED, W.REFUSED): S.FAILED,
        (S.RESERVED, W.CANCELLED): S.FAILED,
        (S.APPROVED, W.REFUSED): S.FAILED,
        (S.APPROVED, W.CANCELLED): S.FAILED,
        (S.APPROVED, W.SENT): S.SENT,
        (S.SENT, W.NO_ANSWER): S.UNKNOWN,
        (S.SENT, W.CONFIRMED): S.CONFIRMED,
        (S.SENT, W.FAILED): S.FAILED,
        (S.UNKNOWN, W.ACCEPTED): S.SENT,
        (S.UNKNOWN, W.CONFIRMED): S.CONFIRMED,
        (S.UNKNOWN, W.FAILED): S.FAILED,
        (S.CONFIRMED, W.RETURNED): S.RETURNED,
    },
    implied={W.RETURNED: W.CONFIRMED},
    old_news={
        # The end of our own call may come after the provider's word on what became of it.
        S.SENT: frozenset({W.ACCEPTED}),
        S.UNKNOWN: frozenset({W.NO_ANSWER}),
        S.FAILED: frozenset({W.ACCEPTED, W.NO_ANSWER, W.FAILED}),
        S.CONFIRMED: frozenset({W.ACCEPTED, W.NO_ANSWER, W.CONFIRMED}),
        S.RETURNED: frozenset({W.ACCEPTED, W.NO_ANSWER, W.CONFIRMED, W.RETURNED}),
    },
)
PAYOUT_TERMINAL = frozenset({S.CONFIRMED, S.FAILED, S.RETURNED})
# What the provider must be asked about.
PAYOUT_OPEN_AT_PROVIDER = frozenset({S.SENT, S.UNKNOWN})

# A provider that has not heard of a payout so long after it was sent never will: requests are signed with their
# time, and old ones are refused.
NOT_FOUND_SECONDS = 24 * 3_600.0


def judge_not_found(
    *, sent_at: datetime, acknowledged_at: datetime | None, now: datetime, seconds: float = NOT_FOUND_SECONDS
) -> PayoutWord | None:
    """What it means that the provider knows nothing of a payout: nothing yet, or that it was never received.

    A provider that has taken it and then knows nothing of it is not believed: the operator must look.
    """
    if acknowledged_at is not None or now - sent_at < timedelta(seconds=seconds):
        return None
    return PayoutWord.FAILED
