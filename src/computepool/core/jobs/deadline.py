"""When a job's deadline has come so near that its waiting slices are moved to the front of their account's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

# What a slice is expected to run while none of its job has ended, unless its limit is lower.
EXPECTED_SECONDS = 60.0
# Pressing: less is left after one run than this many runs would take.
SLACK_RUNS = 2
# Above anything that a submitter can ask for, so that a raised slice is in front of all that are not.
RAISED_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Deadline:
    deadline_at: datetime
    wall_seconds: int
    # Of the slices that have succeeded so far.
    succeeded_count: int
    run_seconds_sum: float


def expected_run_seconds(deadline: Deadline) -> float:
    if deadline.succeeded_count:
        return min(deadline.run_seconds_sum / deadline.succeeded_count, deadline.wall_seconds)
    return min(EXPECTED_SECONDS, deadline.wall_seconds)


def is_pressing(deadline: Deadline, *, now: datetime) -> bool:
    """Whether the slack, the time that would be left after a run that begins now, is under twice a run."""
    run_seconds = expected_run_seconds(deadline)
    slack_seconds = (deadline.deadline_at - now).total_seconds() - run_seconds
    return slack_seconds < SLACK_RUNS * run_seconds
