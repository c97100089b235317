"""Whether a slice whose attempt ended without a result is tried again, and whether it is safe to."""

from __future__ import annotations

from computepool.core.jobs.cause import SPENDS_RETRY, Cause
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState

# "I have checkpointed, queue me again": the program asks for it, so it is no failure.
EXIT_CODE_CHECKPOINTED = 85

# Attempts that ended through nobody's fault, or with a checkpoint, are free, but not without end.
ATTEMPTS_MAX = 1_000

# A slice that has taken down so many machines is not given to another one.
KILLS_MAX = 3
# One that has saved so much of its work on a machine did not take it down.
HARMLESS_SECONDS = 600


def spends_retry(cause: Cause | None) -> bool:
    return cause in SPENDS_RETRY


def is_tried_again(*, failure_count: int, attempt_count: int, retries: int) -> bool:
    """`failure_count` counts the ends that spent the budget, the present one included."""
    return failure_count <= retries and attempt_count < ATTEMPTS_MAX


def is_kill(cause: Cause, state: AttemptState) -> bool:
    """Whether an attempt in this state that ends so may have taken its machine down.

    An attempt that its node never listed was perhaps never received: nodes that fall asleep while they wait for work
    are lost like that every day. A report is proof that it was received. Whoever still speaks was not taken down.
    """
    if cause is Cause.NODE_VANISHED:
        return state is AttemptState.RUNNING
    return cause is Cause.GPU_LOST and state in ATTEMPT_LIVE


def is_job_poisonous(poisoned_count: int, succeeded_count: int) -> bool:
    """Whether a job is stopped as a whole: a slice of it took machines down, and none has ever succeeded."""
    return poisoned_count > 0 and succeeded_count == 0
