"""The close of a day."""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID

import msgspec

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.closing import DifferenceKind
from computepool.core.ledger.transfer import TransferKind


class ProviderMovement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cash that moved by the provider's own books, under our id of the top-up or payout. In above zero, out below."""

    id: UUID
    currency: str
    amount_minor: int


class CloseBooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Of UTC, and over.
    day: date
    # The provider's own books of that day; absent: they are not compared.
    provider_movements: list[ProviderMovement] | None = None
    # Count every transfer there is, rather than those since the last checkpoint.
    from_start: bool = False


class TrialLine(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of account over the day. Opening, moves and closing of all kinds each come to zero."""

    kind: AccountKind
    opening_microcredits: int
    gained_microcredits: int
    lost_microcredits: int
    closing_microcredits: int


class MovedLine(msgspec.Struct, frozen=True, kw_only=True):
    kind: TransferKind
    transfer_count: int
    amount_microcredits: int


class BookDifference(msgspec.Struct, frozen=True, kw_only=True):
    kind: DifferenceKind
    # An account, a job, a top-up or payout, a day.
    subject: str
    words: str


class ClosedBooks(msgspec.Struct, frozen=True, kw_only=True):
    day: date
    # The first close of the day, and the hash of what it came to then.
    closed_at: datetime
    closed_by: UUID
    sha256: str
    trial: list[TrialLine]
    moved: list[MovedLine]
    # Of the day's payout file: GET /v1/operator/books/payouts.
    payout_count: int
    payout_sha256: str
    differences: list[BookDifference]
    # True: there are more than are told.
    differences_is_cut: bool
    compared_with_provider: bool
    # The sealed batch of the checkpoint that the count began after; absent: every transfer was counted.
    counted_from_batch: int | None = None
