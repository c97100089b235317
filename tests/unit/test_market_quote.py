"""What a job would cost and earn, where and when it could run, and why that differs from yesterday."""

from __future__ import annotations

from dataclasses import replace

import pytest

from computepool.core.market.price import StartRefusal
from computepool.core.market.quote import BucketDay, BucketView, Quote, QuoteAsk, Range, make_quote, say_change
from computepool.core.market.rate_card import Bucket
from computepool.core.market.spot import RULE

CREDIT = 1_000_000
DAY = BucketDay(36 * CREDIT, slot_count=100, busy_count=80, waiting_count=0, card_version="a")
US = BucketView(Bucket("rtx-4090", "us"), 36 * CREDIT, DAY, DAY, 100, 20, 20 * CREDIT, 600)
CHEAP_DAY = replace(DAY, spot_microcredits_per_hour=25 * CREDIT)
INDIA = BucketView(Bucket("rtx-4090", "in"), 25 * CREDIT, CHEAP_DAY, None, 50, 5, 10 * CREDIT, 600)
ASK = QuoteAsk(slice_count=10, seconds_low=300, seconds_likely=600, seconds_high=3_600)
FEE_PPM = 200_000


def quote(ask: QuoteAsk = ASK, *views: BucketView) -> Quote:
    return make_quote(ask, views or (US, INDIA), fee_ppm=FEE_PPM)


def cost(found: Quote) -> Range:
    assert found.cost is not None
    return found.cost


def test_low_is_the_cheapest_place_if_slices_run_short():
    assert cost(quote()).low_microcredits == pytest.approx(10 * 25 * CREDIT * 300 / 3_600, rel=1e-5)


def test_likely_fills_free_slots_from_the_cheapest_up():
    expected = 5 * 25 * CREDIT * 600 / 3_600 + 5 * 36 * CREDIT * 600 / 3_600
    assert cost(quote()).likely_microcredits == pytest.approx(expected, rel=1e-5)


def test_high_is_the_limit_at_the_price_that_spot_could_reach():
    assert cost(quote()).high_microcredits > 10 * 36 * CREDIT
    assert cost(quote()).high_microcredits <= 10 * 36 * CREDIT * RULE.surge_ppm_max // 1_000_000 + 100


def test_nothing_goes_above_the_ceiling():
    found = quote(replace(ASK, ceiling_microcredits_per_hour=30 * CREDIT))
    assert cost(found).high_microcredits <= 10 * 30 * CREDIT
    assert all(place.price_microcredits <= 30 * CREDIT for place in found.places)


def test_owners_earn_the_rest_after_the_fee():
    found = quote()
    assert found.owners_earn is not None
    assert found.owners_earn.likely_microcredits == cost(found).likely_microcredits * 4 // 5


def test_a_surcharge_is_paid_by_the_submitter_and_not_to_the_owner():
    plain, verified = quote(), quote(replace(ASK, surcharge_ppm=150_000))
    assert cost(verified).likely_microcredits == cost(plain).likely_microcredits * 115 // 100
    assert verified.owners_earn is not None
    assert plain.owners_earn is not None
    assert verified.owners_earn.likely_microcredits == pytest.approx(plain.owners_earn.likely_microcredits, abs=2)


def test_places_stand_in_order_of_cost_and_say_when_they_start():
    found = quote()
    assert [place.bucket.region for place in found.places] == ["in", "us"]
    assert found.starts_in_seconds == 0


def test_a_faster_slot_may_be_cheaper_although_it_costs_more():
    fast = replace(US, speed_ppm=2_000_000)
    assert [place.bucket.region for place in quote(ASK, fast, INDIA).places] == ["us", "in"]


def test_a_full_bucket_starts_after_those_in_front():
    full = replace(US, free_count=0, today=replace(DAY, waiting_count=49))
    assert quote(ASK, full).starts_in_seconds == 50 * 600 // 100


