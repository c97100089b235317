"""What providers say of top-ups and payouts: heard once, in whatever order, and believed only where it fits.

Whatever was said stands in provider_events with what became of it; what was refused waits for the operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ids import AccountId
from computepool.core.ledger.amount import to_amount
from computepool.core.payments.cash import is_currency
from computepool.core.payments.claim import (
    PAYOUT_WORDS,
    TOP_UP_WORDS,
    Claim,
    ClaimKind,
    Doubt,
    Verdict,
    digest_claim,
)
from computepool.core.payments.errors import PaymentRefused
from computepool.core.payments.webhook import parse_event, verify
from computepool.hub.payments.port import Provider
from computepool.hub.services import payouts, top_ups
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import events as event_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.payments import NewProviderEvent, StoredProviderEvent

NOTE_LENGTH_MAX = 500
_HAND_REFERENCE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,119}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Heard:
    verdict: Verdict
    doubt: Doubt | None = None
    # The very same event was heard before, and this was said of it then.
    repeated: bool = False


async def receive_event(pool: Pool, provider: Provider, *, header: str, body: bytes, now: datetime) -> Heard:
    """A call of the provider. Raises SignatureRefused, InvalidRequest for what is no event of its.

    What is refused with a verdict is kept, and the provider need not repeat it.
    """
    verify(header, body, secrets=provider.secrets, now=now, window_seconds=provider.window_seconds)
    event = parse_event(body)
    return await _hear(pool, provider.name, event.id, event.claim, event.body_sha256)


async def hear_status(pool: Pool, provider: Provider, claim: Claim) -> Heard:
    """What the provider answered when it was asked. The same answer again is the same event again."""
    event_id = f"~status:{claim.subject_id}:{claim.kind}:{claim.amount_minor}:{claim.currency}"
    return await _hear(pool, provider.name, event_id[:200], claim, digest_claim(claim))


async def record_by_hand(
    pool: Pool,
    caller: AccountCaller,
    *,
    kind: ClaimKind,
    subject_id: UUID,
    currency: str,
    amount_minor: int,
    reference: str,
) -> Heard:
    """The operator's word, with the bank's reference, in the provider's stead. Raises PaymentRefused.

    One reference vouches for one thing: a second top-up or payout with the same one is refused.
    """
    if not _HAND_REFERENCE.match(reference):
        raise InvalidRequest("Give the bank's reference, in 1 to 120 plain characters.")
    if not is_currency(currency):
        raise InvalidRequest("currency is an ISO 4217 code such as INR.")
    to_amount(amount_minor)
    claim = Claim(kind.value, subject_id, currency, amount_minor, reference)
    async with pool.acquire() as conn, conn.transaction():
        provider = await _find_provider(conn, claim)
        if provider is None:
            raise NotFound("There is no such top-up or payout.")
        event_id = f"~hand:{kind.value}:{reference}"
        heard = await _hear_once(conn, provider, event_id, claim, digest_claim(claim), said_by=caller.account_id)
        if heard.doubt is not None:
            # They see it at once, and may say it again with what they meant: nothing is kept of it.
            raise PaymentRefused(_SAY_DOUBT[heard.doubt], doubt=heard.doubt.value)
    return heard


async def list_refused_events(pool: Pool, *, limit: int) -> list[StoredProviderEvent]:
    """What no operator has looked at yet, oldest first."""
    async with pool.acquire() as conn:
        return await store.list_refused_events(conn, limit=limit)


async def review_event(pool: Pool, caller: AccountCaller, *, provider: str, event_id: str, note: str) -> None:
    """The operator has looked at a refused event and taken care of it elsewhere."""
    if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
        raise InvalidRequest(f"A note has at most {NOTE_LENGTH_MAX} printable characters.")
    async with pool.acquire() as conn, conn.transaction():
        done = await store.review_event(
            conn, provider=provider, event_id=event_id, reviewed_by=caller.account_id, note=note
        )
        if not done:
            raise NotFound("There is no such event that was refused and not reviewed.")


async def hear_again(pool: Pool, *, provider: str, event_id: str) -> Heard:
    """Judges a refused event anew, by what is known now."""
    async with pool.acquire() as conn, conn.transaction():
        event = await store.lock_refused_event(conn, provider=provider, event_id=event_id)
        if event is None:
            raise NotFound("There is no such event that was refused.")
        heard = _to_heard(await _apply(conn, provider, event.claim))
        await store.change_verdict(
            conn, provider=provider, event_id=event_id, verdict=heard.verdict, doubt=heard.doubt
        )
    return heard


async def hear_short_again(pool: Pool, *, limit: int) -> int:
    """What was refused because the books held too little cash. Returns how many are settled now."""
    async with pool.acquire() as conn:
        short = await store.list_short_events(conn, limit=limit)
    heard = [await hear_again(pool, provider=event.provider, event_id=event.event_id) for event in short]
    return sum(one.verdict is not Verdict.REFUSED for one in heard)


async def _hear(pool: Pool, provider: str, event_id: str, claim: Claim, body_sha256: bytes) -> Heard:
    try:
        return await _hear_in_transaction(pool, provider, event_id, claim, body_sha256)
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "provider_events_pkey":
            raise
        # Another hub was a moment faster with the same event; now it can be seen.
        return await _hear_in_transaction(pool, provider, event_id, claim, body_sha256)


async def _hear_in_transaction(pool: Pool, provider: str, event_id: str, claim: Claim, body_sha256: bytes) -> Heard:
    async with pool.acquire() as conn, conn.transaction():
        return await _hear_once(conn, provider, event_id, claim, body_sha256)


async def _hear_once(
    conn: Connection,
    provider: str,
    event_id: str,
    claim: Claim,
    body_sha256: bytes,
    *,
    said_by: AccountId | None = None,
) -> Heard:
    known = await store.find_provider_event(conn, provider=provider, event_id=event_id)
    if known is not None:
        if known.body_sha256 == body_sha256:
            return Heard(known.verdict, known.doubt, repeated=True)
        await _tell_refusal(conn, provider, event_id, claim, Doubt.REUSED_ID)
        return Heard(Verdict.REFUSED, Doubt.REUSED_ID)
    heard = _to_heard(await _apply(conn, provider, claim))
    await store.insert_provider_event(
        conn, NewProviderEvent(provider, event_id, claim, body_sha256, heard.verdict, heard.doubt, said_by)
    )
    if heard.doubt is not None:
        await _tell_refusal(conn, provider, event_id, claim, heard.doubt)
    return heard


async def _apply(conn: Connection, provider: str, claim: Claim) -> bool | Doubt:
    if claim.kind in TOP_UP_WORDS:
        top_up = await store.lock_top_up(conn, claim.subject_id)
        if top_up is None:
            return Doubt.UNKNOWN_SUBJECT
        return await top_ups.apply_claim(conn, top_up, claim, provider=provider)
    if claim.kind in PAYOUT_WORDS:
        payout = await store.lock_payout(conn, claim.subject_id)
        if payout is None:
            return Doubt.UNKNOWN_SUBJECT
        return await payouts.apply_claim(conn, payout, claim, provider=provider)
    return Doubt.UNKNOWN_KIND


async def _find_provider(conn: Connection, claim: Claim) -> str | None:
    if claim.kind in TOP_UP_WORDS:
        top_up = await store.find_top_up(conn, claim.subject_id)
        return top_up.provider if top_up else None
    payout = await store.find_payout(conn, claim.subject_id)
    return payout.provider if payout else None


async def _tell_refusal(conn: Connection, provider: str, event_id: str, claim: Claim, doubt: Doubt) -> None:
    body = {
        "provider": provider,
        "event_id": event_id,
        "claim": claim.kind,
        "subject_id": str(claim.subject_id),
        "amount_minor": claim.amount_minor,
        "currency": claim.currency,
        "doubt": doubt.value,
    }
    await event_store.record_events(conn, [NewEvent(kind="provider_event_refused", body=body)])


def _to_heard(told: bool | Doubt) -> Heard:
    if isinstance(told, Doubt):
        return Heard(Verdict.REFUSED, told)
    return Heard(Verdict.APPLIED if told else Verdict.OLD_NEWS)


_SAY_DOUBT = {
    Doubt.AMOUNT_MISMATCH: "The amount is not the one that was agreed. Nothing was changed.",
    Doubt.CURRENCY_MISMATCH: "The currency is not the one that was agreed. Nothing was changed.",
    Doubt.CONTRADICTION: "That cannot follow on what is known of it. Look at its state first.",
    Doubt.NEVER_SENT: "This payout was not sent: approve it first.",
    Doubt.OTHER_PROVIDER: "It belongs to another provider.",
    Doubt.UNKNOWN_SUBJECT: "There is no such top-up or payout.",
    Doubt.UNKNOWN_KIND: "Nobody knows what that means.",
    Doubt.REUSED_ID: "This reference vouches for something else already. Look at the bank's statement again.",
    Doubt.CASH_SHORT: "The books hold less cash than this takes away. Bring money in first.",
}
