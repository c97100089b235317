"""The answer to "why was I paid this"."""

from __future__ import annotations

from datetime import date
from uuid import UUID

import msgspec

from computepool.core.ledger.charging import ChargeRule
from computepool.core.ledger.explain import PayMark, UnpaidReason
from computepool.wire.statements import PricedAttempt


class PaidAttempt(PricedAttempt, frozen=True, kw_only=True):
    """One attempt: what its pay follows from, what it should be, what was charged, and what the ledger moved."""

    mark: PayMark
    words: str
    rule: ChargeRule
    # By the rules: owner's part and fee together, and the owner's part.
    due_microcredits: int
    due_to_owner_microcredits: int
    # By the ledger. Absent: it is part of a settlement of several attempts that does not add up.
    moved_microcredits: int | None
    # What the owner has got too little; below zero: too much.
    missing_microcredits: int
    # Every way in which rules, row and ledger disagree.
    differences: list[str]
    # Why nothing is due, if nothing is.
    reason: UnpaidReason | None = None
    # Of one that was superseded: what was paid for its time out of the fee. Absent: that is not decided yet.
    made_good_microcredits: int | None = None
    # Why the pay is not released when its holdback is over: what is waited for besides. Empty: nothing is.
    waits: str = ""


class PayWhy(msgspec.Struct, frozen=True, kw_only=True):
    """A node's attempts that ended on a day of UTC; those that run are listed on the day they were leased."""

    node_id: UUID
    name: str
    day: date
    attempts: list[PaidAttempt]
    # For the next page; absent: this was the last.
    cursor: str | None = None
