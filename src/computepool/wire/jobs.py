"""Jobs as submitters see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import CHECKPOINT_SECONDS
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.placement.weights import Preference
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.comparators.tolerance import USUAL
from computepool.core.trust.validation import Verify
from computepool.wire.errors import ErrorBody


class Requirements(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Hard gates. A slot that misses one never gets the slice; absent means any."""

    gpu: bool = False
    vram_bytes: int = 0
    cores: int = 1
    ram_bytes: int = 512_000_000
    disk_bytes: int = 1_000_000_000
    tiers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    isolation: IsolationLevel = IsolationLevel.SANDBOXED
    # The most that an hour of a slot may cost.
    ceiling_microcredits_per_hour: int | None = None


class InputFile(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    path: str
    sha256: str
    size_bytes: int
    executable: bool = False


class JobPrice(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """How a job pays: by the second, or (per_slice) a fixed price for each slice that is delivered, however long it
    ran; of a try that failed by the submitter's own fault, the part of it that the run was of the wall limit."""

    mode: PriceMode = PriceMode.PER_SECOND
    # With per_slice: for one slice, before tier and region of the slot that takes it; absent: the rate card's for the
    # job's kind.
    microcredits_per_slice: int | None = None
    # With per_slice: the most that one slice may cost, tier and region included; absent: what it costs on the dearest
    # slot that the requirements allow.
    ceiling_microcredits_per_slice: int | None = None


BY_THE_SECOND = JobPrice()


class Compare(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """When two results of one slice are the same: every byte, or (numeric) the numbers in .npy, .npz, .safetensors,
    .csv and .json within absolute + relative x the larger one, and every byte of all other files; or (command) when a
    command says so that finds them below one/ and other/, beside the job's own files: by exit code 0, or 1 if not.
    Every byte (exact) is asked for between machines of one kind, or with `anywhere` between all."""

    kind: ComparatorKind = ComparatorKind.EXACT
    relative: float = USUAL.relative
    absolute: float = USUAL.absolute
    anywhere: bool = False
    # Of the kind command, and then needed. Any other exit code is no answer.
    command: tuple[str, ...] = ()


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What to run. With `script` and no `command`, the script is run by python3."""

    name: str = "job"
    script: str | None = None
    command: tuple[str, ...] = ()
    files: tuple[InputFile, ...] = ()
    env: dict[str, str] = {}
    requirements: Requirements = Requirements()
    # A container image by its digest (name@sha256:...), for isolation container or gvisor.
    image: str | None = None
    # Python packages that the node installs before the paid time begins, from wheels alone: numpy==2.1.0
    packages: tuple[str, ...] = ()
    # host:port that the job may reach where the node's owner allows it, as an HTTPS proxy in its environment.
    egress: tuple[str, ...] = ()
    # What the job is, of the kinds of the rate card: owners choose what they take, and a fixed price without a figure
    # of its own is the card's for it.
    kind: str = DEFAULT_KIND
    slice_count: int = 1
    retries: int = 2
    wall_seconds: int = 3_600
    # Among the account's own slices: higher first.
    priority: int = 0
    # Above normal only by the operator's grant.
    priority_class: PriorityClass = PriorityClass.NORMAL
    # What a slot is chosen by among those that pass every gate.
    prefer: Preference = Preference.VALUE
    # Wanted by then: as it comes near, the slices move to the front of the account's own.
    deadline_at: datetime | None = None
    # Unfinished slices fail then.
    expires_at: datetime | None = None
    price: JobPrice = BY_THE_SECOND
    # How often what the job keeps in $COMPUTEPOOL_CHECKPOINT_DIR leaves the machine: no more than so much is lost.
    checkpoint_seconds: int = CHECKPOINT_SECONDS
    # More environment, stored encrypted and given to nodes that run the job. Only a submit has the values: what is
    # shown later has the names.
    secrets: dict[str, str] = {}
    # How results are checked by running slices again on other owners' machines: audit (some of them, all of a
    # newcomer's), quorum (every slice until two strangers agree), none. Only with `compare`: without it nobody can
    # tell whether two results agree, and they count as unverified. The further runs are paid like any other.
    verify: Verify = Verify.AUDIT
    compare: Compare | None = None


class SubmitBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Many jobs in one call. Each is taken or refused on its own."""

    jobs: tuple[JobSpec, ...]


class SliceCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    queued: int = 0
    leased: int = 0
    running: int = 0
    # Delivered, and kept back until somebody else has got the same.
    verifying: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: UUID
    name: str
    state: JobState
    slice_count: int
    counts: SliceCounts
    priority: int
    priority_class: PriorityClass
    prefer: Preference
    retries: int
    wall_seconds: int
    requirements: Requirements
    created_at: datetime
    kind: str = DEFAULT_KIND
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    expires_at: datetime | None = None
    # What its attempts have cost so far, and what is set aside for the rest.
    charged_microcredits: int = 0
    held_microcredits: int = 0
    # Where each slice has a fixed price; with the base that was agreed and the most that a slice may cost.
    price: JobPrice | None = None
    # While it runs: what its slices have done since then would be done again if their machines went now. The oldest
    # of them counts; each has its own figure.
    at_risk_since: datetime | None = None
    # How its results are checked; absent: they are not.
    verify: Verify | None = None


class SubmitAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the two."""

    job: Job | None = None
    error: ErrorBody | None = None


class SubmitBatchAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """In the order of the jobs that were sent."""

    answers: list[SubmitAnswer]


class JobPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    jobs: list[Job]
    # Hand it back as ?cursor= for the next page; absent on the last one.
    cursor: str | None = None


class OutputFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    path: str
    sha256: str
    size_bytes: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: UUID
    number: int
    node_id: UUID
    slot: str
    state: AttemptState
    leased_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run_seconds: float | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    message: str | None = None
    # Agreed with the lease, one of the two: a price by the second, or a fixed one for the slice.
    rate_microcredits_per_hour: int | None = None
    slice_price_microcredits: int | None = None
    # What it came to, with the platform's part. Absent: nothing is owed for it.
    charged_microcredits: int | None = None
    fee_microcredits: int | None = None
    # What its last accepted checkpoint holds, and when it was accepted. Where an attempt is paid to its checkpoint,
    # it is paid for so many seconds.
    saved_seconds: int = 0
    saved_at: datetime | None = None
    # While it runs: what it has done since its last accepted checkpoint, or in all.
    at_risk_seconds: float | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    index: int
    state: SliceState
    attempt_count: int
    cause: Cause | None = None
    message: str | None = None
    outputs: list[OutputFile] = []
    attempts: list[Attempt] = []
    # The job's own word with its last checkpoint on how much of it is done, 0 to 1.
    progress: float | None = None


class SlicePage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    slices: list[Slice]
    # Hand it back as ?after= for the next page; absent on the last one.
    next_after: int | None = None


class LogPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of one attempt's log. Ask again from `next_offset` until `complete`."""

    attempt_id: UUID | None
    attempt_number: int
    text: str
    next_offset: int
    # The attempt has ended and nothing more will come for it.
    complete: bool


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: int
    at: datetime
    kind: str
    job_id: UUID | None = None
    node_id: UUID | None = None
    body: dict[str, Any] = {}


class EventPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    events: list[Event]
