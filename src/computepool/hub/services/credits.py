"""An account's own money: what it has, paying in, being paid out, spending what it earned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid5

from computepool.core.errors import IdempotencyMismatch
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import AccountKind, accounts_of, owner_available
from computepool.core.ledger.refusal import InsufficientCredits, Refusal, RefusalCode, to_error
from computepool.core.payments.cash import CashTerms
from computepool.core.payments.errors import CurrencyMismatch
from computepool.core.placement.price import format_credits
from computepool.hub.payments.port import Providers
from computepool.hub.services import payouts, top_ups
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.cash_terms import CashBook
from computepool.hub.services.debts import collect_debts
from computepool.hub.services.freezes import check_not_frozen
from computepool.hub.store import disputes as dispute_store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.payments import PayoutDetails, StoredPayout, StoredTopUp


@dataclass(frozen=True, slots=True)
class Credits:
    """All in microcredits."""

    # To be spent on jobs.
    available: int
    # Set aside for jobs that are not finished.
    held: int
    # Earned, and not beyond the holdback.
    pending: int
    # Of what is pending: frozen by a dispute.
    disputed: int
    # To be cashed out, or spent.
    earned: int
    owed: int
    frozen_at: datetime | None
    terms: CashTerms


async def get_credits(pool: Pool, book: CashBook, caller: AccountCaller) -> Credits:
    async with pool.acquire() as conn:
        found = await ledger_store.get_balances(conn, accounts_of(caller.account_id))
        frozen = await store.list_frozen(conn, [caller.account_id])
        disputed = await dispute_store.sum_frozen(conn, caller.account_id)
    balances = {account.kind: balance for account, balance in found.items()}
    return Credits(
        available=balances[AccountKind.SUBMITTER_AVAILABLE],
        held=balances[AccountKind.SUBMITTER_HELD],
        pending=balances[AccountKind.OWNER_PENDING],
        disputed=disputed,
        earned=balances[AccountKind.OWNER_AVAILABLE],
        owed=-balances[AccountKind.RECEIVABLE],
        frozen_at=frozen.get(caller.account_id),
        terms=book.for_country(await _find_country(pool, caller.account_id)),
    )


async def request_top_up(
    pool: Pool,
    providers: Providers,
    book: CashBook,
    caller: AccountCaller,
    *,
    amount_microcredits: int,
    currency: str | None,
    idempotency_key: str,
) -> StoredTopUp:
    terms = book.for_top_up(await _find_country(pool, caller.account_id), currency)
    return await top_ups.request_top_up(
        pool,
        providers.default.adapter,
        terms,
        caller,
        amount_microcredits=amount_microcredits,
        currency=terms.currency,
        idempotency_key=idempotency_key,
    )


async def set_payout_details(
    pool: Pool, book: CashBook, caller: AccountCaller, *, region: str, currency: str | None, destination: str
) -> PayoutDetails:
    """The region decides in which currency it is paid."""
    paid_in = book.for_country(region).currency
    if currency not in (None, paid_in):
        raise CurrencyMismatch(f"Payouts to {region[:10]!r} are made in {paid_in}.")
    return await payouts.set_payout_details(pool, caller, region=region, currency=paid_in, destination=destination)


async def request_payout(
    pool: Pool,
    providers: Providers,
    book: CashBook,
    caller: AccountCaller,
    *,
    amount_microcredits: int,
    currency: str | None,
    idempotency_key: str,
) -> StoredPayout:
    terms = book.for_country(await _find_country(pool, caller.account_id))
    try:
        return await payouts.request_payout(
            pool,
            providers.default.name,
            terms,
            caller,
            amount_microcredits=amount_microcredits,
            currency=currency or terms.currency,
            idempotency_key=idempotency_key,
        )
    except InsufficientCredits:
        raise await _make_shortage(pool, caller.account_id, amount_microcredits) from None


async def spend_earnings(
    pool: Pool, caller: AccountCaller, *, amount_microcredits: int, idempotency_key: str
) -> None:
    """Earnings become credits for jobs. Whoever owes pays that first. The same key again changes nothing."""
    top_ups.check_key(idempotency_key)
    account_id = caller.account_id
    # A name of its own for each key of each account: the ledger itself remembers what was posted under it.
    spend_id = uuid5(account_id, idempotency_key)
    posting = verbs.spend_earnings(spend_id=spend_id, account_id=account_id, amount=amount_microcredits)
    await collect_debts(pool, [account_id])
    async with pool.acquire() as conn, conn.transaction():
        await check_not_frozen(conn, account_id)
        outcome = posting if isinstance(posting, Refusal) else (await ledger_store.post(conn, [posting]))[0]
    if not isinstance(outcome, Refusal):
        return
    if outcome.code is RefusalCode.INSUFFICIENT_CREDITS:
        raise await _make_shortage(pool, account_id, amount_microcredits)
    if outcome.code is RefusalCode.DIFFERING_REPLAY:
        raise IdempotencyMismatch("This idempotency key was used for another amount. Use a new key for a new one.")
    raise to_error(outcome)


async def _make_shortage(pool: Pool, account_id: AccountId, wanted: int) -> InsufficientCredits:
    account = owner_available(account_id)
    async with pool.acquire() as conn:
        earned = (await ledger_store.get_balances(conn, [account]))[account]
    return InsufficientCredits(
        f"You have earned {format_credits(earned)} credits that are yours to use by now, less than the "
        f"{format_credits(wanted)} that you ask for.",
        earned_microcredits=earned,
    )


async def _find_country(pool: Pool, account_id: AccountId) -> str | None:
    async with pool.acquire() as conn:
        details = await store.find_details(conn, account_id)
    return details.region if details else None
