"""Credits, as their owners see them; and the door for what payment providers tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.payments.webhook import BODY_BYTES_MAX, SIGNATURE_HEADER
from computepool.hub.http.routing import Access, Call, Routes, read_bytes
from computepool.hub.services import credits as service
from computepool.hub.services import payouts, top_ups
from computepool.hub.services.provider_events import Heard, receive_event
from computepool.hub.store.payments import PayoutDetails, StoredPayout, StoredTopUp
from computepool.wire import credits as wire

routes = Routes()

Asked = TypeVar("Asked")

PAGE_MAX = 500
# Per address: a provider that has more to tell is asked to come back.
EVENTS_PER_MINUTE = 1_200
LAST = UUID(int=2**128 - 1)
_SIGNATURE = SIGNATURE_HEADER.lower().encode()


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 50
    cursor: UUID = LAST


@routes.add("GET", "/v1/credits", Access.ACCOUNT, answer=wire.Credits)
async def get_credits(call: Call) -> wire.Credits:
    """What the caller has, earns and owes, and on which terms cash becomes credits and back."""
    return await _show_credits(call)


async def _show_credits(call: Call) -> wire.Credits:
    found = await service.get_credits(call.hub.pool, call.hub.cash_book, call.account)
    return wire.Credits(
        available_microcredits=found.available,
        held_microcredits=found.held,
        pending_microcredits=found.pending,
        disputed_microcredits=found.disputed,
        earned_microcredits=found.earned,
        owed_microcredits=found.owed,
        frozen_at=found.frozen_at,
        terms=wire.CashTerms(
            currency=found.terms.currency,
            microcredits_per_minor_unit=found.terms.microcredits_per_minor_unit,
            top_up_microcredits_min=found.terms.top_up_microcredits_min,
            payout_microcredits_min=found.terms.payout_microcredits_min,
        ),
    )


# Money in


@routes.add("POST", "/v1/credits/top-ups", Access.ACCOUNT, body=wire.RequestTopUp, answer=wire.TopUp, status=201)
async def request_top_up(call: Call) -> wire.TopUp:
    """Ask to pay in; the answer says how. Needs an Idempotency-Key header: with it, it is safe to repeat."""
    return to_top_up(await _ask(call, service.request_top_up))


@routes.add("GET", "/v1/credits/top-ups", Access.ACCOUNT, query=PageQuery, answer=wire.TopUpPage)
async def list_top_ups(call: Call) -> wire.TopUpPage:
    """The caller's top-ups, newest first."""
    limit = clamp_page(call.query.limit)
    found = await top_ups.list_top_ups(call.hub.pool, call.account, before=call.query.cursor, limit=limit)
    return wire.TopUpPage(
        top_ups=[to_top_up(top_up) for top_up in found],
        cursor=next_cursor([each.id for each in found], limit),
    )


@routes.add("GET", "/v1/credits/top-ups/{top_up_id}", Access.ACCOUNT, answer=wire.TopUp)
async def get_top_up(call: Call) -> wire.TopUp:
    """One top-up and what became of it."""
    return to_top_up(await top_ups.get_top_up(call.hub.pool, call.account, call.path["top_up_id"]))


# Money out. A key that can only submit reaches none of it.


@routes.add("GET", "/v1/credits/payout-details", Access.OWNER, answer=wire.PayoutDetails)
async def get_payout_details(call: Call) -> wire.PayoutDetails:
    """Where the caller's payouts go."""
    return _to_details(await payouts.get_payout_details(call.hub.pool, call.account))


@routes.add("PUT", "/v1/credits/payout-details", Access.OWNER, body=wire.SetPayoutDetails, answer=wire.PayoutDetails)
async def set_payout_details(call: Call) -> wire.PayoutDetails:
    """Say where payouts go. After a change nothing can be cashed out for a while."""
    hub, body = call.hub, call.body
    details = await service.set_payout_details(
        hub.pool,
        hub.cash_book,
        call.account,
        region=body.region,
        currency=body.currency,
        destination=body.destination,
    )
    return _to_details(details)


@routes.add("POST", "/v1/credits/payouts", Access.OWNER, body=wire.RequestPayout, answer=wire.Payout, status=201)
async def request_payout(call: Call) -> wire.Payout:
    """Cash out what was earned. Needs an Idempotency-Key header: with it, it is safe to repeat."""
    return to_payout(await _ask(call, service.request_payout))


