"""Pairs free slots with the heads of the queue.

A slot serves the most demanding shape it can, so that a big card is not spent on work that a small one could do;
a slice takes the tightest slot that fits, so that CPU work leaves the GPUs alone while a CPU slot is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from computepool.core.ids import JobId, NodeId, ShapeId
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind

# A slice keeps away from the node that failed it last, unless nobody else took it for this long.
AVOID_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Head:
    """A queued slice that is next in its shape's queue."""

    job_id: JobId
    slice_index: int
    shape_id: ShapeId
    priority: int
    queued_at: datetime
    avoid_node_id: NodeId | None


@dataclass(frozen=True, slots=True)
class Pair:
    head: Head
    slot: Slot


def list_feasible(shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot]) -> dict[ShapeId, int]:
    """For each shape that some slot could serve, how many could."""
    counts: dict[ShapeId, int] = defaultdict(int)
    for slot in slots:
        for shape_id, shape in shapes.items():
            if find_refusal(shape, slot) is None:
                counts[shape_id] += 1
    return dict(counts)


def place(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    free = sorted(slots, key=tightness)
    pairs = []
    for head in sorted(heads, key=lambda h: _urgency(h, shapes[h.shape_id])):
        chosen = next((slot for slot in free if _may_run(head, shapes[head.shape_id], slot, now)), None)
        if chosen is not None:
            free.remove(chosen)
            pairs.append(Pair(head, chosen))
    return pairs


def tightness(slot: Slot) -> tuple[bool, int, int, int, str, str]:
    """Smallest first; the ids make the order the same whatever order the nodes called in."""
    return (
        slot.kind is SlotKind.GPU,
        slot.vram_bytes,
        slot.cores,
        slot.ram_bytes,
        str(slot.node_id),
        slot.name,
    )


def _urgency(head: Head, shape: Shape) -> tuple[int, int, int, int, datetime, str, int]:
    demand = (-int(shape.gpu), -shape.vram_bytes)
    tier_named = -int(bool(shape.tiers))
    return (*demand, tier_named, -head.priority, head.queued_at, str(head.job_id), head.slice_index)


def _may_run(head: Head, shape: Shape, slot: Slot, now: datetime) -> bool:
    if slot.node_id == head.avoid_node_id and now - head.queued_at < timedelta(seconds=AVOID_SECONDS):
        return False
    return find_refusal(shape, slot) is None
