"""The cut of a network over hosts: the slowest as fast as can be, few bytes in between, memory never passed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from computepool.core.networks import partition
from computepool.core.networks.partition import Host, Link, Load, Partition, arrange, cut, measure


def make_chain(number: int, rng: random.Random) -> tuple[list[Load], list[Link]]:
    loads = [Load(rng.randint(1, 9), float(rng.randint(1, 9))) for _ in range(number)]
    return loads, [Link(i, i + 1, rng.randint(1, 9)) for i in range(number - 1)]


def make_branching(number: int, rng: random.Random) -> tuple[list[Load], list[Link]]:
    loads, links = make_chain(number, rng)
    links += [Link(i, rng.randint(i + 1, number - 1), rng.randint(1, 9)) for i in range(0, number - 2, 2)]
    return loads, links


def list_contiguous(number: int, hosts: int) -> list[list[int]]:
    cuts = itertools.combinations(range(1, number), hosts - 1)
    return [[sum(vnode >= border for border in borders) for vnode in range(number)] for borders in cuts]


def fits(loads: Sequence[Load], hosts: Sequence[Host], assigned: Sequence[int]) -> bool:
    used = [0] * len(hosts)
    for load, host in zip(loads, assigned, strict=True):
        used[host] += load.memory_bytes
    return all(memory <= host.memory_bytes for memory, host in zip(used, hosts, strict=True))


def find_best(loads: Sequence[Load], links: Sequence[Link], hosts: Sequence[Host]) -> float | None:
    """By looking at all contiguous cuts."""
    found = [
        measure(loads, links, hosts, assigned).seconds
        for assigned in list_contiguous(len(loads), len(hosts))
        if fits(loads, hosts, assigned)
    ]
    return min(found, default=None)


def make_case(seed: int) -> tuple[list[Load], list[Link], list[Host]]:
    rng = random.Random(seed)
    make = rng.choice([make_chain, make_branching])
    loads, links = make(rng.randint(4, 8), rng)
    hosts = [Host(rng.choice([10, 20, 40]), rng.choice([1.0, 2.0, 4.0]), rng.choice([2.0, 10.0])) for _ in range(3)]
    return loads, links, hosts


def check_against_all(loads: list[Load], links: list[Link], hosts: list[Host]) -> None:
    found, best = cut(loads, links, hosts), find_best(loads, links, hosts)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert found.seconds <= best * partition.SLACK + 1e-9
    assert fits(loads, hosts, found.hosts)
    assert set(found.hosts) == set(range(len(hosts))), "whoever has a seat has something to do"
    assert found == measure(loads, links, hosts, found.hosts)
    nearly = [
        measure(loads, links, hosts, assigned)
        for assigned in list_contiguous(len(loads), len(hosts))
        if fits(loads, hosts, assigned)
    ]
    fewest = min(each.cut_bytes for each in nearly if each.seconds <= best * partition.SLACK)
    assert found.cut_bytes <= fewest, "single moves only ever save bytes"


@pytest.mark.parametrize("seed", range(200))
def test_the_cut_is_as_good_as_the_best_of_all_contiguous_ones(seed):
    check_against_all(*make_case(seed))


def check_many() -> None:
    for seed in range(200):
        check_against_all(*make_case(seed))


def test_control_a_cut_that_forgets_memory_is_found_out(monkeypatch):
    really = partition._walk_pieces

    def forget(network, host, *rest):
        return really(network, Host(10**9, host.flops_per_second, host.bytes_per_second), *rest)

    monkeypatch.setattr(partition, "_walk_pieces", forget)
    with pytest.raises(AssertionError):
        check_many()


def test_a_block_that_is_larger_than_every_host_is_not_placed():
    assert cut([Load(5, 1.0), Load(50, 1.0)], [Link(0, 1, 1)], [Host(20, 1.0), Host(20, 1.0)]) is None


def test_more_hosts_than_vnodes_cannot_all_have_something_to_do():
    assert cut([Load(1, 1.0)], [], [Host(9, 1.0), Host(9, 1.0)]) is None
    assert arrange([Load(1, 1.0)], [], [Host(9, 1.0), Host(9, 1.0)]) is None


def test_a_wide_edge_is_not_cut_where_a_narrow_one_is_near():
    loads = [Load(1, 1.0)] * 40
    links = [Link(i, i + 1, 100 if i == 19 else 1) for i in range(39)]
    found = cut(loads, links, [Host(90, 1.0, 1e3), Host(90, 1.0, 1e3)])
    assert found is not None
    assert found.cut_bytes == 1


def test_two_towers_go_to_two_hosts_although_they_alternate_in_the_order():
    """Contiguous pieces would cut every edge of both; single moves mend that."""
    loads = [Load(1, 1.0)] * 9
    towers = [Link(i, i + 2, 10) for i in range(6)]
    links = [*towers, Link(6, 8, 1), Link(7, 8, 1)]
    found = cut(loads, links, [Host(9, 1.0, 100.0), Host(9, 1.0, 100.0)])
    assert found is not None
    assert found.cut_bytes <= 21


@pytest.mark.parametrize("seed", range(40))
def test_an_arrangement_is_never_worse_than_the_order_given(seed):
    loads, links, hosts = make_case(seed)
    best, found = find_best(loads, links, hosts), arrange(loads, links, hosts)
    if best is None:
        return
    assert found is not None
    order, arranged = found
    assert sorted(order) == list(range(len(hosts)))
    assert arranged.seconds <= best * partition.SLACK + 1e-9
    assert arranged == measure(loads, links, hosts, arranged.hosts)


def test_a_large_network_is_cut_over_many_hosts_with_far_fewer_bytes_than_by_dealing_out():
    rng = random.Random(1)
    loads, links = make_branching(250, rng)
    hosts = [Host(rng.choice([60, 90]), rng.choice([1.0, 2.0]), 5.0) for _ in range(50)]
    found = cut(loads, links, hosts)
    dealt: Partition = measure(loads, links, hosts, [vnode % 50 for vnode in range(250)])
    assert found is not None
    assert found.cut_bytes <= 0.5 * dealt.cut_bytes
    assert found.seconds <= dealt.seconds
