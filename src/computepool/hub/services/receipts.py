"""Receipts: a node's signed statement of the results of one call, checked before anybody is paid for them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import NotFound
from computepool.core.ids import JobId
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import events as event_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import receipts as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.jobs import Job
from computepool.hub.store.receipts import ReceiptState, SignedResult
from computepool.receipts import find_fault


async def verify_receipts(pool: Pool, *, hub_id: UUID, limit: int, time_share: float = 1.0) -> int:
    """Looks at receipts that nobody has looked at. Returns how many.

    It takes this part of the process's time: after each signature, those who wait for an answer have their turn."""
    async with pool.acquire() as conn, conn.transaction():
        receipts = await store.take_unverified(conn, limit=limit)
        if not receipts:
            return 0
        covered = await store.list_covered(conn, [receipt.id for receipt in receipts])
        faults: dict[UUID, str | None] = {}
        for r in receipts:
            started = clock.seconds()
            faults[r.id] = find_fault(
                r.token, covered.get(r.id, {}), node_id=r.node_id, public_key=r.public_key, hub_id=hub_id
            )
            if time_share < 1.0:
                await asyncio.sleep((clock.seconds() - started) * (1 / time_share - 1))
        states = {id: ReceiptState.REFUSED if fault else ReceiptState.VERIFIED for id, fault in faults.items()}
        await store.set_states(conn, states)
        refused = [receipt for receipt in receipts if faults[receipt.id]]
        await event_store.record_events(
            conn,
            [
                NewEvent(kind="receipt_refused", node_id=r.node_id, body={"receipt": str(r.id), "why": faults[r.id]})
                for r in refused
            ],
        )
    return len(receipts)


async def is_overdue(pool: Pool, *, seconds: float) -> bool:
    """Whether some receipt has waited for longer than this."""
    async with pool.acquire() as conn:
        return await store.has_unverified(conn, seconds=seconds)


async def list_signed(
    pool: Pool, caller: AccountCaller, job_id: JobId, *, after: int, limit: int
) -> tuple[Job, list[SignedResult]]:
    """What nodes have signed for a job's results, of whole slices behind `after`.

    Its submitter sees all of it, an owner what their own nodes have signed.
    """
    async with pool.acquire() as conn:
        job = await job_store.find_job(conn, job_id)
        sees_all = job is not None and (job.account_id == caller.account_id or Role.OPERATOR in caller.roles)
        owner_id = None if sees_all else caller.account_id
        if job is None or (
            owner_id is not None and not await store.has_signed(conn, job_id=job_id, owner_id=owner_id)
        ):
            raise NotFound("There is no such job.")
        return job, await store.list_signed(conn, job_id=job_id, owner_id=owner_id, after=after, limit=limit)
