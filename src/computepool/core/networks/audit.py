"""Audits of a run: what seats claim to have got and given, how claims are compared, and whose fault a difference is.

A claim covers the steps between two checkpoints of one seat. It is told before anybody has drawn whether it is looked
at. What two neighbours claim of the frames between them must be the same; and who replays a seat comes to the same
digests, bit for bit within one numeric class. Two owners who agree with each other decide against a third; one alone
decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.networks.placement import SeatId

# Every span of a PNode is replayed until so many were found right since the last that was not.
VALIDATED_MIN = 20
RATE_MIN = 0.15
RATE_FADING = 10.0
# Two wrong ones among so many: the PNode is bugged (core/trust/standing.py).
WRONG_MAX = 2
WRONG_WINDOW = 50
# Between numeric classes, per tensor of the step after a checkpoint: sixty times what other thread counts make.
DEVIATION_MAX = 1e-4
NO_FRAMES = hashlib.sha256().digest()


class AuditOutcome(str, Enum):
    # Somebody of another owner came to the same.
    AGREED = "agreed"
    # Two of other owners came to the same, and it is not what was claimed.
    WRONG = "wrong"
    # It was doubted, and nobody is blamed: there was no second opinion, or the opinions differ too.
    UNDECIDED = "undecided"
    # It could not be looked at: frames are gone, or nobody of another owner has room.
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class PeerDigests:
    """Of all frames to and from one other seat."""

    sent: bytes = NO_FRAMES
    received: bytes = NO_FRAMES


@dataclass(frozen=True, slots=True)
class SpanDigest:
    """What a seat says of its steps from `from_step` up to, without, `until_step`; steps count from 0."""

    epoch: int
    from_step: int
    until_step: int
    peers: Mapping[SeatId, PeerDigests]
    # Of the losses that it has told; empty for a seat that tells none.
    losses: bytes = b""

    @property
    def key(self) -> SpanKey:
        return (self.epoch, self.from_step, self.until_step)


SpanKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """A PNode as far as audits know it."""

    owner_id: AccountId
    numeric_class: str
    # Spans that were found right since the last that was not.
    validated: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    standing: Standing
    span: SpanDigest


@dataclass(frozen=True, slots=True)
class Witness:
    """A host that could replay what another has done."""

    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    standing: Standing


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay. Between numeric classes only `deviation` says something of the numbers."""

    peers: Mapping[SeatId, PeerDigests]
    losses: bytes = b""
    # Of the state at the end by VNode: as it was replayed, and as it lies in the store.
    states: Mapping[str, bytes] = field(default_factory=dict)
    stored: Mapping[str, bytes] = field(default_factory=dict)
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the hub itself has heard of the span: the digests of stored states by VNode, and the curve."""

    states: Mapping[str, bytes]
    losses: bytes = b""


def audit_rate(validated: int) -> float:
    """The share of spans that are replayed, by what is known of the PNode. Never none."""
    if validated < VALIDATED_MIN:
        return 1.0
    return max(RATE_MIN, RATE_FADING / validated)


def is_bugged(outcomes: Sequence[AuditOutcome]) -> bool:
    """Of the newest decided audits of a PNode, newest first."""
    return sum(outcome is AuditOutcome.WRONG for outcome in outcomes[:WRONG_WINDOW]) >= WRONG_MAX


def list_disagreements(claims: Mapping[SeatId, Claim]) -> list[tuple[SeatId, SeatId]]:
    """Pairs of neighbours of which one says that it sent what the other says that it did not get."""
    return [(one, two) for one, two in combinations(sorted(claims), 2) if not _agree(claims, one, two)]


def _agree(claims: Mapping[SeatId, Claim], one: SeatId, two: SeatId) -> bool:
    here = claims[one].span.peers.get(two, PeerDigests())
    there = claims[two].span.peers.get(one, PeerDigests())
    return here.sent == there.received and here.received == there.sent


def find_difference(claim: Claim, told: Told, replayed: Replayed, *, same_class: bool) -> str:
    """In words what the replay came to otherwise; empty if it agrees with the claim."""
    span = claim.span
    if not same_class:
        if _list_peers(replayed.peers) != _list_peers(span.peers):
            return "the frames that it shows are not those that it told of"
        if replayed.deviation is None or not replayed.deviation <= DEVIATION_MAX:
            return f"its frames are off by {replayed.deviation} where {DEVIATION_MAX} may be explained"
        return ""
    for seat in sorted(span.peers.keys() | replayed.peers.keys()):
        if span.peers.get(seat, PeerDigests()).sent != replayed.peers.get(seat, PeerDigests()).sent:
            return f"it sent {seat} what does not follow from what it got"
    if span.losses != replayed.losses or (span.losses and told.losses and told.losses != span.losses):
        return "it told losses that do not follow from what it got"
    for vnode_id, digest in sorted(told.states.items()):
        if replayed.states.get(vnode_id) != digest:
            return f"it stored another state of VNode {vnode_id} than follows from what it got"
        if replayed.stored.get(vnode_id) != digest:
            return f"what it stored of VNode {vnode_id} is not what it said"
    return ""


def is_fed_right(claim: Claim, replayed: Replayed) -> bool:
    """Whether the frames that neighbours have shown are those that both ends told of."""
    return all(
        digests.received == replayed.peers.get(seat, PeerDigests()).received
        for seat, digests in claim.span.peers.items()
    )


def are_same(one: Replayed, two: Replayed) -> bool:
    """Whether two replays came to the same, bit for bit or each beyond what a numeric class explains."""
    if one.deviation is not None or two.deviation is not None:
        return True
    return (_list_peers(one.peers), one.losses, dict(one.states), dict(one.stored)) == (
        _list_peers(two.peers),
        two.losses,
        dict(two.states),
        dict(two.stored),
    )


def _list_peers(peers: Mapping[SeatId, PeerDigests]) -> dict[SeatId, PeerDigests]:
    return {seat: digests for seat, digests in peers.items() if digests != PeerDigests()}


# What is to be done


@dataclass(frozen=True, slots=True)
class AskLog:
    """Let this host store the frames that it sent to the seat of the claim, or that the seat itself sent."""

    audit_id: UUID
    attempt_id: AttemptId
    claim: Claim


@dataclass(frozen=True, slots=True)
class AskReplay:
    audit_id: UUID
    witness: Witness
    claim: Claim
    # Contents by the seat that has shown them.
    logs: Mapping[SeatId, str]


@dataclass(frozen=True, slots=True)
class Conclude:
    """One audit is over."""

    audit_id: UUID
    claim: Claim
    outcome: AuditOutcome
    witnesses: tuple[Witness, ...]
    message: str
    # Contents that nobody needs any more.
    logs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """Steps from here on do not count, and who fills the seat loses it; who is blamed loses more than that."""

    step: int
    claim: Claim
    blamed: bool
    message: str


@dataclass(frozen=True, slots=True)
class MarkAudited:
    """Every seat was replayed up to this checkpoint by somebody else, to the same."""

    step: int


AuditEffect = AskLog | AskReplay | Conclude | Reject | MarkAudited
