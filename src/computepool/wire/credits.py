"""Credits: balances, top-ups, payouts, and the operator's side of them.

Amounts are whole microcredits; cash is in whole minor units (paise, cents) of its currency.
"""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID

import msgspec

from computepool.core.payments.claim import ClaimKind, Doubt, Verdict
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState


class CashTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What cash is worth to the caller, by the region of their payout details."""

    currency: str
    microcredits_per_minor_unit: int
    top_up_microcredits_min: int
    payout_microcredits_min: int


class Credits(msgspec.Struct, frozen=True, kw_only=True):
    # To be spent on jobs.
    available_microcredits: int
    # Set aside for jobs that are not finished.
    held_microcredits: int
    # Earned with one's nodes, and not beyond the holdback.
    pending_microcredits: int
    # Of what is pending: frozen until the operator has decided a dispute.
    disputed_microcredits: int = 0
    # To be cashed out, or spent on jobs.
    earned_microcredits: int
    # For money that was taken back after it was spent.
    owed_microcredits: int
    # Absent: it is not frozen. A frozen account can top up, and neither submit nor cash out.
    frozen_at: datetime | None = None
    terms: CashTerms


class RequestTopUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount_microcredits: int
    # Absent: that of the caller's terms.
    currency: str | None = None


class TopUp(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    state: TopUpState
    amount_microcredits: int
    currency: str
    amount_minor: int
    provider: str
    # The provider's own name for it.
    reference: str = ""
    # Where to pay; empty: as the instructions say.
    pay_url: str = ""
    instructions: str = ""
    created_at: datetime
    paid_at: datetime | None = None
    # Refunded or charged back.
    paid_back_at: datetime | None = None


class TopUpPage(msgspec.Struct, frozen=True, kw_only=True):
    top_ups: list[TopUp]
    cursor: str | None = None


class SetPayoutDetails(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # ISO-2; decides currency and minimum.
    region: str
    # As the payment provider understands it: a bank account, an address, a token.
    destination: str
    # If given, it must be the region's.
    currency: str | None = None


class PayoutDetails(msgspec.Struct, frozen=True, kw_only=True):
    region: str
    currency: str
    destination: str
    changed_at: datetime


class RequestPayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount_microcredits: int
    # If given, it must be that of the payout details.
    currency: str | None = None


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    state: PayoutState
    # What was asked for. The cash is as many whole minor units as it pays for, and no more is taken.
    asked_microcredits: int
    amount_microcredits: int
    currency: str
    amount_minor: int
    provider: str
    reference: str = ""
    # Why it failed.
    failure: str = ""
    created_at: datetime
    approved_at: datetime | None = None
    sent_at: datetime | None = None
    confirmed_at: datetime | None = None
    returned_at: datetime | None = None
    failed_at: datetime | None = None


class PayoutPage(msgspec.Struct, frozen=True, kw_only=True):
    payouts: list[Payout]
    cursor: str | None = None


class SpendEarnings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount_microcredits: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a word about a top-up or payout."""

    verdict: Verdict
    # Why it was refused.
    doubt: Doubt | None = None
    # The very same was heard before, and this was said of it then.
    repeated: bool = False


# The operator's side


class AccountTopUp(msgspec.Struct, frozen=True, kw_only=True):
    account_id: UUID
    top_up: TopUp


class AccountTopUpPage(msgspec.Struct, frozen=True, kw_only=True):
    top_ups: list[AccountTopUp]
    cursor: str | None = None


class AccountPayout(msgspec.Struct, frozen=True, kw_only=True):
    account_id: UUID
    payout: Payout
    region: str
    destination: str


class AccountPayoutPage(msgspec.Struct, frozen=True, kw_only=True):
    payouts: list[AccountPayout]
    cursor: str | None = None


class RefusePayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # The owner reads it.
    why: str


class RecordPayment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bank's statement says of a top-up or payout, by the operator's hand."""

    kind: ClaimKind
    # The top-up or payout.
    subject_id: UUID
    currency: str
    amount_minor: int
    # The bank's; it vouches for one thing only.
    reference: str


class ProviderEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's word that was not believed."""

    provider: str
    event_id: str
    kind: str
    subject_id: UUID
    currency: str
    amount_minor: int
    reference: str
    doubt: Doubt | None
    received_at: datetime


class ProviderEventPage(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ProviderEvent]


class NameEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: str
    event_id: str


class ReviewEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: str
    event_id: str
    note: str = ""


class CashRate(msgspec.Struct, frozen=True, kw_only=True):
    # ISO 4217.
    currency: str
    microcredits_per_minor_unit: int
    # Shipped with the hub and set by nobody: good enough for a demo.
    is_example: bool


class CashRates(msgspec.Struct, frozen=True, kw_only=True):
    """What cash is worth at this hub."""

    rates: list[CashRate]
    # The day that the operator's are of.
    rates_on: date | None
    # What should be mended before money moves, in words; empty: nothing.
    warnings: list[str]


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    account_id: UUID
    why: str
    frozen_at: datetime
    # The one whose cash was taken back.
    top_up_id: UUID | None = None


class FreezePage(msgspec.Struct, frozen=True, kw_only=True):
    freezes: list[Freeze]
    cursor: str | None = None
