"""What cash is worth by currency and region, and which payment providers a hub's settings make."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from computepool.core.payments.cash import CREDIT, EXAMPLE_RATES, parse_minor, parse_rates, say_cash
from computepool.core.payments.errors import CurrencyMismatch
from computepool.hub.config import HubSettings, PaymentKind
from computepool.hub.payments.manual import ManualAdapter
from computepool.hub.payments.providers import close_providers, open_providers
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.hub.services.cash_terms import CashBook
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.settings import InvalidSettings

SECRET = "shared-by-hub-and-provider"


def make_book(**settings: Any) -> CashBook:
    return CashBook(PriceBook(load_rate_card(), holdback_seconds=60), HubSettings(**settings))


# Cash as people and banks write it


@pytest.mark.parametrize(
    ("currency", "minor", "said"),
    [("INR", 150_000, "INR 1,500.00"), ("USD", 5, "USD 0.05"), ("JPY", 1_500, "JPY 1,500"), ("KWD", 1, "KWD 0.001")],
)
def test_cash_is_said_with_the_digits_of_its_currency(currency: str, minor: int, said: str) -> None:
    assert say_cash(currency, minor) == said
    assert parse_minor(said.partition(" ")[2].replace(",", ""), currency) == minor


@pytest.mark.parametrize(
    ("text", "currency"),
    [("1.234", "INR"), ("1.5", "JPY"), ("-1", "INR"), ("1e3", "INR"), ("", "INR"), (".5", "INR"), ("٣", "INR")],
)
def test_what_is_no_amount_of_a_currency_is_refused(text: str, currency: str) -> None:
    with pytest.raises(ValueError, match=currency):
        parse_minor(text, currency)


def test_a_credit_is_a_rupee() -> None:
    assert EXAMPLE_RATES["INR"] * 100 == CREDIT


def test_rates_add_to_the_examples_or_replace_them() -> None:
    assert parse_rates("") == {}
    assert parse_rates("USD=900000, BRL=150000") == {"USD": 900_000, "BRL": 150_000}
    rates = make_book(cash_rates="USD=900000").list_rates()
    assert rates == {
        "INR": (10_000, False),
        "EUR": (EXAMPLE_RATES["EUR"], True),
        "GBP": (EXAMPLE_RATES["GBP"], True),
        "USD": (900_000, False),
    }


ALL_RATES = "USD=900000 EUR=1000000 GBP=1100000"
TODAY = date(2026, 1, 31)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ["EUR, GBP, USD: the rates are the examples"]),
        ({"cash_rates": "USD=900000", "cash_rates_date": "2026-01-31"}, ["EUR, GBP: the rates are the examples"]),
        ({"cash_rates": ALL_RATES}, ["Nobody knows how old the rates of cash are"]),
        ({"cash_rates": ALL_RATES, "cash_rates_date": "2026-01-24"}, []),
        ({"cash_rates": ALL_RATES, "cash_rates_date": "2026-01-23"}, ["of 2026-01-23: 8 days old"]),
        # Midnight does not come everywhere at once; a slip of the pen must not hold for ever.
        ({"cash_rates": ALL_RATES, "cash_rates_date": "2026-02-01"}, []),
        ({"cash_rates": ALL_RATES, "cash_rates_date": "2062-01-31"}, ["of a day that is yet to come"]),
        ({"cash_rates": "USD=900000"}, ["EUR, GBP: the rates are", "Nobody knows how old"]),
    ],
)
def test_rates_that_are_examples_or_old_are_spoken_of(settings: dict[str, str], said: list[str]) -> None:
    warnings = make_book(**settings).list_warnings(today=TODAY)
    assert len(warnings) == len(said)
    for warning, words in zip(warnings, said, strict=True):
        assert words in warning
        assert "COMPUTEPOOL_HUB_CASH_RATES" in warning, "what to do about it"


def test_in_a_demo_no_money_moves_and_nobody_is_warned() -> None:
    assert make_book(demo=True).list_warnings(today=TODAY) == []


def test_a_day_that_is_none_stops_the_hub() -> None:
    with pytest.raises(InvalidSettings, match="CASH_RATES_DATE"):
        make_book(cash_rates_date="2026-02-31")


@pytest.mark.parametrize("text", ["USD", "USD=", "USD=0", "USD=1.5", "usd=5", "USD=9999999999999999", "USD=-5"])
def test_a_rate_that_is_none_stops_the_hub(text: str) -> None:
    with pytest.raises(InvalidSettings, match="CASH_RATES"):
        make_book(cash_rates=text)


# Terms


@pytest.mark.parametrize(
    ("country", "currency"),
    [("IN", "INR"), ("DE", "EUR"), ("GB", "GBP"), ("US", "USD"), ("BR", "USD"), (None, "INR")],
)
def test_a_region_has_its_currency(country: str | None, currency: str) -> None:
    terms = make_book().for_country(country)
    assert terms.currency == currency
    assert terms.microcredits_per_minor_unit == EXAMPLE_RATES[currency]
    assert terms.payout_microcredits_min == 500 * CREDIT


def test_limits_are_those_of_the_settings_in_every_region() -> None:
    book = make_book(
        payout_count_per_day_max=7,
        top_up_microcredits_min=CREDIT,
        payout_cool_off_seconds=5,
        payout_microcredits_per_day_max=900 * CREDIT,
    )
    for terms in (book.for_country("IN"), book.for_country("US"), book.for_top_up(None, "EUR")):
        assert (terms.payout_count_per_day_max, terms.cool_off_seconds) == (7, 5)
        assert (terms.top_up_microcredits_min, terms.payout_microcredits_per_day_max) == (CREDIT, 900 * CREDIT)


def test_money_comes_in_by_every_currency_that_the_hub_takes_and_no_other() -> None:
    book = make_book(cash_currency="EUR", cash_rates="CHF=900000")
    assert book.currencies == ["EUR", "GBP", "INR", "USD"]
    assert book.for_top_up("IN", None).currency == "INR"
    assert book.for_top_up("IN", "GBP").microcredits_per_minor_unit == EXAMPLE_RATES["GBP"]
    # It has a rate, but no region is paid in it.
    with pytest.raises(CurrencyMismatch, match="EUR, GBP, INR, USD"):
        book.for_top_up("IN", "CHF")


def test_terms_under_which_nothing_could_move_stop_the_hub() -> None:
    with pytest.raises(InvalidSettings, match="nothing could be paid out"):
        make_book(payout_microcredits_per_day_max=499 * CREDIT)
    with pytest.raises(InvalidSettings, match="no rate for BRL"):
        make_book(cash_currency="BRL")


# Providers


def make_settings(**settings: Any) -> HubSettings:
    values = {"payment_url": "https://pay.example.org", "payment_secrets": SECRET, **settings}
    return HubSettings(payment_provider=PaymentKind.WEBHOOK, **values)


def test_the_operators_hand_is_the_provider_unless_the_settings_name_another() -> None:
    providers = open_providers(HubSettings(payment_instructions="Pay to bank 1."))
    assert providers.names == ["manual"]
    assert isinstance(providers.default.adapter, ManualAdapter)
    # Nobody calls in its name.
    assert providers.default.secrets == ()


async def test_a_webhook_comes_first_and_the_hand_stays() -> None:
    providers = open_providers(make_settings(payment_name="acme"))
    assert providers.names == ["acme", "manual"]
    assert isinstance(providers.default.adapter, WebhookAdapter)
    assert providers.default.secrets == (SECRET.encode(),)
    await close_providers(providers)


async def test_secrets_come_from_both_places_so_that_they_can_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"another-secret-of-hub\n{SECRET}\n")
    providers = open_providers(make_settings(payment_secrets_file=str(file)))
    assert providers.default.secrets == (SECRET.encode(), b"another-secret-of-hub")
    await close_providers(providers)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"payment_url": ""}, "PAYMENT_URL is not set"),
        ({"payment_secrets": ""}, "1 to 5 secrets"),
        ({"payment_secrets": "short"}, "at least 16 bytes"),
        ({"payment_secrets": " ".join(f"{SECRET}{n}" for n in range(6))}, "1 to 5 secrets"),
        ({"payment_secrets_file": "/no/such/file"}, "PAYMENT_SECRETS_FILE cannot be read"),
        ({"payment_url": "http://pay.example.org"}, "https"),
        ({"payment_name": "manual"}, "PAYMENT_NAME"),
        ({"payment_name": "welcome"}, "PAYMENT_NAME"),
    ],
)
def test_a_provider_that_cannot_be_used_stops_the_hub(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said) as caught:
        open_providers(make_settings(**settings))
    assert SECRET not in caught.value.message


def test_every_fault_of_a_provider_is_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as caught:
        open_providers(make_settings(payment_url="", payment_secrets="", payment_name="manual"))
    for word in ("PAYMENT_URL", "PAYMENT_SECRETS", "PAYMENT_NAME"):
        assert word in caught.value.message
