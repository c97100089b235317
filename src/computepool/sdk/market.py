"""Prices over the hub's API: the rate card, spot and its history, the index, and what a machine would earn."""

from __future__ import annotations

from computepool.sdk.transport import Transport
from computepool.wire.market import Earnings, PriceIndex, RateCard, SpotHistory, SpotPage


class MarketClient:
    """`Client.market`. A quote for a job is `Client.quote`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def rate_card(self, *, version: str | None = None) -> RateCard:
        """The one in force; or an earlier one, by the version that attempts and statements name."""
        return self._transport.call("GET", "/v1/market/rate-card", RateCard, params={"version": version})

    def spot(self) -> SpotPage:
        """What an hour of a slot costs now, by tier and region of the rate card."""
        return self._transport.call("GET", "/v1/market/spot", SpotPage)

    def history(self, *, tier: str, region: str = "default", hours: float = 24.0) -> SpotHistory:
        params = {"tier": tier, "region": region, "hours": hours}
        return self._transport.call("GET", "/v1/market/history", SpotHistory, params=params)

    def index(self, *, tier: str | None = None, region: str = "default", hours: float = 24.0) -> PriceIndex:
        """What an hour really cost between strangers; of one tier and region with its history."""
        params = {"tier": tier, "region": region, "hours": hours}
        return self._transport.call("GET", "/v1/market/index", PriceIndex, params=params)

    def earnings(self, *, tier: str | None = None, country: str | None = None) -> Earnings:
        """Of one's own machines; or of one of a tier, in a country (ISO-2)."""
        params = {"tier": tier, "country": country}
        return self._transport.call("GET", "/v1/market/earnings", Earnings, params=params)
