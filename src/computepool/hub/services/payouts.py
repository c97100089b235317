"""Payouts: from an owner's request to cash at the bank, and back again where it must.

Nothing is ever sent twice: `sent` is committed before the provider is called, it is written once, and what comes of
a call that got no answer is asked for and never guessed.
"""

from __future__ import annotations

import logging
import re
from uuid import UUID

from computepool import entropy
from computepool.core.errors import IdempotencyMismatch, InvalidRequest, NotFound
from computepool.core.ids import AccountId
from computepool.core.payments.cash import Cash, CashTerms, is_currency
from computepool.core.payments.claim import Claim, Doubt, Payout, judge_payout_claim
from computepool.core.payments.errors import PaymentRefused, PayoutDetailsMissing, ProviderUnavailable
from computepool.core.payments.limits import DetailsInForce, find_payout_refusal, find_standing_refusal, is_covered
from computepool.core.payments.payout import PAYOUT_LIFE, PayoutState, PayoutStep, PayoutWord
from computepool.hub.payments.port import CallOutcome, PayoutAnswer, PayoutOrder, Provider, Providers, SubjectKind
from computepool.hub.services import cash as cash_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.cash import CashShort
from computepool.hub.services.top_ups import check_key, price_request
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.payments import PayoutDetails, StoredPayout

log = logging.getLogger("computepool.payments")

DESTINATION_LENGTH = range(3, 501)
WHY_LENGTH_MAX = 300
_REGION = re.compile(r"[A-Z]{2}\Z", re.ASCII)

_WORDS = {
    CallOutcome.ACCEPTED: PayoutWord.ACCEPTED,
    CallOutcome.REFUSED: PayoutWord.FAILED,
    CallOutcome.NOT_SENT: PayoutWord.FAILED,
    CallOutcome.UNKNOWN: PayoutWord.NO_ANSWER,
}


# Where it goes


async def set_payout_details(
    pool: Pool, caller: AccountCaller, *, region: str, currency: str, destination: str
) -> PayoutDetails:
    """For requests after the cool-off. Payouts that were asked for before go where they were to go."""
    if not _REGION.match(region) or not is_currency(currency):
        raise InvalidRequest("region is an ISO-2 code such as IN, currency an ISO 4217 code such as INR.")
    if len(destination) not in DESTINATION_LENGTH or not destination.isprintable():
        raise InvalidRequest(
            f"destination has {DESTINATION_LENGTH[0]} to {DESTINATION_LENGTH[-1]} printable characters."
        )
    async with pool.acquire() as conn, conn.transaction():
        await store.lock_account(conn, caller.account_id)
        known = await store.find_details(conn, caller.account_id)
        if known is not None and (known.region, known.currency, known.destination) == (region, currency, destination):
            return known
        await store.insert_details(
            conn,
            id=entropy.new_id(),
            account_id=caller.account_id,
            region=region,
            currency=currency,
            destination=destination,
        )
        # The destination itself is nobody else's business: it stays out of the feed.
        await event_store.record_events(
            conn, [NewEvent(kind="payout_details_changed", account_id=caller.account_id, body={"region": region})]
        )
        details = await store.find_details(conn, caller.account_id)
    assert details is not None
    return details


async def get_payout_details(pool: Pool, caller: AccountCaller) -> PayoutDetails:
    async with pool.acquire() as conn:
        details = await store.find_details(conn, caller.account_id)
    if details is None:
        raise NotFound("You have not said yet where your money should go.")
    return details


# Asking for it


async def request_payout(
    pool: Pool,
    provider: str,
    terms: CashTerms,
    caller: AccountCaller,
    *,
    amount_microcredits: int,
    currency: str,
    idempotency_key: str,
) -> StoredPayout:
    """Sets the credits aside; the operator approves. The same key again gives the same payout again."""
    cash = price_request(amount_microcredits, currency, terms)
    check_key(idempotency_key)
    async with pool.acquire() as conn, conn.transaction():
        await store.lock_account(conn, caller.account_id)
        known = await store.find_payout_by_key(conn, account_id=caller.account_id, idempotency_key=idempotency_key)
        if known is not None:
            return _check_same(known, amount_microcredits, currency)
        details = await _check_request(conn, caller.account_id, cash, terms)
        id = entropy.new_id()
        await store.insert_payout(
            conn,
            id=id,
            account_id=caller.account_id,
            idempotency_key=idempotency_key,
            asked_microcredits=amount_microcredits,
            provider=provider,
            details_id=details.id,
            cash=cash,
        )
        payout = await _get(conn, id)
        await event_store.record_events(conn, [_to_event("payout_requested", payout)])
        await _take_word(conn, payout, PayoutWord.RESERVED)
        return await _get(conn, id)


async def cancel_payout(pool: Pool, caller: AccountCaller, payout_id: UUID) -> StoredPayout:
    """By the owner, as long as it is not sent."""
    async with pool.acquire() as conn, conn.transaction():
        payout = await store.lock_payout(conn, payout_id)
        if payout is None or payout.account_id != caller.account_id:
            raise NotFound("There is no such payout.")
        await _take_word(conn, payout, PayoutWord.CANCELLED, failure="cancelled by the owner")
        return await _get(conn, payout_id)


