"""What cash is worth in credits. Cash is counted in whole minor units (paise, cents) of a named currency."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from computepool.core.ledger.amount import AMOUNT_MAX, Microcredits, find_amount_fault

CREDIT = 1_000_000
# 1 credit = INR 1 = 100 paise.
MICROCREDITS_PER_PAISA = CREDIT // 100
HOME_CURRENCY = "INR"
# Microcredits per minor unit. The rupee is what a credit is. The others are examples, about right when this was
# written, so that a demo runs: whoever moves money in them sets the rates of the day.
EXAMPLE_RATES: Mapping[str, int] = MappingProxyType(
    {HOME_CURRENCY: MICROCREDITS_PER_PAISA, "USD": 850_000, "EUR": 950_000, "GBP": 1_100_000}
)
# Older ones are spoken of: somebody could pay in by one currency, cash out by another and live on the difference.
RATES_DAYS_MAX = 7
_CURRENCY = re.compile(r"[A-Z]{3}\Z")
_RATE = re.compile(r"([A-Z]{3})=([0-9]{1,15})\Z", re.ASCII)
_MAJOR = re.compile(r"([0-9]{1,13})(?:\.([0-9]{1,3}))?\Z", re.ASCII)
# By ISO 4217; all others have two digits behind the point.
_DIGITS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND"), 0),
    **dict.fromkeys(("VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}


@dataclass(frozen=True, slots=True)
class CashTerms:
    """For one region: its currency, and how much may move. The operator's figures, checked by `list_term_faults`."""

    currency: str = "INR"  # ISO 4217
    microcredits_per_minor_unit: int = MICROCREDITS_PER_PAISA
    payout_microcredits_min: int = 500 * CREDIT
    payout_microcredits_per_day_max: int = 50_000 * CREDIT
    payout_count_per_day_max: int = 3
    top_up_microcredits_min: int = 10 * CREDIT
    top_up_microcredits_per_day_max: int = 100_000 * CREDIT
    top_up_count_per_day_max: int = 20
    # From a change of payout details to the first payout: time for the owner to notice that it was not them.
    cool_off_seconds: float = 48 * 3_600.0


@dataclass(frozen=True, slots=True)
class Cash:
    """An amount of money and the credits that stand for it, at the rate of the day it was asked for."""

    currency: str
    minor: int
    microcredits: Microcredits


def to_cash(microcredits: int, terms: CashTerms) -> Cash:
    """As many whole minor units as the credits pay for; what is left of the credits is not part of it."""
    return from_minor(microcredits // terms.microcredits_per_minor_unit, terms)


def from_minor(minor: int, terms: CashTerms) -> Cash:
    return Cash(terms.currency, minor, Microcredits(minor * terms.microcredits_per_minor_unit))


def is_currency(text: str) -> bool:
    return _CURRENCY.match(text) is not None


def parse_rates(text: str) -> Mapping[str, int]:
    """`USD=850000 EUR=950000`: microcredits per minor unit. Raises ValueError."""
    rates = {}
    for word in text.replace(",", " ").split():
        match = _RATE.match(word)
        if match is None or find_amount_fault(int(match[2])):
            raise ValueError(f"{word!r} is no rate; write USD=850000, in microcredits per minor unit")
        rates[match[1]] = int(match[2])
    return MappingProxyType(rates)


def list_rate_warnings(
    used: Collection[str], set_by_operator: Collection[str], *, rates_on: date | None, today: date
) -> list[str]:
    """What is wrong with the rates of these currencies, and what to do about it. A rupee is a rupee on any day."""
    foreign = set(used) - {HOME_CURRENCY}
    examples = sorted(foreign - set(set_by_operator))
    warnings = []
    if examples:
        warnings.append(
            f"{', '.join(examples)}: the rates are the examples that come with the hub. Set those of the day in "
            "COMPUTEPOOL_HUB_CASH_RATES, and the day in COMPUTEPOOL_HUB_CASH_RATES_DATE."
        )
    if foreign <= set(examples):
        return warnings
    if rates_on is None:
        warnings.append("Nobody knows how old the rates of cash are. Set COMPUTEPOOL_HUB_CASH_RATES_DATE.")
    elif not -1 <= (age := (today - rates_on).days) <= RATES_DAYS_MAX:
        how = f"{age:,} days old" if age > 0 else "of a day that is yet to come"
        mend = "Set COMPUTEPOOL_HUB_CASH_RATES and its date anew."
        warnings.append(f"The rates of cash are of {rates_on.isoformat()}: {how}. {mend}")
    return warnings


def count_minor_digits(currency: str) -> int:
    """Behind the point."""
    return _DIGITS.get(currency, 2)


def say_cash(currency: str, minor: int) -> str:
    """As banks write it: `INR 1,500.00`."""
    digits = count_minor_digits(currency)
    whole, rest = divmod(minor, 10**digits)
    return f"{currency} {whole:,}" + (f".{rest:0{digits}d}" if digits else "")


def parse_minor(text: str, currency: str) -> int:
    """`1500` or `1500.5` of a currency, in its minor units. Raises ValueError for what is finer, or no amount."""
    digits = count_minor_digits(currency)
    match = _MAJOR.match(text)
    if match is None or len(match[2] or "") > digits:
        example = "1500" + (f".{'50'.ljust(digits, '0')}" if digits else "")
        raise ValueError(f"{text!r} is no amount of {currency}; write it as {example}")
    return int(match[1] + (match[2] or "").ljust(digits, "0"))


def list_term_faults(terms: CashTerms) -> list[str]:
    faults = []
    if not is_currency(terms.currency):
        faults.append(f"currency {terms.currency!r} is not an ISO 4217 code such as INR")
    amounts = {
        "microcredits_per_minor_unit": terms.microcredits_per_minor_unit,
        "payout_microcredits_min": terms.payout_microcredits_min,
        "payout_microcredits_per_day_max": terms.payout_microcredits_per_day_max,
        "top_up_microcredits_min": terms.top_up_microcredits_min,
        "top_up_microcredits_per_day_max": terms.top_up_microcredits_per_day_max,
    }
    faults += [
        f"{name} is a whole number from 1 to {AMOUNT_MAX}" for name, n in amounts.items() if find_amount_fault(n)
    ]
    if terms.payout_microcredits_min > terms.payout_microcredits_per_day_max:
        faults.append("payout_microcredits_min is above payout_microcredits_per_day_max: nothing could be paid out")
    if terms.top_up_microcredits_min > terms.top_up_microcredits_per_day_max:
        faults.append("top_up_microcredits_min is above top_up_microcredits_per_day_max: nothing could be paid in")
    if min(terms.payout_count_per_day_max, terms.top_up_count_per_day_max) < 1:
        faults.append("a count per day is at least 1")
    if terms.cool_off_seconds < 0:
        faults.append("cool_off_seconds is not below 0")
    return faults
