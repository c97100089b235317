"""Transfers and the postings that they belong to: what may move from where to where, and what makes two the same.

A posting counts as a whole or not at all, and its key is used once for ever. One row names both sides of a transfer,
so that the sum of all accounts is zero by shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger.accounts import AccountKind, LedgerAccount
from computepool.core.ledger.amount import Microcredits, to_amount

KEY_LENGTH_MAX = 200
# The shards of one kind, and a few more.
LEGS_MAX = 32


class TransferKind(str, Enum):
    """One for each verb that moves something."""

    TOP_UP = "top_up"
    HOLD = "hold"
    SETTLE = "settle"
    PAY_TO = "pay_to"
    REFUND = "refund"
    RELEASE = "release"
    REVERSE = "reverse"
    SPEND_EARNINGS = "spend_earnings"
    PAYOUT_RESERVE = "payout_reserve"
    PAYOUT_CONFIRM = "payout_confirm"
    PAYOUT_FAIL = "payout_fail"
    PAYOUT_RETURN = "payout_return"
    TOP_UP_REFUND = "top_up_refund"
    CHARGEBACK = "chargeback"
    REPAY = "repay"
    BONUS = "bonus"
    MAKE_GOOD = "make_good"


_A = AccountKind
_SETTLES = {(_A.SUBMITTER_HELD, _A.OWNER_PENDING), (_A.SUBMITTER_HELD, _A.FEE)}
# Whatever a verb says, its credits take no other way.
ROUTES = {
    TransferKind.TOP_UP: {(_A.WORLD, _A.SUBMITTER_AVAILABLE)},
    TransferKind.HOLD: {(_A.SUBMITTER_AVAILABLE, _A.SUBMITTER_HELD)},
    TransferKind.SETTLE: _SETTLES,
    TransferKind.PAY_TO: _SETTLES,
    TransferKind.REFUND: {(_A.SUBMITTER_HELD, _A.SUBMITTER_AVAILABLE)},
    TransferKind.RELEASE: {(_A.OWNER_PENDING, _A.OWNER_AVAILABLE)},
    TransferKind.REVERSE: {
        (source, _A.SUBMITTER_AVAILABLE) for source in (_A.OWNER_PENDING, _A.OWNER_AVAILABLE, _A.RECEIVABLE, _A.FEE)
    },
    TransferKind.SPEND_EARNINGS: {(_A.OWNER_AVAILABLE, _A.SUBMITTER_AVAILABLE)},
    TransferKind.PAYOUT_RESERVE: {(_A.OWNER_AVAILABLE, _A.PAYOUT_CLEARING)},
    TransferKind.PAYOUT_CONFIRM: {(_A.PAYOUT_CLEARING, _A.WORLD)},
    TransferKind.PAYOUT_FAIL: {(_A.PAYOUT_CLEARING, _A.OWNER_AVAILABLE)},
    TransferKind.PAYOUT_RETURN: {(_A.WORLD, _A.OWNER_AVAILABLE)},
    TransferKind.TOP_UP_REFUND: {(_A.SUBMITTER_AVAILABLE, _A.WORLD)},
    TransferKind.CHARGEBACK: {(_A.SUBMITTER_AVAILABLE, _A.WORLD), (_A.RECEIVABLE, _A.WORLD)},
    TransferKind.REPAY: {(_A.SUBMITTER_AVAILABLE, _A.RECEIVABLE), (_A.OWNER_AVAILABLE, _A.RECEIVABLE)},
    TransferKind.BONUS: {(_A.FEE, _A.OWNER_AVAILABLE)},
    TransferKind.MAKE_GOOD: {(_A.FEE, _A.OWNER_AVAILABLE)},
}


@dataclass(frozen=True, slots=True)
class Leg:
    source: LedgerAccount
    target: LedgerAccount
    amount: Microcredits


@dataclass(frozen=True, slots=True)
class Posting:
    """Legs that count all together or not at all, and what they are about."""

    key: str
    kind: TransferKind
    legs: tuple[Leg, ...]
    job_id: JobId | None = None
    attempt_id: AttemptId | None = None
    payout_id: UUID | None = None
    top_up_id: UUID | None = None

    def __post_init__(self) -> None:
        if not (0 < len(self.key) <= KEY_LENGTH_MAX and self.key.isascii() and self.key.isprintable()):
            raise ValueError(f"a key has 1 to {KEY_LENGTH_MAX} plain characters, unlike {self.key!r}")
        if not 0 < len(self.legs) <= LEGS_MAX:
            raise ValueError(f"a posting has 1 to {LEGS_MAX} legs; {self.key} has {len(self.legs)}")
        routes = ROUTES[self.kind]
        for leg in self.legs:
            to_amount(leg.amount)
            if (leg.source.kind, leg.target.kind) not in routes:
                raise ValueError(f"{self.kind.value} does not lead from {leg.source.id} to {leg.target.id}")
            if self.job_id is None and (is_held(leg.source) or is_held(leg.target)):
                raise ValueError(f"what is held is held for a job; {self.key} names none")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of the books, for ever. `key` and `leg` together name it."""

    key: str
    leg: int
    kind: TransferKind
    source: LedgerAccount
    target: LedgerAccount
    amount: Microcredits
    at: datetime
    job_id: JobId | None = None
    attempt_id: AttemptId | None = None
    payout_id: UUID | None = None
    top_up_id: UUID | None = None


