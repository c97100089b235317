"""Where every VNode of a run lives now: seats, incarnations, and the epoch in which this holds. Facts, no choice.

A run's placement is one value that every host gets whole: who talks to whom follows from it and the spec alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NewType

from computepool.core.networks.spec import NetworkSpec

SeatId = NewType("SeatId", str)

SEAT_LENGTH_MAX = 64
LOCATIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Location:
    """One VNode, or one replica of it, on one seat."""

    vnode_id: str
    seat: SeatId
    replica: int = 0
    # Grows each time that this VNode is placed anew: what an earlier one still sends is refused.
    incarnation: int = 1
    # For people and routes: the node that the seat is on, and where it can be dialled (empty: by relay).
    node_id: str = ""
    address: str = ""

    def __str__(self) -> str:
        replica = f" (replica {self.replica})" if self.replica else ""
        return f"{self.vnode_id}{replica} on {self.seat}"


@dataclass(frozen=True, slots=True)
class Placement:
    run_id: str
    epoch: int
    locations: tuple[Location, ...]
    _by_key: Mapping[tuple[str, int], Location] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_key = {(location.vnode_id, location.replica): location for location in self.locations}
        object.__setattr__(self, "_by_key", by_key)

    def find(self, vnode_id: str, replica: int = 0) -> Location | None:
        return self._by_key.get((vnode_id, replica))

    def seat_of(self, vnode_id: str, replica: int = 0) -> SeatId:
        return self._by_key[vnode_id, replica].seat

    def incarnation_of(self, vnode_id: str, replica: int = 0) -> int:
        return self._by_key[vnode_id, replica].incarnation

    @property
    def seats(self) -> tuple[SeatId, ...]:
        """Every seat once, in the order in which they are named."""
        return tuple(dict.fromkeys(location.seat for location in self.locations))

    def at(self, seat: SeatId) -> tuple[Location, ...]:
        return tuple(location for location in self.locations if location.seat == seat)


def list_placement_faults(spec: NetworkSpec, placement: Placement) -> list[str]:
    """All that is wrong at once; empty if every replica of every VNode has exactly one seat."""
    if len(placement.locations) > LOCATIONS_MAX:
        return [f"{len(placement.locations)} locations are more than {LOCATIONS_MAX}"]
    faults = []
    expected = {(vnode.id, replica) for vnode in spec.vnodes for replica in range(spec.replicas)}
    named = [(location.vnode_id, location.replica) for location in placement.locations]
    faults += [f"{_tell(key)} has no seat" for key in sorted(expected - set(named))]
    faults += [f"{_tell(key)} is not part of network {spec.name}" for key in sorted(set(named) - expected)]
    faults += [f"{_tell(key)} has {named.count(key)} seats" for key in _list_repeated(named)]
    for location in placement.locations:
        if not 0 < len(location.seat) <= SEAT_LENGTH_MAX:
            faults.append(f"the seat of {location.vnode_id} has a name of {len(location.seat)} characters")
        if location.incarnation < 1:
            faults.append(f"{location} has incarnation {location.incarnation}: they count from 1")
    if placement.epoch < 1:
        faults.append(f"epoch {placement.epoch}: epochs count from 1")
    return faults


def move(placement: Placement, moves: Mapping[tuple[str, int], SeatId]) -> Placement:
    """The next epoch, with some VNodes (id, replica) on other seats, each in a new incarnation."""
    return replace(
        placement,
        epoch=placement.epoch + 1,
        locations=tuple(_move_one(location, moves) for location in placement.locations),
    )


def _move_one(location: Location, moves: Mapping[tuple[str, int], SeatId]) -> Location:
    seat = moves.get((location.vnode_id, location.replica))
    if seat is None:
        return location
    # Routes belong to the seat that is left behind: whoever moves it says where the new one can be dialled.
    return replace(location, seat=seat, incarnation=location.incarnation + 1, node_id="", address="")


def _list_repeated(named: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(key for key, count in Counter(named).items() if count > 1)


def _tell(key: tuple[str, int]) -> str:
    vnode_id, replica = key
    return f"VNode {vnode_id}" + (f" (replica {replica})" if replica else "")
