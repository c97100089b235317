"""The calls a node makes all day: next, heartbeat, complete, logs."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.wire.errors import ErrorBody
from computepool.wire.jobs import InputFile, OutputFile


class NextRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """`running` lists every attempt the agent holds, from the moment its assignment arrived until
    its completion was answered. `free_slots` can only lower what the hub believes to be free."""

    boot_id: UUID
    free_slots: tuple[str, ...] = ()
    running: tuple[UUID, ...] = ()
    wait_seconds: float = 0.0


class HostOrder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Instead of a command: host VNodes of a run. What they are the host asks at the address, with its lease."""

    run_id: UUID
    seat: str
    # gRPC of a hub; it names the one that owns the run.
    rpc_address: str
    tls: bool = False


class RunOrder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the sandbox is to do, or which seat to fill. The hash of its bytes is in the job token."""

    attempt_id: UUID
    job_id: UUID
    slice_index: int
    slice_count: int
    attempt_number: int
    slot: str
    command: tuple[str, ...]
    script: str | None
    files: tuple[InputFile, ...]
    env: dict[str, str]
    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    wall_seconds: int
    # Bytes of log that are kept; what a job prints beyond them is dropped.
    log_bytes: int
    isolation: IsolationLevel
    # Whose it is: the token may serve several nodes. Absent in orders of hubs that make one for each.
    node_id: UUID | msgspec.UnsetType = msgspec.UNSET
    # Absent: the node's own system, no packages, no way out.
    image: str | msgspec.UnsetType = msgspec.UNSET
    packages: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    egress: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    # Absent: run the command.
    host: HostOrder | msgspec.UnsetType = msgspec.UNSET
    # How often what lies in the checkpoint folder is sent; absent: every 300 s.
    checkpoint_seconds: int | msgspec.UnsetType = msgspec.UNSET
    # More environment, whose values are to be removed from the log before it leaves the machine.
    secrets: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    attempt_id: UUID
    slot: str
    # Proof of the lease; sent back with every word about this attempt.
    lease_secret: str
    lease_seconds: float
    # The RunOrder as JSON text, exactly the bytes whose hash the answer's token names.
    order: str


class Controls(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the hub wants of the node, besides running things."""

    # Attempts to stop at once, with the reason.
    stop: dict[UUID, Cause] = {}
    # Finish what runs, take nothing more, then end.
    drain: bool = False
    # Finish what runs, take nothing more, keep calling.
    pause: bool = False
    # Show how fast these slots are, by challenges, and offer them again after that. cpu:0 stands for the processor:
    # offer nothing meanwhile.
    prove: tuple[str, ...] = ()


class NextAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """204 stands for an answer without assignments or controls."""

    assignments: list[Assignment] = []
    # One signature for all assignments, and perhaps for those of other nodes that were answered at the same moment.
    # EdDSA JWT: aud these nodes, exp within minutes, and `orders`, from each attempt's id to the sha256 of its order.
    token: str = ""
    controls: Controls = Controls()


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    boot_id: UUID
    running: tuple[UUID, ...] = ()


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    beat_seconds: float
    lease_seconds: float
    controls: Controls = Controls()


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    run_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes_peak: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """What a node would run next, asked together with a completion. It never waits: no work, no answer."""

    # Slots that are free once the completion counts.
    free_slots: tuple[str, ...]
    # Every attempt that the agent still holds, without those that the call completes.
    running: tuple[UUID, ...] = ()


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The end of an attempt. `cause` absent means success. Outputs were uploaded before this call."""

    attempt_id: UUID
    lease_secret: str
    exit_code: int | None = None
    cause: Cause | None = None
    message: str = ""
    usage: Usage = Usage()
    outputs: tuple[OutputFile, ...] = ()
    # Hash over the outputs' manifest; see docs/reference/node-protocol.md.
    result_sha256: str = ""


class CompleteRequest(Completion, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    boot_id: UUID
    # Node-signed JWT over the results of this call: see the protocol page.
    receipt: str = ""
    claim: Claim | None = None


class CompleteBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Many ends in one call, under one receipt. Each counts or is refused on its own."""

    boot_id: UUID
    completions: tuple[Completion, ...]
    receipt: str = ""
    claim: Claim | None = None


class CompleteAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`accepted` is false when the attempt is recorded but delivered no result that counts."""

    accepted: bool
    repeated: bool = False
    # What the claim brought.
    next: NextAnswer | None = None


class CompleteOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`error` is set when the completion was refused."""

    accepted: bool = False
    repeated: bool = False
    error: ErrorBody | None = None


class CompleteBatchAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """In the order of the completions that were sent."""

    answers: list[CompleteOutcome]
    next: NextAnswer | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """What the job's checkpoint folder held, whole, at one moment. Files are uploaded like outputs."""

    # Only grows within an attempt.
    number: int
    # How long the job had run at that moment.
    run_seconds: float
    files: tuple[OutputFile, ...]
    # The job's own word on how much of it is done, 0 to 1.
    progress: float | None = None


class CheckpointAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Not accepted: upload what is missing and send it again."""

    accepted: bool
    # Hashes of files that the hub does not have.
    missing: list[str] = []
    # What the attempt is paid for at least, from now on.
    saved_seconds: int = 0


class KeptCheckpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last accepted checkpoint of the slice, which the attempt begins with; without files: there is none."""

    files: list[OutputFile] = []
    attempt_number: int = 0


class LogAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Send the next piece from here; what the hub has already is never stored twice."""

    next_offset: int
