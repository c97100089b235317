"""What may move, and when. Every figure comes in as an argument; a refusal is a value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from computepool.core.errors import ComputePoolError, InvalidRequest
from computepool.core.payments.cash import CREDIT, Cash, CashTerms
from computepool.core.payments.errors import (
    AccountFrozen,
    AccountOwes,
    CashLimitExceeded,
    CurrencyMismatch,
    PayoutBelowMinimum,
    PayoutCoolingOff,
    PayoutDetailsMissing,
)

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether an account may be trusted with money of ours."""

    frozen_at: datetime | None
    # What it owes after cash was taken back that it had spent.
    owed_microcredits: int


@dataclass(frozen=True, slots=True)
class Moved:
    """What an account has moved, or asked to move, in the last 24 hours."""

    microcredits: int = 0
    count: int = 0
    # The oldest of it: when it leaves the window there is room again.
    first_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DetailsInForce:
    currency: str
    changed_at: datetime


def find_frozen_refusal(frozen_at: datetime | None) -> AccountFrozen | None:
    """For everything that a frozen account must not do: submit, and be paid out."""
    if frozen_at is None:
        return None
    return AccountFrozen(
        f"This account is frozen since {frozen_at:%Y-%m-%d %H:%M} UTC, because money that it had paid in was taken "
        "back. It can top up; new jobs and payouts wait until the operator has lifted it. Ask the hub's operator."
    )


def find_payout_refusal(
    cash: Cash,
    *,
    terms: CashTerms,
    standing: Standing,
    details: DetailsInForce | None,
    moved: Moved,
    now: datetime,
) -> ComputePoolError | None:
    return (
        find_standing_refusal(standing)
        or _find_details_refusal(details, terms, now)
        or _find_minimum_refusal(cash, terms)
        or _find_day_refusal(
            cash,
            moved,
            microcredits_max=terms.payout_microcredits_per_day_max,
            count_max=terms.payout_count_per_day_max,
            what="pay out",
            now=now,
        )
    )


def find_top_up_refusal(cash: Cash, *, terms: CashTerms, moved: Moved, now: datetime) -> ComputePoolError | None:
    """A frozen account may top up: that is how it pays what it owes."""
    if cash.microcredits < terms.top_up_microcredits_min:
        return InvalidRequest(f"A top-up is of at least {_say_credits(terms.top_up_microcredits_min)} credits.")
    return _find_day_refusal(
        cash,
        moved,
        microcredits_max=terms.top_up_microcredits_per_day_max,
        count_max=terms.top_up_count_per_day_max,
        what="top up",
        now=now,
    )


def find_standing_refusal(standing: Standing) -> ComputePoolError | None:
    """Asked again when a payout is approved and when it is sent: much may have happened since the request."""
    if standing.frozen_at is not None:
        return find_frozen_refusal(standing.frozen_at)
    if standing.owed_microcredits > 0:
        return AccountOwes(
            f"This account owes {_say_credits(standing.owed_microcredits)} credits for money that was taken back. "
            "Top up first; nothing is paid out until then.",
            owed_microcredits=standing.owed_microcredits,
        )
    return None


def is_covered(cash: Cash, *, cash_held_microcredits: int, in_flight_microcredits: int) -> bool:
    """Whether the cash for a payout is there, beside that for the payouts which may have left already.

    After chargebacks we may owe more than we hold. What is not there is not sent.
    """
    return cash.microcredits + in_flight_microcredits <= cash_held_microcredits


def _find_details_refusal(details: DetailsInForce | None, terms: CashTerms, now: datetime) -> ComputePoolError | None:
    if details is None:
        return PayoutDetailsMissing("Say first where your money should go: set your payout details.")
    if details.currency != terms.currency:
        return CurrencyMismatch(
            f"Your payout details are for {details.currency}, and your region is paid in {terms.currency}. "
            "Set payout details for that currency."
        )
    ends_at = details.changed_at + timedelta(seconds=terms.cool_off_seconds)
    if now < ends_at:
        return PayoutCoolingOff(
            f"Your payout details were changed at {details.changed_at:%Y-%m-%d %H:%M} UTC. As a protection against "
            f"others, the first payout to them can be asked for at {ends_at:%Y-%m-%d %H:%M} UTC.",
            retry_after_seconds=ceil((ends_at - now).total_seconds()),
        )
    return None


def _find_minimum_refusal(cash: Cash, terms: CashTerms) -> PayoutBelowMinimum | None:
    if cash.minor > 0 and cash.microcredits >= terms.payout_microcredits_min:
        return None
    return PayoutBelowMinimum(
        f"A payout in {terms.currency} is of at least {_say_credits(terms.payout_microcredits_min)} credits.",
        minimum_microcredits=terms.payout_microcredits_min,
    )


def _find_day_refusal(
    cash: Cash, moved: Moved, *, microcredits_max: int, count_max: int, what: str, now: datetime
) -> CashLimitExceeded | None:
    if moved.microcredits + cash.microcredits <= microcredits_max and moved.count < count_max:
        return None
    wait = (moved.first_at + DAY - now).total_seconds() if moved.first_at is not None else DAY.total_seconds()
    return CashLimitExceeded(
        f"You can {what} {_say_credits(microcredits_max)} credits in 24 hours, in at most {count_max} parts; "
        f"{_say_credits(moved.microcredits)} credits in {moved.count} parts are used up. "
        "Ask for less, come back later, or ask the operator for more.",
        retry_after_seconds=max(1, ceil(wait)),
    )


def _say_credits(microcredits: int) -> str:
    whole, rest = divmod(microcredits, CREDIT)
    return f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
