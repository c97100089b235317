"""What accounts owe for money that was taken back: collected as soon as they have something."""

from __future__ import annotations

from collections.abc import Iterable

from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import receivable
from computepool.hub.services.cash import collect_debt
from computepool.hub.store import credits as store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.connect import Pool


async def collect_debts(pool: Pool, account_ids: Iterable[AccountId]) -> int:
    """Of these accounts, those that owe. Returns how many were asked."""
    by_account = {receivable(account_id): account_id for account_id in account_ids}
    async with pool.acquire() as conn:
        balances = await ledger_store.get_balances(conn, by_account)
    debtors = sorted(by_account[account] for account, balance in balances.items() if balance < 0)
    for account_id in debtors:
        await collect_debt(pool, account_id)
    return len(debtors)


async def collect_all_debts(pool: Pool, *, limit: int) -> int:
    """Of whoever owes and has something. Returns how many were asked."""
    async with pool.acquire() as conn:
        debtors = await store.list_debtors(conn, limit=limit)
    for account_id in debtors:
        await collect_debt(pool, account_id)
    return len(debtors)