async def get_payout(pool: Pool, caller: AccountCaller, payout_id: UUID) -> StoredPayout:
    async with pool.acquire() as conn:
        payout = await store.find_payout(conn, payout_id)
    if payout is None or payout.account_id != caller.account_id:
        raise NotFound("There is no such payout.")
    return payout


async def list_payouts(pool: Pool, caller: AccountCaller, *, before: UUID, limit: int) -> list[StoredPayout]:
    """Newest first."""
    async with pool.acquire() as conn:
        return await store.list_payouts(conn, account_id=caller.account_id, before=before, limit=limit)


# The operator's side


async def list_payouts_in_state(pool: Pool, *, state: PayoutState, after: UUID, limit: int) -> list[StoredPayout]:
    """Of all accounts, oldest first."""
    async with pool.acquire() as conn:
        return await store.list_payouts_in_state(conn, state=state, after=after, limit=limit)


async def approve_payout(pool: Pool, caller: AccountCaller, payout_id: UUID) -> StoredPayout:
    async with pool.acquire() as conn, conn.transaction():
        payout = await _lock(conn, payout_id)
        if payout.state is PayoutState.APPROVED:
            return payout
        refusal = find_standing_refusal(await cash_service.get_standing(conn, payout.account_id))
        if refusal is not None:
            raise refusal
        await _take_word(conn, payout, PayoutWord.APPROVED, by=caller.account_id)
        return await _get(conn, payout_id)


async def refuse_payout(pool: Pool, caller: AccountCaller, payout_id: UUID, *, why: str) -> StoredPayout:
    """As long as it is not sent; the credits go back to the owner, who reads why."""
    if not 1 <= len(why) <= WHY_LENGTH_MAX or not why.isprintable():
        raise InvalidRequest(f"Say why, in 1 to {WHY_LENGTH_MAX} printable characters: the owner reads it.")
    async with pool.acquire() as conn, conn.transaction():
        payout = await _lock(conn, payout_id)
        await _take_word(conn, payout, PayoutWord.REFUSED, failure=f"refused: {why}", by=caller.account_id)
        return await _get(conn, payout_id)


# Sending it


async def send_payouts(pool: Pool, providers: Providers, *, limit: int) -> int:
    """Those that are approved. Returns how many were handed out. A provider that is away is not tried further."""
    async with pool.acquire() as conn:
        waiting = await store.take_payouts_to_send(conn, limit=limit)
    sent, away = 0, set[str]()
    for payout in waiting:
        if payout.provider in away or payout.provider not in providers.names:
            continue
        try:
            sent += await send_payout(pool, providers.get(payout.provider), payout.id)
        except ProviderUnavailable as error:
            away.add(payout.provider)
            log.warning("payouts_not_sent provider=%s error=%s", payout.provider, error)
    return sent


async def send_payout(pool: Pool, provider: Provider, payout_id: UUID) -> bool:
    """False: it may not be sent, or is sent already. Raises ProviderUnavailable before anything was written.

    The provider is asked first: if it does not answer, nothing is risked, and if it knows the payout already, as
    after a backup was restored, it is not told again.
    """
    adapter = provider.adapter
    known = await adapter.get_status(SubjectKind.PAYOUT, payout_id) if adapter.can_be_asked else None
    order = await _mark_sent(pool, payout_id)
    if order is None:
        return False
    if known is None:
        answer = await adapter.request_payout(order)
    else:
        answer = PayoutAnswer(CallOutcome.ACCEPTED, reference=known.reference)
    await _record_answer(pool, payout_id, answer)
    return True


async def apply_claim(conn: Connection, payout: StoredPayout, claim: Claim, *, provider: str) -> bool | Doubt:
    """Whether it told anything new, or why it is not believed. The caller holds the lock of the payout."""
    known = Payout(payout.provider, payout.cash, payout.state, payout.sent_at)
    steps = judge_payout_claim(known, claim, provider=provider)
    if isinstance(steps, Doubt):
        return steps
    try:
        # What is refused leaves no half of it behind.
        async with conn.transaction():
            for step in steps:
                await _take_step(conn, payout, step, failure="the provider could not pay it out")
            end = steps[-1].state if steps else payout.state
            await store.change_payout(conn, id=payout.id, state=end, reference=claim.reference, acknowledged=True)
    except CashShort:
        return Doubt.CASH_SHORT
    return bool(steps)


async def fail_unheard(conn: Connection, payout: StoredPayout) -> None:
    """The provider has never heard of it, and never will. The caller holds the lock of the payout."""
    await _take_word(conn, payout, PayoutWord.FAILED, failure="the provider never received it; nothing was sent")


async def mark_unanswered(conn: Connection, payout: StoredPayout) -> None:
    """Sent by a hub that died before the provider answered it. The caller holds the lock of the payout."""
    if payout.state is PayoutState.SENT and payout.acknowledged_at is None:
        await _take_word(conn, payout, PayoutWord.NO_ANSWER)


