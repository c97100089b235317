"""How an attempt ended without a result, what happens next, and what its submitter can do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from computepool.core.jobs.cause import PLAIN_WORDS, Cause
from computepool.core.jobs.retry import ATTEMPTS_MAX, EXIT_CODE_CHECKPOINTED, KILLS_MAX, spends_retry
from computepool.core.jobs.spec import WALL_SECONDS_MAX
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.core.placement.shape import RAM_STEP_BYTES
from computepool.core.words import say_bytes


class Remedy(str, Enum):
    """What the submitter can do about an end."""

    ASK_FOR_MORE_RAM = "ask_for_more_ram"
    RAISE_WALL_SECONDS = "raise_wall_seconds"
    READ_LOG = "read_log"
    CHECK_INPUTS = "check_inputs"
    CHECK_PACKAGES = "check_packages"
    ASK_FOR_LESS = "ask_for_less"
    SUBMIT_AGAIN = "submit_again"
    TRY_ALONE = "try_alone"


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that ended without a result, with what decides about its slice's future."""

    cause: Cause
    exit_code: int | None
    state: AttemptState
    slice_state: SliceState
    # Why the slice itself ended badly, if it did: a slice may expire after an attempt that failed otherwise.
    slice_cause: Cause | None
    # The slice's counts as they are now; a later attempt may have raised them.
    failure_count: int
    attempt_count: int
    retries: int
    ram_bytes: int
    memory_bytes_peak: int | None
    wall_seconds: int
    # The slice has a checkpoint that its next attempt begins with.
    is_saved: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    remedy: Remedy
    words: str
    # The figure to ask for: bytes or seconds. None where there is none.
    value: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    words: str
    next_words: str
    advice: tuple[Advice, ...]


def explain_end(ended: Ended) -> End:
    return End(_say_cause(ended), _say_next(ended), _advise(ended))


def _say_cause(ended: Ended) -> str:
    if ended.cause is Cause.EXIT_CODE and ended.exit_code == EXIT_CODE_CHECKPOINTED:
        return f"the program saved its state and asked to be queued again (exit code {EXIT_CODE_CHECKPOINTED})"
    if ended.cause is Cause.EXIT_CODE and ended.exit_code is not None:
        return f"the program ended with exit code {ended.exit_code}"
    return PLAIN_WORDS[ended.cause]


def _say_next(ended: Ended) -> str:
    if ended.slice_state is SliceState.SUCCEEDED:
        return "Another attempt has delivered the result: nothing is left to do."
    if ended.slice_state is SliceState.CANCELLED:
        return "The slice was cancelled and is not tried again."
    if ended.slice_state is SliceState.FAILED:
        return _say_final(ended)
    tried = "It is tried again" if ended.slice_state is SliceState.QUEUED else "It is being tried again"
    if ended.cause is Cause.EXIT_CODE and ended.exit_code == EXIT_CODE_CHECKPOINTED:
        return f"{tried}; a checkpoint spends no retry."
    # Placement prefers another node and comes back to this one only if nobody else takes the slice.
    tried += ", on another node if one is free"
    if ended.is_saved:
        tried += ", from its last checkpoint"
    # Failures on a checkpoint that nobody has gone on from are forgiven, so that none may be counted yet.
    if not spends_retry(ended.cause) or not ended.failure_count:
        late = " If this node still delivers first, its result counts." if ended.state is AttemptState.LOST else ""
        return f"{tried}; this end spends no retry.{late}"
    left = max(0, ended.retries - ended.failure_count)
    return f"{tried}: retry {ended.failure_count} of {ended.retries}, {left or 'none'} left after it."


def _say_final(ended: Ended) -> str:
    if ended.slice_cause is Cause.POISONOUS:
        if ended.cause is Cause.POISONOUS:
            return "The job was stopped as a whole: none of its slices had succeeded, and one took down its machines."
        return (
            f"The slice failed for good: {KILLS_MAX} times the machine that ran it went silent or lost its GPU, "
            "so no further one is risked."
        )
    if ended.slice_cause is Cause.EXPIRED:
        return "The job's expiry time has passed: the slice failed for good."
    if ended.failure_count > ended.retries:
        spent = {0: "the job allows no retry", 1: "its one retry is spent"}
        return f"The slice failed for good: {spent.get(ended.retries, f'its {ended.retries} retries are spent')}."
    if ended.attempt_count >= ATTEMPTS_MAX:
        return f"The slice failed for good: it was tried {ended.attempt_count} times, which is the limit."
    return "The slice failed for good."


def _advise(ended: Ended) -> tuple[Advice, ...]:
    read_log = Advice(Remedy.READ_LOG, "read its log")
    if ended.slice_state in (SliceState.SUCCEEDED, SliceState.CANCELLED):
        return ()
    if ended.slice_cause is Cause.POISONOUS:
        words = (
            "run one slice on a machine of your own, and watch its memory, GPU and disk; then submit the job again"
        )
        return (Advice(Remedy.TRY_ALONE, words), read_log)
    if ended.cause is Cause.OUT_OF_MEMORY:
        more = more_ram(ended.ram_bytes, ended.memory_bytes_peak)
        words = f"ask for {say_bytes(more)} of RAM instead of {say_bytes(ended.ram_bytes)}"
        return (Advice(Remedy.ASK_FOR_MORE_RAM, words, more), read_log)
    if ended.cause is Cause.TIMED_OUT:
        longer = min(2 * ended.wall_seconds, WALL_SECONDS_MAX)
        words = f"raise the wall-time limit from {ended.wall_seconds:,} s, for example to {longer:,} s"
        if longer <= ended.wall_seconds:
            words = "cut the work into more slices: the wall-time limit cannot be raised further"
        return (Advice(Remedy.RAISE_WALL_SECONDS, words, longer if longer > ended.wall_seconds else None), read_log)
    if ended.cause is Cause.EXIT_CODE and ended.exit_code != EXIT_CODE_CHECKPOINTED:
        return (read_log,)
    if ended.cause is Cause.INPUT_MISSING:
        return (
            Advice(Remedy.CHECK_INPUTS, "upload the input files again, and submit the job with their new hashes"),
        )
    if ended.cause is Cause.PACKAGES_FAILED:
        words = "ask for versions that are published as wheels for the node's Python, or bring an image"
        return (Advice(Remedy.CHECK_PACKAGES, words),)
    if ended.cause is Cause.NOT_ALLOWED:
        words = "do without the image or the hosts that owners do not allow, or use nodes of your own"
        return (Advice(Remedy.ASK_FOR_LESS, words),)
    if ended.slice_state is SliceState.FAILED:
        return (Advice(Remedy.SUBMIT_AGAIN, "submit the job again"),)
    return ()


def more_ram(ram_bytes: int, memory_bytes_peak: int | None) -> int:
    """Half as much again as it had, or as it was seen to use, in whole steps."""
    seen = max(ram_bytes, memory_bytes_peak or 0)
    return -(-(seen * 3 // 2) // RAM_STEP_BYTES) * RAM_STEP_BYTES or RAM_STEP_BYTES
