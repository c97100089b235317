"""The shipped rate card has the right figures; what is wrong with a card is told with its key and what to write."""

from __future__ import annotations

from decimal import Decimal
from importlib.resources import files

import pytest

from computepool.core.market.ppm import PPM, say_percent, times_ppm
from computepool.core.market.rate_card import Bucket, parse_rate_card
from computepool.core.market.regions import EU_MEMBERS, PRICE_LEVEL_PERCENT, derive_multiplier_ppm
from computepool.core.placement import price, tier
from computepool.core.placement.scorers import TIER_TFLOPS

SHIPPED = files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8")
CARD = parse_rate_card(SHIPPED)
CREDIT = 1_000_000


def test_the_shipped_card_has_the_figures_of_the_design():
    assert CARD.base_microcredits_per_hour == 12 * CREDIT
    assert CARD.fee_ppm == 200_000
    assert dict(CARD.tiers_ppm) == {
        "rtx-5090": 3_000_000,
        "rtx-4090": 3_000_000,
        "rtx-3090": 2_500_000,
        "rtx-4070": 2_500_000,
        "rtx-3080": 2_000_000,
        "rtx-3060": 2_000_000,
        "rtx-2070": 2_000_000,
        "gtx-1080ti": 1_500_000,
        "gtx-1080": 1_500_000,
        "gtx-1660": 1_300_000,
        "cpu": 800_000,
    }
    assert {name: terms.multiplier_ppm for name, terms in CARD.regions.items()} == {
        "in": 700_000,
        "eu": 950_000,
        "uk": 1_000_000,
        "us": 1_000_000,
        "default": 1_000_000,
    }
    assert dict(CARD.slice_bases_microcredits) == {"ml": 2_500_000, "gaming": 3_000_000, "compute": 1_000_000}
    assert {terms.cash_out_min_microcredits for terms in CARD.regions.values()} == {500 * CREDIT}
    assert CARD.regions["in"].currency == "INR"


def test_tiers_agree_with_those_that_cards_are_given():
    named = {found for _, found, _ in tier._KNOWN} | {tier.CPU_TIER}
    assert set(CARD.tiers_ppm) == named
    assert price.MICROCREDITS_PER_CREDIT == PPM


@pytest.mark.parametrize(
    ("country", "region"),
    [
        *[("GB", "uk"), ("IN", "in"), ("US", "us"), ("DE", "eu"), ("de", "eu"), ("PL", "eu"), ("BR", "default")],
        *[("CH", "default"), ("NO", "default"), (None, "default"), ("", "default"), ("EU", "default")],
    ],
)
def test_countries_have_their_regions(country, region):
    assert CARD.region_of(country) == region


def test_there_are_27_members_of_the_union_and_britain_is_none():
    assert len(set(EU_MEMBERS)) == 27
    assert "GB" not in EU_MEMBERS


def test_the_reference_price_is_base_times_tier_times_region():
    assert CARD.reference(Bucket("rtx-4090", "us")) == 36 * CREDIT
    assert CARD.reference(Bucket("rtx-4090", "in")) == 25_200_000
    assert CARD.reference(Bucket("cpu", "eu")) == 9_120_000
    assert CARD.slice_reference(2_500_000, Bucket("rtx-3060", "in")) == 3_500_000


def test_a_region_that_a_card_has_no_more_is_priced_as_the_default():
    assert CARD.reference(Bucket("cpu", "atlantis")) == CARD.reference(Bucket("cpu", "default"))


@pytest.mark.parametrize(
    ("tflops", "tier_name"),
    [
        *[
            (200.0, "unknown-80"),
            (80.0, "unknown-80"),
            (79.9, "unknown-29"),
            (12.0, "unknown-12"),
            (0.1, "unknown-0"),
        ],
        *[(None, "unknown-0"), (float("nan"), "unknown-0"), (float("inf"), "unknown-0"), (-3.0, "unknown-0")],
    ],
)
def test_cards_without_a_row_are_priced_by_measured_speed(tflops, tier_name):
    assert CARD.bucket_of("unknown", "IN", tflops=tflops) == Bucket(tier_name, "in")


def test_a_known_tier_is_not_moved_by_its_speed():
    assert CARD.bucket_of("rtx-3060", None, tflops=500.0) == Bucket("rtx-3060", "default")


