"""The answers to "why": why a job waits or ended so, why a node is idle."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.ending import Remedy
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.nodes.state import NodeState
from computepool.core.placement.gates import Gate
from computepool.core.placement.idleness import IdleReason
from computepool.core.placement.slot_classes import Standing
from computepool.core.placement.weights import Preference
from computepool.wire.jobs import JobPrice, Requirements, SliceCounts
from computepool.wire.trust import JobValidation


class WhyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Some slots. `node_name` and `last_seen_at` are told only of the caller's own nodes."""

    tier: str
    standing: Standing
    slot_count: int
    free_count: int
    region: str | None = None
    node_name: str | None = None
    last_seen_at: datetime | None = None
    # Outside of the hours at which they are lent: when the first of them opens.
    opens_at: datetime | None = None


class WhyGate(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    asked: str
    # Slots that fail it; one that fails several gates is counted at each.
    failed_count: int
    # More on it: what others pay, and where.
    words: str | None = None


class WhyChange(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    asked: str
    instead: str
    words: str


class WhySuggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that together let the job run. `requirements`, and a fixed `price`, can be submitted as they stand."""

    changes: list[WhyChange]
    requirements: Requirements
    # For a job with a fixed price per slice.
    price: JobPrice | None = None
    # Slots of nodes that are online and take work, which would then pass every gate.
    slot_count: int
    free_count: int
    places: list[WhyPlace]
    # The wall limit of a slice to submit it with, if that is one of the changes.
    wall_seconds: int | None = None


class WhyTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What goes before the first of the waiting slices: higher classes, then the fair share, then one's own.

    `*_is_more`: the count was cut off.
    """

    words: str
    priority_class: PriorityClass
    priority: int
    # Slices with the same needs of a higher class, whoever's.
    class_ahead_count: int
    class_ahead_is_more: bool
    # Slices of this account with the same needs and class that come first by priority and age.
    ahead_count: int
    ahead_is_more: bool
    # Other accounts with slices of the same needs and class waiting.
    account_count: int
    account_is_more: bool
    # Of those: how many have had less of the fleet lately, by weight.
    account_less_count: int
    # What this account has had lately (half of it is forgotten in a day), and its weight.
    used_slot_seconds: float
    fair_weight: float
    deadline_at: datetime | None = None
    # When it was moved to the front of the account's slices because its deadline came near.
    raised_at: datetime | None = None


class WhyWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet as the waiting slices see it: slots of nodes that are online and take work."""

    words: str
    slot_count: int
    pass_count: int
    # Of those that pass.
    free_count: int
    # Slots that would pass on nodes that are offline, paused or draining.
    away_count: int
    # Only a part of a very large fleet was looked at.
    fleet_is_more: bool
    turn: WhyTurn
    gates: list[WhyGate]
    # Where it fits; if no slot passes, where it would if the node were there.
    places: list[WhyPlace]
    # Smallest change first; empty while a slot that passes is free.
    suggestions: list[WhySuggestion]
    # What only time or an owner can change: slots that would fit and are closed now, in private pools, lent for other
    # kinds of jobs, or of owners who do not allow what it wants.
    notes: list[str] = []


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
    # What its last accepted checkpoint holds; and while it runs, what it has done since.
    saved_seconds: int = 0
    saved_at: datetime | None = None
    at_risk_seconds: float | None = None
    # Need against slot as it is now; empty when the node has no such slot any more.
    margins: list[WhyMargin] = []


class WhyCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that fits, as placement would score it now. Of other people's nodes no name is told."""

    # From 1, among the few hundred of those that fit which were scored: the best ones, and the chosen one.
    rank: int
    # The one that the attempt got.
    chosen: bool
    busy: bool
    slot: str
    tier: str
    # What an hour there would cost this job now.
    price_microcredits_per_hour: int
    speed_tflops: float
    # Lower bound of the share of attempts that do not fail by the node's fault, 0..1.
    reliability: float
    # By scorer, weight x value; only those that weigh anything.
    points: dict[str, float]
    total: float
    region: str | None = None
    node_name: str | None = None


class WhyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Why the newest attempt got its slot. Reckoned now, with present figures: it is not a record of the moment."""

    words: str
    weight_set: str
    prefer: Preference
    # Slots that fit, of nodes that are online and take work. `is_cut`: only a part of the fleet was looked at.
    fit_count: int
    is_cut: bool
    # Best first; the chosen one is always among them, unless it does not fit any more.
    candidates: list[WhyCandidate]
    reckoned_at: datetime


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
    # Present when the newest attempt runs or has succeeded.
    choice: WhyChoice | None = None


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
    # How sure its results are; absent where they are not checked.
    validation: JobValidation | None = None


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


class WhyFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest lower floor at which waiting work would fit that fails nothing but the price."""

    floor_microcredits_per_hour: int
    slice_count: int


class WhyOfferChange(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of the owner's that alone keeps waiting work away."""

    gate: Gate
    words: str
    # What it would be instead: seconds, kinds with commas between them, or `anyone`.
    value: str
    slice_count: int


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
    lower_floor: WhyFloor | None = None
    offer_changes: list[WhyOfferChange] = []
    # The least that a slot of this node is lent for now.
    floor_microcredits_per_hour: int = 0
    # How far its results are relied on, in words.
    trust: str = ""
    last_seen_at: datetime | None = None
