"""When pay whose holdback is over becomes free: what trust has to say about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from computepool.core.jobs.checkpoint_proofs import Lack
from computepool.core.trust.standing import NodeTrust, Standing, may_release_pay

# Pay for results that are checked waits for probation, but not for ever: where little is checked, an honest newcomer
# would never be paid.
PROBATION_PAY_WAIT = timedelta(days=30)
# Pay for a checkpoint waits until somebody has gone on from it. A slice that nobody takes must not keep it for ever.
PROOF_PAY_WAIT = timedelta(days=30)
# Pay that waits is looked at again so often, should nobody have heard that the wait is over.
LOOK_AGAIN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PayWait:
    # Free by then, if nothing is found against it. None: for as long as it takes.
    until: datetime | None

    def next_look(self, now: datetime) -> datetime:
        again = now + LOOK_AGAIN
        return again if self.until is None else min(again, self.until)


def find_pay_wait(known: NodeTrust, *, is_checked: bool, earned_at: datetime, now: datetime) -> PayWait | None:
    """Why pay waits although its holdback is over; None: it does not.

    `is_checked`: for a result of a job whose results are compared. Probation says nothing of any other.
    """
    if known.standing is not Standing.CLEAR:
        return PayWait(None)
    if not is_checked or may_release_pay(known):
        return None
    until = max(earned_at, known.since or earned_at) + PROBATION_PAY_WAIT
    return PayWait(until) if now < until else None


def find_proof_wait(lack: Lack | None, *, earned_at: datetime, now: datetime) -> PayWait | None:
    """The same for what was earned by a checkpoint alone."""
    if lack is None:
        return None
    if lack is Lack.VERDICT:
        return PayWait(None)
    until = earned_at + PROOF_PAY_WAIT
    return PayWait(until) if now < until else None
