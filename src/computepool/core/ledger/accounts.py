"""The ledger's own accounts: what kinds there are, on which side of zero each stands, and how they are named.

Assets (the world outside, what people owe us) stand at or below zero; all others are what we owe or have earned and
stand at or above it. Together they come to zero, always. docs/decisions/0009 says why every kind has one side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from uuid import UUID

from computepool.core.ids import AccountId
from computepool.core.ledger.amount import BALANCE_MAX

# People whose accounts are remembered by name; a miss costs a microsecond.
_REMEMBERED = 20_000


class AccountKind(str, Enum):
    SUBMITTER_AVAILABLE = "submitter_available"
    SUBMITTER_HELD = "submitter_held"
    OWNER_PENDING = "owner_pending"
    OWNER_AVAILABLE = "owner_available"
    # What somebody owes us: a top-up charged back after it was spent, pay taken back after it was cashed out.
    RECEIVABLE = "receivable"
    FEE = "fee"
    PAYOUT_CLEARING = "payout_clearing"
    # Minus the cash that we hold.
    WORLD = "world"


ASSETS = frozenset({AccountKind.WORLD, AccountKind.RECEIVABLE})

# The platform's own accounts, spread over rows: every settlement pays a fee, and one row would be waited for.
SHARD_COUNTS = {AccountKind.FEE: 16, AccountKind.PAYOUT_CLEARING: 1, AccountKind.WORLD: 16}
PERSONAL = frozenset(AccountKind) - SHARD_COUNTS.keys()


@dataclass(frozen=True, slots=True, eq=False)
class LedgerAccount:
    """`id` is its name in the books: kind, slash, and the person's id or the shard."""

    kind: AccountKind
    owner_id: AccountId | None = None
    shard: int = 0
    id: str = field(init=False)
    # What its balance stays within, both ends included.
    least: int = field(init=False, repr=False)
    most: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.owner_id is None) == (self.kind in PERSONAL):
            raise ValueError(f"{self.kind.value}: a person's account has an owner, the platform's has none")
        if not 0 <= self.shard < SHARD_COUNTS.get(self.kind, 1):
            raise ValueError(f"{self.kind.value} has no shard {self.shard}")
        name = self.shard if self.owner_id is None else self.owner_id
        is_asset = self.kind in ASSETS
        object.__setattr__(self, "id", f"{self.kind.value}/{name}")
        object.__setattr__(self, "least", -BALANCE_MAX if is_asset else 0)
        object.__setattr__(self, "most", 0 if is_asset else BALANCE_MAX)

    @property
    def party(self) -> str:
        """Whose it is: a person, or the platform's account of that kind whatever the shard."""
        return self.kind.value if self.owner_id is None else str(self.owner_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerAccount) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __lt__(self, other: LedgerAccount) -> bool:
        """The order of locks, which is the database's order of names."""
        return self.id < other.id


@lru_cache(maxsize=_REMEMBERED)
def submitter_available(account_id: AccountId) -> LedgerAccount:
    return LedgerAccount(AccountKind.SUBMITTER_AVAILABLE, account_id)


@lru_cache(maxsize=_REMEMBERED)
def submitter_held(account_id: AccountId) -> LedgerAccount:
    return LedgerAccount(AccountKind.SUBMITTER_HELD, account_id)


@lru_cache(maxsize=_REMEMBERED)
def owner_pending(account_id: AccountId) -> LedgerAccount:
    return LedgerAccount(AccountKind.OWNER_PENDING, account_id)


@lru_cache(maxsize=_REMEMBERED)
def owner_available(account_id: AccountId) -> LedgerAccount:
    return LedgerAccount(AccountKind.OWNER_AVAILABLE, account_id)


@lru_cache(maxsize=_REMEMBERED)
def receivable(account_id: AccountId) -> LedgerAccount:
    return LedgerAccount(AccountKind.RECEIVABLE, account_id)


def accounts_of(account_id: AccountId) -> list[LedgerAccount]:
    """All that one person may have."""
    return [LedgerAccount(kind, account_id) for kind in AccountKind if kind in PERSONAL]


SHARDS = {
    kind: tuple(LedgerAccount(kind, shard=shard) for shard in range(count)) for kind, count in SHARD_COUNTS.items()
}


def shard_of(kind: AccountKind, subject_id: UUID) -> LedgerAccount:
    """The last bits of our ids are random, so that subjects spread evenly."""
    shards = SHARDS[kind]
    return shards[subject_id.int % len(shards)]


@lru_cache(maxsize=_REMEMBERED)
def account_from_id(id: str) -> LedgerAccount:
    kind_name, _, name = id.partition("/")
    kind = AccountKind(kind_name)
    if kind in PERSONAL:
        return LedgerAccount(kind, AccountId(UUID(name)))
    return SHARDS[kind][int(name)]