def to_transfers(posting: Posting, at: datetime) -> list[Transfer]:
    return [
        Transfer(
            posting.key,
            number,
            posting.kind,
            leg.source,
            leg.target,
            leg.amount,
            at,
            posting.job_id,
            posting.attempt_id,
            posting.payout_id,
            posting.top_up_id,
        )
        for number, leg in enumerate(posting.legs)
    ]


def from_transfers(transfers: Sequence[Transfer]) -> Posting:
    """The posting that these rows were written for; all of one key."""
    first = transfers[0]
    return Posting(
        key=first.key,
        kind=first.kind,
        legs=tuple(Leg(t.source, t.target, t.amount) for t in sorted(transfers, key=lambda t: t.leg)),
        job_id=first.job_id,
        attempt_id=first.attempt_id,
        payout_id=first.payout_id,
        top_up_id=first.top_up_id,
    )


def is_same(one: Posting, other: Posting) -> bool:
    """Whether two postings under one key say the same: the same kind and subjects, the same amounts between parties.

    Which of a party's accounts, or which shard, bears an amount depends on the balances of the moment. A repetition
    that was worked out later may differ in that, and means the same.
    """
    return one == other or (_subjects(one) == _subjects(other) and _flows(one) == _flows(other))


def is_held(account: LedgerAccount) -> bool:
    return account.kind is AccountKind.SUBMITTER_HELD


def net_deltas(legs: Iterable[Leg]) -> dict[LedgerAccount, int]:
    """What each account gains; below zero: loses."""
    deltas: dict[LedgerAccount, int] = {}
    for leg in legs:
        deltas[leg.source] = deltas.get(leg.source, 0) - leg.amount
        deltas[leg.target] = deltas.get(leg.target, 0) + leg.amount
    return deltas


def held_delta(posting: Posting) -> int:
    """What the job's `held_remaining` gains."""
    return sum(
        (leg.amount if is_held(leg.target) else 0) - (leg.amount if is_held(leg.source) else 0)
        for leg in posting.legs
    )


def _subjects(posting: Posting) -> tuple[object, ...]:
    return posting.kind, posting.job_id, posting.attempt_id, posting.payout_id, posting.top_up_id


def _flows(posting: Posting) -> Counter[tuple[str, str]]:
    flows: Counter[tuple[str, str]] = Counter()
    for leg in posting.legs:
        flows[leg.source.party, leg.target.party] += leg.amount
    return flows
