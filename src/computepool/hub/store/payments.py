"""Top-ups, payouts and where they go, what providers say of them, and accounts that are frozen for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId
from computepool.core.ledger.amount import Microcredits
from computepool.core.payments.books import CashMovement
from computepool.core.payments.cash import Cash
from computepool.core.payments.claim import Claim, Doubt, Verdict
from computepool.core.payments.limits import Moved
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record

_q = load_queries("payments")


@dataclass(frozen=True, slots=True)
class StoredTopUp:
    id: UUID
    account_id: AccountId
    provider: str
    cash: Cash
    state: TopUpState
    provider_reference: str | None
    pay_url: str
    instructions: str
    created_at: datetime
    paid_at: datetime | None
    paid_back_at: datetime | None


@dataclass(frozen=True, slots=True)
class PayoutDetails:
    id: UUID
    account_id: AccountId
    region: str
    currency: str
    destination: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredPayout:
    id: UUID
    account_id: AccountId
    # What was asked for; the cash is as many whole minor units as it pays for.
    asked_microcredits: int
    provider: str
    details_id: UUID
    cash: Cash
    state: PayoutState
    provider_reference: str | None
    failure: str | None
    created_at: datetime
    approved_at: datetime | None
    sent_at: datetime | None
    acknowledged_at: datetime | None
    confirmed_at: datetime | None
    returned_at: datetime | None
    failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Freeze:
    account_id: AccountId
    why: str
    top_up_id: UUID | None
    frozen_at: datetime


@dataclass(frozen=True, slots=True)
class NewProviderEvent:
    provider: str
    event_id: str
    claim: Claim
    body_sha256: bytes
    verdict: Verdict
    doubt: Doubt | None
    # The operator who said it by hand.
    said_by: AccountId | None = None


@dataclass(frozen=True, slots=True)
class StoredProviderEvent:
    provider: str
    event_id: str
    claim: Claim
    body_sha256: bytes
    verdict: Verdict
    doubt: Doubt | None
    received_at: datetime


# Top-ups


async def insert_top_up(
    conn: Connection, *, id: UUID, account_id: AccountId, idempotency_key: str, provider: str, cash: Cash
) -> None:
    await _q.insert_top_up(
        conn,
        id=id,
        account_id=account_id,
        idempotency_key=idempotency_key,
        provider=provider,
        currency=cash.currency,
        amount_minor=cash.minor,
        amount_microcredits=cash.microcredits,
    )


async def find_top_up(conn: Connection, id: UUID) -> StoredTopUp | None:
    return _to_top_up(await _q.find_top_up(conn, id=id))


async def find_top_up_by_key(conn: Connection, *, account_id: AccountId, idempotency_key: str) -> StoredTopUp | None:
    return _to_top_up(await _q.find_top_up_by_key(conn, account_id=account_id, idempotency_key=idempotency_key))


async def lock_top_up(conn: Connection, id: UUID) -> StoredTopUp | None:
    return _to_top_up(await _q.lock_top_up(conn, id=id))


async def list_top_ups(conn: Connection, *, account_id: AccountId, before: UUID, limit: int) -> list[StoredTopUp]:
    rows = _q.list_top_ups(conn, account_id=account_id, before=before, limit_count=limit)
    return [_read_top_up(row) async for row in rows]


async def list_top_ups_in_state(
    conn: Connection, *, state: TopUpState, reference: str, before: UUID, limit: int
) -> list[StoredTopUp]:
    """Of all accounts; with a reference, those that the provider calls so."""
    rows = _q.list_top_ups_in_state(conn, state=state, reference=reference, before=before, limit_count=limit)
    return [_read_top_up(row) async for row in rows]


async def open_top_up(conn: Connection, *, id: UUID, reference: str, pay_url: str, instructions: str) -> None:
    await _q.open_top_up(conn, id=id, provider_reference=reference, pay_url=pay_url, instructions=instructions)


async def change_top_up(
    conn: Connection, *, id: UUID, state: TopUpState, reference: str, paid: bool, paid_back: bool
) -> None:
    await _q.change_top_up(conn, id=id, state=state, provider_reference=reference, paid=paid, paid_back=paid_back)


async def sum_top_ups(conn: Connection, account_id: AccountId) -> Moved:
    return Moved(**await _q.sum_top_ups(conn, account_id=account_id))


async def take_top_ups_to_ask(
    conn: Connection, *, providers: Sequence[str], quiet_seconds: float, patience_seconds: float, limit: int
) -> list[StoredTopUp]:
    rows = _q.take_top_ups_to_ask(
        conn,
        providers=list(providers),
        quiet_seconds=quiet_seconds,
        patience_seconds=patience_seconds,
        limit_count=limit,
    )
    return [_read_top_up(row) async for row in rows]


# Payout details


async def insert_details(
    conn: Connection, *, id: UUID, account_id: AccountId, region: str, currency: str, destination: str
) -> None:
    await _q.insert_details(
        conn, id=id, account_id=account_id, region=region, currency=currency, destination=destination
    )


async def find_details(conn: Connection, account_id: AccountId) -> PayoutDetails | None:
    """Those in force."""
    row = await _q.find_details(conn, account_id=account_id)
    return PayoutDetails(**row) if row else None


async def get_details(conn: Connection, id: UUID) -> PayoutDetails:
    return PayoutDetails(**await _q.get_details(conn, id=id))


async def list_details(conn: Connection, ids: Iterable[UUID]) -> Mapping[UUID, PayoutDetails]:
    found = [PayoutDetails(**row) async for row in _q.list_details(conn, ids=sorted(set(ids)))]
    return {details.id: details for details in found}


# Payouts


async def lock_account(conn: Connection, id: AccountId) -> None:
    await _q.lock_account(conn, id=id)


async def insert_payout(
    conn: Connection,
    *,
    id: UUID,
    account_id: AccountId,
    idempotency_key: str,
    asked_microcredits: int,
    provider: str,
    details_id: UUID,
    cash: Cash,
) -> None:
    await _q.insert_payout(
        conn,
        id=id,
        account_id=account_id,
        idempotency_key=idempotency_key,
        asked_microcredits=asked_microcredits,
        provider=provider,
        details_id=details_id,
        currency=cash.currency,
        amount_minor=cash.minor,
        amount_microcredits=cash.microcredits,
    )


async def find_payout(conn: Connection, id: UUID) -> StoredPayout | None:
    return _to_payout(await _q.find_payout(conn, id=id))


async def find_payout_by_key(conn: Connection, *, account_id: AccountId, idempotency_key: str) -> StoredPayout | None:
    return _to_payout(await _q.find_payout_by_key(conn, account_id=account_id, idempotency_key=idempotency_key))


async def lock_payout(conn: Connection, id: UUID) -> StoredPayout | None:
    return _to_payout(await _q.lock_payout(conn, id=id))


async def list_payouts(conn: Connection, *, account_id: AccountId, before: UUID, limit: int) -> list[StoredPayout]:
    rows = _q.list_payouts(conn, account_id=account_id, before=before, limit_count=limit)
    return [_read_payout(row) async for row in rows]


async def list_payouts_in_state(
    conn: Connection, *, state: PayoutState, after: UUID, limit: int
) -> list[StoredPayout]:
    rows = _q.list_payouts_in_state(conn, state=state, after=after, limit_count=limit)
    return [_read_payout(row) async for row in rows]


async def change_payout(
    conn: Connection,
    *,
    id: UUID,
    state: PayoutState,
    reference: str = "",
    acknowledged: bool = False,
    approved_by: AccountId | None = None,
    failure: str | None = None,
) -> None:
    await _q.change_payout(
        conn,
        id=id,
        state=state,
        provider_reference=reference,
        acknowledged=acknowledged,
        approved_by=approved_by,
        failure=failure,
    )


async def sum_payouts(conn: Connection, account_id: AccountId) -> Moved:
    return Moved(**await _q.sum_payouts(conn, account_id=account_id))


async def take_payouts_to_send(conn: Connection, *, limit: int) -> list[StoredPayout]:
    return [_read_payout(row) async for row in _q.take_payouts_to_send(conn, limit_count=limit)]


async def take_payouts_to_ask(
    conn: Connection, *, providers: Sequence[str], quiet_seconds: float, limit: int
) -> list[StoredPayout]:
    rows = _q.take_payouts_to_ask(conn, providers=list(providers), quiet_seconds=quiet_seconds, limit_count=limit)
    return [_read_payout(row) async for row in rows]


async def sum_in_flight(conn: Connection) -> int:
    """Microcredits of payouts that may have left, and are not confirmed."""
    total: int = await _q.sum_in_flight(conn)
    return total


# Frozen accounts


async def insert_freeze(
    conn: Connection, *, id: UUID, account_id: AccountId, why: str, top_up_id: UUID | None
) -> bool:
    """False: it is frozen already."""
    return bool(await _q.insert_freeze(conn, id=id, account_id=account_id, why=why, top_up_id=top_up_id))


async def lift_freeze(conn: Connection, *, account_id: AccountId, lifted_by: AccountId) -> bool:
    return bool(await _q.lift_freeze(conn, account_id=account_id, lifted_by=lifted_by))


async def list_frozen(conn: Connection, account_ids: Iterable[AccountId]) -> Mapping[AccountId, datetime]:
    """Of these, those that are frozen, and since when."""
    rows = _q.list_frozen(conn, account_ids=sorted(account_ids))
    return {row["account_id"]: row["frozen_at"] async for row in rows}


async def list_freezes(conn: Connection, *, after: UUID, limit: int) -> list[Freeze]:
    rows = _q.list_freezes(conn, after=after, limit_count=limit)
    return [read_record(Freeze, row) async for row in rows]


# Words of providers


async def insert_provider_event(conn: Connection, event: NewProviderEvent) -> None:
    """Raises asyncpg.UniqueViolationError when another transaction was faster with the same event."""
    claim = event.claim
    await _q.insert_provider_event(
        conn,
        provider=event.provider,
        event_id=event.event_id,
        kind=claim.kind,
        subject_id=claim.subject_id,
        currency=claim.currency,
        amount_minor=claim.amount_minor,
        reference=claim.reference,
        body_sha256=event.body_sha256,
        verdict=event.verdict,
        doubt=event.doubt,
        said_by=event.said_by,
    )


async def find_provider_event(conn: Connection, *, provider: str, event_id: str) -> StoredProviderEvent | None:
    row = await _q.find_provider_event(conn, provider=provider, event_id=event_id)
    return _read_event(row) if row else None


async def list_refused_events(conn: Connection, *, limit: int) -> list[StoredProviderEvent]:
    return [_read_event(row) async for row in _q.list_refused_events(conn, limit_count=limit)]


async def list_short_events(conn: Connection, *, limit: int) -> list[StoredProviderEvent]:
    return [_read_event(row) async for row in _q.list_short_events(conn, limit_count=limit)]


async def lock_refused_event(conn: Connection, *, provider: str, event_id: str) -> StoredProviderEvent | None:
    row = await _q.lock_refused_event(conn, provider=provider, event_id=event_id)
    return _read_event(row) if row else None


async def change_verdict(
    conn: Connection, *, provider: str, event_id: str, verdict: Verdict, doubt: Doubt | None
) -> None:
    await _q.change_verdict(conn, provider=provider, event_id=event_id, verdict=verdict, doubt=doubt)


async def review_event(conn: Connection, *, provider: str, event_id: str, reviewed_by: AccountId, note: str) -> bool:
    return bool(await _q.review_event(conn, provider=provider, event_id=event_id, reviewed_by=reviewed_by, note=note))


async def list_cash_movements(conn: Connection, *, since: datetime, until: datetime) -> list[CashMovement]:
    """By the ledger's own transfers, in the currency and at the rate of their top-up or payout."""
    rows = _q.list_cash_movements(conn, since=since, until=until)
    return [_read_movement(row) async for row in rows]


