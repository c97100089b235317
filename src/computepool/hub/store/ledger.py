"""The books in SQL: postings are judged by core, written many at a time, and never changed.

`post` works inside a transaction that its caller has opened, after slices, attempts and jobs were locked: accounts
are last in the order of locks. It comes once in each transaction, unless `lock_balances` has locked all that its
postings will touch before the first of them. It is one statement when everything can be posted, three when something
is refused or repeated, and two more when an account is used for the first time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from computepool.core.errors import HubUnavailable, NotFound
from computepool.core.ids import AccountId, JobId
from computepool.core.ledger.accounts import LedgerAccount, account_from_id, accounts_of
from computepool.core.ledger.amount import BALANCE_MAX
from computepool.core.ledger.books import Draft, Outcome, Recomputed, to_postings
from computepool.core.ledger.checkpoint import Checkpoint
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting, Transfer, TransferKind, held_delta, net_deltas
from computepool.hub.store.arrays import to_array, to_text_array
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("ledger")

# Less than any id.
BEFORE_ALL = -(2**63)
# What the hold of a job is called beside the names of accounts; the job's id follows.
_HOLD = "job/"
_OPEN_REMEMBERED_MAX = 200_000
# Further than any balance can be moved; beyond it 64 bits would not hold the sum.
_FAR = 3 * BALANCE_MAX


@dataclass(frozen=True, slots=True)
class TransferRow:
    """`id` grows with time, roughly: rows that were written at once may become visible in another order."""

    id: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Drift:
    """Something that is kept in two ways, which differ."""

    name: str
    kept: int
    counted: int


class Unpostable(Exception):
    """A balance does not suffice, an account was never opened, or a key is used. The transaction is to be given up;
    `post` would find out which."""


class OpenAccounts:
    """Accounts that a hub has seen in use. None is ever closed."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def include(self, postings: Iterable[Posting]) -> bool:
        ids = self._ids
        return all(leg.source.id in ids and leg.target.id in ids for posting in postings for leg in posting.legs)

    def note(self, postings: Iterable[Posting]) -> None:
        """These were committed."""
        if len(self._ids) >= _OPEN_REMEMBERED_MAX:
            self._ids.clear()
        for posting in postings:
            for leg in posting.legs:
                self._ids |= {leg.source.id, leg.target.id}

    def forget(self) -> None:
        self._ids.clear()


async def post(
    conn: Connection, postings: Sequence[Posting], *, at: datetime | None = None, writes_jobs: bool = True
) -> list[Outcome | Refusal]:
    """Each posting all or nothing, in their order; a refusal never spoils the others.

    `at` is the database's time unless given. With `writes_jobs` off the caller has locked the jobs, judges and writes
    `held_remaining` itself, together with what else it writes there.
    """
    if not postings:
        return []
    batch = _Batch(postings, at, writes_jobs)
    answer = await batch.write(conn)
    if answer["balances"] is None and not answer["fits"]:
        await open_accounts(conn, batch.accounts)
        answer = await batch.write(conn)
    if answer["fits"]:
        return await _name_outcomes(conn, postings, answer["posted_keys"])
    draft = Draft(await _load(conn, batch, answer))
    outcomes = [draft.take(posting) for posting in postings]
    if draft.posted:
        again = await _Batch(list(draft.posted.values()), at, writes_jobs).write(conn)
        if not again["fits"] or again["posted_keys"] is not None:
            raise HubUnavailable("Somebody else is writing the same into the books. Try again.")
    return outcomes


async def post_at_once(conn: Connection, postings: Sequence[Posting]) -> None:
    """What is known to be possible, about jobs and attempts: all of it, or `Unpostable`. Holds are the caller's."""
    deltas: dict[str, int] = {}
    rows = [(posting, number, leg) for posting in postings for number, leg in enumerate(posting.legs)]
    for _, _, leg in rows:
        deltas[leg.source.id] = deltas.get(leg.source.id, 0) - leg.amount
        deltas[leg.target.id] = deltas.get(leg.target.id, 0) + leg.amount
    # The order of locks.
    ids = sorted(deltas)
    with telling_unpostable():
        moved = await _q.post_at_once(
            conn,
            keys=to_text_array([posting.key for posting, _, _ in rows]),
            legs=to_array([number for _, number, _ in rows]),
            kinds=to_array([posting.kind for posting, _, _ in rows]),
            source_ids=to_text_array([leg.source.id for _, _, leg in rows]),
            target_ids=to_text_array([leg.target.id for _, _, leg in rows]),
            amounts=to_array([leg.amount for _, _, leg in rows]),
            job_ids=to_array([posting.job_id for posting, _, _ in rows]),
            attempt_ids=_to_subject_array([posting.attempt_id for posting, _, _ in rows]),
            account_ids=to_text_array(ids),
            deltas=to_array([deltas[id] for id in ids]),
        )
    if moved < len(ids):
        raise Unpostable


