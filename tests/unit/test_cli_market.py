"""What people type and read about prices, before and after a hub is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from computepool.cli import earnings, quote, run
from computepool.cli.earnings import describe_earnings
from computepool.cli.main import EXIT_REFUSED
from computepool.cli.main import run as say
from computepool.cli.market import describe_history, describe_market
from computepool.cli.quote import describe_quote
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.price import PLAIN_WORDS, StartRefusal
from computepool.wire.jobs import JobPrice
from computepool.wire.market import (
    BucketEarnings,
    CostRange,
    Earnings,
    FloorEarnings,
    IndexLevel,
    IndexPoint,
    PriceIndex,
    Quote,
    QuotePlace,
    Spot,
    SpotHistory,
    SpotPage,
    SpotPoint,
    TierEarnings,
)

CREDIT = 1_000_000
COLUMNS_MAX = 100


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in ("HUB_URL", "COMPUTEPOOL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def make_range(low: int, likely: int, high: int) -> CostRange:
    return CostRange(low_microcredits=low, likely_microcredits=likely, high_microcredits=high)


def make_place(**overrides: Any) -> QuotePlace:
    fields: dict[str, Any] = {
        "tier": "rtx-4090",
        "region": "in",
        "price_microcredits_per_hour": 25_200_000,
        "spot_microcredits_per_hour": 25_200_000,
        "reference_microcredits_per_hour": 25_200_000,
        "slot_count": 12,
        "free_count": 3,
        "starts_in_seconds": 0,
    }
    return QuotePlace(**(fields | overrides))


def make_quote(**overrides: Any) -> Quote:
    fields: dict[str, Any] = {
        "cost": make_range(2 * CREDIT, 4_200_000, 10 * CREDIT),
        "owners_earn": make_range(1_600_000, 3_360_000, 8 * CREDIT),
        "hold_microcredits": 54 * CREDIT,
        "ceiling_microcredits_per_hour": 54 * CREDIT,
        "seconds_low": 300,
        "seconds_likely": 600,
        "seconds_high": 3_600,
        "places": [make_place()],
        "starts_in_seconds": 0,
        "why": "5 % dearer than yesterday: more slices wait (9, yesterday 2).",
        "own_slot_count": 0,
        "rate_card_version": "0123456789abcdef",
        "quoted_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Quote(**(fields | overrides))


def text_of(lines: list[str]) -> str:
    assert all(len(line) <= COLUMNS_MAX for line in lines)
    return " ".join(" ".join(lines).split())


def test_a_quote_takes_the_same_requirements_as_a_run() -> None:
    known = {option for parameter in run.command.params for option in parameter.opts}
    asked = {option for parameter in quote.command.params for option in parameter.opts}
    assert asked - known == {"--expect"}
    assert {"--gpu", "--vram", "--tier", "--region", "--max-price", "--wall", "--slices"} <= asked


def test_a_quote_is_read_as_cost_reason_hold_start_and_places() -> None:
    shown = text_of(describe_quote(make_quote(), slices=2))
    assert "2 slices would cost 4.2 credits, likely; 2 at least, 10 at most." in shown
    assert "5 % dearer than yesterday: more slices wait (9, yesterday 2)." in shown
    assert "54 credits would be set aside when you submit it" in shown
    assert "An hour costs 54 credits/h at most." in shown
    assert "It could start at once." in shown
    assert "Those who lend the slots would get 3.36 credits, likely" in shown
    assert "rtx-4090 in 25.2 25.2 25.2 3 12 at once" in shown
    assert "of your own" not in shown


def test_a_quote_of_a_fixed_price_says_what_a_slice_costs_wherever_it_runs() -> None:
    price = JobPrice(
        mode=PriceMode.PER_SLICE, microcredits_per_slice=2_500_000, ceiling_microcredits_per_slice=6 * CREDIT
    )
    place = make_place(slice_price_microcredits=5_250_000)
    shown = text_of(describe_quote(make_quote(price=price, places=[place]), slices=2))
    assert "(However long a slice runs: a fixed price for each that is delivered.)" in shown
    assert "A slice costs 2.5 credits, times tier and region of its slot, and 6 credits at most." in shown
    assert "TIER REGION A SLICE SPOT USUAL FREE SLOTS STARTS rtx-4090 in 5.25 25.2 25.2 3 12 at once" in shown
    assert "An hour costs" not in shown


def test_what_would_not_start_is_said_with_its_reason() -> None:
    refused = make_place(
        starts_in_seconds=None,
        refusal=StartRefusal.CEILING_BELOW_SPOT,
        refusal_words=PLAIN_WORDS[StartRefusal.CEILING_BELOW_SPOT],
    )
    shown = text_of(describe_quote(make_quote(places=[refused, refused], starts_in_seconds=None), slices=1))
    assert "1 slice would cost" in shown
    assert "It would not start while the market is as it is." in shown
    assert shown.count("Not now: others wait here and pay the spot price, which is above the ceiling.") == 1
    nowhere = make_quote(cost=None, owners_earn=None, places=[], starts_in_seconds=None, why="No slot fits.")
    assert "No slot fits." in text_of(describe_quote(nowhere, slices=1))


def test_a_queue_and_ones_own_slots_are_told() -> None:
    waiting = make_quote(places=[make_place(free_count=0, starts_in_seconds=400)], starts_in_seconds=400)
    assert "It could start in about 6 min 40." in text_of(describe_quote(waiting, slices=1))
    assert "1 slot of your own could run it, for nothing." in text_of(
        describe_quote(make_quote(own_slot_count=1), slices=1)
    )
    pool = make_quote(pool_slot_count=2, pool_price_microcredits_per_hour=3 * CREDIT)
    assert "2 slots of private pools take you, from 3 credits/h on." in text_of(describe_quote(pool, slices=1))


@pytest.mark.parametrize("option", ["--wall", "--expect"])
def test_a_time_that_is_none_is_refused_before_a_hub_is_asked(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(["quote", option, "soon"]) == EXIT_REFUSED
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("name", ["quote", "earnings"])
def test_without_a_key_one_is_told_to_sign_in(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert say([name]) == EXIT_REFUSED
    assert "sign-in" in capsys.readouterr().err


def make_floor(floor: int, **overrides: Any) -> FloorEarnings:
    fields: dict[str, Any] = {
        "floor_microcredits_per_hour": floor,
        "price_microcredits_per_hour": 25_200_000,
        "busy_ppm": 500_000,
        "owner_microcredits_per_hour": 10_080_000,
        "owner_microcredits_per_busy_hour": 20_160_000,
        "owner_microcredits_per_job": 3_360_000,
    }
    return FloorEarnings(**(fields | overrides))


def test_earnings_are_read_as_a_table_of_floors_and_one_of_tiers() -> None:
    low, high = make_floor(0), make_floor(30 * CREDIT, owner_microcredits_per_hour=1)
    bucket = BucketEarnings(
        tier="rtx-4090",
        region="in",
        own_slot_count=2,
        spot_microcredits_per_hour=25_200_000,
        reference_microcredits_per_hour=25_200_000,
        busy_ppm=500_000,
        seconds_per_job=600,
        floors=[low, high],
        best=low,
    )
    tier = TierEarnings(
        tier="cpu",
        multiplier_ppm=800_000,
        reference_microcredits_per_hour=6_720_000,
        owner_reference_microcredits_per_hour=5_376_000,
        price_microcredits_per_hour=6_720_000,
        owner_microcredits_per_hour=5_376_000,
        owner_microcredits_per_slice={"ml": 1_120_000},
    )
    shown = text_of(describe_earnings(Earnings(region="in", buckets=[bucket], tiers=[tier])))
    assert "2 slots of yours: rtx-4090 in the region in. Spot is 25.2 credits/h" in shown
    assert "in use for 50 % of the last day" in shown
    assert "FLOOR PAID/H IN USE LENT/H WORK/H JOB 0 25.2" in shown
    assert "0 25.2 50 % 10.08 20.16 3.36 most 30 25.2 50 % 0 20.16 3.36 An hour" in shown
    assert "TIER TIMES USUAL YOURS SPOT YOURS ML cpu" in shown
    assert "cpu 0.8 6.72 5.37 6.72 5.37 1.12" in shown
    idle = text_of(describe_earnings(Earnings(region="in", buckets=[replace(bucket, busy_ppm=0)], tiers=[])))
    assert "No slot like it was seen in use over the last day" in idle


# Prices for everybody

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_spot(**overrides: Any) -> Spot:
    fields: dict[str, Any] = {
        "tier": "rtx-4090",
        "region": "in",
        "spot_microcredits_per_hour": 27_719_999,
        "reference_microcredits_per_hour": 25_200_000,
        "surge_ppm": 1_100_000,
        "slot_count": 1_200,
        "busy_count": 1_180,
        "waiting_count": 400,
        "contested": True,
        "at": NOON,
    }
    return Spot(**(fields | overrides))


def make_index(*prices: int, **overrides: Any) -> PriceIndex:
    """Of one bucket; its level is the last price."""
    fields = {"ratio_ppm": 1_050_000, "deal_count": 41, "seconds": 600}
    points = [IndexPoint(at=NOON, price_microcredits_per_hour=price, **fields) for price in prices]
    levels = [
        IndexLevel(
            tier="rtx-4090",
            region="in",
            price_microcredits_per_hour=price,
            reference_microcredits_per_hour=25_200_000,
            at=NOON,
            **(fields | overrides),
        )
        for price in prices[-1:]
    ]
    return PriceIndex(hours=24.0, levels=levels, points=points)


def make_history(*spots: int) -> SpotHistory:
    points = [
        SpotPoint(
            at=NOON,
            spot_microcredits_per_hour=spot,
            reference_microcredits_per_hour=25_200_000,
            surge_ppm=1_000_000,
            rate_card_version="0123456789abcdef",
            slot_count=1,
            busy_count=0,
            waiting_count=0,
        )
        for spot in spots
    ]
    return SpotHistory(tier="rtx-4090", region="in", points=points)


def test_the_market_is_read_as_a_table_of_spot_usual_price_and_index() -> None:
    page = SpotPage(
        rate_card_version="0123456789abcdef",
        tick_seconds=120,
        spots=[make_spot(tier="cpu", contested=False), make_spot()],
    )
    shown = text_of(describe_market(page, make_index(26_460_000)))
    assert "TIER REGION SPOT USUAL INDEX SLOTS BUSY WAITING" in shown
    assert "cpu in 27.71 25.2 - 1,200 1,180 400 rtx-4090" in shown
    assert "rtx-4090 in 27.71 25.2 26.46 1,200 1,180 400 spot or wait" in shown


def test_where_nothing_was_lent_the_market_says_so() -> None:
    page = SpotPage(rate_card_version="0123456789abcdef", tick_seconds=120, spots=[])
    assert "Nothing was lent yet when the market last moved, which it does every 120 seconds" in text_of(
        describe_market(page, make_index())
    )


def test_the_history_of_one_tier_is_drawn_with_its_bounds() -> None:
    shown = text_of(describe_history(make_history(20 * CREDIT, 25 * CREDIT, 30 * CREDIT), make_index(26_460_000)))
    assert "rtx-4090 in the region in, the last 24 hours; credits per hour." in shown
    assert "spot ▁▅█ 20 to 30" in shown
    assert "Strangers paid 26.46, 105 % of the usual price: the median by time of 41 deals." in shown
    bare = text_of(describe_history(make_history(20 * CREDIT), make_index(), ascii_only=True))
    assert bare.isascii()
    assert "index nothing in this time" in bare


def test_the_table_of_all_tiers_stands_alone_too() -> None:
    assert earnings.command.name == "earnings"
    assert text_of(describe_earnings(Earnings(region="eu", buckets=[], tiers=[]))).startswith("An hour of full use")