def test_a_ceiling_below_spot_waits_while_others_pay_it_and_says_so():
    queued = replace(US, free_count=0, today=replace(DAY, waiting_count=3))
    found = quote(replace(ASK, ceiling_microcredits_per_hour=30 * CREDIT), queued)
    assert found.places[0].refusal is StartRefusal.CEILING_BELOW_SPOT
    assert found.starts_in_seconds is None
    assert found.cost is not None
    assert "they come first" in found.why


def test_a_ceiling_below_every_floor_has_no_cost_and_says_why():
    found = quote(replace(ASK, ceiling_microcredits_per_hour=9 * CREDIT))
    assert found.cost is None
    assert found.owners_earn is None
    assert {place.refusal for place in found.places} == {StartRefusal.FLOOR_ABOVE_CEILING}
    assert found.why == "Every slot that could run this asks for more than the ceiling."


def test_without_slots_there_is_nowhere():
    found = make_quote(ASK, [replace(US, slot_count=0)], fee_ppm=FEE_PPM)
    assert (found.cost, found.places, found.starts_in_seconds) == (None, (), None)
    assert found.why == "No slot that is lent now could run this."


def test_a_fixed_price_costs_the_same_however_long_it_takes():
    ask = replace(ASK, is_fixed=True)
    found = quote(ask, replace(US, slice_price_microcredits=7 * CREDIT), replace(INDIA, is_below_floor=True))
    assert found.cost == Range(70 * CREDIT, 70 * CREDIT, 70 * CREDIT)
    assert {place.bucket.region: place.refusal for place in found.places} == {
        "us": None,
        "in": StartRefusal.SLICE_BELOW_FLOOR,
    }


def test_a_fixed_price_that_comes_to_less_than_others_pay_waits_for_them():
    ask = replace(ASK, is_fixed=True)
    busy = replace(US.today, waiting_count=3)
    enough = -(-US.today.spot_microcredits_per_hour * ask.seconds_high // 3_600)
    for price, refusal in ((enough, None), (enough - 1, StartRefusal.CEILING_BELOW_SPOT)):
        [place] = quote(ask, replace(US, today=busy, slice_price_microcredits=price)).places
        assert place.refusal is refusal
    [place] = quote(ask, replace(US, slice_price_microcredits=1)).places
    assert place.refusal is None, "where nobody waits, it runs"


YESTERDAY = BucketDay(30 * CREDIT, slot_count=160, busy_count=96, waiting_count=0, card_version="a")


@pytest.mark.parametrize(
    ("today", "words"),
    [
        ({}, "About as dear as yesterday."),
        ({"spot_microcredits_per_hour": 30_200_000}, "About as dear as yesterday."),
        (
            {"spot_microcredits_per_hour": 36 * CREDIT, "slot_count": 100, "busy_count": 100, "waiting_count": 40},
            "20 % dearer than yesterday: fewer slots are lent (100, yesterday 160); more slices wait (40, yesterday "
            "0); 100 % of the slots are in use, yesterday 60 %.",
        ),
        (
            {"spot_microcredits_per_hour": 24 * CREDIT, "slot_count": 200},
            "20 % cheaper than yesterday: more slots are lent (200, yesterday 160); 48 % of the slots are in use, "
            "yesterday 60 %.",
        ),
        (
            {"spot_microcredits_per_hour": 36 * CREDIT, "card_version": "b"},
            "20 % dearer than yesterday: the rate card was changed.",
        ),
        # More slots do not explain a higher price, so they are not named.
        (
            {"spot_microcredits_per_hour": 36 * CREDIT, "slot_count": 200, "busy_count": 120},
            "20 % dearer than yesterday.",
        ),
    ],
)
def test_a_change_is_told_with_what_pulled_that_way(today, words):
    assert say_change(replace(YESTERDAY, **today), YESTERDAY) == words


def test_a_price_out_of_nothing_is_told_without_dividing_by_it():
    free = replace(YESTERDAY, spot_microcredits_per_hour=0)
    assert "dearer" in say_change(YESTERDAY, free)
