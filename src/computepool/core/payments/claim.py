"""What a provider says of one top-up or payout, and whether it is believed. However well signed, it is a claim."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID

from computepool.core.payments.cash import Cash
from computepool.core.payments.payout import PAYOUT_LIFE, PayoutState, PayoutStep, PayoutWord
from computepool.core.payments.top_up import TOP_UP_LIFE, TopUpState, TopUpStep, TopUpWord


class ClaimKind(str, Enum):
    TOP_UP_OPENED = "top_up.opened"
    TOP_UP_PAID = "top_up.paid"
    TOP_UP_FAILED = "top_up.failed"
    TOP_UP_REFUNDED = "top_up.refunded"
    TOP_UP_CHARGED_BACK = "top_up.charged_back"
    PAYOUT_ACCEPTED = "payout.accepted"
    PAYOUT_CONFIRMED = "payout.confirmed"
    PAYOUT_FAILED = "payout.failed"
    PAYOUT_RETURNED = "payout.returned"


K = ClaimKind
TOP_UP_WORDS: Mapping[str, TopUpWord] = {
    K.TOP_UP_OPENED: TopUpWord.OPENED,
    K.TOP_UP_PAID: TopUpWord.PAID,
    K.TOP_UP_FAILED: TopUpWord.FAILED,
    K.TOP_UP_REFUNDED: TopUpWord.REFUNDED,
    K.TOP_UP_CHARGED_BACK: TopUpWord.CHARGED_BACK,
}
PAYOUT_WORDS: Mapping[str, PayoutWord] = {
    K.PAYOUT_ACCEPTED: PayoutWord.ACCEPTED,
    K.PAYOUT_CONFIRMED: PayoutWord.CONFIRMED,
    K.PAYOUT_FAILED: PayoutWord.FAILED,
    K.PAYOUT_RETURNED: PayoutWord.RETURNED,
}


class Doubt(str, Enum):
    """Why a claim is not believed. The operator sees it, with the claim."""

    AMOUNT_MISMATCH = "amount_mismatch"
    CURRENCY_MISMATCH = "currency_mismatch"
    CONTRADICTION = "contradiction"  # it cannot follow on what is known
    NEVER_SENT = "never_sent"  # of a payout that we have not handed out
    OTHER_PROVIDER = "other_provider"
    UNKNOWN_SUBJECT = "unknown_subject"
    UNKNOWN_KIND = "unknown_kind"
    REUSED_ID = "reused_id"  # the id of an earlier event, with another content
    # It may well be true, but the books hold less cash than it takes away. Heard again when more has come in.
    CASH_SHORT = "cash_short"


class Verdict(str, Enum):
    APPLIED = "applied"
    OLD_NEWS = "old_news"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Claim:
    # A ClaimKind, or something that we do not know.
    kind: str
    # Our id of the top-up or payout.
    subject_id: UUID
    currency: str
    amount_minor: int
    # The provider's own name for it.
    reference: str


@dataclass(frozen=True, slots=True)
class TopUp:
    """What must be known of a top-up to judge a claim."""

    provider: str
    cash: Cash
    state: TopUpState


@dataclass(frozen=True, slots=True)
class Payout:
    """What must be known of a payout to judge a claim."""

    provider: str
    cash: Cash
    state: PayoutState
    sent_at: datetime | None


def digest_claim(claim: Claim) -> bytes:
    """For claims that did not come as bytes: equal for equal claims and for no others."""
    fields = (claim.kind, str(claim.subject_id), claim.currency, str(claim.amount_minor), claim.reference)
    return hashlib.sha256("\n".join(fields).encode()).digest()


def judge_top_up_claim(top_up: TopUp, claim: Claim, *, provider: str) -> tuple[TopUpStep, ...] | Doubt:
    doubt = _find_mismatch(top_up.provider, top_up.cash, claim, provider)
    if doubt is not None:
        return doubt
    word = TOP_UP_WORDS.get(claim.kind)
    if word is None:
        return Doubt.UNKNOWN_KIND
    steps = TOP_UP_LIFE.plan(top_up.state, word)
    return Doubt.CONTRADICTION if steps is None else steps


def judge_payout_claim(payout: Payout, claim: Claim, *, provider: str) -> tuple[PayoutStep, ...] | Doubt:
    doubt = _find_mismatch(payout.provider, payout.cash, claim, provider)
    if doubt is not None:
        return doubt
    word = PAYOUT_WORDS.get(claim.kind)
    if word is None:
        return Doubt.UNKNOWN_KIND
    if payout.sent_at is None:
        return Doubt.NEVER_SENT
    steps = PAYOUT_LIFE.plan(payout.state, word)
    return Doubt.CONTRADICTION if steps is None else steps


def _find_mismatch(of_provider: str, cash: Cash, claim: Claim, provider: str) -> Doubt | None:
    if provider != of_provider:
        return Doubt.OTHER_PROVIDER
    if claim.currency != cash.currency:
        return Doubt.CURRENCY_MISMATCH
    return Doubt.AMOUNT_MISMATCH if claim.amount_minor != cash.minor else None
