"""Which PNodes take the seats of a run, and which VNodes go to which of them: `choose_placement` says it, or why not.

At first the best PNodes are chosen and the network is cut over them (`partition.py`). After a loss whoever stays
keeps what it has: what was lost goes to one spare PNode if one can hold it, else to whoever has room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from computepool.core.ids import NodeId, SlotName
from computepool.core.networks.needs import Need
from computepool.core.networks.partition import Host, Link, Load, Partition, arrange, cut
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import Part
from computepool.core.networks.spec import Exactness
from computepool.core.words import say_bytes

# What a PNode that others cannot dial is worth: all that it sends goes through a hub.
RELAYED_WORTH = 0.2
# So much slower may a run be so that whoever has the data computes what reads it.
HOLDER_SLACK = 1.25
# So much slower than the fastest may a host be that gets a lost VNode because its neighbours are there.
NEIGHBOUR_SLACK = 1.25
# So much slower may it be so that whoever is trusted tells the curve.
TRUSTED_SLACK = 1.25
# Exchanges that are tried for the sake of the data, and of trust.
HOLDERS_MAX = 4
TRUSTED_MAX = 4


@dataclass(frozen=True, slots=True)
class PNode:
    """A free slot that can host VNodes, and what it is chosen by."""

    node_id: NodeId
    slot: SlotName
    memory_bytes: int
    numeric_class: str
    flops_per_second: float
    # What it sends to others, as far as is known, and how long the first byte of it takes.
    bytes_per_second: float = inf
    latency_seconds: float = 0.0
    # How fast runs lately went with it, against what these figures promise.
    pace_ratio: float = 1.0
    # Lower bound of the chance that it does its part, 0..1.
    reliability: float = 0.5
    # What its owner asks at least.
    price_microcredits_per_hour: int = 0
    # Others can dial it.
    reachable: bool = False
    # The run's shards that it holds already.
    held_bytes: int = 0
    # What it computes was found right by others often enough, or it is the submitter's own.
    trusted: bool = False

    @property
    def host(self) -> Host:
        return Host(self.memory_bytes, self.flops_per_second, self.bytes_per_second)

    @property
    def odds(self) -> float:
        return self.reliability * (1.0 if self.reachable else RELAYED_WORTH)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be placed, in the order of the network, and what stands already."""

    needs: Sequence[Need]
    # By vacant seat: what was on it; empty at the first placement, when every VNode is free to go anywhere.
    vacant: Mapping[SeatId, Sequence[Part]]
    exact: Exactness
    # Of the run; empty if it has none yet.
    numeric_class: str = ""
    # Between the needs, by their numbers.
    links: Sequence[Link] = ()
    # Hosts that stay, with the memory that they have left.
    survivors: Mapping[SeatId, Host] = field(default_factory=dict)
    # What stays where it is.
    placed: Mapping[Part, SeatId] = field(default_factory=dict)
    # Whoever is trusted comes first, and what is critical goes to one of them if that can be.
    trusted_first: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    pnodes: Mapping[SeatId, PNode]
    moves: Mapping[Part, SeatId]


@dataclass(frozen=True, slots=True)
class Unplaceable:
    reasons: tuple[str, ...]


def choose_placement(question: Question, pnodes: Sequence[PNode]) -> Chosen | Unplaceable:
    if any(question.vacant.values()):
        return _Loss(question, pnodes).replace()
    ranked = sorted(pnodes, key=lambda pnode: _rank(question, pnode))
    best: Chosen | Unplaceable = Unplaceable((_say_nobody(question, ranked),))
    for group in _list_groups(question, ranked):
        best = _spread(question, group)
        if isinstance(best, Chosen):
            return best
    return best


def count_seats_min(needs: Sequence[Need], pnodes: Sequence[PNode]) -> int:
    """On fewer it cannot fit, whatever the cut."""
    wanted, room = sum(need.memory_bytes for need in needs), 0
    for count, memory_bytes in enumerate(sorted((pnode.memory_bytes for pnode in pnodes), reverse=True), start=1):
        room += memory_bytes
        if room >= wanted:
            return count
    return max(1, len(pnodes))


def _rank(question: Question, pnode: PNode) -> tuple[object, ...]:
    """Who holds the data, then who is good at it; ids end it, so that the order of the list does not matter."""
    return (_is_doubtful(question, pnode), -pnode.held_bytes, -pnode.flops_per_second * pnode.odds, *_last(pnode))


