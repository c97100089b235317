"""How an attempt ended, and the completion that tells the hub so. Pure: no files, no clock, no network."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from computepool.core.jobs.cause import REPORTABLE, Cause
from computepool.core.jobs.manifest import manifest_sha256
from computepool.node.runner.status import FINISHED, RefusedOutput, Status
from computepool.wire.attempts import Completion, Usage
from computepool.wire.jobs import OutputFile

MESSAGE_LENGTH_MAX = 1_000
REFUSED_NAMED_MAX = 5
NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Ending:
    """`cause` absent means success."""

    exit_code: int | None
    cause: Cause | None
    message: str
    usage: Usage = NO_USAGE
    # Only a success has results; what a failed program left behind is not worth anybody's upload.
    outputs: tuple[OutputFile, ...] = ()

    @property
    def result_sha256(self) -> str:
        return manifest_sha256((output.path, output.sha256) for output in self.outputs)


def refuse(cause: Cause, message: str) -> Ending:
    """The end of an attempt whose command never ran."""
    return Ending(exit_code=None, cause=cause, message=message)


def from_status(status: Status) -> Ending:
    """What the runner saw, in the words of the protocol."""
    usage = Usage(
        run_seconds=max(0.0, status.run_seconds),
        cpu_seconds=max(0.0, status.cpu_seconds),
        memory_bytes_peak=max(0, status.memory_bytes_peak),
    )
    if status.state != FINISHED:
        return Ending(None, Cause.SANDBOX_REFUSED, "the sandbox's parent process was killed on the node", usage)
    cause = _to_cause(status)
    message = "; ".join(text for text in (status.message, _explain_refused(status.outputs_refused)) if text)
    if cause is not None:
        return Ending(status.exit_code, cause, message, usage)
    outputs = tuple(OutputFile(path=o.path, sha256=o.sha256, size_bytes=o.size_bytes) for o in status.outputs)
    return Ending(status.exit_code, None, message, usage, outputs)


def make_completion(ending: Ending, *, attempt_id: UUID, lease_secret: str) -> Completion:
    """What is told, and told again: it is kept as it is until the hub has answered."""
    return Completion(
        attempt_id=attempt_id,
        lease_secret=lease_secret,
        exit_code=ending.exit_code,
        cause=ending.cause,
        message=ending.message[:MESSAGE_LENGTH_MAX],
        usage=ending.usage,
        outputs=ending.outputs,
        result_sha256=ending.result_sha256,
    )


def _to_cause(status: Status) -> Cause | None:
    if status.cause is None:
        return None if status.exit_code == 0 else Cause.EXIT_CODE
    try:
        cause = Cause(status.cause)
    except ValueError:
        return Cause.SANDBOX_REFUSED
    if cause is Cause.NODE_VANISHED:
        # For the hub to conclude, not for the node to say. Seen from here, the node was out of touch.
        return Cause.NETWORK_LOST
    return cause if cause in REPORTABLE else Cause.CANCELLED


def _explain_refused(refused: tuple[RefusedOutput, ...]) -> str:
    if not refused:
        return ""
    named = ", ".join(f"{each.path or 'out'} ({each.reason})" for each in refused[:REFUSED_NAMED_MAX])
    more = f" and {len(refused) - REFUSED_NAMED_MAX} more" if len(refused) > REFUSED_NAMED_MAX else ""
    return f"left behind in the output folder: {named}{more}"