# Rows as they are read


def _read_movement(row: Any) -> CashMovement:
    minor, rest = divmod(row["microcredits"], row["rate"])
    if rest:
        raise ValueError(f"{row['subject_id']} has moved {row['microcredits']:,}, which is no whole amount of cash")
    return CashMovement(row["subject_id"], row["currency"], minor)


def _to_top_up(row: Any) -> StoredTopUp | None:
    return _read_top_up(row) if row else None


def _read_top_up(row: Any) -> StoredTopUp:
    return read_record(StoredTopUp, row, cash=_read_cash(row), state=TopUpState(row["state"]))


def _to_payout(row: Any) -> StoredPayout | None:
    return _read_payout(row) if row else None


def _read_payout(row: Any) -> StoredPayout:
    return read_record(StoredPayout, row, cash=_read_cash(row), state=PayoutState(row["state"]))


def _read_cash(row: Any) -> Cash:
    return Cash(row["currency"], row["amount_minor"], Microcredits(row["amount_microcredits"]))


def _read_event(row: Any) -> StoredProviderEvent:
    claim = read_record(Claim, row)
    doubt = Doubt(row["doubt"]) if row["doubt"] else None
    return read_record(StoredProviderEvent, row, claim=claim, verdict=Verdict(row["verdict"]), doubt=doubt)
