"""Challenges: how a node shows that its slots are as fast as it says."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from computepool.core.trust.challenge import SAMPLES, ProofState
from computepool.core.trust.memory import WORDS


class SlotProof(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has shown of a slot, and what follows from it."""

    state: ProofState
    # By the card's name.
    claimed_tier: str
    # What the slot counts as by it; absent: nothing has been shown.
    tier: str | None = None
    reason: str = ""
    shown_tflops: float | None = None
    spread_ratio: float = 0.0
    decided_at: datetime | None = None


class AskChallenge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slot: Annotated[str, Meta(max_length=20)]


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """Work whose clock runs. docs/reference/node-protocol.md says what is computed."""

    id: UUID
    seed: str  # hex
    size: int
    products: int
    # Of the card's memory, to be filled with a pattern after the commitment; 0: none.
    memory_bytes: int
    # Within which the commitment is taken.
    answer_seconds: float


class ChallengeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Without a challenge there is nothing to show now."""

    proof: SlotProof
    challenge: Challenge | None = None


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    root: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class CommitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    segments: list[int]
    # Places in the filled memory, counted in words of four bytes.
    words: list[int]


class OpenedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    piece: Annotated[str, Meta(max_length=8_192)]  # base64
    path: Annotated[tuple[Annotated[str, Meta(pattern="^[0-9a-f]{64}$")], ...], Meta(max_length=32)]


class OpenChallenge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    segments: Annotated[tuple[OpenedSegment, ...], Meta(max_length=SAMPLES)]
    words: Annotated[tuple[int, ...], Meta(max_length=WORDS)] = ()


class OpenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    proof: SlotProof
    # Another round is wanted.
    again: bool
