"""Credits over the hub's API: one's own, and the operator's side. Amounts are exact to the microcredit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from uuid import UUID

from computepool import entropy
from computepool.core.ledger.amount import AmountFault, InvalidAmount, to_amount
from computepool.core.payments.claim import ClaimKind
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState
from computepool.sdk.transport import Reply, Transport
from computepool.wire.credits import (
    AccountPayout,
    AccountPayoutPage,
    AccountTopUp,
    AccountTopUpPage,
    CashRates,
    Credits,
    Freeze,
    FreezePage,
    Heard,
    NameEvent,
    Payout,
    PayoutDetails,
    PayoutPage,
    ProviderEvent,
    ProviderEventPage,
    RecordPayment,
    RefusePayout,
    RequestPayout,
    RequestTopUp,
    ReviewEvent,
    SetPayoutDetails,
    SpendEarnings,
    TopUp,
    TopUpPage,
)

_PAGE_LENGTH = 100
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?\Z", re.ASCII)

# Never a float: what it stands for is not what its writer saw.
CreditAmount = int | str | Decimal


def parse_amount(credits: CreditAmount) -> int:
    """`40`, `"0.5"` or a Decimal, in microcredits. Raises InvalidAmount for anything else."""
    text = format(credits, "f") if isinstance(credits, Decimal) else str(credits).strip()
    match = None if isinstance(credits, bool | float) else _AMOUNT.match(text)
    if match is None:
        hint = ' Give it as a text, such as "0.5": a float is not exact.' if isinstance(credits, float) else ""
        raise InvalidAmount(
            f"{text[:40]!r} is no amount of credits. Write it as 40 or 0.5: digits, six decimals at most.{hint}",
            fault=AmountFault.NOT_WHOLE.value,
        )
    return to_amount(int(match[1] + (match[2] or "").ljust(6, "0")))


class CreditsClient:
    """`Client.credits`. A call that moves money never moves it twice, however often its answer gets lost."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> Credits:
        return self._transport.call("GET", "/v1/credits", Credits)

    def top_up(
        self, *, credits: CreditAmount, currency: str | None = None, idempotency_key: str | None = None
    ) -> TopUp:
        """Asks to pay in. Where and how stands in the answer."""
        body = RequestTopUp(amount_microcredits=parse_amount(credits), currency=currency)
        return self._move("/v1/credits/top-ups", TopUp, body, idempotency_key)

    def get_top_up(self, *, top_up_id: UUID) -> TopUp:
        return self._transport.call("GET", f"/v1/credits/top-ups/{top_up_id}", TopUp)

    def list_top_ups(self, *, limit: int = _PAGE_LENGTH, cursor: str | None = None) -> TopUpPage:
        """One page, newest first; hand its `cursor` back for the next."""
        params = {"limit": limit, "cursor": cursor}
        return self._transport.call("GET", "/v1/credits/top-ups", TopUpPage, params=params)

    def get_payout_details(self) -> PayoutDetails:
        return self._transport.call("GET", "/v1/credits/payout-details", PayoutDetails)

    def set_payout_details(self, *, region: str, destination: str, currency: str | None = None) -> PayoutDetails:
        body = SetPayoutDetails(region=region, destination=destination, currency=currency)
        return self._transport.call("PUT", "/v1/credits/payout-details", PayoutDetails, body=body)

    def cash_out(
        self, *, credits: CreditAmount, currency: str | None = None, idempotency_key: str | None = None
    ) -> Payout:
        """Asks for a payout of what was earned; the operator approves it."""
        body = RequestPayout(amount_microcredits=parse_amount(credits), currency=currency)
        return self._move("/v1/credits/payouts", Payout, body, idempotency_key)

    def get_payout(self, *, payout_id: UUID) -> Payout:
        return self._transport.call("GET", f"/v1/credits/payouts/{payout_id}", Payout)

    def list_payouts(self, *, limit: int = _PAGE_LENGTH, cursor: str | None = None) -> PayoutPage:
        """One page, newest first; hand its `cursor` back for the next."""
        params = {"limit": limit, "cursor": cursor}
        return self._transport.call("GET", "/v1/credits/payouts", PayoutPage, params=params)

    def cancel_payout(self, *, payout_id: UUID) -> Payout:
        return self._transport.call("POST", f"/v1/credits/payouts/{payout_id}/cancel", Payout)

    def spend_earnings(self, *, credits: CreditAmount, idempotency_key: str | None = None) -> Credits:
        """Turns what was earned into credits for jobs."""
        body = SpendEarnings(amount_microcredits=parse_amount(credits))
        return self._move("/v1/credits/spend-earnings", Credits, body, idempotency_key)

    def _move(self, path: str, reply: type[Reply], body: object, key: str | None) -> Reply:
        header = {"Idempotency-Key": key or str(entropy.new_id())}
        return self._transport.call("POST", path, reply, body=body, headers=header, repeatable=True)


