"""Finds PNodes for VNodes by first fit: in the order of the network, as even by work as memory lets it be.

The one way in is `choose_placement`. It says which PNodes take which seats and where each VNode goes, or why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from computepool.core.ids import NodeId, SlotName
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import Part
from computepool.core.networks.spec import Exactness
from computepool.core.words import say_bytes


@dataclass(frozen=True, slots=True)
class PNode:
    """A free slot that can host VNodes, and what it is chosen by."""

    node_id: NodeId
    slot: SlotName
    memory_bytes: int
    numeric_class: str
    flops_per_second: float
    # Lower bound of the chance that it does its part, 0..1.
    reliability: float = 0.5
    # What its owner asks at least.
    price_microcredits_per_hour: int = 0
    # Others can dial it.
    reachable: bool = False
    # The run's shards that it holds already.
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """What one VNode, or one replica of it, takes."""

    part: Part
    memory_bytes: int
    flops: float


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be placed, in the order of the network, and what stands already."""

    needs: Sequence[Need]
    # By vacant seat: what was on it; empty at the first placement, when every VNode is free to go anywhere.
    vacant: Mapping[SeatId, Sequence[Part]]
    exact: Exactness
    # Of the run; empty if it has none yet.
    numeric_class: str = ""
    # Hosts that stay, and the memory that they have left.
    survivors: Mapping[SeatId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    pnodes: Mapping[SeatId, PNode]
    moves: Mapping[Part, SeatId]


@dataclass(frozen=True, slots=True)
class Unplaceable:
    reasons: tuple[str, ...]


def choose_placement(question: Question, pnodes: Sequence[PNode]) -> Chosen | Unplaceable:
    ranked = sorted(pnodes, key=_rank)
    if any(question.vacant.values()):
        return _replace_lost(question, ranked)
    best: Chosen | Unplaceable = Unplaceable((_say_nobody(question, ranked),))
    for group in _list_groups(question, ranked):
        best = _spread(question, group)
        if isinstance(best, Chosen):
            return best
    return best


def _rank(pnode: PNode) -> tuple[object, ...]:
    """Who holds the data, then who is good at it; ids end it, so that the order of the list does not matter."""
    worth = pnode.flops_per_second * pnode.reliability * (1.0 if pnode.reachable else 0.2)
    return (-pnode.held_bytes, -worth, pnode.price_microcredits_per_hour, str(pnode.node_id), pnode.slot)


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


def _spread(question: Question, pnodes: Sequence[PNode]) -> Chosen | Unplaceable:
    """Through the network from end to end, to the next seat once this one has its share or is full."""
    seats = sorted(question.vacant)
    share = sum(need.flops for need in question.needs) / len(seats)
    chosen: dict[SeatId, PNode] = {}
    moves: dict[Part, SeatId] = {}
    left = list(pnodes)
    room, work = 0, 0.0
    for number, need in enumerate(question.needs):
        full = need.memory_bytes > room
        # Every seat gets something: as many VNodes as seats must be left for the rest.
        spare = len(question.needs) - number > len(seats) - len(chosen)
        if not chosen or full or (work >= share and len(chosen) < len(seats)) or not spare:
            if len(chosen) == len(seats) and full:
                return Unplaceable((_say_full(need, len(seats)),))
            if len(chosen) < len(seats):
                pnode = next((each for each in left if each.memory_bytes >= need.memory_bytes), None)
                if pnode is None:
                    return Unplaceable((_say_too_large(need, left, len(chosen)),))
                left.remove(pnode)
                chosen[seats[len(chosen)]] = pnode
                room, work = pnode.memory_bytes, 0.0
        moves[need.part] = seats[len(chosen) - 1]
        room -= need.memory_bytes
        work += need.flops
    return Chosen(chosen, moves)


def _replace_lost(question: Question, ranked: Sequence[PNode]) -> Chosen | Unplaceable:
    """What was on a seat goes to one PNode; failing that, to hosts that stay. Who needs most chooses first."""
    needs = {need.part: need for need in question.needs}
    sizes = {seat: sum(needs[part].memory_bytes for part in parts) for seat, parts in question.vacant.items()}
    chosen: dict[SeatId, PNode] = {}
    moves: dict[Part, SeatId] = {}
    room = dict(question.survivors)
    reasons = []
    for seat in sorted(question.vacant, key=lambda seat: (-sizes[seat], seat)):
        parts = question.vacant[seat]
        pnode = _find_spare(question, [each for each in ranked if each not in chosen.values()], sizes[seat])
        if pnode is not None:
            chosen[seat] = pnode
            moves |= dict.fromkeys(parts, seat)
            continue
        squeezed = _squeeze([needs[part] for part in parts], room)
        if squeezed is None:
            reasons.append(_say_no_spare(question, seat, sizes[seat], ranked))
        else:
            moves |= squeezed
    return Unplaceable(tuple(reasons)) if reasons else Chosen(chosen, moves)


def _find_spare(question: Question, ranked: Sequence[PNode], memory_bytes: int) -> PNode | None:
    fitting = [pnode for pnode in ranked if pnode.memory_bytes >= memory_bytes]
    kin = [pnode for pnode in fitting if pnode.numeric_class == question.numeric_class]
    if question.exact is Exactness.REQUIRED:
        return kin[0] if kin else None
    return next(iter([*kin, *fitting]), None)


def _squeeze(needs: Sequence[Need], room: dict[SeatId, int]) -> dict[Part, SeatId] | None:
    """Into what the survivors have left; `room` is spent only if all of it fits."""
    left, moves = dict(room), {}
    for need in needs:
        seat = max(left, key=lambda seat: (left[seat], seat), default=None)
        if seat is None or left[seat] < need.memory_bytes:
            return None
        left[seat] -= need.memory_bytes
        moves[need.part] = seat
    room.update(left)
    return moves


def _say_nobody(question: Question, ranked: Sequence[PNode]) -> str:
    if not ranked:
        return (
            "no PNode that hosts VNodes is online, free and within the price: start one with `computepool node "
            "--networks`, or raise the ceiling"
        )
    return f"no free PNode is of numeric class {question.numeric_class}: wait for one, or set exact: preferred"


def _say_too_large(need: Need, left: Sequence[PNode], placed: int) -> str:
    wanted = f"VNode {need.part[0]} needs {say_bytes(need.memory_bytes)}"
    if not left:
        return f"{wanted}, and only {placed} PNodes are free: ask for fewer seats, or wait for more PNodes"
    largest = max(left, key=lambda pnode: pnode.memory_bytes)
    return (
        f"{wanted}; the largest free PNode ({largest.node_id}) has {say_bytes(largest.memory_bytes)}: cut the block "
        "into smaller ones, or wait for a larger PNode"
    )


def _say_full(need: Need, seats: int) -> str:
    return (
        f"VNode {need.part[0]} needs {say_bytes(need.memory_bytes)} more than fits on {seats} seats: ask for more "
        "seats, or use smaller micro-batches"
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
