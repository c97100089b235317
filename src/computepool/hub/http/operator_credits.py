"""The operator's side of cash: confirming, approving, refusing, and looking at what was not believed."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState
from computepool.hub.http.credits import LAST, clamp_page, next_cursor, to_heard, to_payout, to_top_up
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import cash_desk as service
from computepool.hub.services import freezes, payouts, provider_events, top_ups
from computepool.hub.services.cash_desk import AddressedPayout
from computepool.hub.store.payments import StoredProviderEvent
from computepool.wire import credits as wire

routes = Routes()


class TopUpsQuery(msgspec.Struct, frozen=True, kw_only=True):
    state: TopUpState = TopUpState.REQUESTED
    # As it stands on the bank's statement.
    reference: str = ""
    limit: int = 50
    cursor: UUID = LAST


class PayoutsQuery(msgspec.Struct, frozen=True, kw_only=True):
    state: PayoutState = PayoutState.RESERVED
    limit: int = 50
    cursor: UUID = UUID(int=0)


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 50


class FreezesQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 50
    cursor: UUID = UUID(int=0)


@routes.add("GET", "/v1/operator/top-ups", Access.OPERATOR, query=TopUpsQuery, answer=wire.AccountTopUpPage)
async def list_account_top_ups(call: Call) -> wire.AccountTopUpPage:
    """Everybody's top-ups in one state, newest first; or the one that the bank's statement names."""
    query: TopUpsQuery = call.query
    limit = clamp_page(query.limit)
    found = await service.list_top_ups(
        call.hub.pool, state=query.state, reference=query.reference, before=query.cursor, limit=limit
    )
    return wire.AccountTopUpPage(
        top_ups=[wire.AccountTopUp(account_id=each.account_id, top_up=to_top_up(each)) for each in found],
        cursor=next_cursor([each.id for each in found], limit),
    )


@routes.add("POST", "/v1/operator/top-ups/{top_up_id}/refund", Access.OPERATOR, answer=wire.TopUp)
async def refund_top_up(call: Call) -> wire.TopUp:
    """Take the credits of a paid top-up back, if they are not spent. Send the cash after this has answered."""
    return to_top_up(await top_ups.refund_top_up(call.hub.pool, call.account, call.path["top_up_id"]))


@routes.add("GET", "/v1/operator/payouts", Access.OPERATOR, query=PayoutsQuery, answer=wire.AccountPayoutPage)
async def list_account_payouts(call: Call) -> wire.AccountPayoutPage:
    """Everybody's payouts in one state, oldest first, with where they go."""
    query: PayoutsQuery = call.query
    limit = clamp_page(query.limit)
    found = await service.list_payouts(call.hub.pool, state=query.state, after=query.cursor, limit=limit)
    return wire.AccountPayoutPage(
        payouts=[_to_account_payout(each) for each in found],
        cursor=next_cursor([each.payout.id for each in found], limit),
    )


@routes.add("POST", "/v1/operator/payouts/{payout_id}/approve", Access.OPERATOR, answer=wire.Payout)
async def approve_payout(call: Call) -> wire.Payout:
    """Let a payout go out; it is sent within seconds, if the cash for it is there."""
    return to_payout(await payouts.approve_payout(call.hub.pool, call.account, call.path["payout_id"]))


@routes.add(
    "POST", "/v1/operator/payouts/{payout_id}/refuse", Access.OPERATOR, body=wire.RefusePayout, answer=wire.Payout
)
async def refuse_payout(call: Call) -> wire.Payout:
    """Refuse a payout that is not sent; the credits go back to the owner, who reads why."""
    payout_id = call.path["payout_id"]
    return to_payout(await payouts.refuse_payout(call.hub.pool, call.account, payout_id, why=call.body.why))