def _is_doubtful(question: Question, pnode: PNode) -> bool:
    return question.trusted_first and not pnode.trusted


def _last(pnode: PNode) -> tuple[object, ...]:
    return (pnode.price_microcredits_per_hour, str(pnode.node_id), pnode.slot)


def _list_groups(question: Question, ranked: Sequence[PNode]) -> list[list[PNode]]:
    """PNodes that may serve one run together: of one numeric class, and if need be of several."""
    classes = dict.fromkeys(pnode.numeric_class for pnode in ranked)
    if question.numeric_class:
        classes = dict.fromkeys([question.numeric_class])
    groups = [[pnode for pnode in ranked if pnode.numeric_class == each] for each in classes]
    # More of a kind first: there are spares among them.
    groups = sorted((group for group in groups if group), key=len, reverse=True)
    if question.exact is Exactness.PREFERRED and ranked:
        groups.append(list(ranked))
    return groups


# The first placement


def _spread(question: Question, ranked: Sequence[PNode]) -> Chosen | Unplaceable:
    seats = sorted(question.vacant)
    for team in _list_teams(question, ranked, len(seats)):
        found = _arrange(question, team)
        if found is not None:
            order, partition = found
            seat_of = {host: seat for seat, host in zip(seats, order, strict=True)}
            moves = {need.part: seat_of[host] for need, host in zip(question.needs, partition.hosts, strict=True)}
            return Chosen({seat_of[host]: pnode for host, pnode in enumerate(team)}, moves)
    return Unplaceable((_say_unfit(question, ranked),))


def _list_teams(question: Question, ranked: Sequence[PNode], count: int) -> Iterator[list[PNode]]:
    """The best ones; where they have not the memory, those with the most of it."""
    if len(ranked) < count:
        return
    best = list(ranked[:count])
    yield best
    largest = sorted(ranked, key=lambda pnode: -pnode.memory_bytes)[:count]
    if sorted(largest, key=lambda pnode: _rank(question, pnode)) != best:
        yield largest


def _arrange(question: Question, team: Sequence[PNode]) -> tuple[list[int], Partition] | None:
    """The team's numbers along the network, and the number for every need."""
    loads = [Load(need.memory_bytes, need.flops) for need in question.needs]
    found = arrange(loads, question.links, [pnode.host for pnode in team])
    if found is None:
        return None
    order, best = _seat_holders(question, team, loads, *found)
    return _seat_trusted(question, team, loads, order, best)


def _seat_holders(
    question: Question, team: Sequence[PNode], loads: Sequence[Load], order: list[int], best: Partition
) -> tuple[list[int], Partition]:
    """Whoever has the data computes what reads it, where that costs little."""
    seconds_max = best.seconds * HOLDER_SLACK
    holders = [host for host, pnode in enumerate(team) if pnode.held_bytes]
    for holder in sorted(holders, key=lambda host: -team[host].held_bytes)[:HOLDERS_MAX]:
        readers = _list_readers(question, best)
        least = min(readers, key=lambda host: (team[host].held_bytes, host), default=holder)
        if holder in readers or team[least].held_bytes >= team[holder].held_bytes:
            continue
        trial = _try_exchange(question, team, loads, order, holder, least)
        if trial is not None and trial[1].seconds <= seconds_max and holder in _list_readers(question, trial[1]):
            order, best = trial
    return order, best


def _seat_trusted(
    question: Question, team: Sequence[PNode], loads: Sequence[Load], order: list[int], best: Partition
) -> tuple[list[int], Partition]:
    """Whoever is trusted computes what is critical, where that costs little."""
    seconds_max = best.seconds * TRUSTED_SLACK
    trusted = sorted(
        (host for host, pnode in enumerate(team) if pnode.trusted),
        key=lambda host: (-team[host].flops_per_second * team[host].odds, host),
    )
    for host in trusted[:TRUSTED_MAX]:
        critical = _list_critical(question, best)
        doubtful = [each for each in sorted(critical) if not team[each].trusted]
        if not question.trusted_first or not doubtful or host in critical:
            continue
        trial = _try_exchange(question, team, loads, order, host, doubtful[0])
        if trial is not None and trial[1].seconds <= seconds_max and host in _list_critical(question, trial[1]):
            order, best = trial
    return order, best