class OperatorCredits:
    """`Client.operator_credits`: for the hub's operator."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def top_ups(
        self, *, state: TopUpState = TopUpState.REQUESTED, reference: str | None = None
    ) -> Iterator[AccountTopUp]:
        """Everybody's, newest first, fetched page by page."""
        params = {"state": state.value, "reference": reference, "limit": _PAGE_LENGTH}
        for page in self._transport.pages("/v1/operator/top-ups", AccountTopUpPage, params):
            yield from page.top_ups

    def cash_rates(self) -> CashRates:
        """What cash is worth at this hub, and what is wrong with that."""
        return self._transport.call("GET", "/v1/operator/cash-rates", CashRates)

    def payouts(self, *, state: PayoutState = PayoutState.RESERVED) -> Iterator[AccountPayout]:
        """Everybody's, oldest first, fetched page by page."""
        params = {"state": state.value, "limit": _PAGE_LENGTH}
        for page in self._transport.pages("/v1/operator/payouts", AccountPayoutPage, params):
            yield from page.payouts

    def refund_top_up(self, *, top_up_id: UUID) -> TopUp:
        return self._transport.call("POST", f"/v1/operator/top-ups/{top_up_id}/refund", TopUp, repeatable=True)

    def approve_payout(self, *, payout_id: UUID) -> Payout:
        return self._transport.call("POST", f"/v1/operator/payouts/{payout_id}/approve", Payout, repeatable=True)

    def refuse_payout(self, *, payout_id: UUID, why: str) -> Payout:
        body = RefusePayout(why=why)
        return self._transport.call("POST", f"/v1/operator/payouts/{payout_id}/refuse", Payout, body=body)

    def record_payment(
        self, *, kind: ClaimKind, subject_id: UUID, currency: str, amount_minor: int, reference: str
    ) -> Heard:
        """What the bank's statement says. The same again with the same reference changes nothing."""
        body = RecordPayment(
            kind=kind, subject_id=subject_id, currency=currency, amount_minor=amount_minor, reference=reference
        )
        return self._transport.call("POST", "/v1/operator/payments", Heard, body=body, repeatable=True)

    def list_refused_events(self, *, limit: int = _PAGE_LENGTH) -> list[ProviderEvent]:
        """What nobody has looked at yet, oldest first."""
        params = {"limit": limit}
        return self._transport.call("GET", "/v1/operator/provider-events", ProviderEventPage, params=params).events

    def review_event(self, *, provider: str, event_id: str, note: str = "") -> None:
        body = ReviewEvent(provider=provider, event_id=event_id, note=note)
        self._transport.tell("POST", "/v1/operator/provider-events/review", body=body)

    def hear_event_again(self, *, provider: str, event_id: str) -> Heard:
        body = NameEvent(provider=provider, event_id=event_id)
        return self._transport.call("POST", "/v1/operator/provider-events/hear-again", Heard, body=body)

    def freezes(self) -> Iterator[Freeze]:
        for page in self._transport.pages("/v1/operator/freezes", FreezePage, {"limit": _PAGE_LENGTH}):
            yield from page.freezes

    def lift_freeze(self, *, account_id: UUID) -> None:
        self._transport.tell("POST", f"/v1/operator/freezes/{account_id}/lift")
