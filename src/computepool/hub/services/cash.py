"""The ledger's side of cash: which postings a step of a top-up or a payout means.

Every function works inside its caller's transaction, after the top-up or payout was locked. All accounts that a step
may touch are locked at once, so that a second posting in the same transaction waits for nobody.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    LedgerAccount,
    owner_available,
    receivable,
    submitter_available,
)
from computepool.core.ledger.refusal import Refusal, RefusalCode, to_error
from computepool.core.ledger.transfer import Posting
from computepool.core.payments.limits import Standing
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpWord
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.payments import StoredPayout, StoredTopUp

_WORLD = SHARDS[AccountKind.WORLD]
_CLEARING = SHARDS[AccountKind.PAYOUT_CLEARING]


class CashShort(Exception):
    """The books hold less cash than has left: it cannot be written down until more has come in."""


async def post_paid(conn: Connection, top_up: StoredTopUp) -> None:
    """An account that owes pays its debt first."""
    id, account_id = top_up.id, top_up.account_id
    await _lock(conn, account_id)
    await _post(conn, verbs.top_up(top_up_id=id, account_id=account_id, amount=top_up.cash.microcredits))
    await _repay(conn, account_id, repay_id=id, with_earnings=False)


async def post_refund_of_unspent(conn: Connection, top_up: StoredTopUp) -> None:
    """Raises InsufficientCredits when some of it is spent."""
    balances = await _lock(conn, top_up.account_id)
    await _post(
        conn,
        verbs.top_up_refund(
            top_up_id=top_up.id,
            account_id=top_up.account_id,
            amount=top_up.cash.microcredits,
            world=_world_of(balances),
        ),
    )


async def post_taken_back(conn: Connection, top_up: StoredTopUp, word: TopUpWord) -> bool:
    """The cash is gone, whatever has become of the credits. Returns whether the account owes for it now."""
    balances = await _lock(conn, top_up.account_id)
    available = balances[submitter_available(top_up.account_id)]
    posting = verbs.chargeback(
        top_up_id=top_up.id,
        account_id=top_up.account_id,
        amount=top_up.cash.microcredits,
        available=available,
        world=_world_of(balances),
    )
    if isinstance(posting, Refusal) and posting.code is RefusalCode.INSUFFICIENT_CREDITS:
        raise CashShort(posting.words)
    if isinstance(posting, Posting) and word is TopUpWord.REFUNDED:
        # Refunded at the provider's: booked like a chargeback, and apart from one that may follow.
        posting = replace(posting, key=f"{top_up.id}/top_up_refund")
    await _post(conn, posting)
    return available < top_up.cash.microcredits


async def post_payout_step(conn: Connection, payout: StoredPayout, state: PayoutState) -> None:
    """What it means for the books that a payout enters this state; for most states nothing."""
    id, account_id, amount = payout.id, payout.account_id, payout.cash.microcredits
    if state is PayoutState.RESERVED:
        await _post(conn, verbs.payout_reserve(payout_id=id, account_id=account_id, amount=amount))
    elif state is PayoutState.CONFIRMED:
        balances = await _lock(conn, account_id)
        posting = verbs.payout_confirm(payout_id=id, amount=amount, world=_world_of(balances))
        if isinstance(posting, Refusal) and posting.code is RefusalCode.INSUFFICIENT_CREDITS:
            raise CashShort(posting.words)
        await _post(conn, posting)
    elif state is PayoutState.FAILED:
        await _post(conn, verbs.payout_fail(payout_id=id, account_id=account_id, amount=amount))
    elif state is PayoutState.RETURNED:
        await _post(conn, verbs.payout_return(payout_id=id, account_id=account_id, amount=amount))


async def collect_debt(pool: Pool, account_id: AccountId) -> int:
    """Takes what an account owes out of what it has, earnings too. Returns what it still owes."""
    async with pool.acquire() as conn, conn.transaction():
        await _lock(conn, account_id)
        await _repay(conn, account_id, repay_id=entropy.new_id(), with_earnings=True)
        return await _get_owed(conn, account_id)


async def get_standing(conn: Connection, account_id: AccountId) -> Standing:
    frozen = await store.list_frozen(conn, [account_id])
    return Standing(frozen.get(account_id), await _get_owed(conn, account_id))


async def get_cash_held(conn: Connection) -> int:
    """In microcredits: what the world outside has given us and has not got back."""
    return -sum((await ledger_store.get_balances(conn, _WORLD)).values())


async def _repay(conn: Connection, account_id: AccountId, *, repay_id: UUID, with_earnings: bool) -> None:
    balances = await _lock(conn, account_id)
    owed = -balances[receivable(account_id)]
    if owed:
        posting = verbs.repay(
            repay_id=repay_id,
            account_id=account_id,
            owed=owed,
            available=balances[submitter_available(account_id)],
            earned=balances[owner_available(account_id)] if with_earnings else 0,
        )
        if isinstance(posting, Posting):
            await _post(conn, posting)


async def _get_owed(conn: Connection, account_id: AccountId) -> int:
    account = receivable(account_id)
    return -(await ledger_store.get_balances(conn, [account]))[account]


async def _lock(conn: Connection, account_id: AccountId) -> dict[LedgerAccount, int]:
    own = (submitter_available(account_id), owner_available(account_id), receivable(account_id))
    return await ledger_store.lock_balances(conn, [*own, *_WORLD, *_CLEARING])


async def _post(conn: Connection, posting: Posting | Refusal) -> None:
    """Raises what the ledger refuses. Whatever was posted before is not posted again."""
    if isinstance(posting, Refusal):
        raise to_error(posting)
    [outcome] = await ledger_store.post(conn, [posting])
    if isinstance(outcome, Refusal):
        raise to_error(outcome)


def _world_of(balances: dict[LedgerAccount, int]) -> dict[LedgerAccount, int]:
    return {account: balances[account] for account in _WORLD}
