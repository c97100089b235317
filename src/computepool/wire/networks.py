"""Networks and runs as their people see them over HTTP; who creates and trains them speaks gRPC."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from computepool.core.networks.run import FeedKind, RunState


class Network(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: UUID
    name: str
    vnode_count: int
    parameter_count: int
    created_at: datetime


class NetworkPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    networks: list[Network]
    cursor: str | None = None


class VNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    # A name in the registry of blocks.
    block: str


class NetworkEdge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ids of VNodes; a source of data is written with a mark: `@x`."""

    source: str
    target: str


class NetworkDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    network: Network
    vnodes: list[VNode]
    edges: list[NetworkEdge]


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: UUID
    network_id: UUID
    network_name: str
    # What pays for its seats.
    job_id: UUID
    state: RunState
    step: int
    steps: int
    checkpoint_step: int
    epoch: int
    recoveries: int
    # 0: bit-equal to one process so far.
    inexact_from_step: int
    message: str
    created_at: datetime
    expires_at: datetime
    finished_at: datetime | None = None


class RunPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    runs: list[Run]
    cursor: str | None = None


class RunSeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    seat: str
    numeric_class: str
    # Absent: vacant.
    node_id: UUID | None = None


class RunPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    vnode_id: str
    replica: int
    seat: str
    incarnation: int
    node_id: UUID | None = None


class RunDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run: Run
    seats: list[RunSeat]
    placements: list[RunPlacement]
    # Why it is where it is.
    why: list[str]


class RunLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step of the curve (`step`), or something that happened to the run."""

    id: int
    at: datetime
    kind: FeedKind
    epoch: int
    step: int
    message: str = ""
    # Of a step; absent also where it is no finite number.
    loss: float | None = None
    samples_per_second: float = 0.0


class RunFeed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Oldest first. Ask again after `next_after`."""

    lines: list[RunLine]
    state: RunState
    next_after: int


class RunCheckpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    step: int
    first_at: datetime
    size_bytes: int
    complete_at: datetime | None = None
    audited_at: datetime | None = None


class RunCheckpointPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    checkpoints: list[RunCheckpoint]
