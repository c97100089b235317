"""What a machine would earn, by tier and by floor."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from computepool.core.ids import AttemptId
from computepool.core.ledger.charging import charge_attempt
from computepool.core.market.earnings import (
    Bid,
    find_best_floor,
    forecast_floor,
    list_floor_earnings,
    list_tier_earnings,
)
from computepool.core.market.rate_card import Bucket, parse_rate_card

CARD = parse_rate_card(files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "market.md"
CREDIT = 1_000_000
BIDS = [Bid(ceiling * CREDIT, 600) for ceiling in (20, 30, 40, 50)] + [Bid(None, 600)]


@pytest.mark.parametrize("region", ["in", "eu", "uk", "us", "default"])
def test_earnings_per_hour_and_per_slice_rise_with_the_tier(region):
    rows = list_tier_earnings(CARD, region)
    assert len(rows) == len(CARD.tiers_ppm) + len(CARD.unknown_steps)
    assert rows[0].tier == "cpu"
    for lower, higher in pairwise(rows):
        rises = lower.multiplier_ppm < higher.multiplier_ppm
        usual = lower.owner_reference_microcredits_per_hour, higher.owner_reference_microcredits_per_hour
        assert (usual[0] < usual[1]) is rises
        assert (lower.owner_microcredits_per_hour < higher.owner_microcredits_per_hour) is rises
        for kind in CARD.slice_bases_microcredits:
            lesser, greater = lower.owner_microcredits_per_slice[kind], higher.owner_microcredits_per_slice[kind]
            assert (lesser < greater) is rises


def test_the_owner_gets_four_fifths_of_the_reference_price():
    row = next(row for row in list_tier_earnings(CARD, "in") if row.tier == "rtx-4090")
    assert row.owner_microcredits_per_hour == 20_160_000


def test_spot_replaces_the_reference_where_it_is_known():
    rows = {row.tier: row for row in list_tier_earnings(CARD, "us", spots={Bucket("rtx-4090", "us"): 50 * CREDIT})}
    assert rows["rtx-4090"].owner_microcredits_per_hour == 40 * CREDIT
    assert rows["rtx-5090"].owner_microcredits_per_hour == 28_800_000
    # What it usually pays is told beside it, and rises with the tier whatever spot does.
    assert rows["rtx-4090"].owner_reference_microcredits_per_hour == 28_800_000
    dear = list_tier_earnings(CARD, "us", spots={Bucket("cpu", "us"): 99 * CREDIT})
    usual = [row.owner_reference_microcredits_per_hour for row in dear]
    assert usual == sorted(usual)
    assert dear[0].owner_microcredits_per_hour > dear[-1].owner_microcredits_per_hour


def test_the_table_of_the_page_is_that_of_the_card():
    rows = {row.tier: row for row in list_tier_earnings(CARD, "us")}
    told = re.findall(r"^\| (`.+`) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    figures = {
        tier: (float(price), float(gets)) for tiers, price, gets in told for tier in re.findall(r"`(.+?)`", tiers)
    }
    assert figures == {
        tier: (rows[tier].price_microcredits_per_hour / CREDIT, rows[tier].owner_microcredits_per_hour / CREDIT)
        for tier in CARD.tiers_ppm
    }


@pytest.mark.parametrize("spot", [0, 1, 4, 5, 6, 999_999, 10**15])
def test_what_an_hour_is_said_to_earn_is_what_the_ledger_pays_for_it(spot):
    bucket = Bucket("cpu", "us")
    [row] = [row for row in list_tier_earnings(CARD, "us", spots={bucket: spot}) if row.tier == "cpu"]
    charge = charge_attempt(AttemptId(UUID(int=1)), spot, fee_ppm=CARD.fee_ppm)
    assert row.owner_microcredits_per_hour == charge.owner_microcredits


def forecast(floor: int):
    return forecast_floor(
        floor=floor * CREDIT,
        spot=30 * CREDIT,
        busy_ppm=800_000,
        bids=BIDS,
        seconds_per_job=600,
        fee_ppm=200_000,
    )


def test_up_to_spot_a_floor_changes_nothing():
    assert forecast(0).owner_microcredits_per_hour == forecast(30).owner_microcredits_per_hour == 19_200_000
    assert forecast(0).owner_microcredits_per_job == 4 * CREDIT


def test_above_spot_only_those_count_who_would_pay_it():
    row = forecast(40)
    assert row.price_microcredits_per_hour == 40 * CREDIT
    assert row.busy_ppm == 480_000
    assert row.owner_microcredits_per_hour == 40 * CREDIT * 48 // 100 * 4 // 5
    assert forecast(60).busy_ppm == 160_000


def test_nothing_is_promised_above_spot_when_nothing_is_known():
    row = forecast_floor(floor=2, spot=1, busy_ppm=800_000, bids=[], seconds_per_job=600, fee_ppm=200_000)
    assert (row.busy_ppm, row.owner_microcredits_per_hour) == (0, 0)


def test_rows_rise_by_floor_and_the_best_one_is_found():
    rows = list_floor_earnings(spot=30 * CREDIT, busy_ppm=800_000, bids=BIDS, seconds_per_job=600, fee_ppm=200_000)
    floors = [row.floor_microcredits_per_hour for row in rows]
    assert floors == sorted(set(floors))
    assert floors[0] == 0
    best = find_best_floor(rows)
    assert best.owner_microcredits_per_hour == max(row.owner_microcredits_per_hour for row in rows)


def test_of_equal_floors_the_lowest_is_best():
    rows = list_floor_earnings(
        spot=30 * CREDIT, busy_ppm=10**6, bids=[], seconds_per_job=600, fee_ppm=0, floors=[20 * CREDIT, 10 * CREDIT]
    )
    assert find_best_floor(rows).floor_microcredits_per_hour == 10 * CREDIT
