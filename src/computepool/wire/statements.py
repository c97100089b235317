"""Statements of accounts, jobs and nodes. Amounts stand twice: in whole microcredits, and in decimal credits."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.dispute import DisputeState
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.statement import Flow
from computepool.core.ledger.transfer import TransferKind


class StatementFormat(str, Enum):
    JSON = "json"
    CSV = "csv"


class JobLines(str, Enum):
    """What a job's statement lists."""

    TRANSFERS = "transfers"
    ATTEMPTS = "attempts"


class TransferLine(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer. Of other people's accounts only the kind is told."""

    id: int
    at: datetime
    kind: TransferKind
    source: AccountKind
    target: AccountKind
    # As the person of the statement sees it.
    flow: Flow
    amount_microcredits: int
    credits: str
    job_id: UUID | None = None
    # Absent where one settlement is for several attempts.
    attempt_id: UUID | None = None
    payout_id: UUID | None = None
    top_up_id: UUID | None = None


class AccountSum(msgspec.Struct, frozen=True, kw_only=True):
    """What one of a person's accounts stood at when the period began and ended."""

    kind: AccountKind
    opening_microcredits: int
    closing_microcredits: int
    opening_credits: str
    closing_credits: str


class AccountStatement(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in the order they were written. A period that ended a minute ago does not change any more."""

    account_id: UUID
    since: datetime
    until: datetime
    # With the first page only.
    sums: list[AccountSum]
    lines: list[TransferLine]
    # For the next page; absent: this was the last.
    cursor: str | None = None


class PricedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, what its price follows from, and where the pay for it stands."""

    attempt_id: UUID
    job_id: UUID
    slice_index: int
    number: int
    slot: str
    state: AttemptState
    leased_at: datetime
    # Owner's part and fee together, the fee, and the owner's part.
    charged_microcredits: int
    fee_microcredits: int
    earned_microcredits: int
    cause: Cause | None = None
    finished_at: datetime | None = None
    # As the node claims; what counts is beside it.
    run_seconds: float | None = None
    metered_seconds: int | None = None
    # Frozen with the lease, one of the two: by the hour, or for the whole slice.
    rate_microcredits_per_hour: int | None = None
    slice_price_microcredits: int | None = None
    rate_card_version: str | None = None
    # Where the owner's part stands, and when the holdback is over.
    earning_state: EarningState | None = None
    release_at: datetime | None = None
    # The newest dispute over it, if there is one: why it was opened, and why it was decided so.
    dispute_state: DisputeState | None = None
    dispute_reason: str = ""
    dispute_note: str = ""


class ChargeLine(PricedAttempt, frozen=True, kw_only=True):
    """An attempt and what it cost, by metered seconds or at a fixed price, cut into the owner's part and the fee."""

    node_id: UUID
    charged_credits: str
    earned_credits: str


class JobStatement(msgspec.Struct, frozen=True, kw_only=True):
    """held = earned + fee + refunded + remaining, always; the submitter has paid earned + fee - reversed."""

    job_id: UUID
    held_microcredits: int
    # By the owners of its nodes, and by the platform.
    earned_microcredits: int
    fee_microcredits: int
    refunded_microcredits: int
    remaining_microcredits: int
    # Came back after late fraud.
    reversed_microcredits: int
    cost_microcredits: int
    cost_credits: str
    # One of the two, as asked for.
    transfers: list[TransferLine]
    attempts: list[ChargeLine]
    cursor: str | None = None


class NodeSum(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of the period whose pay stands alike; without a state: those that cost nothing."""

    attempt_count: int
    charged_microcredits: int
    fee_microcredits: int
    earned_microcredits: int
    earned_credits: str
    earning_state: EarningState | None = None


class NodeStatement(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts that ended within the period, in that order."""

    node_id: UUID
    since: datetime
    until: datetime
    # With the first page only.
    sums: list[NodeSum]
    attempts: list[ChargeLine]
    cursor: str | None = None
