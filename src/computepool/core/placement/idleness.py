"""Why a node has nothing to do, and what it would need to have something."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import Enum

from computepool.core.jobs.spec import Requirements
from computepool.core.market.hours import say_moment
from computepool.core.nodes.state import NodeState
from computepool.core.placement.gates import Gate, Margin, list_failed, say_asked, say_has
from computepool.core.placement.price import round_down_price
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.core.words import say_seconds


class IdleReason(str, Enum):
    REMOVED = "removed"
    NEVER_SEEN = "never_seen"
    OFFLINE = "offline"
    PAUSED = "paused"
    DRAINING = "draining"
    CLOSED = "closed"
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
    # Outside of the hours at which it is lent; and when it opens next, on its owner's clock. None: never.
    closed: bool = False
    opens_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """One shape with slices waiting; the count may be cut off at a limit."""

    shape: Shape
    slice_count: int
    # Of accounts that the node is lent to. Those of others wait for other nodes.
    is_welcome: bool = True
    # Of the node's own owner, who pays nothing there.
    is_own: bool = False


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
class OfferChange:
    """A condition to give up for waiting work that fails nothing else."""

    gate: Gate
    words: str
    # What the condition would be then, as an owner would type it.
    value: str
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
    offer_changes: tuple[OfferChange, ...] = ()


# A shape as it pays on a slot: a fixed price per slice becomes a ceiling per hour.
ByHour = Callable[[Shape, Slot], Shape]


def explain_idle(
    node: NodeFacts, backlog: Sequence[Backlog], by_hour: ByHour = lambda shape, slot: shape
) -> Idleness:
    free = [slot for slot, busy in node.slots if not busy]
    floor = node.floor_microcredits_per_hour
    best = [(each, *_find_best(each, free, floor, by_hour)) for each in backlog] if free else []
    unfit = [(replace(each, shape=by_hour(each.shape, slot)), slot, failed) for each, slot, failed in best if failed]
    waiting_count = sum(each.slice_count for each in backlog)
    fitting_count = sum(each.slice_count for each, _, failed in best if not failed)
    reason = _find_reason(node, free=bool(free), waiting=waiting_count > 0, fitting=fitting_count > 0)
    return Idleness(
        reason=reason,
        words=_say_idle(reason, node),
        free_count=len(free),
        waiting_count=waiting_count,
        fitting_count=fitting_count,
        gates=_count_unfit(unfit),
        lack=_find_lack(unfit, floor),
        lower_floor=_find_lower_floor(unfit),
        offer_changes=tuple(_list_offer_changes(unfit)),
    )


_IDLE_WORDS = {
    IdleReason.REMOVED: "The node was removed; it gets no work any more.",
    IdleReason.NEVER_SEEN: "The node is enrolled, but its agent has never called. Start it: computepool node",
    IdleReason.OFFLINE: "The node is offline: its agent has not called for longer than a lease. Start it again.",
    IdleReason.PAUSED: "The node is paused: it takes nothing new until it is resumed.",
    IdleReason.DRAINING: "The node is draining: it finishes what it has and takes nothing new.",
    IdleReason.CLOSED: "The node is closed: you do not lend it at this hour. What runs on it goes on.",
    IdleReason.ALL_BUSY: "The node is not idle: every slot has work.",
    IdleReason.NO_WORK: "Nothing is waiting on this hub. The node is ready and gets the next work that fits it.",
    IdleReason.NOTHING_FITS: "Work is waiting, but none of it fits a free slot of this node.",
    IdleReason.WORK_FITS: "Work that fits is waiting: a free slot should get some within seconds.",
}


def _say_idle(reason: IdleReason, node: NodeFacts) -> str:
    words = _IDLE_WORDS[reason]
    if reason is IdleReason.CLOSED and node.opens_at is not None:
        words += f" It opens on {say_moment(node.opens_at)} ({node.opens_at.tzinfo})."
    return words


def _find_reason(node: NodeFacts, *, free: bool, waiting: bool, fitting: bool) -> IdleReason:
    if node.state is NodeState.REMOVED:
        return IdleReason.REMOVED
    if not node.online:
        return IdleReason.OFFLINE if node.seen else IdleReason.NEVER_SEEN
    if node.state is not NodeState.ACTIVE:
        return IdleReason.PAUSED if node.state is NodeState.PAUSED else IdleReason.DRAINING
    if node.closed:
        return IdleReason.CLOSED
    if not free:
        return IdleReason.ALL_BUSY
    if not waiting:
        return IdleReason.NO_WORK
    return IdleReason.WORK_FITS if fitting else IdleReason.NOTHING_FITS


def _find_best(each: Backlog, slots: Sequence[Slot], floor: int, by_hour: ByHour) -> tuple[Slot, tuple[Gate, ...]]:
    """The slot that misses the fewest gates; a large card is nearer to a large shape than a small one."""
    asked = 0 if each.is_own else floor
    failures = [(slot, list_failed(by_hour(each.shape, slot), _open_to(each, slot), asked)) for slot in slots]
    return min(failures, key=lambda item: (len(item[1]), -item[0].vram_bytes, -item[0].ram_bytes, item[0].name))


def _open_to(each: Backlog, slot: Slot) -> Slot:
    return replace(slot, welcome=None) if each.is_welcome and slot.welcome is not None else slot


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


def _list_offer_changes(unfit: Sequence[tuple[Backlog, Slot, tuple[Gate, ...]]]) -> Iterator[OfferChange]:
    """The least that would bring some of the waiting work, for each condition of the owner's own."""
    waiting: dict[Gate, list[tuple[Backlog, Slot]]] = defaultdict(list)
    for each, slot, failed in unfit:
        if len(failed) == 1:
            waiting[failed[0]].append((each, slot))
    if waiting[Gate.SECONDS]:
        longest = max(each.shape.slice_seconds for each, _ in waiting[Gate.SECONDS])
        count = sum(each.slice_count for each, _ in waiting[Gate.SECONDS] if each.shape.slice_seconds == longest)
        least = f"of {say_seconds(longest)} or more" if longest else "of any length"
        before = say_seconds(waiting[Gate.SECONDS][0][1].slice_seconds_min)
        yield OfferChange(Gate.SECONDS, f"take slices {least}, not only of {before} or more", str(longest), count)
    if waiting[Gate.KIND]:
        counts: Counter[str] = Counter()
        for each, _ in waiting[Gate.KIND]:
            counts[each.shape.job_kind] += each.slice_count
        kind, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        kinds = ",".join(sorted({kind, *waiting[Gate.KIND][0][1].job_kinds}))
        yield OfferChange(Gate.KIND, f"take jobs of the kind {kind} too", kinds, count)
    if waiting[Gate.POOL]:
        count = sum(each.slice_count for each, _ in waiting[Gate.POOL])
        yield OfferChange(Gate.POOL, "lend it to anyone, not only to a private pool", "anyone", count)


def _find_lack(unfit: Sequence[tuple[Backlog, Slot, tuple[Gate, ...]]], floor: int) -> Lack | None:
    # Work of those that it is not lent to waits for other nodes.
    known = [item for item in unfit if item[0].is_welcome]
    if not known:
        return None
    largest, slot, failed = min(known, key=lambda item: (-item[0].slice_count, item[0].shape.digest))
    asked = {field.name for field in fields(Requirements)} - {"slice_price"}
    need = Requirements(**{name: getattr(largest.shape, name) for name in asked})
    missing = tuple(
        Margin(gate, say_asked(need, gate), say_has(slot, gate, floor), passes=False)
        for gate in failed
        # A slot without a GPU lacks its memory too; once is enough.
        if gate is not Gate.GPU or Gate.VRAM not in failed
    )
    return Lack(need, largest.slice_count, slot.name, missing)