def test_no_unknown_card_is_worth_more_than_a_known_one_of_its_speed():
    for name, tflops in TIER_TFLOPS.items():
        if name != "unknown":
            step = CARD.bucket_of("a-card-of-tomorrow", "US", tflops=tflops)
            faster = [CARD.tier_ppm(other) for other, speed in TIER_TFLOPS.items() if speed >= tflops]
            assert CARD.tier_ppm(step.tier) <= max(faster)


def test_the_version_follows_what_is_said_and_not_how():
    relaid = "# another remark\n" + SHIPPED.replace("fee = 0.20", "fee = 2e-1").replace("cpu = 0.8", "cpu = 0.800")
    assert parse_rate_card(relaid).version == CARD.version
    swapped = SHIPPED.replace("rtx-5090 = 3.0\nrtx-4090 = 3.0\n", "rtx-4090 = 3.0\nrtx-5090 = 3.0\n")
    assert swapped != SHIPPED
    assert parse_rate_card(swapped).version == CARD.version
    assert len(CARD.version) == 16


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fee = 0.20", "fee = 0.19"),
        ("base_credits_per_hour = 12", "base_credits_per_hour = 12.000001"),
        ("cpu = 0.8", "cpu = 0.81"),
        ("multiplier = 0.7", "multiplier = 0.71"),
        ('currency = "INR"', 'currency = "USD"'),
        ("gaming = 3.0", "gaming = 3.1"),
        ("tflops_min = 29", "tflops_min = 30"),
        ("cash_out_min_credits = 500", "cash_out_min_credits = 501"),
    ],
)
def test_control_every_change_of_a_figure_is_another_version(old, new):
    assert old in SHIPPED
    assert parse_rate_card(SHIPPED.replace(old, new, 1)).version != CARD.version


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("fee = 0.20", "fee = 0.21", r"fee is 0\.21; the fee is never above 0\.20: write 0\.20 or less"),
        ("fee = 0.20", "fee = 20", "fee is 20; the fee is never above"),
        ("fee = 0.20", "fee = 0.2000001", "fee is never above"),
        ("fee = 0.20", "fee = -0.1", r"fee is -0\.1; write a number from 0 to 0\.20"),
        ("fee = 0.20", "fee = nan", "fee is NaN; write a number"),
        ("fee = 0.20", "fee = true", "fee is True; write a number"),
        ("fee = 0.20", "", "fee is absent; write a number"),
        ("fee = 0.20", "fees = 0.20", r"fees is unknown; did you mean fee\?.*fee is absent"),
        ("cpu = 0.8", "cpu = 0", r"tiers.cpu is 0; write a number from 0\.01 to 100"),
        ("cpu = 0.8", "cpu = 1e400", "tiers.cpu is 1E"),
        ("cpu = 0.8", "cpu = inf", "tiers.cpu is Infinity; write a number"),
        ("cpu = 0.8", "cpu = 0.8000001", "tiers.cpu is 0.8000001; write at most six digits after the point"),
        ("cpu = 0.8", 'cpu = "0.8"', "tiers.cpu is '0.8'; write a number"),
        ("cpu = 0.8", "gpu-9 = 0.8", r"tiers.cpu is absent; write the multiplier .* cpu = 0\.8"),
        ("cpu = 0.8", "cpu = 0.8\nRTX = 1", "tiers.RTX is no name; write lower-case"),
        ("cpu = 0.8", "cpu = 0.8\nunknown = 1", r"tiers.unknown has no place here; write steps of \[\[unknown_cards"),
        (
            "base_credits_per_hour = 12",
            "base_credits_per_hour = 0",
            "base_credits_per_hour is 0; write a number from",
        ),
        ("base_credits_per_hour = 12", "base_credits_per_hour = 1e9", "base_credits_per_hour is 1E"),
        ("[tiers]", "[tires]", r"tires is unknown; did you mean tiers\?.*there is no \[tiers\]"),
        ("multiplier = 0.7", 'multiplier = "cheap"', "regions.in.multiplier is 'cheap'; write a number, or"),
        ("multiplier = 0.7", "multipler = 0.7", r"regions.in.multipler is unknown; did you mean multiplier\?"),
        ('currency = "INR"', 'currency = "rupee"', "regions.in.currency is 'rupee'; write an ISO 4217 code"),
        ("[regions.default]", "[regions.rest]", r"regions.default is absent.*regions.rest.countries is absent"),
        (
            'currency = "INR"',
            'currency = "INR"\ncountries = ["India"]',
            r"regions.in.countries is .*; write a list of",
        ),
        (
            'currency = "INR"',
            'currency = "INR"\ncountries = ["DE"]',
            r"regions.eu.countries lists DE, which is in in",
        ),
        ("tflops_min = 0\n", "tflops_min = 1\n", "unknown_cards has no last step; write one with tflops_min = 0"),
        ("tflops_min = 8\n", "tflops_min = 12\n", "unknown_cards has two steps with one tflops_min"),
        ("multiplier = 1.5\n", "multiplier = 2.5\n", "pays a faster card less than a slower one"),
        ("tflops_min = 8\n", "tflop_min = 8\n", r"unknown_cards\[3\].tflop_min is unknown; did you mean tflops_min"),
        ("gaming = 3.0", "gaming = -3.0", "slice_base_credits.gaming is -3.0; write a number from"),
        ("[slice_base_credits]", "[slice_base_credits", "the rate card is not TOML"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key_and_what_to_write(old, new, fault):
    assert old in SHIPPED
    with pytest.raises(ValueError, match=f"(?s){fault}"):
        parse_rate_card(SHIPPED.replace(old, new, 1))


def test_all_faults_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)fee is 0\.3.*tiers.cpu is 0"):
        parse_rate_card(SHIPPED.replace("fee = 0.20", "fee = 0.3").replace("cpu = 0.8", "cpu = 0"))


