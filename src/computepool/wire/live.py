"""What is seen of the grid while it happens: the public mesh, and the frames of the live stream."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from computepool.core.jobs.state import JobState
from computepool.core.placement.slot import SlotKind
from computepool.wire.jobs import Job
from computepool.wire.market import Spot
from computepool.wire.networks import RunLine
from computepool.wire.nodes import Node

# Longitude and latitude, in degrees.
Point = tuple[float, float]


class MeshNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine as strangers see it. Ids are pseudonyms; the point is random inside the country that its owner has
    named, and always the same."""

    id: str
    # Of its best slot.
    tier: str
    kind: SlotKind
    # As far as the hub believes it.
    speed_tflops: float
    country: str | None
    point: Point | None
    online: bool
    busy: bool
    slots: int
    busy_slots: int
    synthetic: bool
    joined_at: datetime


class MeshArc(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something runs there. Arcs of one job share its pseudonym."""

    id: str
    node: str
    job: str
    since: datetime


class MeshEdge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Two nodes that hold neighbouring VNodes of a network that trains now."""

    run: str
    source: str
    target: str
    vnodes: int


class TierCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    slots: int
    busy: int


class Counts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    nodes: int
    nodes_online: int
    # Of nodes that are online.
    slots: int
    busy_slots: int
    jobs_queued: int
    jobs_running: int
    # Counted up to 100,000.
    slices_queued: int
    attempts_live: int
    networks_training: int
    tiers: dict[str, TierCounts]


class HubPoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    country: str
    point: Point | None


class Mesh(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that strangers see, at one moment. Deltas of the live stream from this version on follow it."""

    version: int
    at: datetime
    nodes: list[MeshNode]
    arcs: list[MeshArc]
    edges: list[MeshEdge]
    counts: Counts
    # Where the operator says that the hub is.
    hub: HubPoint | None = None
    # There are more nodes or arcs than are listed here.
    truncated: bool = False


class MeshDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What has changed: nodes that are new or other than before, nodes and arcs that are gone, new arcs."""

    nodes: list[MeshNode] = []
    gone: list[str] = []
    arcs: list[MeshArc] = []
    ended: list[str] = []
    # All of them, if any has changed.
    edges: list[MeshEdge] | None = None


class PublicJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    kind: str
    state: JobState
    slice_count: int
    succeeded: int
    created_at: datetime
    finished_at: datetime | None = None
    # Only if the submitter lets strangers read it.
    title: str | None = None


class PublicJobPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    jobs: list[PublicJob]


class LiveEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: int
    at: datetime
    kind: str
    account_id: UUID | None = None
    job_id: UUID | None = None
    node_id: UUID | None = None
    body: dict[str, Any] = {}


class JobRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole row. It replaces one of the same or a lower version."""

    version: int
    job: Job


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    version: int
    node: Node


class RunUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_id: UUID
    lines: list[RunLine]


class LiveFrame(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The message `delta`: what has changed since the one before. What is absent has not changed."""

    at: datetime
    # Events up to this id are in it.
    version: int
    # The point that a viewer would resume from is older than 5 s; deltas go on all the same.
    stale: bool = False
    watermark_seconds: float = 0.0
    # Since the hub last read its database.
    look_seconds: float = 0.0
    # Of the viewer's own account.
    events: list[LiveEvent] = []
    # There were more events than are listed; the rows below are whole.
    truncated: bool = False
    jobs: list[JobRow] = []
    nodes: list[NodeRow] = []
    # Something may have moved in the viewer's wallet.
    credits: bool = False
    runs: list[RunUpdate] = []
    mesh: MeshDelta | None = None
    counts: Counts | None = None
    prices: list[Spot] | None = None


class LiveHello(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message `hello`, the first one. Not resumed: load everything afresh."""

    at: datetime
    version: int
    resumed: bool


class LivePulse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message `pulse`: nothing has changed, and the stream lives."""

    at: datetime
    stale: bool
    watermark_seconds: float
    look_seconds: float


class LiveReset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message `reset`: load everything afresh; the stream goes on."""

    message: str


class ByeCode(str, Enum):
    # The viewer did not read fast enough.
    SLOW = "slow"
    # The hub ends.
    CLOSING = "closing"
    # It has lasted as long as was asked for, or as long as a stream may.
    OVER = "over"
    # The key is not good any more.
    SIGNED_OUT = "signed_out"


class LiveBye(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message `bye`, the last one."""

    code: ByeCode
    message: str
    retry_seconds: float


class LiveMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of the stream by name. Each is sent as an event of that name, with its JSON as data."""

    hello: LiveHello | None = None
    delta: LiveFrame | None = None
    pulse: LivePulse | None = None
    reset: LiveReset | None = None
    bye: LiveBye | None = None
