"""The fleet as one who waits may see it: slots that a request cannot tell apart, counted, and where they stand."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from computepool.core.placement.gates import Gate, list_failed
from computepool.core.placement.shape import (
    DISK_STEP_BYTES,
    RAM_STEP_BYTES,
    VRAM_STEP_BYTES,
    Shape,
    list_ceiling_steps,
)
from computepool.core.placement.slot import Slot

PLACES_MAX = 3


class Standing(str, Enum):
    """Whether a slot's node takes work at this moment."""

    READY = "ready"
    PAUSED = "paused"  # or draining: its owner wants nothing new on it
    CLOSED = "closed"  # outside of the hours at which it is lent
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class SpotForce:
    """What is paid at least where others wait who pay spot: in a tier and region of the rate card."""

    tier: str
    region: str
    spot_microcredits_per_hour: int


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Slots that the request at hand cannot tell apart, counted."""

    # Stands for all of them; its node and name mean nothing. Where it is welcome to nobody, it is not to the asker.
    slot: Slot
    standing: Standing
    slot_count: int
    busy_count: int
    # What their owners ask: no less than the dearest of them, and no more than a request can tell from it.
    price_microcredits_per_hour: int = 0
    # The same before tier and region, for a request with a fixed price per slice.
    base_price_microcredits_per_hour: int = 0
    # Where spot alone makes them too dear: their owners would lend them for less.
    force: SpotForce | None = None
    # Of a node among them that the asker may know by name: their own.
    node_name: str | None = None
    last_seen_at: datetime | None = None
    # Of those that are closed: when the first of them opens.
    opens_at: datetime | None = None

    @property
    def free_count(self) -> int:
        return self.slot_count - self.busy_count


@dataclass(frozen=True, slots=True)
class Place:
    """Some slots, said as far as any submitter may know them."""

    tier: str
    region: str | None
    standing: Standing
    slot_count: int
    free_count: int
    node_name: str | None
    last_seen_at: datetime | None
    opens_at: datetime | None


def list_failed_of(shape: Shape, each: SlotClass) -> tuple[Gate, ...]:
    price, base_price = each.price_microcredits_per_hour, each.base_price_microcredits_per_hour
    return list_failed(shape, each.slot, price, base_price, by_spot=each.force is not None)


def cut_to_steps(slot: Slot) -> Slot:
    """A request is rounded up to steps, so what a slot has beyond its last whole step can serve nobody.

    Without this cut, asking for exactly what the slot has would be rounded up past it and refused.
    """
    return replace(
        slot,
        vram_bytes=slot.vram_bytes // VRAM_STEP_BYTES * VRAM_STEP_BYTES,
        ram_bytes=slot.ram_bytes // RAM_STEP_BYTES * RAM_STEP_BYTES,
        disk_bytes=slot.disk_bytes // DISK_STEP_BYTES * DISK_STEP_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """In which steps the store tells apart slots that are short of an amount, or too dear."""

    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    # Rising prices above the ceiling: slots between two of them are one to a request.
    prices: tuple[int, ...] = ()
    # The same before tier and region.
    base_prices: tuple[int, ...] = ()


def choose_steps(shape: Shape, levels: int | None) -> Steps:
    """As fine as shapes are, or coarser: at most so many levels below each amount that is asked for.

    A suggestion from coarser steps is as true; it may give up one of its steps more than it must.
    """
    return Steps(
        vram_bytes=_choose_step(shape.vram_bytes, VRAM_STEP_BYTES, levels),
        cores=_choose_step(shape.cores, 1, levels),
        ram_bytes=_choose_step(shape.ram_bytes, RAM_STEP_BYTES, levels),
        disk_bytes=_choose_step(shape.disk_bytes, DISK_STEP_BYTES, levels),
        prices=_choose_prices(shape.ceiling_microcredits_per_hour, levels),
        base_prices=_choose_prices(shape.base_ceiling_microcredits_per_hour, levels),
    )


def _choose_prices(ceiling: int | None, levels: int | None) -> tuple[int, ...]:
    if ceiling is None:
        return ()
    steps = list_ceiling_steps()
    above = steps[bisect_left(steps, ceiling + 1) :]
    stride = 1 if levels is None else max(1, -(-len(above) // levels))
    # Counted from the dearest, so that it is always among them: no price may lie beyond the last.
    return tuple(above[::-1][::stride][::-1])


def _choose_step(asked: int, step: int, levels: int | None) -> int:
    return step if levels is None else max(1, -(-asked // (step * levels))) * step


def count_slots(classes: Iterable[SlotClass]) -> tuple[int, int]:
    counts = [(each.slot_count, each.free_count) for each in classes]
    return sum(slots for slots, _ in counts), sum(free for _, free in counts)


def to_places(classes: Iterable[SlotClass]) -> tuple[Place, ...]:
    """The few that say most: the asker's own node first, then where there are most slots."""
    merged: dict[tuple[str, str | None, Standing], list[SlotClass]] = defaultdict(list)
    for each in classes:
        merged[(each.slot.tier, each.slot.region, each.standing)].append(each)
    places = [
        Place(
            *where,
            *count_slots(group),
            node_name=min((each.node_name for each in group if each.node_name is not None), default=None),
            last_seen_at=max((each.last_seen_at for each in group if each.last_seen_at is not None), default=None),
            opens_at=min((each.opens_at for each in group if each.opens_at is not None), default=None),
        )
        for where, group in merged.items()
    ]
    places.sort(key=lambda p: (p.node_name is None, -p.free_count, -p.slot_count, p.tier, p.region or "", p.standing))
    return tuple(places[:PLACES_MAX])