def test_an_empty_card_is_refused():
    with pytest.raises(ValueError, match=r"there is no \[regions\].*base_credits_per_hour is absent"):
        parse_rate_card("")


def test_too_many_tiers_are_refused():
    with pytest.raises(ValueError, match="tiers has 311 entries; at most 256"):
        parse_rate_card(SHIPPED.replace("[tiers]", "[tiers]\n" + "\n".join(f"x{n} = 1" for n in range(300))))


def test_a_multiplier_can_follow_from_purchasing_power():
    brazil = '[regions.br]\nmultiplier = "purchasing_power"\ncurrency = "BRL"\ncash_out_min_credits = 300\n'
    card = parse_rate_card(SHIPPED + brazil + 'countries = ["BR", "UY"]\n')
    assert card.terms_of("br").multiplier_ppm == 600_000
    assert card.region_of("UY") == "br"
    assert card.terms_of("br").cash_out_min_microcredits == 300 * CREDIT
    assert card.version != CARD.version


def test_a_multiplier_that_cannot_be_derived_is_refused():
    here = 'multiplier = "purchasing_power"\ncurrency = "USD"'
    with pytest.raises(ValueError, match=r"regions.default.multiplier cannot be derived.*write a number"):
        parse_rate_card(
            SHIPPED.replace('[regions.default]\nmultiplier = 1.0\ncurrency = "USD"', f"[regions.default]\n{here}")
        )


def test_derived_multipliers_are_clamped():
    assert derive_multiplier_ppm(["IN"]) == 500_000
    assert derive_multiplier_ppm(["CH"]) == 1_000_000
    assert derive_multiplier_ppm(["DE"]) == 850_000
    assert derive_multiplier_ppm(["XX"]) is None
    assert all(500_000 <= derive_multiplier_ppm([country]) <= 1_000_000 for country in PRICE_LEVEL_PERCENT)


def test_every_country_with_a_region_of_its_own_has_a_price_level():
    assert set(CARD.region_by_country) <= set(PRICE_LEVEL_PERCENT)


def test_ratios_round_down_once():
    assert times_ppm(3, 500_000, 500_000) == 0
    assert times_ppm(7, 500_000) == 3
    assert times_ppm(10**15, 3_000_000, 950_000) == 10**15 * 285 // 100


@pytest.mark.parametrize(
    ("ratio_ppm", "words"),
    [(0, "0 %"), (4_000, "less than 1 %"), (124_999, "12 %"), (125_000, "13 %"), (PPM, "100 %")],
)
def test_percents_are_said_whole(ratio_ppm, words):
    assert say_percent(ratio_ppm) == words


def test_speeds_are_kept_exactly():
    assert [step.tflops_min for step in CARD.unknown_steps] == [Decimal(each) for each in (80, 29, 12, 8, 5, 0)]
