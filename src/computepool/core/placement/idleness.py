"""Why a node has nothing to do, and what it would need to have something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum

from computepool.core.jobs.spec import Requirements
from computepool.core.nodes.state import NodeState
from computepool.core.placement.explain import Gate, Margin, list_failed, say_asked, say_has
from computepool.core.placement.price import round_down_price
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot


class IdleReason(str, Enum):
    REMOVED = "removed"
    NEVER_SEEN = "never_seen"
    OFFLINE = "offline"
    PAUSED = "paused"
    DRAINING = "draining"
    ALL_BUSY = "all_busy"
    NO_WORK = "no_work"
    NOTHING_FITS = "nothing_fits"
    WORK_FITS = "work_fits"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    state: NodeState
    online: bool
    seen: bool
    # Each slot with whether it is busy.
    slots: Sequence[tuple[Slot, bool]]
    floor_microcredits_per_hour: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """One shape with slices waiting; the count may be cut off at a limit."""

    shape: Shape
    slice_count: int


@dataclass(frozen=True, slots=True)
class GateBacklog:
    """What waits and fails this gate on the best of the node's free slots. Work may fail several."""

    gate: Gate
    shape_count: int
    slice_count: int


@dataclass(frozen=True, slots=True)
class Lack:
    """What the node would need to serve the largest waiting shape that it cannot serve."""

    requirements: Requirements
    slice_count: int
    slot_name: str
    missing: tuple[Margin, ...]


@dataclass(frozen=True, slots=True)
class LowerFloor:
    """The least that the owner would have to come down for waiting work that fails nothing but the price."""

    floor_microcredits_per_hour: int
    # What of the waiting work would fit then.
    slice_count: int


@dataclass(frozen=True, slots=True)
class Idleness:
    reason: IdleReason
    words: str
    free_count: int
    waiting_count: int
    fitting_count: int
    gates: tuple[GateBacklog, ...] = ()
    lack: Lack | None = None
    lower_floor: LowerFloor | None = None


def explain_idle(node: NodeFacts, backlog: Sequence[Backlog]) -> Idleness:
    free = [slot for slot, busy in node.slots if not busy]
    floor = node.floor_microcredits_per_hour
    best = [(each, *_find_best(each.shape, free, floor)) for each in backlog] if free else []
    unfit = [(each, slot, failed) for each, slot, failed in best if failed]
    waiting_count = sum(each.slice_count for each in backlog)
    fitting_count = sum(each.slice_count for each, _, failed in best if not failed)
    reason = _find_reason(node, free=bool(free), waiting=waiting_count > 0, fitting=fitting_count > 0)
    return Idleness(
        reason=reason,
        words=_IDLE_WORDS[reason],
        free_count=len(free),
        waiting_count=waiting_count,
        fitting_count=fitting_count,
        gates=_count_unfit(unfit),
        lack=_find_lack(unfit, floor),
        lower_floor=_find_lower_floor(unfit),
    )


_IDLE_WORDS = {
    IdleReason.REMOVED: "The node was removed; it gets no work any more.",
    IdleReason.NEVER_SEEN: "The node is enrolled, but its agent has never called. Start it: computepool node",
    IdleReason.OFFLINE: "The node is offline: its agent has not called for longer than a lease. Start it again.",
    IdleReason.PAUSED: "The node is paused: it takes nothing new until it is resumed.",
    IdleReason.DRAINING: "The node is draining: it finishes what it has and takes nothing new.",
    IdleReason.ALL_BUSY: "The node is not idle: every slot has work.",
    IdleReason.NO_WORK: "Nothing is waiting on this hub. The node is ready and gets the next work that fits it.",
    IdleReason.NOTHING_FITS: "Work is waiting, but none of it fits a free slot of this node.",
    IdleReason.WORK_FITS: "Work that fits is waiting: a free slot should get some within seconds.",
}


def _find_reason(node: NodeFacts, *, free: bool, waiting: bool, fitting: bool) -> IdleReason:
    if node.state is NodeState.REMOVED:
        return IdleReason.REMOVED
    if not node.online:
        return IdleReason.OFFLINE if node.seen else IdleReason.NEVER_SEEN
    if node.state is not NodeState.ACTIVE:
        return IdleReason.PAUSED if node.state is NodeState.PAUSED else IdleReason.DRAINING
    if not free:
        return IdleReason.ALL_BUSY
    if not waiting:
        return IdleReason.NO_WORK
    return IdleReason.WORK_FITS if fitting else IdleReason.NOTHING_FITS


def _find_best(shape: Shape, slots: Sequence[Slot], floor: int) -> tuple[Slot, tuple[Gate, ...]]:
    """The slot that misses the fewest gates; a large card is nearer to a large shape than a small one."""
    failures = [(slot, list_failed(shape, slot, floor)) for slot in slots]
    return min(failures, key=lambda item: (len(item[1]), -item[0].vram_bytes, -item[0].ram_bytes, item[0].name))


def _count_unfit(unfit: Sequence[tuple[Backlog, Slot, tuple[Gate, ...]]]) -> tuple[GateBacklog, ...]:
    by_gate: dict[Gate, list[int]] = defaultdict(list)
    for each, _, failed in unfit:
        for gate in failed:
            by_gate[gate].append(each.slice_count)
    return tuple(GateBacklog(gate, len(by_gate[gate]), sum(by_gate[gate])) for gate in Gate if gate in by_gate)


def _find_lower_floor(unfit: Sequence[tuple[Backlog, Slot, tuple[Gate, ...]]]) -> LowerFloor | None:
    waiting = [
        (each.shape.ceiling_microcredits_per_hour, each.slice_count)
        for each, _, failed in unfit
        if failed == (Gate.PRICE,)
    ]
    highest = max((ceiling for ceiling, _ in waiting if ceiling is not None), default=None)
    if highest is None:
        return None
    floor = round_down_price(highest)
    opened = sum(count for ceiling, count in waiting if ceiling is not None and ceiling >= floor)
    return LowerFloor(floor, opened)


def _find_lack(unfit: Sequence[tuple[Backlog, Slot, tuple[Gate, ...]]], floor: int) -> Lack | None:
    if not unfit:
        return None
    largest, slot, failed = min(unfit, key=lambda item: (-item[0].slice_count, item[0].shape.digest))
    need = Requirements(**{field.name: getattr(largest.shape, field.name) for field in fields(Shape)})
    missing = tuple(
        Margin(gate, say_asked(need, gate), say_has(slot, gate, floor), passes=False)
        for gate in failed
        # A slot without a GPU lacks its memory too; once is enough.
        if gate is not Gate.GPU or Gate.VRAM not in failed
    )
    return Lack(need, largest.slice_count, slot.name, missing)
