"""Cuts a network over hosts: the slowest host as fast as can be, then as few bytes between hosts as can be.

First contiguous pieces of the forward order, found exactly for the order in which the hosts are given: the best
slowest host by dynamic programming, then the fewest bytes among the cuts that are nearly as fast. Then single VNodes
move to neighbours, which contiguous pieces of a branching network cannot do. Memory is a hard limit throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

# The slowest host may become slower by this much where that saves bytes between hosts.
SLACK = 1.05
MOVE_PASSES_MAX = 8
# Orders of hosts that are tried beyond the first few.
EXCHANGES_MAX = 10


@dataclass(frozen=True, slots=True)
class Load:
    """What one VNode takes of its host: memory for good, and work per step."""

    memory_bytes: int
    flops: float


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes per step between two VNodes, by their numbers: what goes forward and what comes back."""

    first: int
    second: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Host:
    memory_bytes: int
    flops_per_second: float
    bytes_per_second: float = inf


@dataclass(frozen=True, slots=True)
class Partition:
    # By VNode: the number of its host.
    hosts: tuple[int, ...]
    # Of the slowest host, per step.
    seconds: float
    # Between hosts, per step.
    cut_bytes: int


def cut(loads: Sequence[Load], links: Sequence[Link], hosts: Sequence[Host]) -> Partition | None:
    """VNodes in forward order over these hosts, each of which gets at least one; None if memory does not let it be.

    Hosts take their pieces in the order that they are given in.
    """
    if not 0 < len(hosts) <= len(loads):
        return None
    network = _Network(loads, links)
    bottleneck = _find_bottleneck(network, hosts)
    if bottleneck is None:
        return None
    pieces = _find_fewest_bytes(network, hosts, bottleneck * SLACK)
    assert pieces is not None, "the cut that gave the bottleneck is one of them"
    assigned = [host for host, (first, last) in enumerate(pieces) for _ in range(first, last)]
    _move_single(network, hosts, assigned, bottleneck * SLACK)
    return Partition(tuple(assigned), _slowest(network, hosts, assigned), _count_cut(network, assigned))


def measure(
    loads: Sequence[Load], links: Sequence[Link], hosts: Sequence[Host], assigned: Sequence[int]
) -> Partition:
    """The figures of a partition that somebody else made."""
    network = _Network(loads, links)
    return Partition(tuple(assigned), _slowest(network, hosts, assigned), _count_cut(network, assigned))


class _Network:
    def __init__(self, loads: Sequence[Load], links: Sequence[Link]) -> None:
        self.loads = loads
        self.neighbours: list[dict[int, int]] = [{} for _ in loads]
        for link in links:
            if link.first == link.second:
                continue
            for one, other in ((link.first, link.second), (link.second, link.first)):
                self.neighbours[one][other] = self.neighbours[one].get(other, 0) + link.byte_count
        self.degree = [sum(each.values()) for each in self.neighbours]
        self.memory_before = [0, *accumulate(load.memory_bytes for load in loads)]
        self.flops_before = [0.0, *accumulate(load.flops for load in loads)]
        self._pieces: dict[tuple[Host, int], list[tuple[int, float, int]]] = {}

    def __len__(self) -> int:
        return len(self.loads)

    def list_pieces(self, host: Host, first: int) -> list[tuple[int, float, int]]:
        """Walked once: every search, and every order of hosts that are alike, asks for the same."""
        key = (host, first)
        if key not in self._pieces:
            self._pieces[key] = _walk_pieces(self, host, first, len(self))
        return self._pieces[key]

    def inner_bytes(self, vnode: int, first: int, last: int) -> int:
        """Between a VNode and those from `first` up to `last`, without it."""
        return sum(count for other, count in self.neighbours[vnode].items() if first <= other < last)


def _walk_pieces(network: _Network, host: Host, first: int, last_max: int) -> list[tuple[int, float, int]]:
    """Pieces that begin at `first` and fit the host's memory: (end, seconds, bytes to others), growing."""
    found = []
    crossing = 0
    for last in range(first + 1, last_max + 1):
        vnode = last - 1
        if network.memory_before[last] - network.memory_before[first] > host.memory_bytes:
            break
        crossing += network.degree[vnode] - 2 * network.inner_bytes(vnode, first, vnode)
        flops = network.flops_before[last] - network.flops_before[first]
        found.append((last, flops / host.flops_per_second + crossing / host.bytes_per_second, crossing))
    return found


def _find_bottleneck(network: _Network, hosts: Sequence[Host]) -> float | None:
    """The least time of the slowest host over all contiguous cuts."""
    count = len(network)
    # By how many VNodes are placed so far.
    best = [inf] * (count + 1)
    best[0] = 0.0
    for host in range(len(hosts)):
        following = [inf] * (count + 1)
        left = len(hosts) - host - 1
        for first in range(count - left):
            so_far = best[first]
            if so_far == inf:
                continue
            for last, seconds, _ in network.list_pieces(hosts[host], first):
                if last > count - left:
                    break
                worst = seconds if seconds > so_far else so_far
                if worst < following[last]:
                    following[last] = worst
        best = following
    return None if best[count] == inf else best[count]


