"""Where a node stands and how sure results are, said to people: what it means, and what leads on from there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from computepool.core.ledger.charging import LeaseTerms
from computepool.core.ledger.fee import PPM
from computepool.core.trust.confidence import TRUSTED_WRONG_RATIO, find_confidence
from computepool.core.trust.inspection import CheckOutcome
from computepool.core.trust.release import PROBATION_PAY_WAIT, PayWait
from computepool.core.trust.standing import (
    BUGGED_WINDOW,
    PROBATION_RESULTS,
    NodeTrust,
    Standing,
    cool_off,
    is_trusted,
    may_release_pay,
)
from computepool.core.trust.tenure import TENURE_STARTS
from computepool.core.trust.validation import Verify
from computepool.core.words import say_count


def find_back_at(known: NodeTrust) -> datetime | None:
    """When the way back of a bugged node begins."""
    if known.standing is not Standing.BUGGED or known.since is None:
        return None
    return known.since + cool_off(known.bugged_count)


def count_missing(known: NodeTrust) -> int:
    """Right results that lead on: out of probation, out of suspicion, or back."""
    if known.standing is Standing.RETURNING:
        return known.returning_left
    if known.standing is Standing.SUSPECT:
        return max(0, BUGGED_WINDOW - (known.integrity.validated_count - known.wrong_at[-1]))
    if known.standing is Standing.CLEAR and not known.is_vouched:
        return max(0, PROBATION_RESULTS - known.integrity.validated_count)
    return 0


def say_standing(known: NodeTrust, *, now: datetime) -> str:
    missing = count_missing(known)
    if known.standing is Standing.BARRED:
        return "Its results were wrong too often. Only the operator can let it work again."
    if known.standing is Standing.BUGGED:
        back = find_back_at(known)
        when = f" From {back:%Y-%m-%d %H:%M} UTC it can work its way back." if back else ""
        return f"Its results were wrong: it gets no work, and what was held back is lost.{when}"
    if known.standing is Standing.RETURNING:
        return f"On its way back: {say_count(missing, 'slice')} to go, unpaid, all of which must be right."
    if known.standing is Standing.SUSPECT:
        return (
            "One of its results was wrong: all are checked and its pay waits, until "
            f"{say_count(missing, 'further result')} were found right."
        )
    if known.is_vouched:
        return "The operator vouches for it: it may check others."
    if is_trusted(known, now=now):
        return "Trusted: its results are delivered at once, and it may check others."
    if missing:
        return (
            f"New: results of jobs that can be checked are kept back until somebody else has got the same; "
            f"{_say_missing(known)}."
        )
    return "Not trusted at the moment: too many of its last results were wrong."


def say_pay(known: NodeTrust, terms: LeaseTerms, *, bonus_ppm: int) -> str:
    """How soon its owner is paid, and what for."""
    held = f"Pay is held back for {_say_span(terms.holdback_seconds)}"
    if known.standing in (Standing.BUGGED, Standing.BARRED, Standing.RETURNING):
        return "It earns nothing."
    if known.standing is Standing.SUSPECT:
        return f"{held}, and released when the suspicion has passed."
    if not may_release_pay(known):
        return (
            f"{held}. For jobs whose results are checked it waits until probation is passed ({_say_missing(known)}), "
            f"but no more than {PROBATION_PAY_WAIT.days} days."
        )
    if bonus_ppm:
        return f"{held}, and a bonus of {100 * bonus_ppm / PPM:.2f} % of the price comes out of our fee."
    return f"{held}. From day {TENURE_STARTS.days} of clean service that is less, and a bonus comes out of our fee."


def say_pay_wait(known: NodeTrust, wait: PayWait) -> str:
    """Why the pay for one attempt is not released."""
    if wait.until is None:
        return f"Not released while its node is {known.standing.value}."
    return (
        f"Not released before its node has passed probation ({_say_missing(known)}), or "
        f"{wait.until:%Y-%m-%d %H:%M} UTC if that is sooner."
    )


def say_proof_wait(wait: PayWait) -> str:
    """The same for what was earned by a checkpoint alone."""
    if wait.until is None:
        return "Not released before its slice has ended: others could not go on from its checkpoint."
    return (
        "Not released before somebody has gone on from its checkpoint or its slice has ended, or "
        f"{wait.until:%Y-%m-%d %H:%M} UTC if that is sooner."
    )


def _say_missing(known: NodeTrust) -> str:
    return f"{say_count(count_missing(known), 'right result')} to go"


def _say_span(seconds: int) -> str:
    hours = seconds / 3_600
    return f"{hours:.0f} h" if hours >= 1 else say_count(seconds, "second")


def say_job(
    *, verify: Verify | None, nondeterministic: bool, confidence: float | None, check_count: int, replaced: int
) -> str:
    if verify is None:
        return "Its results are not checked: it does not say how to compare them (--compare), or asks for none."
    if nondeterministic:
        return (
            "Runs of it that should have agreed did not: nobody is to blame, and its results cannot be checked. "
            "Its nodes are watched instead, by slices of your other checked jobs whose answers are known."
        )
    parts = [f"{say_count(check_count, 'further run')} made to check them"]
    if confidence is not None:
        parts.append(f"{100 * confidence:.2f} % are right, as far as the records of their nodes let expect")
    if replaced:
        parts.append(f"{say_count(replaced, 'wrong result')} replaced by the right one")
    return "Its results: " + "; ".join(parts) + "."


def find_job_confidence(groups: Sequence[tuple[float, CheckOutcome | None, int]]) -> float | None:
    """Of the delivered slices, as (the ratio by which their node is expected to be wrong, what a check has said, how
    many). None: there are none yet."""
    total = sum(count for _, _, count in groups)
    if not total:
        return None
    return sum(_find_group(ratio, outcome) * count for ratio, outcome, count in groups) / total


def _find_group(ratio: float, outcome: CheckOutcome | None) -> float:
    if outcome is CheckOutcome.AGREED:
        return find_confidence([ratio, TRUSTED_WRONG_RATIO])
    if outcome is CheckOutcome.FOUND_WRONG:
        # Put right by two who decided.
        return find_confidence([TRUSTED_WRONG_RATIO, TRUSTED_WRONG_RATIO])
    return find_confidence([ratio])
