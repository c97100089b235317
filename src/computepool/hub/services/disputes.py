"""Disputes over pay, and pay that is taken back: opened by submitters and the hub, decided by the operator.

Whoever opens or decides holds the lock of the attempt, which a release takes too: pay is frozen, released or taken
back, one of them. Accounts of the ledger are locked after it, like everywhere, so that a payout is reserved before
the pay is taken back, and is owed for, or finds nothing to reserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    owner_available,
    owner_pending,
    receivable,
    submitter_available,
)
from computepool.core.ledger.dispute import (
    DisputeOrigin,
    DisputeRefused,
    DisputeSide,
    DisputeState,
    check_text,
    find_decision_refusal,
    find_opening_refusal,
)
from computepool.core.ledger.earning import Earning, EarningState, dismiss, dispute
from computepool.core.ledger.refusal import Refusal
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import credits as credit_store
from computepool.hub.store import disputes as store
from computepool.hub.store import events as event_store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store import payments as payment_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.disputes import StoredDispute
from computepool.hub.store.events import NewEvent

_FEES = SHARDS[AccountKind.FEE]


# Opening


async def open_dispute(
    pool: Pool, caller: AccountCaller, *, job_id: JobId, slice_index: int, number: int | None, reason: str
) -> StoredDispute:
    """By the submitter of the job, as long as the pay is held back. Asking twice gives the same dispute again."""
    check_text(reason, what="Say why")
    async with pool.acquire() as conn, conn.transaction():
        # One of an account at a time, or two would both find room in the same limit.
        await payment_store.lock_account(conn, caller.account_id)
        attempt_id = await store.find_paid_attempt(
            conn, submitter_id=caller.account_id, job_id=job_id, slice_index=slice_index, number=number
        )
        if attempt_id is None:
            raise NotFound("You have no such slice with an attempt that was paid. See computepool statement --job.")
        earning = await _lock_earning(conn, attempt_id)
        own = [each for each in await store.list_of_attempt(conn, attempt_id) if _is_submitters(each)]
        if own and own[0].state is DisputeState.OPEN:
            return own[0]
        open_count = await store.count_open(conn, caller.account_id)
        refusal = find_opening_refusal(earning, was_decided=bool(own), open_count=open_count)
        if refusal is not None:
            raise refusal
        [id] = await freeze_earnings(
            conn, [earning], origin=DisputeOrigin.SUBMITTER, reason=reason, by=caller.account_id
        )
        return await _get(conn, id)


async def freeze_earnings(
    conn: Connection,
    earnings: Sequence[Earning],
    *,
    origin: DisputeOrigin,
    reason: str,
    by: AccountId | None = None,
) -> list[UUID]:
    """Pay that is pending, and locked by the caller's transaction, waits for the operator from now on."""
    if not earnings:
        return []
    for earning in earnings:
        frozen = dispute(earning)
        if isinstance(frozen, Refusal) or frozen == earning:
            raise AssertionError(f"the pay for attempt {earning.attempt_id} is {earning.state.value}, not pending")
    opened = [(entropy.new_id(), earning) for earning in earnings]
    await credit_store.change_earnings(conn, [each.attempt_id for each in earnings], EarningState.DISPUTED)
    await store.insert_disputes(conn, opened, origin=origin, reason=reason, opened_by=by)
    await _tell(conn, "dispute_opened", opened, why=reason)
    return [id for id, _ in opened]


# Looking


async def get_dispute(pool: Pool, caller: AccountCaller, dispute_id: UUID) -> tuple[StoredDispute, DisputeSide]:
    async with pool.acquire() as conn:
        found = await store.find_dispute(conn, dispute_id)
    if found is None or caller.account_id not in (found.submitter_id, found.owner_id):
        raise NotFound("There is no such dispute.")
    return found, _find_side(found, caller)


async def list_disputes(
    pool: Pool, caller: AccountCaller, *, before: UUID, limit: int
) -> list[tuple[StoredDispute, DisputeSide]]:
    """Over the caller's jobs and over pay of the caller's nodes, newest first."""
    async with pool.acquire() as conn:
        found = await store.list_of_party(conn, account_id=caller.account_id, before=before, limit=limit)
    return [(each, _find_side(each, caller)) for each in found]


async def list_disputes_in_state(pool: Pool, *, state: DisputeState, after: UUID, limit: int) -> list[StoredDispute]:
    """Of everybody, oldest first."""
    async with pool.acquire() as conn:
        return await store.list_in_state(conn, state=state, after=after, limit=limit)


# Deciding


