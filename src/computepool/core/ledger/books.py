"""The books: whether a posting may be made, what that changes, and whether everything adds up.

The rules stand here once. In memory they change dicts; the store applies what they decided to tables. `Books` is what
must be known for a decision; memory knows all of it, the store loads what a batch touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeVar

from computepool.core.ids import AccountId, JobId
from computepool.core.ledger.accounts import AccountKind, LedgerAccount
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import (
    Posting,
    Transfer,
    from_transfers,
    held_delta,
    is_held,
    is_same,
    net_deltas,
    to_transfers,
)

FAULTS_MAX = 20

Named = TypeVar("Named")


class Outcome(str, Enum):
    POSTED = "posted"
    # It stands in the books already, and nothing was changed.
    REPLAYED = "replayed"


class Books(Protocol):
    def get_balance(self, account: LedgerAccount) -> int:
        """Zero for an account that was never used."""

    def get_held_remaining(self, job_id: JobId) -> int: ...

    def find_posting(self, key: str) -> Posting | None: ...


class Draft:
    """Judges postings one after the other; each sees what the ones before it would change. Changes nothing itself."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.balances: dict[LedgerAccount, int] = {}
        self.held_remaining: dict[JobId, int] = {}
        self.posted: dict[str, Posting] = {}

    def take(self, posting: Posting) -> Outcome | Refusal:
        known = self.posted.get(posting.key) or self._books.find_posting(posting.key)
        if known is not None:
            return self.judge_replay(known, posting)
        changed = {
            account: self._get_balance(account) + delta
            for account, delta in net_deltas(posting.legs).items()
            if delta
        }
        refusal = self.find_refusal(changed)
        if refusal is not None:
            return refusal
        held = self._get_held_remaining(posting)
        if held is not None and held < 0:
            return Refusal(RefusalCode.HOLD_EXCEEDED, f"{posting.key}: the job's hold does not reach so far.")
        self.record(posting, changed, held)
        return Outcome.POSTED

    def judge_replay(self, known: Posting, posting: Posting) -> Outcome | Refusal:
        if is_same(known, posting):
            return Outcome.REPLAYED
        return Refusal(RefusalCode.DIFFERING_REPLAY, f"{posting.key} stands in the books with something else.")

    def find_refusal(self, changed: Mapping[LedgerAccount, int]) -> Refusal | None:
        for account, balance in changed.items():
            if account.least <= balance <= account.most:
                continue
            # Past zero: there is not enough. Past the other end: there is more than can be counted.
            if (balance < account.least) == (account.least == 0):
                words = f"{account.id} is {_past_zero(account, balance):,} microcredits short."
                return Refusal(RefusalCode.INSUFFICIENT_CREDITS, words)
            return Refusal(RefusalCode.BALANCE_TOO_LARGE, f"{account.id} would hold more than can be counted.")
        return None

    def record(self, posting: Posting, changed: Mapping[LedgerAccount, int], held: int | None) -> None:
        self.posted[posting.key] = posting
        self.balances.update(changed)
        if held is not None and posting.job_id is not None:
            self.held_remaining[posting.job_id] = held

    def _get_balance(self, account: LedgerAccount) -> int:
        found = self.balances.get(account)
        return self._books.get_balance(account) if found is None else found

    def _get_held_remaining(self, posting: Posting) -> int | None:
        """After the posting; None when it holds nothing and takes nothing from a hold."""
        delta, job_id = held_delta(posting), posting.job_id
        if not delta or job_id is None:
            return None
        before = self.held_remaining.get(job_id)
        return (self._books.get_held_remaining(job_id) if before is None else before) + delta


