"""What enters the price index, and what does not."""

from __future__ import annotations

import pytest

from computepool.core.market.index import Deal, are_linked, find_level, find_median, is_evidence, link_accounts
from computepool.core.market.rate_card import Bucket
from tests.support.builders import account_number

HERE = Bucket("rtx-4090", "us")
ANNA, BEN, CARL, DORA, EVE = (account_number(number) for number in range(1, 6))
HONEST = [(10, 600), (12, 600), (11, 900)]


def make_deal(price: int = 10, seconds: int = 600, submitter=ANNA, owner=BEN, **overrides) -> Deal:
    return Deal(HERE, submitter, owner, price, seconds, **overrides)


def test_the_index_is_the_median_by_seconds():
    level = find_level([make_deal(*each) for each in HONEST], reference=10, links={})
    assert level is not None
    assert (level.price_microcredits_per_hour, level.ratio_ppm) == (11, 1_100_000)
    assert (level.deal_count, level.seconds) == (3, 2_100)


def test_deals_with_oneself_with_linked_accounts_and_in_private_pools_are_no_evidence():
    links = link_accounts([(CARL, DORA)])
    assert not is_evidence(make_deal(submitter=BEN), links)
    assert not is_evidence(make_deal(submitter=CARL, owner=DORA), links)
    assert not is_evidence(make_deal(is_private=True), links)
    assert not is_evidence(make_deal(seconds=0), links)
    assert is_evidence(make_deal(submitter=CARL), links)


def test_without_evidence_there_is_no_index():
    assert find_level([], reference=10, links={}) is None
    assert find_level([make_deal(submitter=BEN)], reference=10, links={}) is None


def test_deals_between_linked_accounts_do_not_move_the_index():
    honest = [make_deal(*each) for each in HONEST]
    washed = [make_deal(10_000, 10**9, submitter=CARL, owner=DORA) for _ in range(100)]
    links = link_accounts([(CARL, EVE), (EVE, DORA)])
    assert find_level(honest + washed, reference=10, links=links) == find_level(honest, reference=10, links={})


def test_control_the_same_deals_move_an_index_that_does_not_look():
    honest = [make_deal(*each) for each in HONEST]
    washed = [make_deal(10_000, 10**9, submitter=CARL, owner=DORA) for _ in range(100)]
    level = find_level(honest + washed, reference=10, links={})
    assert level is not None
    assert level.price_microcredits_per_hour == 10_000


def test_a_few_odd_deals_do_not_move_it_much():
    odd = [make_deal(10**9, 100)]
    level = find_level([make_deal(*each) for each in HONEST] + odd, reference=10, links={})
    assert level is not None
    assert level.price_microcredits_per_hour == 11


def test_links_reach_through_others():
    links = link_accounts([(ANNA, BEN), (CARL, DORA), (BEN, CARL)])
    assert len({links[each] for each in (ANNA, BEN, CARL, DORA)}) == 1
    assert not are_linked(ANNA, EVE, links)
    assert are_linked(EVE, EVE, links)


def test_links_are_the_same_in_whatever_order_they_were_found():
    pairs = [(ANNA, BEN), (CARL, DORA), (BEN, CARL), (DORA, ANNA)]
    assert link_accounts(pairs) == link_accounts(reversed(pairs))


def test_there_is_no_median_of_nothing():
    with pytest.raises(ValueError, match="no median"):
        find_median([], 0)
