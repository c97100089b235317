"""How fast runs went against what lines and processors promise: what nobody declares is found in it.

A line stands still now and then, somebody else uses the machine or the line: no owner says so, and a speed that was
measured while nothing else ran does not show it. So what a run came to is held against its estimate, and counts for
the next plans with its PNodes. It does not tell whose line it was: everybody that took part is given the same, and
comes by its own with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

# The newest steps that count, how many of the first ones of an epoch do not, and how many and how long a time are
# needed to tell: a line that stalls every few seconds shows nothing of that in less.
STEPS_MAX = 200
WARM_STEPS = 3
STEPS_MIN = 10
SECONDS_MIN = 5.0
# What is beyond is no pace of a machine: a night's sleep in the midst of a step, or an estimate that is nonsense.
PACE_MIN = 0.1
PACE_MAX = 2.0
# What slowed a machine down yesterday may be gone.
LASTS = timedelta(days=1)


def measure_pace(ends_at: Sequence[datetime], *, planned_seconds: float) -> float | None:
    """By when steps of one epoch ended, in order, and what one was planned to take. None: they do not tell."""
    counted = ends_at[WARM_STEPS:][-STEPS_MAX:]
    if len(counted) <= STEPS_MIN:
        return None
    seconds = (counted[-1] - counted[0]).total_seconds()
    if seconds < SECONDS_MIN:
        return None
    return min(max(planned_seconds * (len(counted) - 1) / seconds, PACE_MIN), PACE_MAX)


def mix_pace(known: float | None, measured: float) -> float:
    """What was known counts for half: one run may have had bad luck."""
    return measured if known is None else (known + measured) / 2


def recall_pace(known: float | None, paced_at: datetime | None, *, now: datetime) -> float | None:
    """What still counts of it."""
    return known if paced_at is not None and now - paced_at < LASTS else None