def _try_exchange(
    question: Question, team: Sequence[PNode], loads: Sequence[Load], order: Sequence[int], one: int, other: int
) -> tuple[list[int], Partition] | None:
    """Two of the team change places along the network, and it is cut anew."""
    trial = [_exchange(host, one, other) for host in order]
    again = cut(loads, question.links, [team[host].host for host in trial])
    if again is None:
        return None
    return trial, replace(again, hosts=tuple(trial[host] for host in again.hosts))


def _exchange(host: int, one: int, other: int) -> int:
    return other if host == one else one if host == other else host


def _list_readers(question: Question, partition: Partition) -> set[int]:
    return {host for need, host in zip(question.needs, partition.hosts, strict=True) if need.reads}


def _list_critical(question: Question, partition: Partition) -> set[int]:
    return {host for need, host in zip(question.needs, partition.hosts, strict=True) if need.critical}


# After a loss


class _Loss:
    """What every seat has, while one lost seat after the other is given away. Who needs most chooses first."""

    def __init__(self, question: Question, pnodes: Sequence[PNode]) -> None:
        self._question = question
        self._free = list(pnodes)
        self._needs = {need.part: need for need in question.needs}
        self._bytes: dict[Part, dict[Part, int]] = {need.part: {} for need in question.needs}
        for link in question.links:
            one, other = question.needs[link.first].part, question.needs[link.second].part
            for here, there in ((one, other), (other, one)):
                self._bytes[here][there] = self._bytes[here].get(there, 0) + link.byte_count
        self._hosts = dict(question.survivors)
        self._room = {seat: host.memory_bytes for seat, host in self._hosts.items()}
        self._placed = dict(question.placed)
        self._work = dict.fromkeys(self._hosts, 0.0)
        for part, seat in self._placed.items():
            if seat in self._work:
                self._work[seat] += self._needs[part].flops
        self._chosen: dict[SeatId, PNode] = {}
        self._moves: dict[Part, SeatId] = {}

    def replace(self) -> Chosen | Unplaceable:
        vacant = self._question.vacant
        sizes = {seat: sum(self._needs[part].memory_bytes for part in parts) for seat, parts in vacant.items()}
        reasons = []
        for seat in sorted(vacant, key=lambda seat: (-sizes[seat], seat)):
            if not self._give_to_one(seat, vacant[seat], sizes[seat]) and not self._share_out(seat, vacant[seat]):
                ranked = sorted(self._free, key=lambda pnode: _rank(self._question, pnode))
                reasons.append(_say_no_spare(self._question, seat, sizes[seat], ranked))
        return Unplaceable(tuple(reasons)) if reasons else Chosen(self._chosen, self._moves)

    def _give_to_one(self, seat: SeatId, parts: Sequence[Part], memory_bytes: int) -> bool:
        spare = self._find_spare(parts, memory_bytes)
        if spare is None:
            return False
        self._seat_spare(seat, spare)
        for part in parts:
            self._put(part, seat)
        return True

    def _find_spare(self, parts: Sequence[Part], memory_bytes: int) -> PNode | None:
        """Of the run's class first, then who holds what is read, then who is fast and can be relied on."""
        flops = sum(self._needs[part].flops for part in parts)
        reads = any(self._needs[part].reads for part in parts)
        crossing = sum(count for part in parts for to, count in self._bytes[part].items() if to not in parts)

        def rank(pnode: PNode) -> tuple[object, ...]:
            seconds = flops / pnode.flops_per_second + crossing / pnode.bytes_per_second
            odd = pnode.numeric_class != self._question.numeric_class
            doubtful = _is_doubtful(self._question, pnode)
            return (odd, doubtful, -pnode.held_bytes * reads, seconds / max(pnode.odds, 1e-9), *_last(pnode))

        return min(self._list_fitting(memory_bytes), key=rank, default=None)

    def _list_fitting(self, memory_bytes: int) -> list[PNode]:
        wanted = self._question.numeric_class if self._question.exact is Exactness.REQUIRED else ""
        return [
            pnode
            for pnode in self._free
            if pnode.memory_bytes >= memory_bytes and (not wanted or pnode.numeric_class == wanted)
        ]

    def _share_out(self, seat: SeatId, parts: Sequence[Part]) -> bool:
        """Among those who stay, and a spare that holds some of it; all of it or nothing."""
        smallest = min(self._needs[part].memory_bytes for part in parts)
        spare = max(self._list_fitting(smallest), key=lambda pnode: pnode.memory_bytes, default=None)
        before = (dict(self._hosts), dict(self._room), dict(self._placed), dict(self._work), dict(self._moves))
        if spare is not None:
            self._seat_spare(seat, spare)
        for part in parts:
            target = self._find_room(part)
            if target is None:
                self._hosts, self._room, self._placed, self._work, self._moves = before
                self._unseat(seat)
                return False
            self._put(part, target)
        if seat not in self._moves.values():
            self._unseat(seat)
        return True

    def _find_room(self, part: Part) -> SeatId | None:
        """Where its neighbours are, unless that makes the run much slower."""
        need = self._needs[part]
        seconds = {
            seat: (self._work[seat] + need.flops) / self._hosts[seat].flops_per_second
            for seat, room in self._room.items()
            if room >= need.memory_bytes
        }
        if not seconds:
            return None
        limit = min(seconds.values()) * NEIGHBOUR_SLACK
        shared = dict.fromkeys(seconds, 0)
        for other, count in self._bytes[part].items():
            there = self._placed.get(other)
            if there in shared:
                shared[there] += count
        near = [seat for seat in seconds if seconds[seat] <= limit]
        return min(near, key=lambda seat: (-shared[seat], seconds[seat], seat))

    def _put(self, part: Part, seat: SeatId) -> None:
        self._moves[part] = self._placed[part] = seat
        self._room[seat] -= self._needs[part].memory_bytes
        self._work[seat] += self._needs[part].flops

    def _seat_spare(self, seat: SeatId, spare: PNode) -> None:
        self._chosen[seat] = spare
        self._free.remove(spare)
        self._hosts[seat], self._room[seat], self._work[seat] = spare.host, spare.memory_bytes, 0.0

    def _unseat(self, seat: SeatId) -> None:
        spare = self._chosen.pop(seat, None)
        if spare is not None:
            self._free.append(spare)
        for held in (self._hosts, self._room, self._work):
            held.pop(seat, None)