@routes.add("POST", "/v1/operator/payments", Access.OPERATOR, body=wire.RecordPayment, answer=wire.Heard)
async def record_payment(call: Call) -> wire.Heard:
    """Record by hand what the bank's statement says: a top-up was paid, a payout has arrived or come back."""
    body: wire.RecordPayment = call.body
    heard = await provider_events.record_by_hand(
        call.hub.pool,
        call.account,
        kind=body.kind,
        subject_id=body.subject_id,
        currency=body.currency,
        amount_minor=body.amount_minor,
        reference=body.reference,
    )
    return to_heard(heard)


@routes.add("GET", "/v1/operator/provider-events", Access.OPERATOR, query=EventsQuery, answer=wire.ProviderEventPage)
async def list_refused_events(call: Call) -> wire.ProviderEventPage:
    """Words of providers that were not believed and that no operator has looked at, oldest first."""
    found = await provider_events.list_refused_events(call.hub.pool, limit=clamp_page(call.query.limit))
    return wire.ProviderEventPage(events=[_to_event(event) for event in found])


@routes.add("POST", "/v1/operator/provider-events/review", Access.OPERATOR, body=wire.ReviewEvent, status=204)
async def review_event(call: Call) -> None:
    """The operator has taken care of a refused event elsewhere."""
    body: wire.ReviewEvent = call.body
    await provider_events.review_event(
        call.hub.pool, call.account, provider=body.provider, event_id=body.event_id, note=body.note
    )


@routes.add(
    "POST", "/v1/operator/provider-events/hear-again", Access.OPERATOR, body=wire.NameEvent, answer=wire.Heard
)
async def hear_event_again(call: Call) -> wire.Heard:
    """Judge a refused event anew, by what is known now."""
    body: wire.NameEvent = call.body
    return to_heard(await provider_events.hear_again(call.hub.pool, provider=body.provider, event_id=body.event_id))


@routes.add("GET", "/v1/operator/cash-rates", Access.OPERATOR, answer=wire.CashRates)
async def get_cash_rates(call: Call) -> wire.CashRates:
    """What cash is worth here, since when, and whether that can still be true."""
    book = call.hub.cash_book
    return wire.CashRates(
        rates=[
            wire.CashRate(currency=currency, microcredits_per_minor_unit=rate, is_example=is_example)
            for currency, (rate, is_example) in book.list_rates().items()
        ],
        rates_on=book.rates_on,
        warnings=book.list_warnings(today=clock.now().date()),
    )


@routes.add("GET", "/v1/operator/freezes", Access.OPERATOR, query=FreezesQuery, answer=wire.FreezePage)
async def list_freezes(call: Call) -> wire.FreezePage:
    """Accounts that are frozen, and why."""
    limit = clamp_page(call.query.limit)
    found = await freezes.list_freezes(call.hub.pool, after=call.query.cursor, limit=limit)
    return wire.FreezePage(
        freezes=[
            wire.Freeze(account_id=f.account_id, why=f.why, top_up_id=f.top_up_id, frozen_at=f.frozen_at)
            for f in found
        ],
        cursor=next_cursor([each.account_id for each in found], limit),
    )


@routes.add("POST", "/v1/operator/freezes/{account_id}/lift", Access.OPERATOR, status=204)
async def lift_freeze(call: Call) -> None:
    """Let an account submit and cash out again."""
    await freezes.lift_freeze(call.hub.pool, call.account, call.path["account_id"])


def _to_account_payout(found: AddressedPayout) -> wire.AccountPayout:
    return wire.AccountPayout(
        account_id=found.payout.account_id,
        payout=to_payout(found.payout),
        region=found.details.region,
        destination=found.details.destination,
    )


def _to_event(event: StoredProviderEvent) -> wire.ProviderEvent:
    return wire.ProviderEvent(
        provider=event.provider,
        event_id=event.event_id,
        kind=event.claim.kind,
        subject_id=event.claim.subject_id,
        currency=event.claim.currency,
        amount_minor=event.claim.amount_minor,
        reference=event.claim.reference,
        doubt=event.doubt,
        received_at=event.received_at,
    )
