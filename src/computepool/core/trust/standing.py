"""Where a node stands: clear, suspect, bugged, on its way back, or out for good; and what follows from each result.

Trust only moves how often a node is audited, whether it gets leases and when it is paid. What makes a result right or
wrong is decided elsewhere (validation.py), by the same rules for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from computepool.core.trust.reputation import Integrity, integrity_bound, record_right, record_wrong

# Results that must be validated before a node is out of probation, and the bound that it needs then and later.
PROBATION_RESULTS = 20
TRUSTED_BOUND = 0.85
# So many wrong results among so many validated ones: bugged.
BUGGED_WRONG = 2
BUGGED_WINDOW = 50
# After the first time; four times as long after each further one. The third time is the last.
COOL_OFF = timedelta(hours=96)
COOL_OFF_FACTOR = 4
BUGGED_TIMES_MAX = 3
# The way back: unpaid, all audited, all right.
RETURNING_RESULTS = 20


class Standing(str, Enum):
    CLEAR = "clear"  # in probation or beyond it
    SUSPECT = "suspect"  # one wrong result: all is audited, pay is frozen
    BUGGED = "bugged"  # two wrong in fifty: no leases until the cool-off is over
    RETURNING = "returning"  # unpaid audited slices, all of which must be right
    BARRED = "barred"  # bugged for the third time; only the operator can undo it


class TrustEffect(str, Enum):
    FREEZE_PAY = "freeze_pay"  # what is pending for the node
    RETRO_AUDIT = "retro_audit"  # every result that is not finalised
    STOP_LEASES = "stop_leases"
    FORFEIT_PAY = "forfeit_pay"  # what is pending goes back to those who paid it: it was the bond
    UNFREEZE_PAY = "unfreeze_pay"


_NOTHING_KNOWN = Integrity()


@dataclass(frozen=True, slots=True)
class NodeTrust:
    integrity: Integrity = _NOTHING_KNOWN
    standing: Standing = Standing.CLEAR
    # Since when it stands so; None: from the beginning.
    since: datetime | None = None
    # What validated_count was at each of the last wrong results, newest last.
    wrong_at: tuple[int, ...] = ()
    # How often it was bugged; never decays.
    bugged_count: int = 0
    # Right results that are still missing on the way back.
    returning_left: int = 0
    # The operator vouches for it: it may audit from the first day.
    is_vouched: bool = False
    # When it passed probation, or was last found wrong after that: tenure counts from here.
    serving_since: datetime | None = None


def record_validated(
    known: NodeTrust, *, right: bool, now: datetime, is_retro: bool = False
) -> tuple[NodeTrust, tuple[TrustEffect, ...]]:
    """One result of the node was validated, in whichever role it ran it.

    What a retro-audit finds right counts for nothing: it is older than the wrong result, and would clear a suspect by
    looking at its past.
    """
    if right and is_retro:
        return known, ()
    if not right:
        return _after_wrong(known, now)
    after = _after_right(known, now)
    is_freed = may_release_pay(after) and not may_release_pay(known)
    return after, (TrustEffect.UNFREEZE_PAY,) if is_freed else ()


def _after_right(known: NodeTrust, now: datetime) -> NodeTrust:
    integrity = record_right(known.integrity, now=now)
    serving = known.serving_since
    if serving is None and integrity.validated_count >= PROBATION_RESULTS:
        serving = now
    known = replace(known, integrity=integrity, serving_since=serving)
    if known.standing is Standing.RETURNING:
        left = known.returning_left - 1
        if left > 0:
            return replace(known, returning_left=left)
        return replace(known, standing=Standing.CLEAR, since=now, returning_left=0)
    # As long as another wrong one would make it bugged, it stays suspect.
    if known.standing is Standing.SUSPECT and integrity.validated_count - known.wrong_at[-1] >= BUGGED_WINDOW:
        return replace(known, standing=Standing.CLEAR, since=now)
    return known


def _after_wrong(known: NodeTrust, now: datetime) -> tuple[NodeTrust, tuple[TrustEffect, ...]]:
    integrity = record_wrong(known.integrity, now=now)
    wrong_at = (*known.wrong_at, integrity.validated_count)[-BUGGED_WRONG:]
    known = replace(_restart_service(known, now), integrity=integrity, wrong_at=wrong_at)
    if known.standing in (Standing.BUGGED, Standing.BARRED):
        # Found by the retro-audit: it stands where it stands.
        return known, ()
    many = len(wrong_at) == BUGGED_WRONG and wrong_at[-1] - wrong_at[0] < BUGGED_WINDOW
    if not many and known.standing is not Standing.RETURNING:
        suspect = replace(known, standing=Standing.SUSPECT, since=now)
        return suspect, (TrustEffect.FREEZE_PAY, TrustEffect.RETRO_AUDIT)
    return _become_bugged(known, now)


def record_bugged(known: NodeTrust, *, now: datetime) -> tuple[NodeTrust, tuple[TrustEffect, ...]]:
    """Audits of a network found the node wrong too often: it stands where two wrong results would have led it."""
    if known.standing in (Standing.BUGGED, Standing.BARRED):
        return known, ()
    return _become_bugged(_restart_service(known, now), now)


def _restart_service(known: NodeTrust, now: datetime) -> NodeTrust:
    """Tenure begins anew; whoever has not passed probation has none to begin."""
    return known if known.serving_since is None else replace(known, serving_since=now)


def _become_bugged(known: NodeTrust, now: datetime) -> tuple[NodeTrust, tuple[TrustEffect, ...]]:
    times = known.bugged_count + 1
    standing = Standing.BARRED if times >= BUGGED_TIMES_MAX else Standing.BUGGED
    effects = (TrustEffect.STOP_LEASES, TrustEffect.RETRO_AUDIT, TrustEffect.FORFEIT_PAY)
    return replace(known, standing=standing, since=now, bugged_count=times, returning_left=0), effects


def cool_off(bugged_count: int) -> timedelta:
    times: int = COOL_OFF_FACTOR ** (max(1, bugged_count) - 1)
    return COOL_OFF * times


def readmit(known: NodeTrust, *, now: datetime) -> NodeTrust:
    """A bugged node whose cool-off is over starts from nothing, on the way back; any other stays as it is."""
    if (
        known.standing is not Standing.BUGGED
        or known.since is None
        or now < known.since + cool_off(known.bugged_count)
    ):
        return known
    return NodeTrust(
        standing=Standing.RETURNING,
        since=now,
        bugged_count=known.bugged_count,
        returning_left=RETURNING_RESULTS,
        is_vouched=known.is_vouched,
    )


def may_lease(known: NodeTrust) -> bool:
    return known.standing not in (Standing.BUGGED, Standing.BARRED)


def is_paid(known: NodeTrust) -> bool:
    """Whether new results of it earn anything at all."""
    return known.standing in (Standing.CLEAR, Standing.SUSPECT)


def may_release_pay(known: NodeTrust) -> bool:
    """Whether pay whose holdback is over may become available: never before probation is passed."""
    passed = known.is_vouched or known.integrity.validated_count >= PROBATION_RESULTS
    return known.standing is Standing.CLEAR and passed


def is_trusted(known: NodeTrust, *, now: datetime) -> bool:
    """Whether it is out of probation, or the operator vouches for it."""
    if known.standing is not Standing.CLEAR:
        return False
    if known.is_vouched:
        return True
    counted = known.integrity.validated_count >= PROBATION_RESULTS
    return counted and integrity_bound(known.integrity, now=now) >= TRUSTED_BOUND


def may_decide(known: NodeTrust, *, now: datetime) -> bool:
    """Whether its word decides between others. Whoever was bugged once may work and audit again, but not judge."""
    return known.bugged_count == 0 and is_trusted(known, now=now)
