"""Countries and their regions, and what a region's multiplier would be by its purchasing power."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from computepool.core.market.ppm import PPM

DEFAULT_REGION = "default"

EU_MEMBERS = (
    *("AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU"),
    *("IE", "IT", "LT", "LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK"),
)
# What a rate card's region holds unless the card lists its countries itself.
COUNTRIES_BY_REGION = MappingProxyType({"in": ("IN",), "eu": EU_MEMBERS, "uk": ("GB",), "us": ("US",)})

# A derived multiplier never goes beyond these: hardware and power cost nearly the same everywhere, and nobody is
# charged more than the base for living in a dear country.
DERIVED_PPM_MIN = PPM // 2
DERIVED_PPM_MAX = PPM

# Countries by what a basket of goods costs there, in percent of its price in the United States, rounded to five:
# after the World Bank's price level ratios (PA.NUS.PPPC.RF) of the early 2020s.
_COUNTRIES_BY_PERCENT = {
    15: "EG NG",
    25: "BD IN NP PK UA VN",
    30: "AR ID LK",
    35: "KE MY PH TH TR",
    40: "CO GH",
    45: "BG MA RO RS ZA",
    50: "BR CL CN SA",
    55: "HR HU KR MX PE PL",
    60: "GR JP LT LV PT SK TW",
    65: "AE CZ ES MT SG SI",
    70: "CY EE HK IT UY",
    80: "FR",
    85: "AT BE CA DE NL",
    90: "FI GB IE NZ",
    95: "AU DK LU NO SE",
    100: "US",
    115: "IL IS",
    125: "CH",
}
PRICE_LEVEL_PERCENT = MappingProxyType(
    {country: percent for percent, countries in _COUNTRIES_BY_PERCENT.items() for country in countries.split()}
)


def derive_multiplier_ppm(countries: Iterable[str]) -> int | None:
    """The plain mean of the countries' price levels, clamped; None when the index knows none of them."""
    levels = [PRICE_LEVEL_PERCENT[country] for country in countries if country in PRICE_LEVEL_PERCENT]
    if not levels:
        return None
    mean_ppm = sum(levels) * PPM // (100 * len(levels))
    return min(max(mean_ppm, DERIVED_PPM_MIN), DERIVED_PPM_MAX)