@contextlib.contextmanager
def telling_unpostable() -> Iterator[None]:
    """Around a statement that posts without asking first."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        if error.constraint_name == "ledger_accounts_side_check" or error.table_name == "ledger_transfers":
            raise Unpostable from error
        raise


async def open_accounts(conn: Connection, accounts: Iterable[LedgerAccount]) -> None:
    """Harmless when they are open. Takes locks only on those that are new."""
    listed = sorted(set(accounts))
    await _q.open_accounts(
        conn,
        ids=to_text_array([a.id for a in listed]),
        kinds=to_array([a.kind for a in listed]),
        owner_ids=to_array([a.owner_id for a in listed]),
        shards=to_array([a.shard for a in listed]),
    )


async def lock_balances(conn: Connection, accounts: Iterable[LedgerAccount]) -> dict[LedgerAccount, int]:
    """For verbs that need to know balances: all accounts that the posting will touch must be among them."""
    listed = sorted(set(accounts))
    ids = to_text_array([a.id for a in listed])
    found = {account_from_id(row["id"]): row["balance"] async for row in _q.lock_accounts(conn, ids=ids)}
    if len(found) < len(listed):
        await open_accounts(conn, listed)
        found = {account_from_id(row["id"]): row["balance"] async for row in _q.lock_accounts(conn, ids=ids)}
    return found


async def get_balances(conn: Connection, accounts: Iterable[LedgerAccount]) -> dict[LedgerAccount, int]:
    """Zero for those that were never used."""
    found = dict.fromkeys(accounts, 0)
    async for row in _q.list_balances(conn, ids=[a.id for a in found]):
        found[account_from_id(row["id"])] = row["balance"]
    return found


async def list_balances(
    conn: Connection, *, after: LedgerAccount | None = None, limit: int
) -> dict[LedgerAccount, int]:
    """All accounts, page by page."""
    rows = _q.list_all_balances(conn, after=after.id if after else "", limit_count=limit)
    return {account_from_id(row["id"]): row["balance"] async for row in rows}


async def list_transfers(
    conn: Connection, account_id: AccountId, *, before_id: int | None = None, limit: int
) -> list[TransferRow]:
    """Everything that moved to or from one person, newest first."""
    ids = [account.id for account in accounts_of(account_id)]
    rows = _q.list_by_accounts(conn, ids=ids, before_id=before_id, limit_count=limit)
    return [TransferRow(row["id"], _to_transfer(row)) async for row in rows]


async def list_job_transfers(conn: Connection, job_id: JobId, *, limit: int) -> list[TransferRow]:
    """From the hold to the last release, in their order."""
    rows = _q.list_by_job(conn, job_id=job_id, limit_count=limit)
    return [TransferRow(row["id"], _to_transfer(row)) async for row in rows]


async def find_postings(conn: Connection, keys: Iterable[str]) -> dict[str, Posting]:
    return to_postings([_to_transfer(row) async for row in _q.list_by_keys(conn, keys=sorted(set(keys)))])


async def recompute(conn: Connection) -> Recomputed:
    """What the transfers alone come to. Reads all of them."""
    sums = {row["name"]: row["amount"] async for row in _q.sum_sides(conn)}
    held = {name for name in sums if name.startswith(_HOLD)}
    return Recomputed(
        balances={account_from_id(name): sums[name] for name in sums.keys() - held},
        held_remaining={JobId(UUID(name.removeprefix(_HOLD))): sums[name] for name in held},
    )


async def list_drifts(conn: Connection, *, since: Checkpoint | None = None, limit: int = 20) -> list[Drift]:
    """Empty: balances and holds are what the transfers come to, and all accounts come to zero.

    Counts the transfers after the newest checkpoint, which must be read in the same snapshot; without it, all.
    """
    after_id = since.last_id if since else BEFORE_ALL
    rows = _q.list_drifts(conn, with_sums=since is not None, after_id=after_id, limit_count=limit)
    return [Drift(**row) async for row in rows]


class _Batch:
    """Postings as the arrays of one statement, and how far they bring each account, taken in their order."""

    def __init__(self, postings: Sequence[Posting], at: datetime | None, writes_jobs: bool) -> None:
        self.postings = postings
        self._at = at
        self.writes_jobs = writes_jobs
        self._reaches: dict[str, _Reach] = {}
        self._holds: dict[JobId, _Reach] = {}
        for posting in postings:
            self._count(posting)

    @property
    def accounts(self) -> list[LedgerAccount]:
        return [account_from_id(id) for id in self._reaches]

    @property
    def job_ids(self) -> Iterable[JobId]:
        return self._holds.keys()

    def _count(self, posting: Posting) -> None:
        reaches = self._reaches
        for account, delta in net_deltas(posting.legs).items():
            reach = reaches.get(account.id)
            if reach is None:
                reach = reaches[account.id] = _Reach(account.least, account.most)
            reach.move(delta)
        if self.writes_jobs and posting.job_id is not None and (delta := held_delta(posting)):
            self._holds.setdefault(posting.job_id, _Reach(0, BALANCE_MAX)).move(delta)

    async def write(self, conn: Connection) -> Any:
        ids = sorted(self._reaches)
        reaches, holds = [self._reaches[id] for id in ids], self._holds.values()
        postings = [posting for posting in self.postings for _ in posting.legs]
        legs = [leg for posting in self.postings for leg in posting.legs]
        return await _q.post_all(
            conn,
            # One key twice in a batch: the second is judged by the first.
            may_write=len({posting.key for posting in self.postings}) == len(self.postings),
            at=self._at,
            account_ids=to_text_array(ids),
            at_least=to_array([reach.at_least for reach in reaches]),
            at_most=to_array([reach.at_most for reach in reaches]),
            job_ids=to_array(list(self._holds)),
            held_at_least=to_array([reach.at_least for reach in holds]),
            keys=to_text_array([posting.key for posting in postings]),
            legs=to_array([number for posting in self.postings for number in range(len(posting.legs))]),
            kinds=to_array([posting.kind for posting in postings]),
            source_ids=to_text_array([leg.source.id for leg in legs]),
            target_ids=to_text_array([leg.target.id for leg in legs]),
            amounts=to_array([leg.amount for leg in legs]),
            leg_job_ids=_to_subject_array([posting.job_id for posting in postings]),
            attempt_ids=_to_subject_array([posting.attempt_id for posting in postings]),
            payout_ids=_to_subject_array([posting.payout_id for posting in postings]),
            top_up_ids=_to_subject_array([posting.top_up_id for posting in postings]),
        )


def _to_subject_array(ids: list[Any]) -> str:
    """Most are about few kinds of subjects; PostgreSQL fills up what is missing with nulls."""
    return "{}" if ids.count(None) == len(ids) else to_array(ids)


class _Reach:
    """What a balance must be within, so that it stays within its range however far it is moved on the way."""

    __slots__ = ("_highest", "_least", "_lowest", "_most", "_now")

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._now = self._lowest = self._highest = 0

    def move(self, delta: int) -> None:
        self._now += delta
        if self._now < self._lowest:
            self._lowest = self._now
        elif self._now > self._highest:
            self._highest = self._now

    @property
    def at_least(self) -> int:
        return min(_FAR, self._least - self._lowest)

    @property
    def at_most(self) -> int:
        return max(-_FAR, self._most - self._highest)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a batch touches of the books, locked."""

    balances: Mapping[str, int]
    # None: the caller judges holds.
    held_remaining: Mapping[JobId, int] | None
    postings: Mapping[str, Posting]

    def get_balance(self, account: LedgerAccount) -> int:
        return self.balances[account.id]

    def get_held_remaining(self, job_id: JobId) -> int:
        return BALANCE_MAX if self.held_remaining is None else self.held_remaining[job_id]

    def find_posting(self, key: str) -> Posting | None:
        return self.postings.get(key)


