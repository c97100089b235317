"""Why a job ended, from what was seen: pure, so that every mixture of signs can be tested.

The exit code alone says little: 137 may be the job's own number, our kill or the kernel's. Who killed is
known from our own hand and from the cgroup's count, never guessed from the code.
"""

from __future__ import annotations

import contextlib
import signal
from typing import NamedTuple

from computepool.node.runner import status

# Under this share of its limit the job was not the one who used up the memory.
HOST_SHORTAGE_RATIO = 0.9


class Ending(NamedTuple):
    """What was seen of the end."""

    exit_code: int | None  # None: we killed it before it gave one
    was_built: bool
    stop_cause: str | None  # set when we ended it
    stop_message: str
    oom_kill_count: int
    memory_bytes_peak: int
    memory_bytes_limit: int
    disk_is_full: bool
    first_words: str  # the beginning of what was printed; the sandbox's complaint if the walls failed


class Verdict(NamedTuple):
    cause: str | None
    message: str
    exit_code: int | None
    signal: int | None


def judge(ending: Ending) -> Verdict:
    if ending.oom_kill_count > 0:
        return _judge_memory(ending)
    if ending.stop_cause is not None:
        # A job that used its grace has told us its own code; keep it, 85 means "checkpointed".
        killed = ending.exit_code is None
        return Verdict(
            ending.stop_cause, ending.stop_message, ending.exit_code, signal.SIGKILL.value if killed else None
        )
    if not ending.was_built:
        words = ending.first_words or "it gave no reason"
        return Verdict(status.SANDBOX_REFUSED, f"the sandbox could not be built: {words}", None, None)
    if ending.exit_code == 0:
        return Verdict(None, "", 0, None)
    return Verdict(status.EXIT_CODE, _explain_code(ending), ending.exit_code, None)


def _judge_memory(ending: Ending) -> Verdict:
    megabytes = ending.memory_bytes_limit // 1_000_000
    if ending.memory_bytes_peak < HOST_SHORTAGE_RATIO * ending.memory_bytes_limit:
        message = f"the machine ran out of memory while the job was within its {megabytes} MB"
        return Verdict(status.OWNER_RETURNED, message, ending.exit_code, signal.SIGKILL.value)
    message = f"the job needed more than its {megabytes} MB of memory"
    return Verdict(status.OUT_OF_MEMORY, message, ending.exit_code, signal.SIGKILL.value)


def _explain_code(ending: Ending) -> str:
    code = ending.exit_code or 0
    message = f"the job's command returned {code}"
    if code == 85:
        message += ": it has checkpointed and asks to be queued again"
    elif code in (126, 127):
        message += ": a shell's word for a command that cannot be run or was not found"
    elif code > 128:
        with contextlib.suppress(ValueError):
            message += f", which usually means signal {code - 128} ({signal.Signals(code - 128).name})"
    if ending.disk_is_full:
        message += "; its disk was full"
    return message
