"""Top-ups: cash that comes in for credits, and what happens when it is taken back."""

from __future__ import annotations

from uuid import UUID

from computepool import entropy
from computepool.core.errors import ComputePoolError, IdempotencyMismatch, InvalidRequest, NotFound
from computepool.core.ledger.amount import to_amount
from computepool.core.payments.cash import Cash, CashTerms, to_cash
from computepool.core.payments.claim import Claim, Doubt, TopUp, judge_top_up_claim
from computepool.core.payments.errors import CurrencyMismatch, PaymentRefused
from computepool.core.payments.limits import find_top_up_refusal
from computepool.core.payments.top_up import TopUpState, TopUpStep, TopUpWord
from computepool.hub.payments.port import PaymentAdapter, TopUpOrder
from computepool.hub.services import cash as cash_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.cash import CashShort
from computepool.hub.services.freezes import freeze
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.payments import StoredTopUp

KEY_LENGTH = range(1, 201)
PAID_BACK = frozenset({TopUpState.REFUNDED, TopUpState.CHARGED_BACK, TopUpState.PAID_BACK_TWICE})


async def request_top_up(
    pool: Pool,
    adapter: PaymentAdapter,
    terms: CashTerms,
    caller: AccountCaller,
    *,
    amount_microcredits: int,
    currency: str,
    idempotency_key: str,
) -> StoredTopUp:
    """Where and how to pay stands in the answer. The same key again gives the same top-up again."""
    cash = price_request(amount_microcredits, currency, terms)
    check_key(idempotency_key)
    async with pool.acquire() as conn, conn.transaction():
        top_up = await _get_or_insert(conn, adapter.name, terms, caller, cash, idempotency_key)
    if top_up.provider_reference is not None or top_up.state is not TopUpState.REQUESTED:
        return top_up
    # Harmless to repeat, for whoever repeats the request after this has failed.
    opened = await adapter.create_top_up(TopUpOrder(top_up.id, cash.currency, cash.minor))
    async with pool.acquire() as conn, conn.transaction():
        await store.open_top_up(
            conn,
            id=top_up.id,
            reference=opened.reference,
            pay_url=opened.pay_url,
            instructions=opened.instructions,
        )
        found = await store.find_top_up(conn, top_up.id)
    assert found is not None
    return found


async def get_top_up(pool: Pool, caller: AccountCaller, top_up_id: UUID) -> StoredTopUp:
    async with pool.acquire() as conn:
        top_up = await store.find_top_up(conn, top_up_id)
    if top_up is None or top_up.account_id != caller.account_id:
        raise NotFound("There is no such top-up.")
    return top_up


async def list_top_ups(pool: Pool, caller: AccountCaller, *, before: UUID, limit: int) -> list[StoredTopUp]:
    """Newest first."""
    async with pool.acquire() as conn:
        return await store.list_top_ups(conn, account_id=caller.account_id, before=before, limit=limit)


async def refund_top_up(pool: Pool, caller: AccountCaller, top_up_id: UUID) -> StoredTopUp:
    """By the operator, who sends the cash back after this has answered: first the credits are taken, or refused.

    Raises InsufficientCredits when they are spent.
    """
    async with pool.acquire() as conn, conn.transaction():
        top_up = await store.lock_top_up(conn, top_up_id)
        if top_up is None:
            raise NotFound("There is no such top-up.")
        if top_up.state is TopUpState.REFUNDED:
            return top_up
        if top_up.state is not TopUpState.PAID:
            raise PaymentRefused(f"Only a paid top-up can be refunded; this one is {top_up.state.value}.")
        await cash_service.post_refund_of_unspent(conn, top_up)
        await _write_state(conn, top_up, TopUpState.REFUNDED, reference="", by=caller)
        found = await store.find_top_up(conn, top_up_id)
    assert found is not None
    return found


