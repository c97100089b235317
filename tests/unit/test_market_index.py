"""What enters the price index, and what does not."""

from __future__ import annotations

import pytest

from computepool.core.market.index import DealGroup, find_level, find_median, is_evidence, link_accounts, list_levels
from computepool.core.market.rate_card import Bucket
from tests.support.builders import account_number

HERE, THERE = Bucket("rtx-4090", "us"), Bucket("cpu", "in")
ANNA, BEN, CARL, DORA, EVE = (account_number(number) for number in range(1, 6))
HONEST = [(10, 600), (12, 600), (11, 900)]


def make_deals(price: int = 10, seconds: int = 600, count: int = 1, bucket: Bucket = HERE, **overrides) -> DealGroup:
    return DealGroup(bucket, price, count, seconds, **overrides)


def test_the_index_is_the_median_by_seconds():
    level = find_level([make_deals(*each, count=2) for each in HONEST], reference=10)
    assert level is not None
    assert (level.price_microcredits_per_hour, level.ratio_ppm) == (11, 1_100_000)
    assert (level.deal_count, level.seconds) == (6, 2_100)


def test_every_bucket_has_its_own():
    deals = [make_deals(10), make_deals(30), make_deals(7, bucket=THERE), make_deals(9, bucket=THERE, is_linked=True)]
    levels = list_levels(deals, {HERE: 10, THERE: 14}.__getitem__)
    assert {bucket: level.price_microcredits_per_hour for bucket, level in levels.items()} == {HERE: 10, THERE: 7}
    assert levels[THERE].ratio_ppm == 500_000


def test_deals_with_oneself_with_linked_accounts_and_in_private_pools_are_no_evidence():
    assert not is_evidence(make_deals(is_linked=True))
    assert not is_evidence(make_deals(is_private=True))
    assert not is_evidence(make_deals(seconds=0))
    assert is_evidence(make_deals())


def test_without_evidence_there_is_no_index():
    assert find_level([], reference=10) is None
    assert find_level([make_deals(is_linked=True)], reference=10) is None
    assert list_levels([make_deals(is_private=True)], lambda _: 10) == {}


def test_deals_between_linked_accounts_do_not_move_the_index():
    honest = [make_deals(*each) for each in HONEST]
    washed = [make_deals(10_000, 10**9, is_linked=True) for _ in range(100)]
    assert find_level(honest + washed, reference=10) == find_level(honest, reference=10)


def test_control_the_same_deals_move_an_index_that_does_not_look():
    honest = [make_deals(*each) for each in HONEST]
    washed = [make_deals(10_000, 10**9) for _ in range(100)]
    level = find_level(honest + washed, reference=10)
    assert level is not None
    assert level.price_microcredits_per_hour == 10_000


def test_a_few_odd_deals_do_not_move_it_much():
    odd = [make_deals(10**9, 100)]
    level = find_level([make_deals(*each) for each in HONEST] + odd, reference=10)
    assert level is not None
    assert level.price_microcredits_per_hour == 11


def test_links_reach_through_others():
    links = link_accounts([(ANNA, BEN), (CARL, DORA), (BEN, CARL)])
    assert len({links[each] for each in (ANNA, BEN, CARL, DORA)}) == 1
    assert EVE not in links


def test_links_are_the_same_in_whatever_order_they_were_found():
    pairs = [(ANNA, BEN), (CARL, DORA), (BEN, CARL), (DORA, ANNA)]
    assert link_accounts(pairs) == link_accounts(reversed(pairs))


def test_there_is_no_median_of_nothing():
    with pytest.raises(ValueError, match="no median"):
        find_median([])
