"""On which terms an account pays in and is paid out: currency and minimum of its region, and the hub's limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from computepool.core.market.rate_card import RegionTerms
from computepool.core.payments.cash import (
    EXAMPLE_RATES,
    HOME_CURRENCY,
    CashTerms,
    list_rate_warnings,
    list_term_faults,
    parse_rates,
)
from computepool.core.payments.errors import CurrencyMismatch
from computepool.hub.config import HubSettings
from computepool.hub.services.prices import PriceBook
from computepool.settings import InvalidSettings


class CashBook:
    """Follows the rate card, whichever is in force."""

    def __init__(self, prices: PriceBook, config: HubSettings) -> None:
        """Raises InvalidSettings for terms under which nothing could move."""
        self._prices = prices
        self._home_currency = config.cash_currency
        self._is_demo = config.demo
        self._set_by_operator, self.rates_on = _read_rates(config)
        self._rates = {**EXAMPLE_RATES, **self._set_by_operator}
        self._limits = CashTerms(
            top_up_microcredits_min=config.top_up_microcredits_min,
            top_up_microcredits_per_day_max=config.top_up_microcredits_per_day_max,
            top_up_count_per_day_max=config.top_up_count_per_day_max,
            payout_microcredits_per_day_max=config.payout_microcredits_per_day_max,
            payout_count_per_day_max=config.payout_count_per_day_max,
            cool_off_seconds=config.payout_cool_off_seconds,
        )
        faults = dict.fromkeys(self._list_faults())
        if faults:
            raise InvalidSettings("The terms for cash cannot be used: " + "; ".join(faults))

    @property
    def currencies(self) -> list[str]:
        """Those that money can come in: the hub's own first."""
        known = {region.currency for region in self._prices.card.regions.values()} & self._rates.keys()
        return [self._home_currency, *sorted(known - {self._home_currency})]

    def list_rates(self) -> dict[str, tuple[int, bool]]:
        """Of the currencies that money moves in: microcredits per minor unit, and whether that is an example only."""
        return {
            currency: (self._rates[currency], currency != HOME_CURRENCY and currency not in self._set_by_operator)
            for currency in self.currencies
        }

    def list_warnings(self, *, today: date) -> list[str]:
        """What the operator should mend before money moves. In a demo none does."""
        if self._is_demo:
            return []
        return list_rate_warnings(self.currencies, self._set_by_operator, rates_on=self.rates_on, today=today)

    def for_country(self, country: str | None) -> CashTerms:
        """By an ISO-2 code; None: somebody who has not said where they are. Raises CurrencyMismatch."""
        card = self._prices.card
        region = card.terms_of(card.region_of(country))
        return self._for_region(region, self._home_currency if country is None else region.currency)

    def for_top_up(self, country: str | None, currency: str | None) -> CashTerms:
        """People pay in whatever currency this hub takes. Raises CurrencyMismatch for others."""
        terms = self.for_country(country)
        if currency is None or currency == terms.currency:
            return terms
        if currency not in self.currencies:
            raise CurrencyMismatch(f"Money comes in as {', '.join(self.currencies)} here, not as {currency[:10]!r}.")
        return replace(terms, currency=currency, microcredits_per_minor_unit=self._rates[currency])

    def _for_region(self, region: RegionTerms, currency: str) -> CashTerms:
        rate = self._rates.get(currency)
        if rate is None:
            raise CurrencyMismatch(f"This hub has no rate for {currency} yet. Ask its operator.")
        return replace(
            self._limits,
            currency=currency,
            microcredits_per_minor_unit=rate,
            payout_microcredits_min=region.cash_out_min_microcredits,
        )

    def _list_faults(self) -> list[str]:
        regions = list(self._prices.card.regions.values())
        missing = {self._home_currency, *(region.currency for region in regions)} - self._rates.keys()
        if missing:
            return [f"no rate for {', '.join(sorted(missing))}: set COMPUTEPOOL_HUB_CASH_RATES, such as USD=850000"]
        return [f for region in regions for f in list_term_faults(self._for_region(region, region.currency))]


def _read_rates(config: HubSettings) -> tuple[Mapping[str, int], date | None]:
    try:
        rates = parse_rates(config.cash_rates)
    except ValueError as error:
        raise InvalidSettings(f"COMPUTEPOOL_HUB_CASH_RATES: {error}") from error
    try:
        return rates, date.fromisoformat(config.cash_rates_date) if config.cash_rates_date else None
    except ValueError as error:
        raise InvalidSettings(f"COMPUTEPOOL_HUB_CASH_RATES_DATE: {error}") from error
