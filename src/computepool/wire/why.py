"""The answers to "why": why a job waits or ended so, why a node is idle."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.ending import Remedy
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.nodes.state import NodeState
from computepool.core.placement.explain import Gate, Standing
from computepool.core.placement.idleness import IdleReason
from computepool.wire.jobs import Requirements, SliceCounts


class WhyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Some slots. `node_name` and `last_seen_at` are told only of the caller's own nodes."""

    tier: str
    standing: Standing
    slot_count: int
    free_count: int
    region: str | None = None
    node_name: str | None = None
    last_seen_at: datetime | None = None


class WhyGate(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    asked: str
    # Slots that fail it; one that fails several gates is counted at each.
    failed_count: int


class WhyChange(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    asked: str
    instead: str
    words: str


class WhySuggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that together let the job run. `requirements` can be submitted as it stands."""

    changes: list[WhyChange]
    requirements: Requirements
    # Slots of nodes that are online and take work, which would then pass every gate.
    slot_count: int
    free_count: int
    places: list[WhyPlace]


class WhyWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet as the waiting slices see it: slots of nodes that are online and take work."""

    words: str
    slot_count: int
    pass_count: int
    # Of those that pass.
    free_count: int
    # Slots that would pass on nodes that are offline, paused or draining.
    away_count: int
    # Slices with the same needs that come first by priority and age; `ahead_is_more`: the count was cut off.
    ahead_count: int
    ahead_is_more: bool
    gates: list[WhyGate]
    # Where it fits; if no slot passes, where it would if the node were there.
    places: list[WhyPlace]
    # Smallest change first; empty while a slot that passes is free.
    suggestions: list[WhySuggestion]


class WhyMargin(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    needs: str
    has: str
    passes: bool
    spare: str | None = None


class WhyAttempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    state: AttemptState
    node_id: UUID
    slot: str
    leased_at: datetime
    # Only of the caller's own nodes.
    node_name: str | None = None
    tier: str | None = None
    region: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run_seconds: float | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    cause_words: str | None = None
    # What the node said of it.
    message: str | None = None
    # Need against slot as it is now; empty when the node has no such slot any more.
    margins: list[WhyMargin] = []


class WhyAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter can do. `value` is the figure to ask for: bytes of RAM, or seconds of wall time."""

    remedy: Remedy
    words: str
    value: int | None = None


class WhySlice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    state: SliceState
    attempt_count: int
    # Ends that spent a retry.
    failure_count: int
    retries: int
    # Why it ended without a result, if it did.
    cause: Cause | None
    cause_words: str | None
    # Newest first, the last few.
    attempts: list[WhyAttempt]
    # What follows from the newest attempt that ended badly.
    next_words: str | None = None
    advice: list[WhyAdvice] = []


class JobWhy(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    name: str
    state: JobState
    counts: SliceCounts
    requirements: Requirements
    # Present while the slice asked for (or any, if none was) is queued.
    waiting: WhyWaiting | None = None
    # The slice asked for; if none was, the one that tells most. Absent before the first attempt of a whole job.
    slice: WhySlice | None = None


class WhyGateBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits and fails this gate on the best free slot of the node; work may fail several gates."""

    gate: Gate
    shape_count: int
    slice_count: int


class WhyLack(msgspec.Struct, frozen=True, kw_only=True):
    """The largest group of waiting slices that the node cannot serve, and what its best free slot lacks for it."""

    requirements: Requirements
    slice_count: int
    slot: str
    missing: list[WhyMargin]


class NodeWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of slices stop at a limit per kind of request; they say how much waits, never whose it is."""

    node_id: UUID
    name: str
    state: NodeState
    online: bool
    reason: IdleReason
    words: str
    slot_count: int
    free_count: int
    waiting_count: int
    fitting_count: int
    # True: more waits than was counted.
    waiting_is_more: bool
    gates: list[WhyGateBacklog]
    lack: WhyLack | None = None
    last_seen_at: datetime | None = None