@routes.add("GET", "/v1/credits/payouts", Access.ACCOUNT, query=PageQuery, answer=wire.PayoutPage)
async def list_payouts(call: Call) -> wire.PayoutPage:
    """The caller's payouts, newest first."""
    limit = clamp_page(call.query.limit)
    found = await payouts.list_payouts(call.hub.pool, call.account, before=call.query.cursor, limit=limit)
    return wire.PayoutPage(
        payouts=[to_payout(payout) for payout in found],
        cursor=next_cursor([each.id for each in found], limit),
    )


@routes.add("GET", "/v1/credits/payouts/{payout_id}", Access.ACCOUNT, answer=wire.Payout)
async def get_payout(call: Call) -> wire.Payout:
    """One payout and how far it has come."""
    return to_payout(await payouts.get_payout(call.hub.pool, call.account, call.path["payout_id"]))


@routes.add("POST", "/v1/credits/payouts/{payout_id}/cancel", Access.OWNER, answer=wire.Payout)
async def cancel_payout(call: Call) -> wire.Payout:
    """Take a payout back as long as it is not sent."""
    return to_payout(await payouts.cancel_payout(call.hub.pool, call.account, call.path["payout_id"]))


@routes.add("POST", "/v1/credits/spend-earnings", Access.OWNER, body=wire.SpendEarnings, answer=wire.Credits)
async def spend_earnings(call: Call) -> wire.Credits:
    """Turn what was earned into credits for jobs. Needs an Idempotency-Key header: with it, it is safe to repeat."""
    await service.spend_earnings(
        call.hub.pool,
        call.account,
        amount_microcredits=call.body.amount_microcredits,
        idempotency_key=_read_key(call),
    )
    return await _show_credits(call)


# What providers tell


@routes.add(
    "POST",
    "/v1/credits/providers/{name}/events",
    Access.PUBLIC,
    answer=wire.Heard,
    public_per_minute=EVENTS_PER_MINUTE,
)
async def hear_provider(call: Call) -> wire.Heard:
    """For payment providers: a signed event, as docs/reference/payment-provider.md says."""
    provider = call.hub.providers.get(call.path["name"])
    # The signature is over these very bytes.
    body = await read_bytes(call.scope, call.receive, BODY_BYTES_MAX)
    header = call.find_header(_SIGNATURE) or ""
    return to_heard(await receive_event(call.hub.pool, provider, header=header, body=body, now=clock.now()))


def clamp_page(limit: int) -> int:
    return max(1, min(limit, PAGE_MAX))


def next_cursor(ids: Sequence[UUID], limit: int) -> str | None:
    """None: fewer than were asked for, so that no page follows."""
    return str(ids[-1]) if len(ids) == limit else None


async def _ask(call: Call, ask: Callable[..., Awaitable[Asked]]) -> Asked:
    """Cash in and cash out are asked for alike: an amount, perhaps a currency, and a key."""
    hub, body = call.hub, call.body
    return await ask(
        hub.pool,
        hub.providers,
        hub.cash_book,
        call.account,
        amount_microcredits=body.amount_microcredits,
        currency=body.currency,
        idempotency_key=_read_key(call),
    )


def _read_key(call: Call) -> str:
    return call.find_header(b"idempotency-key") or ""


def to_top_up(top_up: StoredTopUp) -> wire.TopUp:
    return wire.TopUp(
        id=top_up.id,
        state=top_up.state,
        amount_microcredits=top_up.cash.microcredits,
        currency=top_up.cash.currency,
        amount_minor=top_up.cash.minor,
        provider=top_up.provider,
        reference=top_up.provider_reference or "",
        pay_url=top_up.pay_url,
        instructions=top_up.instructions,
        created_at=top_up.created_at,
        paid_at=top_up.paid_at,
        paid_back_at=top_up.paid_back_at,
    )


def to_payout(payout: StoredPayout) -> wire.Payout:
    return wire.Payout(
        id=payout.id,
        state=payout.state,
        asked_microcredits=payout.asked_microcredits,
        amount_microcredits=payout.cash.microcredits,
        currency=payout.cash.currency,
        amount_minor=payout.cash.minor,
        provider=payout.provider,
        reference=payout.provider_reference or "",
        failure=payout.failure or "",
        created_at=payout.created_at,
        approved_at=payout.approved_at,
        sent_at=payout.sent_at,
        confirmed_at=payout.confirmed_at,
        returned_at=payout.returned_at,
        failed_at=payout.failed_at,
    )


def to_heard(heard: Heard) -> wire.Heard:
    return wire.Heard(verdict=heard.verdict, doubt=heard.doubt, repeated=heard.repeated)


def _to_details(details: PayoutDetails) -> wire.PayoutDetails:
    return wire.PayoutDetails(
        region=details.region,
        currency=details.currency,
        destination=details.destination,
        changed_at=details.created_at,
    )