async def decide_dispute(
    pool: Pool, caller: AccountCaller, dispute_id: UUID, *, decision: DisputeState, note: str
) -> StoredDispute:
    """Upheld: the submitter gets everything back. Dismissed: the pay is released when its holdback is over."""
    check_text(note, what="Say why you decide so")
    async with pool.acquire() as conn, conn.transaction():
        found = await store.find_dispute(conn, dispute_id)
        if found is None:
            raise NotFound("There is no such dispute.")
        earning = await _lock_earning(conn, found.attempt_id)
        # Anew, under the lock: somebody else may have decided.
        found = await _get(conn, dispute_id)
        refusal = find_decision_refusal(found.state, decision)
        if refusal is not None:
            raise refusal
        if found.state is DisputeState.OPEN:
            await _decide(conn, earning, dispute_id, decision, note=note, by=caller.account_id)
        return await _get(conn, dispute_id)


async def reverse_earning(pool: Pool, caller: AccountCaller, attempt_id: AttemptId, *, reason: str) -> StoredDispute:
    """Late fraud, found by the operator: whatever has become of the pay, it goes back. Once, however often asked."""
    check_text(reason, what="Say why it is taken back")
    async with pool.acquire() as conn, conn.transaction():
        id = await take_back(conn, attempt_id, origin=DisputeOrigin.OPERATOR, reason=reason, by=caller.account_id)
        return await _get(conn, id)


async def take_back(
    conn: Connection, attempt_id: AttemptId, *, origin: DisputeOrigin, reason: str, by: AccountId | None
) -> UUID:
    """The dispute that stands for it: the one that was open, or one that is opened and upheld at once."""
    earning = await _lock_earning(conn, attempt_id)
    known = {each.state: each.id for each in await store.list_of_attempt(conn, attempt_id)}
    if DisputeState.UPHELD in known:
        return known[DisputeState.UPHELD]
    id = known.get(DisputeState.OPEN)
    if id is not None:
        await _decide(conn, earning, id, DisputeState.UPHELD, note=reason, by=by)
        return id
    id = entropy.new_id()
    await store.insert_disputes(conn, [(id, earning)], origin=origin, reason=reason, opened_by=by)
    await _decide(conn, earning, id, DisputeState.UPHELD, note="", by=by, why=reason)
    return id


async def _decide(
    conn: Connection,
    earning: Earning,
    id: UUID,
    decision: DisputeState,
    *,
    note: str,
    by: AccountId | None,
    why: str = "",
) -> None:
    await store.decide_dispute(conn, id, state=decision, note=note, decided_by=by)
    await _tell(conn, f"dispute_{decision.value}", [(id, earning)], why=why or note)
    if decision is DisputeState.UPHELD:
        await credit_store.change_earnings(conn, [earning.attempt_id], EarningState.REVERSED)
        await _post_reversal(conn, earning)
        return
    pending = dismiss(earning)
    if isinstance(pending, Refusal):
        raise AssertionError(pending.words)
    await credit_store.change_earnings(conn, [earning.attempt_id], pending.state)


async def _post_reversal(conn: Connection, earning: Earning) -> None:
    """Comes last: accounts are last in the order of locks."""
    free, owner_id = owner_available(earning.owner_id), earning.owner_id
    touched = [owner_pending(owner_id), free, receivable(owner_id), submitter_available(earning.submitter_id)]
    balances = await ledger_store.lock_balances(conn, [*touched, *_FEES])
    posting = verbs.reverse(
        earning=earning, available=balances[free], fees={shard: balances[shard] for shard in _FEES}
    )
    outcome = posting if isinstance(posting, Refusal) else (await ledger_store.post(conn, [posting]))[0]
    if isinstance(outcome, Refusal):
        raise DisputeRefused(f"The books refuse it: {outcome.words} Nothing was changed.", reason="books")


async def _lock_earning(conn: Connection, attempt_id: AttemptId) -> Earning:
    earning = await credit_store.lock_earning(conn, attempt_id)
    if earning is None:
        raise DisputeRefused("There is no such attempt, or nothing was paid for it.", reason="unpaid")
    return earning


async def _get(conn: Connection, id: UUID) -> StoredDispute:
    found = await store.find_dispute(conn, id)
    assert found is not None
    return found


def _is_submitters(found: StoredDispute) -> bool:
    return found.origin is DisputeOrigin.SUBMITTER


def _find_side(found: StoredDispute, caller: AccountCaller) -> DisputeSide:
    return DisputeSide.SUBMITTER if found.submitter_id == caller.account_id else DisputeSide.OWNER


async def _tell(conn: Connection, kind: str, about: Sequence[tuple[UUID, Earning]], *, why: str) -> None:
    """Both sides, each in their own feed; the job's is the submitter's. Who opened or decided is not told."""
    events: list[NewEvent] = []
    for id, earning in about:
        body = {"dispute_id": str(id), "attempt_id": str(earning.attempt_id), "why": why}
        events.append(NewEvent(kind=kind, account_id=earning.submitter_id, job_id=earning.job_id, body=body))
        events.append(NewEvent(kind=kind, account_id=earning.owner_id, body=body))
    await event_store.record_events(conn, events)