class MemoryBooks:
    """All of the books in memory: for simulations, and the measure that the store is compared with."""

    def __init__(self) -> None:
        self.balances: dict[LedgerAccount, int] = {}
        self.held_remaining: dict[JobId, int] = {}
        self.transfers: list[Transfer] = []
        self._postings: dict[str, Posting] = {}

    def post(self, postings: Sequence[Posting], *, at: datetime) -> list[Outcome | Refusal]:
        """Each posting all or nothing, in their order; a refusal never spoils the others."""
        draft = self.open_draft()
        outcomes = [draft.take(posting) for posting in postings]
        self.balances.update(draft.balances)
        self.held_remaining.update(draft.held_remaining)
        self._postings.update(draft.posted)
        for posting in draft.posted.values():
            self.transfers += to_transfers(posting, at)
        return outcomes

    def open_draft(self) -> Draft:
        return Draft(self)

    def get_balance(self, account: LedgerAccount) -> int:
        return self.balances.get(account, 0)

    def get_held_remaining(self, job_id: JobId) -> int:
        return self.held_remaining.get(job_id, 0)

    def find_posting(self, key: str) -> Posting | None:
        return self._postings.get(key)

    def list_faults(self, submitters: Mapping[JobId, AccountId]) -> list[str]:
        """`submitters` says whose each job is."""
        recomputed = recompute(self.transfers)
        return list_faults(self.balances, self.held_remaining, submitters, recomputed)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What the transfers alone come to."""

    balances: Mapping[LedgerAccount, int]
    held_remaining: Mapping[JobId, int]


def recompute(transfers: Iterable[Transfer]) -> Recomputed:
    balances: Counter[LedgerAccount] = Counter()
    held: Counter[JobId] = Counter()
    for transfer in transfers:
        balances[transfer.source] -= transfer.amount
        balances[transfer.target] += transfer.amount
        if transfer.job_id is not None:
            held[transfer.job_id] += _held_amount(transfer)
    return Recomputed(balances, held)


def list_faults(
    balances: Mapping[LedgerAccount, int],
    held_remaining: Mapping[JobId, int],
    submitters: Mapping[JobId, AccountId],
    recomputed: Recomputed,
) -> list[str]:
    """Everything that does not add up, in words, up to a limit. Empty: the books are exact."""
    faults = []
    total = sum(balances.values())
    if total:
        faults.append(f"the accounts come to {total:,} and not to zero")
    faults += [
        f"{account.id} stands at {balance:,}, on the wrong side of zero or beyond what can be counted"
        for account, balance in balances.items()
        if not account.least <= balance <= account.most
    ]
    faults += _list_differences("stands at", balances, recomputed.balances)
    faults += _list_differences("holds", held_remaining, recomputed.held_remaining)
    faults += [f"job {id} holds {held:,}" for id, held in held_remaining.items() if held < 0]
    faults += _list_held_faults(balances, held_remaining, submitters)
    return faults[:FAULTS_MAX]


def _list_held_faults(
    balances: Mapping[LedgerAccount, int], held_remaining: Mapping[JobId, int], submitters: Mapping[JobId, AccountId]
) -> list[str]:
    by_submitter: Counter[AccountId] = Counter()
    for job_id, held in held_remaining.items():
        by_submitter[submitters[job_id]] += held
    accounts = {account.owner_id: balance for account, balance in balances.items() if is_held(account)}
    return [
        f"the jobs of {owner_id} hold {by_submitter.get(owner_id, 0):,}, their account {accounts.get(owner_id, 0):,}"
        for owner_id in sorted(by_submitter.keys() | {id for id in accounts if id is not None})
        if by_submitter.get(owner_id, 0) != accounts.get(owner_id, 0)
    ]


def _list_differences(words: str, kept: Mapping[Named, int], counted: Mapping[Named, int]) -> list[str]:
    return [
        f"{getattr(name, 'id', name)} {words} {kept.get(name, 0):,}, by its transfers {counted.get(name, 0):,}"
        for name in {**kept, **counted}
        if kept.get(name, 0) != counted.get(name, 0)
    ]


def to_postings(transfers: Iterable[Transfer]) -> dict[str, Posting]:
    by_key: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        by_key.setdefault(transfer.key, []).append(transfer)
    return {key: from_transfers(rows) for key, rows in by_key.items()}


def _held_amount(transfer: Transfer) -> int:
    gained = transfer.amount if transfer.target.kind is AccountKind.SUBMITTER_HELD else 0
    return gained - (transfer.amount if transfer.source.kind is AccountKind.SUBMITTER_HELD else 0)


def _past_zero(account: LedgerAccount, balance: int) -> int:
    return account.least - balance if account.least == 0 else balance - account.most