def _find_fewest_bytes(network: _Network, hosts: Sequence[Host], seconds_max: float) -> list[tuple[int, int]] | None:
    """The contiguous cut with the fewest bytes between hosts, none of which takes longer than that."""
    count = len(network)
    best: list[float] = [inf] * (count + 1)
    best[0] = 0.0
    ways: list[dict[int, int]] = []
    for host in range(len(hosts)):
        following: list[float] = [inf] * (count + 1)
        way: dict[int, int] = {}
        left = len(hosts) - host - 1
        for first in range(count - left):
            so_far = best[first]
            if so_far == inf:
                continue
            for last, seconds, crossing in network.list_pieces(hosts[host], first):
                if last > count - left:
                    break
                if seconds <= seconds_max and so_far + crossing < following[last]:
                    following[last] = so_far + crossing
                    way[last] = first
        best = following
        ways.append(way)
    if best[count] == inf:
        return None
    found, last = [], count
    for way in reversed(ways):
        found.append((way[last], last))
        last = way[last]
    return found[::-1]


def _move_single(network: _Network, hosts: Sequence[Host], assigned: list[int], seconds_max: float) -> None:
    """VNodes go where most of their bytes go, as long as that fits and slows nobody down beyond the bound."""
    tallies = _tally(network, hosts, assigned)
    for _ in range(MOVE_PASSES_MAX):
        moved = [_move_one(network, hosts, assigned, tallies, vnode, seconds_max) for vnode in range(len(network))]
        if not any(moved):
            return


@dataclass(frozen=True, slots=True)
class _Tally:
    """What one host has."""

    memory_bytes: int = 0
    flops: float = 0.0
    # Bytes to other hosts.
    crossing: int = 0
    count: int = 0

    def add(self, load: Load, crossing: int) -> _Tally:
        return _Tally(
            self.memory_bytes + load.memory_bytes, self.flops + load.flops, self.crossing + crossing, self.count + 1
        )

    def take(self, load: Load, crossing: int) -> _Tally:
        return _Tally(
            self.memory_bytes - load.memory_bytes, self.flops - load.flops, self.crossing - crossing, self.count - 1
        )

    def seconds(self, host: Host) -> float:
        return self.flops / host.flops_per_second + self.crossing / host.bytes_per_second


def _tally(network: _Network, hosts: Sequence[Host], assigned: Sequence[int]) -> list[_Tally]:
    tallies = [_Tally() for _ in hosts]
    for vnode, host in enumerate(assigned):
        away = sum(count for other, count in network.neighbours[vnode].items() if assigned[other] != host)
        tallies[host] = tallies[host].add(network.loads[vnode], away)
    return tallies


def _move_one(
    network: _Network,
    hosts: Sequence[Host],
    assigned: list[int],
    tallies: list[_Tally],
    vnode: int,
    seconds_max: float,
) -> bool:
    here = assigned[vnode]
    if tallies[here].count == 1:
        # Whoever has a seat keeps something to do.
        return False
    shared: dict[int, int] = {}
    for other, count in network.neighbours[vnode].items():
        shared[assigned[other]] = shared.get(assigned[other], 0) + count
    for there in sorted(shared, key=lambda host: (-shared[host], host)):
        saved = shared[there] - shared.get(here, 0)
        if there == here or saved <= 0:
            return False
        load = network.loads[vnode]
        grown = tallies[there].add(load, network.degree[vnode] - 2 * shared[there])
        if grown.memory_bytes > hosts[there].memory_bytes or grown.seconds(hosts[there]) > seconds_max:
            continue
        tallies[there] = grown
        tallies[here] = tallies[here].take(load, network.degree[vnode] - 2 * shared.get(here, 0))
        assigned[vnode] = there
        return True
    return False


def _slowest(network: _Network, hosts: Sequence[Host], assigned: Sequence[int]) -> float:
    tallies = _tally(network, hosts, assigned)
    return max(tally.seconds(host) for tally, host in zip(tallies, hosts, strict=True))


def _count_cut(network: _Network, assigned: Sequence[int]) -> int:
    crossing = sum(
        count
        for vnode, host in enumerate(assigned)
        for other, count in network.neighbours[vnode].items()
        if assigned[other] != host
    )
    return crossing // 2


def arrange(
    loads: Sequence[Load], links: Sequence[Link], hosts: Sequence[Host]
) -> tuple[list[int], Partition] | None:
    """The order of hosts along the network that is best as far as exchanging two of them can tell, with its cut.

    The numbers in the partition are those of the hosts as given. None if no order was found that memory allows.
    """
    starts = [
        list(range(len(hosts))),
        sorted(range(len(hosts)), key=lambda host: (-hosts[host].memory_bytes, host)),
        sorted(range(len(hosts)), key=lambda host: (hosts[host].memory_bytes, host)),
    ]
    network = _Network(loads, links)
    best: tuple[float, list[int]] | None = None
    for start in starts:
        seconds = _find_bottleneck(network, [hosts[host] for host in start]) if len(hosts) <= len(loads) else None
        if seconds is not None and (best is None or seconds < best[0]):
            best = (seconds, start)
    if best is None:
        return None
    order = _exchange(network, hosts, best[1], best[0])
    partition = cut(loads, links, [hosts[host] for host in order])
    assert partition is not None, "its bottleneck was found"
    given = tuple(order[host] for host in partition.hosts)
    return order, Partition(given, partition.seconds, partition.cut_bytes)


def _exchange(network: _Network, hosts: Sequence[Host], order: list[int], seconds: float) -> list[int]:
    """Hosts that are alike need not be exchanged; the number of tries is bounded, for the plan is asked for often."""
    tries = EXCHANGES_MAX
    pairs = [(i, j) for i in range(len(order)) for j in range(i + 1, len(order))]
    for i, j in pairs:
        if hosts[order[i]] == hosts[order[j]]:
            continue
        if tries == 0:
            break
        tries -= 1
        other = list(order)
        other[i], other[j] = other[j], other[i]
        found = _find_bottleneck(network, [hosts[host] for host in other])
        if found is not None and found < seconds:
            order, seconds = other, found
    return order
