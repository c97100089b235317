"""What a match costs, when a slice may start, and who is the cheapest."""

from __future__ import annotations

import time
from importlib.resources import files

import pytest

from computepool.core.market.cheapest import OfferIndex
from computepool.core.market.offers import Ask, Audience, Offer
from computepool.core.market.price import (
    PLAIN_WORDS,
    StartRefusal,
    ceiling_in,
    find_start_refusal,
    price_ask,
    price_match,
    price_slice,
    to_base_price,
)
from computepool.core.market.rate_card import Bucket, parse_rate_card
from tests.support.builders import account_number

CARD = parse_rate_card(files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8"))
OWNER, SUBMITTER, FRIEND = account_number(1), account_number(2), account_number(3)
HERE, THERE = Bucket("rtx-4090", "us"), Bucket("rtx-4090", "in")
CREDIT = 1_000_000


@pytest.mark.parametrize(
    ("floor", "ceiling", "spot", "price"),
    [(5, 20, 10, 10), (5, 8, 10, 8), (12, 20, 10, 12), (5, None, 10, 10), (12, None, 10, 12), (8, 8, 10, 8)],
)
def test_a_match_costs_spot_within_floor_and_ceiling(floor, ceiling, spot, price):
    assert price_match(floor=floor, ceiling=ceiling, spot=spot) == price


@pytest.mark.parametrize(
    ("floor", "ceiling", "backlog", "refusal"),
    [
        (5, 10, True, None),
        (5, 9, True, StartRefusal.CEILING_BELOW_SPOT),
        (5, 9, False, None),
        (9, 9, False, None),
        (10, 9, False, StartRefusal.FLOOR_ABOVE_CEILING),
        (10, 9, True, StartRefusal.FLOOR_ABOVE_CEILING),
        (99, None, True, None),
    ],
)
def test_spot_has_force_while_somebody_waits_who_pays_it(floor, ceiling, backlog, refusal):
    assert find_start_refusal(floor=floor, ceiling=ceiling, spot=10, has_backlog_at_spot=backlog) is refusal


def make_ask(**overrides) -> Ask:
    return Ask(**{"account_id": SUBMITTER, "kind": "ml", "seconds": 600, **overrides})


def test_ones_own_jobs_are_free_and_private_pools_cost_the_owners_price():
    mine = make_ask(account_id=OWNER, ceiling_microcredits_per_hour=1)
    assert price_ask(Offer(OWNER, 50), mine, spot=10, has_backlog_at_spot=True) == 0
    private = Offer(OWNER, 7, audience=Audience.NAMED, named=frozenset({SUBMITTER}))
    ask = make_ask(ceiling_microcredits_per_hour=8)
    assert price_ask(private, ask, spot=10, has_backlog_at_spot=True) == 7
    dear = Offer(OWNER, 9, audience=Audience.NAMED, named=frozenset({SUBMITTER}))
    assert price_ask(dear, ask, spot=10, has_backlog_at_spot=True) is StartRefusal.FLOOR_ABOVE_CEILING


def test_strangers_pay_by_spot():
    ask = make_ask(ceiling_microcredits_per_hour=9)
    assert price_ask(Offer(OWNER, 5), ask, spot=8, has_backlog_at_spot=True) == 8
    refusal = price_ask(Offer(OWNER, 5), ask, spot=10, has_backlog_at_spot=True)
    assert refusal is StartRefusal.CEILING_BELOW_SPOT


def test_every_refusal_has_words():
    assert set(PLAIN_WORDS) == set(StartRefusal)


def test_a_fixed_price_is_the_base_times_tier_and_region():
    assert price_slice(CARD, THERE, base_microcredits=2_500_000, ceiling_microcredits=10**9) == 5_250_000


def test_a_fixed_price_stays_within_the_ceiling():
    assert price_slice(CARD, THERE, base_microcredits=2_500_000, ceiling_microcredits=4_000_000) == 4_000_000


def test_a_fixed_price_is_rounded_up_to_the_microcredit_and_not_down_past_a_floor():
    assert price_slice(CARD, THERE, base_microcredits=1, ceiling_microcredits=10**9) == 3


@pytest.mark.parametrize(
    ("ceiling", "base_ceiling", "there"),
    [(50, None, 50), (None, None, None), (None, 10, 21), (50, 10, 21), (20, 10, 20)],
)
def test_a_fixed_price_by_the_hour_grows_with_tier_and_region_and_stays_within_its_ceiling(
    ceiling, base_ceiling, there
):
    assert ceiling_in(CARD, THERE, ceiling=ceiling, base_ceiling=base_ceiling) == there


@pytest.mark.parametrize("price", [0, 1, 2, 20, 21, 22, 999_999, 10**15])
def test_a_price_before_tier_and_region_is_paid_by_exactly_those_who_pay_it_after_them(price):
    base = to_base_price(CARD, THERE, price)
    assert ceiling_in(CARD, THERE, ceiling=None, base_ceiling=base) >= price
    assert base == 0 or ceiling_in(CARD, THERE, ceiling=None, base_ceiling=base - 1) < price


# The index


def make_index(*floors: int, bucket: Bucket = HERE) -> OfferIndex[str]:
    index: OfferIndex[str] = OfferIndex()
    for number, floor in enumerate(floors):
        index.put(f"{bucket.region}{number}", bucket, Offer(OWNER, floor), free_since=float(number))
    return index


def find(index: OfferIndex[str], *, ceiling: int | None = None, backlog=(), spot: int = 10, **overrides):
    ask = make_ask(ceiling_microcredits_per_hour=ceiling, **overrides)
    found = index.find_cheapest(ask, (HERE, THERE), spots={HERE: spot, THERE: 7}, backlog_at_spot=backlog)
    return None if found is None else (found.key, found.price_microcredits_per_hour)


def test_up_to_spot_the_longest_free_is_next_and_not_the_lowest_floor():
    assert find(make_index(9, 2, 5)) == ("us0", 10)


def test_above_spot_the_lowest_floor_is_next():
    assert find(make_index(15, 12, 13)) == ("us1", 12)
    assert find(make_index(15, 12, 13), ceiling=11) is None


def test_a_ceiling_below_spot_buys_at_the_ceiling_or_waits():
    index = make_index(9, 2, 5)
    assert find(index, ceiling=6) == ("us1", 6)
    assert find(index, ceiling=6, backlog={HERE}) is None
    assert find(index, ceiling=10, backlog={HERE}) == ("us0", 10)


def test_the_cheaper_bucket_wins():
    index = make_index(2)
    index.put("there", THERE, Offer(OWNER, 3), free_since=99.0)
    assert find(index) == ("there", 7)
    index.remove("there")
    assert find(index) == ("us0", 10)


def test_ones_own_slot_wins_because_it_is_free():
    index = make_index(2)
    index.put("mine", HERE, Offer(SUBMITTER, 99), free_since=99.0)
    assert find(index, ceiling=1) == ("mine", 0)


def test_conditions_keep_an_offer_from_being_found():
    index: OfferIndex[str] = OfferIndex()
    index.put("ml", HERE, Offer(OWNER, 1, kinds=frozenset({"ml"})), free_since=0.0)
    index.put("long", HERE, Offer(OWNER, 1, seconds_min=3_600), free_since=0.0)
    index.put("pool", HERE, Offer(OWNER, 1, audience=Audience.NAMED, named=frozenset({FRIEND})), free_since=0.0)
    assert find(index, kind="gaming") is None
    assert find(index) == ("ml", 10)
    assert find(index, kind="gaming", seconds=3_600) == ("long", 10)
    assert find(index, kind="gaming", account_id=FRIEND) == ("pool", 1)


def test_an_offer_that_was_taken_is_not_found_again():
    index = make_index(1, 1)
    index.remove("us0")
    assert find(index) == ("us1", 10)
    index.remove("us1")
    assert find(index) is None
    assert len(index) == 0
    with pytest.raises(KeyError):
        index.remove("us1")


def test_putting_an_offer_again_replaces_it():
    index = make_index(1)
    index.put("us0", HERE, Offer(OWNER, 20), free_since=5.0)
    assert len(index) == 1
    assert find(index) == ("us0", 20)


def test_a_question_among_100_000_offers_does_not_look_at_all_of_them():
    index: OfferIndex[int] = OfferIndex()
    for number in range(100_000):
        offer = Offer(account_number(100 + number % 5_000), number * 7919 % 100_003)
        index.put(number, HERE, offer, free_since=float(number))
    start = time.process_time()
    for number in range(200):
        ask = make_ask(ceiling_microcredits_per_hour=500 * number)
        assert index.find_cheapest(ask, (HERE,), spots={HERE: 50_000}) is not None
    # Looking at every offer takes some 5 seconds for as many questions; this takes some 20 milliseconds.
    assert time.process_time() - start < 1.0