async def _load(conn: Connection, batch: _Batch, answer: Any) -> _Loaded:
    held = {JobId(UUID(id)): amount for id, amount in msgspec.json.decode(answer["held"] or "{}").items()}
    for job_id in batch.job_ids:
        if job_id not in held:
            raise NotFound(f"There is no job {job_id} to hold credits for.")
    # Looked up anew: a twin may have been committed while this batch waited for its locks.
    known = await find_postings(conn, {posting.key for posting in batch.postings})
    return _Loaded(msgspec.json.decode(answer["balances"]), held if batch.writes_jobs else None, known)


async def _name_outcomes(
    conn: Connection, postings: Sequence[Posting], posted_keys: Sequence[str] | None
) -> list[Outcome | Refusal]:
    """None: all were posted. Otherwise some had a twin that was committed while they waited for their locks."""
    if posted_keys is None:
        return [Outcome.POSTED] * len(postings)
    posted = set(posted_keys)
    twins = await find_postings(conn, {p.key for p in postings if p.key not in posted})
    draft = Draft(_Loaded({}, None, twins))
    outcomes: list[Outcome | Refusal] = []
    for posting in postings:
        if posting.key not in posted:
            outcomes.append(draft.take(posting))
        elif posted_keys.count(posting.key) == len(posting.legs):
            outcomes.append(Outcome.POSTED)
        else:
            raise HubUnavailable("Somebody else is writing something else into the books. Try again.")
    return outcomes


def _to_transfer(row: Any) -> Transfer:
    return read_record(
        Transfer,
        row,
        kind=TransferKind(row["kind"]),
        source=account_from_id(row["source_id"]),
        target=account_from_id(row["target_id"]),
    )