async def apply_claim(conn: Connection, top_up: StoredTopUp, claim: Claim, *, provider: str) -> bool | Doubt:
    """Whether it told anything new, or why it is not believed. The caller holds the lock of the top-up."""
    known = TopUp(top_up.provider, top_up.cash, top_up.state)
    steps = judge_top_up_claim(known, claim, provider=provider)
    if isinstance(steps, Doubt):
        return steps
    if not steps:
        return False
    try:
        # What is refused leaves no half of it behind.
        async with conn.transaction():
            for step in steps:
                await _take_step(conn, top_up, step, reference=claim.reference)
    except CashShort:
        await freeze(conn, top_up.account_id, why=_say_taken_back(top_up), top_up_id=top_up.id)
        return Doubt.CASH_SHORT
    return True


def price_request(amount_microcredits: int, currency: str, terms: CashTerms) -> Cash:
    if currency != terms.currency:
        raise CurrencyMismatch(f"Money moves in {terms.currency} here, not in {currency[:10]!r}.")
    return to_cash(to_amount(amount_microcredits), terms)


def check_key(idempotency_key: str) -> None:
    if len(idempotency_key) not in KEY_LENGTH or not idempotency_key.isprintable():
        raise InvalidRequest(
            f"Give an idempotency key of {KEY_LENGTH[0]} to {KEY_LENGTH[-1]} characters, so that a repeated request "
            "does not move money twice."
        )


async def _get_or_insert(
    conn: Connection, provider: str, terms: CashTerms, caller: AccountCaller, cash: Cash, key: str
) -> StoredTopUp:
    await store.lock_account(conn, caller.account_id)
    known = await store.find_top_up_by_key(conn, account_id=caller.account_id, idempotency_key=key)
    if known is not None:
        if (known.cash.currency, known.cash.minor, known.provider) != (cash.currency, cash.minor, provider):
            raise IdempotencyMismatch(
                "This idempotency key was used for another top-up. Use a new key for a new one.",
                top_up_id=str(known.id),
            )
        return known
    moved = await store.sum_top_ups(conn, caller.account_id)
    now = await hub_store.get_now(conn)
    refusal: ComputePoolError | None = find_top_up_refusal(cash, terms=terms, moved=moved, now=now)
    if refusal is not None:
        raise refusal
    id = entropy.new_id()
    await store.insert_top_up(
        conn, id=id, account_id=caller.account_id, idempotency_key=key, provider=provider, cash=cash
    )
    top_up = await store.find_top_up(conn, id)
    assert top_up is not None
    await event_store.record_events(conn, [_to_event("top_up_requested", top_up)])
    return top_up


async def _take_step(conn: Connection, top_up: StoredTopUp, step: TopUpStep, *, reference: str) -> None:
    if step.word is TopUpWord.PAID:
        await cash_service.post_paid(conn, top_up)
    elif step.word in (TopUpWord.REFUNDED, TopUpWord.CHARGED_BACK):
        is_owed = await cash_service.post_taken_back(conn, top_up, step.word)
        if is_owed or step.word is TopUpWord.CHARGED_BACK:
            await freeze(conn, top_up.account_id, why=_say_taken_back(top_up), top_up_id=top_up.id)
    await _write_state(conn, top_up, step.state, reference=reference)


async def _write_state(
    conn: Connection, top_up: StoredTopUp, state: TopUpState, *, reference: str, by: AccountCaller | None = None
) -> None:
    await store.change_top_up(
        conn,
        id=top_up.id,
        state=state,
        reference=reference,
        paid=state not in (TopUpState.REQUESTED, TopUpState.FAILED),
        paid_back=state in PAID_BACK,
    )
    await event_store.record_events(conn, [_to_event(f"top_up_{state.value}", top_up, by=by)])


def _to_event(kind: str, top_up: StoredTopUp, *, by: AccountCaller | None = None) -> NewEvent:
    body = {
        "top_up_id": str(top_up.id),
        "amount_microcredits": top_up.cash.microcredits,
        "amount_minor": top_up.cash.minor,
        "currency": top_up.cash.currency,
        "provider": top_up.provider,
        "by": str(by.account_id) if by else None,
    }
    return NewEvent(kind=kind, account_id=top_up.account_id, body=body)


def _say_taken_back(top_up: StoredTopUp) -> str:
    return f"the cash of top-up {top_up.id} was taken back"
