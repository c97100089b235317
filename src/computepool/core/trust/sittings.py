"""When a slot is asked to show its speed again, and what becomes of a proof that is not shown again.

A card can be sold, shared or left to dust after it was proved. So the hub asks again, at moments that nobody can
foresee: the wait is drawn from an exponential, so that having waited for long tells nothing about what is left. A
slot that does not answer is no liar yet, and a busy one is not a slow one: both are asked again soon, and only so
often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import log

from computepool.core.trust.challenge import ProofState

# From when the node was told, with the slot idle, to when the request counts as missed.
ANSWER_WITHIN = timedelta(minutes=15)
# Requests in a row that go unanswered before a slot counts as unproven.
MISSES_MAX = 3
# Verdicts in a row that may be unsure before one of them counts: a spread can be made.
UNSURE_MAX = 3

# How long the wait is on average, in parts of what it is for a slot that is proven: soon where something is missing.
_MEAN_SHARE: Mapping[ProofState, float] = {
    ProofState.PROVEN: 1.0,
    ProofState.FORGED: 1.0,
    ProofState.SLOWER: 1 / 3,
    ProofState.UNPROVEN: 1 / 12,
    ProofState.UNSURE: 1 / 144,
}
_SOON = ProofState.UNSURE


@dataclass(frozen=True, slots=True)
class Sitting:
    """The next time at which a slot is to show its speed."""

    # The node is never told.
    due_at: datetime
    # Since when the hub wants it; None: not yet.
    asked_at: datetime | None = None
    # When the node was told, which happens when the slot is idle; None: not yet.
    told_at: datetime | None = None
    # Requests in a row that went unanswered.
    missed_count: int = 0
    # Verdicts in a row that were unsure.
    unsure_count: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    sitting: Sitting
    # It was asked too often without an answer.
    loses_proof: bool = False


def plan_wait(state: ProofState, *, mean: timedelta, draw: float) -> timedelta:
    """`mean` is that of a proven slot; `draw` is at least 0 and less than 1."""
    return mean * (_MEAN_SHARE[state] * -log(1.0 - draw))


def take_turn(
    sitting: Sitting, state: ProofState, *, reachable: bool, now: datetime, mean: timedelta, draw: float
) -> Turn:
    """What time brings: a request that is due is made, and one that went unanswered counts as missed.

    A node that cannot be reached is asked soon after it is back, but not at once: that moment it could foresee.
    """
    if sitting.asked_at is None:
        if now < sitting.due_at:
            return Turn(sitting)
        if not reachable:
            return Turn(replace(sitting, due_at=now + plan_wait(_SOON, mean=mean, draw=draw)))
        return Turn(replace(sitting, asked_at=now))
    if sitting.told_at is None or now < sitting.told_at + ANSWER_WITHIN:
        return Turn(sitting)
    missed = sitting.missed_count + 1
    # Others have nothing to lose by silence, and must not get rid of a verdict by it.
    loses = missed >= MISSES_MAX and state is ProofState.PROVEN
    after = ProofState.UNPROVEN if loses else _SOON if state is ProofState.PROVEN else state
    return Turn(
        Sitting(
            due_at=now + plan_wait(after, mean=mean, draw=draw),
            missed_count=0 if loses else missed,
            unsure_count=sitting.unsure_count,
        ),
        loses,
    )


def conclude(
    sitting: Sitting,
    verdict: ProofState,
    *,
    before: ProofState,
    now: datetime,
    mean: timedelta,
    draw: float,
) -> tuple[Sitting, bool]:
    """After a verdict: the next sitting, and whether the proof that was there stands all the same.

    A proven slot that was busy keeps its tier and is asked again soon; not so one that is busy whenever it is asked.
    """
    unsure_count = sitting.unsure_count + 1 if verdict is ProofState.UNSURE else 0
    stands = before is ProofState.PROVEN and verdict is ProofState.UNSURE and unsure_count < UNSURE_MAX
    return Sitting(due_at=now + plan_wait(verdict, mean=mean, draw=draw), unsure_count=unsure_count), stands
