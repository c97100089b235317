"""What a statement makes of transfers: which way a line goes for a person, and what a job's transfers come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import AccountKind, LedgerAccount
from computepool.core.ledger.transfer import TransferKind


class Flow(str, Enum):
    """As the person of the statement sees it."""

    IN = "in"
    OUT = "out"
    # Between two accounts of their own.
    WITHIN = "within"


def find_flow(source: LedgerAccount, target: LedgerAccount, account_id: AccountId) -> Flow:
    if source.owner_id == target.owner_id == account_id:
        return Flow.WITHIN
    return Flow.OUT if source.owner_id == account_id else Flow.IN


@dataclass(frozen=True, slots=True)
class RouteSum:
    """All transfers of one kind from one kind of account to another."""

    kind: TransferKind
    source: AccountKind
    target: AccountKind
    amount: int


@dataclass(frozen=True, slots=True)
class JobMoney:
    """A job's transfers, summed. What was held went to owners, to the fee, back, or is held still."""

    held: int
    # To owners, and to the platform.
    earned: int
    fee: int
    refunded: int
    # Came back to the submitter after late fraud, out of owners' pay and fee.
    reversed: int

    @property
    def remaining(self) -> int:
        return self.held - self.earned - self.fee - self.refunded

    @property
    def cost(self) -> int:
        """What the submitter has really paid."""
        return self.earned + self.fee - self.reversed


def sum_job(routes: Iterable[RouteSum]) -> JobMoney:
    sums = {"held": 0, "earned": 0, "fee": 0, "refunded": 0, "reversed": 0}
    for route in routes:
        name = _name_of(route)
        if name is not None:
            sums[name] += route.amount
    return JobMoney(**sums)


def _name_of(route: RouteSum) -> str | None:
    if route.target is AccountKind.SUBMITTER_HELD:
        return "held"
    if route.source is AccountKind.SUBMITTER_HELD:
        by_target = {AccountKind.OWNER_PENDING: "earned", AccountKind.FEE: "fee"}
        return by_target.get(route.target, "refunded")
    return "reversed" if route.kind is TransferKind.REVERSE else None