# Why not


def _say_nobody(question: Question, ranked: Sequence[PNode]) -> str:
    if not ranked:
        return (
            "no PNode that hosts VNodes is online, free and within the price: start one with `computepool node "
            "--networks`, or raise the ceiling"
        )
    return f"no free PNode is of numeric class {question.numeric_class}: wait for one, or set exact: preferred"


def _say_unfit(question: Question, ranked: Sequence[PNode]) -> str:
    seats = len(question.vacant)
    need = max(question.needs, key=lambda need: need.memory_bytes)
    largest = max(ranked, key=lambda pnode: pnode.memory_bytes)
    if need.memory_bytes > largest.memory_bytes:
        return (
            f"VNode {need.part[0]} needs {say_bytes(need.memory_bytes)}; the largest free PNode ({largest.node_id}) "
            f"has {say_bytes(largest.memory_bytes)}: cut the block into smaller ones, or wait for a larger PNode"
        )
    if len(ranked) < seats:
        return f"{seats} seats, and only {len(ranked)} PNodes are free: ask for fewer seats, or wait for more PNodes"
    total = sum(each.memory_bytes for each in question.needs)
    return (
        f"the VNodes need {say_bytes(total)}, more than fits on {seats} seats: ask for more seats, or use smaller "
        "micro-batches"
    )


def _say_no_spare(question: Question, seat: SeatId, memory_bytes: int, ranked: Sequence[PNode]) -> str:
    wanted = f"{seat} needs a PNode with {say_bytes(memory_bytes)}"
    if question.exact is Exactness.REQUIRED:
        wanted += f" of numeric class {question.numeric_class}"
    if not ranked:
        return f"{wanted}, and none is free: wait, or start one"
    largest = max(ranked, key=lambda pnode: pnode.memory_bytes)
    return (
        f"{wanted}; of {len(ranked)} free ones the largest ({largest.node_id}) has "
        f"{say_bytes(largest.memory_bytes)} and is of class {largest.numeric_class}"
    )
