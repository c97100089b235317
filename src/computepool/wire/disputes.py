"""Disputes over pay, as both sides see them, and as the operator does. Amounts are whole microcredits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from computepool.core.ledger.dispute import DisputeOrigin, DisputeSide, DisputeState

_Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class OpenDispute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Doubts the pay for an attempt of one's own job."""

    job_id: UUID
    slice_index: _Index
    # Of the attempt; absent: the newest of the slice that was paid.
    number: _Index | None = None
    # The owner and the operator read it.
    reason: str


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    state: DisputeState
    origin: DisputeOrigin
    attempt_id: UUID
    job_id: UUID
    slice_index: int
    number: int
    node_id: UUID
    # What the submitter was charged, which goes back when it is upheld, and the owner's part of it.
    charged_microcredits: int
    earned_microcredits: int
    # When the holdback is over: if the dispute is dismissed, the pay is released then.
    release_at: datetime
    reason: str
    # Why it was decided so.
    note: str = ""
    opened_at: datetime
    decided_at: datetime | None = None


class OwnDispute(msgspec.Struct, frozen=True, kw_only=True):
    # Which of the two the caller is.
    side: DisputeSide
    dispute: Dispute


class OwnDisputePage(msgspec.Struct, frozen=True, kw_only=True):
    disputes: list[OwnDispute]
    cursor: str | None = None


# The operator's side


class AccountDispute(msgspec.Struct, frozen=True, kw_only=True):
    submitter_id: UUID
    owner_id: UUID
    # Absent: the hub itself.
    opened_by: UUID | None = None
    decided_by: UUID | None = None
    dispute: Dispute


class AccountDisputePage(msgspec.Struct, frozen=True, kw_only=True):
    disputes: list[AccountDispute]
    cursor: str | None = None


class DecideDispute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Both sides read it.
    note: str


class ReversePay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    attempt_id: UUID
    # Both sides read it.
    reason: str
