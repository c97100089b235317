"""Frozen accounts: they may top up, and neither submit nor be paid out until the operator has decided."""

from __future__ import annotations

from uuid import UUID

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId
from computepool.core.payments.limits import find_frozen_refusal
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.payments import Freeze

WHY_LENGTH_MAX = 300


async def freeze(conn: Connection, account_id: AccountId, *, why: str, top_up_id: UUID | None = None) -> None:
    """In the transaction of what it is frozen for. An account that is frozen stays so."""
    why = why[:WHY_LENGTH_MAX]
    id = entropy.new_id()
    if not await store.insert_freeze(conn, id=id, account_id=account_id, why=why, top_up_id=top_up_id):
        return
    body = {"why": why, "top_up_id": str(top_up_id) if top_up_id else None}
    await event_store.record_events(conn, [NewEvent(kind="account_frozen", account_id=account_id, body=body)])
    await hub_store.record_change(conn, ChangeKind.ACCOUNT, account_id)


async def lift_freeze(pool: Pool, caller: AccountCaller, account_id: AccountId) -> None:
    async with pool.acquire() as conn, conn.transaction():
        if not await store.lift_freeze(conn, account_id=account_id, lifted_by=caller.account_id):
            raise NotFound("There is no such account, or it is not frozen.")
        event = NewEvent(kind="freeze_lifted", account_id=account_id, body={"by": str(caller.account_id)})
        await event_store.record_events(conn, [event])
        await hub_store.record_change(conn, ChangeKind.ACCOUNT, account_id)


async def list_freezes(pool: Pool, *, after: UUID, limit: int) -> list[Freeze]:
    async with pool.acquire() as conn:
        return await store.list_freezes(conn, after=after, limit=limit)


async def check_not_frozen(conn: Connection, account_id: AccountId) -> None:
    """Raises AccountFrozen: for everything that a frozen account must not do."""
    frozen = await store.list_frozen(conn, [account_id])
    refusal = find_frozen_refusal(frozen.get(account_id))
    if refusal is not None:
        raise refusal