async def _mark_sent(pool: Pool, payout_id: UUID) -> PayoutOrder | None:
    async with pool.acquire() as conn, conn.transaction():
        payout = await _lock(conn, payout_id)
        if payout.state is not PayoutState.APPROVED:
            return None
        refusal = find_standing_refusal(await cash_service.get_standing(conn, payout.account_id))
        if refusal is not None:
            log.info("payout_waits payout_id=%s reason=%s", payout_id, refusal.code)
            return None
        cash_held = await cash_service.get_cash_held(conn)
        in_flight = await store.sum_in_flight(conn)
        if not is_covered(payout.cash, cash_held_microcredits=cash_held, in_flight_microcredits=in_flight):
            log.warning("payout_waits payout_id=%s reason=cash_short", payout_id)
            return None
        details = await store.get_details(conn, payout.details_id)
        await _take_word(conn, payout, PayoutWord.SENT)
    return PayoutOrder(payout.id, payout.cash.currency, payout.cash.minor, details.destination)


async def _record_answer(pool: Pool, payout_id: UUID, answer: PayoutAnswer) -> None:
    async with pool.acquire() as conn, conn.transaction():
        payout = await _lock(conn, payout_id)
        word = _WORDS[answer.outcome]
        steps = PAYOUT_LIFE.plan(payout.state, word)
        if steps is None:
            # The provider's word came before its answer and says otherwise. The word stands, and this is kept.
            await event_store.record_events(conn, [_to_event("payout_answer_contradicts", payout, why=answer.why)])
            return
        for step in steps:
            await _take_step(conn, payout, step, failure=_say_failure(answer))
        if answer.outcome is CallOutcome.ACCEPTED:
            end = steps[-1].state if steps else payout.state
            await store.change_payout(conn, id=payout_id, state=end, reference=answer.reference, acknowledged=True)


# Steps


async def _take_word(
    conn: Connection,
    payout: StoredPayout,
    word: PayoutWord,
    *,
    failure: str = "",
    by: AccountId | None = None,
) -> None:
    steps = PAYOUT_LIFE.plan(payout.state, word)
    if not steps:
        raise PaymentRefused(
            f"This payout is {payout.state.value}: it cannot be {word.value} any more.", state=payout.state.value
        )
    for step in steps:
        await _take_step(conn, payout, step, failure=failure, by=by)


async def _take_step(
    conn: Connection,
    payout: StoredPayout,
    step: PayoutStep,
    *,
    failure: str = "",
    by: AccountId | None = None,
) -> None:
    await cash_service.post_payout_step(conn, payout, step.state)
    await store.change_payout(
        conn,
        id=payout.id,
        state=step.state,
        approved_by=by if step.state is PayoutState.APPROVED else None,
        failure=failure[:WHY_LENGTH_MAX] if step.state is PayoutState.FAILED else None,
    )
    why = failure if step.state is PayoutState.FAILED else ""
    await event_store.record_events(conn, [_to_event(f"payout_{step.state.value}", payout, why=why, by=by)])


async def _check_request(conn: Connection, account_id: AccountId, cash: Cash, terms: CashTerms) -> PayoutDetails:
    details = await store.find_details(conn, account_id)
    refusal = find_payout_refusal(
        cash,
        terms=terms,
        standing=await cash_service.get_standing(conn, account_id),
        details=DetailsInForce(details.currency, details.created_at) if details else None,
        moved=await store.sum_payouts(conn, account_id),
        now=await hub_store.get_now(conn),
    )
    if refusal is not None:
        raise refusal
    if details is None:
        raise PayoutDetailsMissing("Set your payout details first.")
    return details


def _check_same(known: StoredPayout, amount_microcredits: int, currency: str) -> StoredPayout:
    if (known.asked_microcredits, known.cash.currency) != (amount_microcredits, currency):
        raise IdempotencyMismatch(
            "This idempotency key was used for another payout. Use a new key for a new one.", payout_id=str(known.id)
        )
    return known


async def _lock(conn: Connection, payout_id: UUID) -> StoredPayout:
    payout = await store.lock_payout(conn, payout_id)
    if payout is None:
        raise NotFound("There is no such payout.")
    return payout


async def _get(conn: Connection, payout_id: UUID) -> StoredPayout:
    payout = await store.find_payout(conn, payout_id)
    assert payout is not None
    return payout


def _say_failure(answer: PayoutAnswer) -> str:
    if answer.outcome is CallOutcome.NOT_SENT:
        return "the provider could not be reached; nothing was sent"
    return f"refused by the provider: {answer.why}" if answer.why else "refused by the provider"


def _to_event(kind: str, payout: StoredPayout, *, why: str = "", by: AccountId | None = None) -> NewEvent:
    body = {
        "payout_id": str(payout.id),
        "amount_microcredits": payout.cash.microcredits,
        "amount_minor": payout.cash.minor,
        "currency": payout.cash.currency,
        "provider": payout.provider,
        "why": why[:WHY_LENGTH_MAX],
        "by": str(by) if by else None,
    }
    return NewEvent(kind=kind, account_id=payout.account_id, body=body)
