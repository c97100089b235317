"""The answer to "why was I paid this"."""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import ChargeRule
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.explain import PayMark, UnpaidReason


class PaidAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: what its pay follows from, what it should be, what was charged, and what the ledger moved."""

    attempt_id: UUID
    job_id: UUID
    slice_index: int
    number: int
    slot: str
    state: AttemptState
    leased_at: datetime
    mark: PayMark
    words: str
    rule: ChargeRule
    # Owner's part and fee together: by the rules, and by the attempt's row.
    due_microcredits: int
    charged_microcredits: int
    fee_microcredits: int
    # The owner's part: by the rules, by the row, by the ledger. Without the last: it is part of a settlement of
    # several attempts that does not add up.
    due_to_owner_microcredits: int
    earned_microcredits: int
    moved_microcredits: int | None
    # What the owner has got too little; below zero: too much.
    missing_microcredits: int
    # Every way in which rules, row and ledger disagree.
    differences: list[str]
    # Why nothing is due, if nothing is.
    reason: UnpaidReason | None = None
    cause: Cause | None = None
    finished_at: datetime | None = None
    # As the node claims, and as it counts.
    run_seconds: float | None = None
    metered_seconds: int | None = None
    # Frozen with the lease.
    rate_microcredits_per_hour: int | None = None
    rate_card_version: str | None = None
    earning_state: EarningState | None = None
    release_at: datetime | None = None


class PayWhy(msgspec.Struct, frozen=True, kw_only=True):
    """A node's attempts that ended on a day of UTC; those that run are listed on the day they were leased."""

    node_id: UUID
    name: str
    day: date
    attempts: list[PaidAttempt]
    # For the next page; absent: this was the last.
    cursor: str | None = None
