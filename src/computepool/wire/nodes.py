"""Nodes: enrolment, and what their owners see."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.market.offers import Audience
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import SlotKind
from computepool.wire.challenges import SlotProof


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    vram_bytes: int
    driver: str = ""
    # Single-precision speed, if the agent has measured it.
    tflops: float | None = None
    # nvidia, amd, intel, apple or another; empty: not told.
    vendor: str = ""
    # What computes on it, as CUDA 12.4 or ROCm 6.0.2.
    runtime: str = ""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent found. `cpu_slots` is how many CPU jobs the owner lets run beside the GPU ones."""

    gpus: tuple[Gpu, ...] = ()
    cpu_name: str = ""
    # What its processor computes with, and whose it is (x86_64-v3-GenuineIntel): where it is the same, so are bits.
    instruction_set: str = ""
    cores: int
    ram_bytes: int
    disk_bytes: int
    cpu_slots: int = 1
    # Of all cores together, if the agent has measured it.
    cpu_tflops: float | None = None


class Hosting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that hosts VNodes of networks says what it computes like, and what one of its slots has for them."""

    # Within one, the same work comes to the same bits: library, instruction set or GPU, threads.
    numeric_class: str
    memory_bytes: int
    # As measured.
    flops_per_second: float
    # What the machine sends to others, and how long the first byte of it takes, as its owner says.
    bytes_per_second: float | None = None
    latency_seconds: float | None = None


class EnrolNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    # Raw Ed25519 public key, base64url without padding. The private key never leaves the node.
    public_key: str
    hardware: Hardware
    isolation: IsolationLevel
    region: str | None = None
    synthetic: bool = False
    agent_version: str = ""
    # The least that the owner lends one slot for. 0 leaves it as it was; it is 0 at first.
    floor_microcredits_per_hour: int = 0
    # Absent: no VNodes here.
    hosting: Hosting | None = None
    # What the owner lets jobs have beyond a plain sandbox: "image docker.io/library/*", "egress *.example.org:443",
    # "packages". Work that wants something else is not sent here.
    allows: tuple[str, ...] = ()


class HubKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key the hub signs job tokens with; the agent pins these at enrolment."""

    kid: str
    public_key: str


class EnrolledNode(msgspec.Struct, frozen=True, kw_only=True):
    node_id: UUID
    hub_id: UUID
    token: str
    token_seconds: int
    hub_keys: list[HubKey]


class RenewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`assertion` is a JWT signed by the node's own key: iss and sub the node's id, aud the hub's id."""

    assertion: str
    # As at enrolment, where the owner has changed it since; absent: as it was.
    allows: tuple[str, ...] | None = None


class NodeToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    token_seconds: int
    # The hub's present keys as JWTs, one signed by each live key: an agent trusts a new key
    # only if one that it has pinned vouches for it.
    hub_keys_signed: list[str]


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: SlotKind
    tier: str
    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    busy: bool = False
    # As the node declares, or as it has shown.
    speed_tflops: float | None = None
    # What the node has shown of it; absent for played machines.
    proof: SlotProof | None = None


class SetOffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions at which a node is lent, all of them: what is absent is not asked for any more."""

    # The least that one slot is lent for.
    floor_microcredits_per_hour: int = 0
    # When it is lent, in whole hours: "mon-fri 19-7, sat-sun"; absent: at all hours. On the clock of `zone`, a name
    # of the time zone database such as Europe/Berlin.
    hours: Annotated[str, Meta(max_length=2_000)] | None = None
    zone: Annotated[str, Meta(max_length=100)] | None = None
    # Slices whose wall limit is shorter are not taken: 0, 10, 60, 300, 1800, 3600 or 14400.
    seconds_min: int = 0
    # Of jobs that are taken, of the rate card; empty: all.
    kinds: Annotated[tuple[str, ...], Meta(max_length=32)] = ()
    # Whom it is for; `own` and `named` are private pools.
    audience: Audience = Audience.ANYONE
    # With the audience `named`: ids or e-mail addresses. The owner need not be among them.
    accounts: tuple[str, ...] = ()


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions at which a node is lent."""

    floor_microcredits_per_hour: int = 0
    hours: str | None = None
    zone: str | None = None
    seconds_min: int = 0
    kinds: list[str] = []
    audience: Audience = Audience.ANYONE
    # Ids.
    accounts: list[UUID] = []
    # Outside of its hours: when it opens next.
    opens_at: datetime | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    state: NodeState
    online: bool
    synthetic: bool
    isolation: IsolationLevel
    hardware: Hardware
    slots: list[SlotView]
    created_at: datetime
    offer: Offer = Offer()
    region: str | None = None
    last_seen_at: datetime | None = None
    agent_version: str = ""


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[Node]
    cursor: str | None = None


class NodeChange(str, Enum):
    """What an owner may do with a node."""

    DRAIN = "drain"
    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"
