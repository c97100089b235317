"""Which network a node calls from, and how many new ones may come from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from computepool.core.trust.identities import (
    NEW_PER_OWNER_MAX,
    WINDOW,
    Origin,
    find_identity_refusal,
    find_network,
)
from computepool.hub.config import HubSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOBODY = Origin(0)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("93.184.216.34", "93.184.216.0/24"),
        ("93.184.216.255", "93.184.216.0/24"),
        ("::ffff:93.184.216.34", "93.184.216.0/24"),
        ("2606:2800:220:1:248:1893:25c8:1946", "2606:2800:220::/48"),
        ("2606:2800:220:ffff::1", "2606:2800:220::/48"),
    ],
)
def test_neighbours_are_one_network(address, network):
    assert find_network(address) == network


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "10.1.2.3",
        "192.168.0.7",
        "100.64.3.2",
        "169.254.1.1",
        "::ffff:192.168.0.7",
        "fd00::1",
        "fe80::1%eth0",
        "224.0.0.1",
        "testclient",
        "",
        None,
    ],
)
def test_an_address_that_says_nothing_of_its_neighbours_is_no_network(address):
    assert find_network(address) is None


def test_whoever_has_brought_as_many_as_may_come_hears_when_the_next_may():
    oldest = NOW - timedelta(days=12)
    full = Origin(NEW_PER_OWNER_MAX, oldest_new_at=oldest)
    refusal = find_identity_refusal(owner=full, network=NOBODY, now=NOW)
    assert (refusal.reason, refusal.retry_at) == ("too_many", oldest + WINDOW)
    assert "Ask the operator" in refusal.words


def test_after_a_limit_was_lowered_nobody_can_say_when():
    refusal = find_identity_refusal(owner=Origin(3, oldest_new_at=NOW), network=NOBODY, now=NOW, usual=2)
    assert (refusal.reason, refusal.retry_at) == ("too_many", None)


def test_another_usual_limit_holds_for_owners_and_networks_but_not_after_a_bugged_node():
    many = Origin(20)
    assert find_identity_refusal(owner=many, network=many, now=NOW, usual=21) is None
    bad = Origin(1, bugged_count=1, last_bugged_at=NOW - timedelta(days=5))
    for owner, network in ((bad, NOBODY), (NOBODY, bad)):
        assert find_identity_refusal(owner=owner, network=network, now=NOW, usual=21).reason == "too_many"


def test_a_node_on_its_way_back_leaves_room_for_one_and_nobody_cools_off_twice():
    assert find_identity_refusal(owner=Origin(0, returned_count=1), network=NOBODY, now=NOW) is None
    refusal = find_identity_refusal(owner=Origin(1, returned_count=1), network=NOBODY, now=NOW)
    assert refusal.reason == "too_many"


def test_the_rule_holds_where_nothing_is_set_and_not_in_a_demo():
    assert HubSettings().new_nodes_limit == NEW_PER_OWNER_MAX
    assert HubSettings(demo=True).new_nodes_limit is None
    assert HubSettings(new_nodes_max=0).new_nodes_limit is None
    assert HubSettings(demo=True, new_nodes_max=2).new_nodes_limit == 2
