"""Why a slice waits, the least that would help it, and how a slot fits it.

Everything here follows from the same checks that placement obeys. A suggested change is applied to the request and
put through those checks before it is told, so that it cannot promise what placement would refuse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from math import inf

from computepool.core.ids import AccountId
from computepool.core.jobs import wants
from computepool.core.jobs.spec import Requirements
from computepool.core.market.hours import say_moment
from computepool.core.placement import checks
from computepool.core.placement.price import (
    PRICE_MICROCREDITS_MAX,
    SlicePrice,
    format_credits,
    say_price,
    to_whole,
)
from computepool.core.placement.shape import (
    DISK_STEP_BYTES,
    RAM_STEP_BYTES,
    VRAM_STEP_BYTES,
    Shape,
    list_ceiling_steps,
    to_shape,
)
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.words import say_bytes, say_count, say_seconds

SUGGESTIONS_MAX = 5
PLACES_MAX = 3
# Lists of a request may not grow past these; beyond them only "any" is left to suggest.
TIERS_MAX = 32
REGIONS_MAX = 250


class Gate(str, Enum):
    GPU = "gpu"
    VRAM = "vram"
    CORES = "cores"
    RAM = "ram"
    DISK = "disk"
    ISOLATION = "isolation"
    TIER = "tier"
    REGION = "region"
    KIND = "kind"
    SECONDS = "seconds"
    IMAGE = "image"
    EGRESS = "egress"
    PACKAGES = "packages"
    POOL = "pool"
    PRICE = "price"
    # Others who wait for the same slots pay spot: whoever pays less waits until they are served.
    SPOT = "spot"


# What a job wants beyond a plain sandbox: its owner allows it or not.
WANTS_GATES = {
    Gate.IMAGE: (wants.IMAGE,),
    Gate.EGRESS: (wants.EGRESS, wants.CONTAINER_EGRESS),
    Gate.PACKAGES: (wants.PACKAGES,),
}

# Gates that nobody passes by asking for less: what a job is stays what it is, and whom a machine is lent to, and what
# for, is its owner's to say.
OWNERS_GATES = (Gate.KIND, *WANTS_GATES, Gate.POOL)

# Every check of a slot has its gate here; a test holds the two together. Pool and prices have `check_pool` and
# `check_price`, which look at more than a shape and a slot.
CHECK_OF: Mapping[Gate, Callable[[Shape, Slot], str | None]] = {
    Gate.GPU: checks.check_gpu,
    Gate.VRAM: checks.check_vram,
    Gate.CORES: checks.check_cores,
    Gate.RAM: checks.check_ram,
    Gate.DISK: checks.check_disk,
    Gate.ISOLATION: checks.check_isolation,
    Gate.TIER: checks.check_tier,
    Gate.REGION: checks.check_region,
    Gate.KIND: checks.check_job_kind,
    Gate.SECONDS: checks.check_slice_seconds,
    Gate.IMAGE: checks.check_image,
    Gate.EGRESS: checks.check_egress,
    Gate.PACKAGES: checks.check_packages,
}


_PRICES = (Gate.PRICE, Gate.SPOT)


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


@dataclass(frozen=True, slots=True)
class Change:
    gate: Gate
    asked: str
    instead: str
    words: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes that suffice together. `requirements` is the whole request with them made."""

    changes: tuple[Change, ...]
    requirements: Requirements
    slot_count: int
    free_count: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class GateCount:
    gate: Gate
    asked: str
    # A slot that fails several gates is counted at each of them.
    failed_count: int
    # More on it, where there is more to say.
    words: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Counts are of slots on nodes that are online and take work."""

    slot_count: int
    pass_count: int
    free_count: int
    gates: tuple[GateCount, ...]
    suggestions: tuple[Suggestion, ...]
    # Where it fits: on ready nodes, or, if there are none, on those that are closed, offline or paused.
    places: tuple[Place, ...]
    # On nodes that are offline or paused.
    away_count: int
    # What only time or an owner can change, in words.
    notes: tuple[str, ...] = ()


def explain_waiting(need: Requirements, classes: Iterable[SlotClass]) -> Explanation:
    """Why a slice with these requirements is not running, and the least that would let it.

    Changes are looked for only while no slot that passes is free. If some pass but are busy, a change is worth
    telling only if it reaches a slot that is free now.
    """
    shape = to_shape(need)
    known = [replace(each, slot=cut_to_steps(each.slot)) for each in classes]
    failures = [(each, _list_failed_of(shape, each)) for each in known]
    ready = [(each, failed) for each, failed in failures if each.standing is Standing.READY]
    passing = [each for each, failed in ready if not failed]
    away = [each for each, failed in failures if each.standing is not Standing.READY and not failed]
    closed = [each for each in away if each.standing is Standing.CLOSED]
    pass_count, free_count = _count(passing)
    candidates = [each for each, failed in ready if failed and (not pass_count or each.free_count)]
    return Explanation(
        slot_count=sum(each.slot_count for each, _ in ready),
        pass_count=pass_count,
        free_count=free_count,
        gates=_count_gates(need, ready),
        suggestions=() if free_count else _suggest(need, candidates, [each for each, _ in ready]),
        places=_to_places(passing or closed or away),
        away_count=sum(each.slot_count for each in away if each.standing is not Standing.CLOSED),
        notes=() if free_count else tuple(_list_notes(need, ready, closed)),
    )


def _list_notes(
    need: Requirements, ready: Sequence[tuple[SlotClass, tuple[Gate, ...]]], closed: Sequence[SlotClass]
) -> Iterator[str]:
    """Of slots that nothing else stands in the way of."""
    if closed:
        opens = min((each.opens_at for each in closed if each.opens_at is not None), default=None)
        when = f" The first of them opens on {say_moment(opens.astimezone(timezone.utc))} UTC." if opens else ""
        yield f"{_say_would_fit(closed)} not lent at this hour.{when}"
    other_kinds = [each for each, failed in ready if failed == (Gate.KIND,)]
    if other_kinds:
        kinds = sorted(set().union(*(each.slot.job_kinds for each in other_kinds)))
        yield (
            f"{_say_would_fit(other_kinds)} lent for jobs of the kind {' or '.join(kinds)} only; "
            f"this one is {need.job_kind}."
        )
    unallowed = [(each, failed) for each, failed in ready if failed and all(gate in WANTS_GATES for gate in failed)]
    if unallowed:
        asked = " and ".join(_say_want(need, gate) for gate in WANTS_GATES if any(gate in f for _, f in unallowed))
        yield f"{_say_would_fit(each for each, _ in unallowed)} of owners who do not allow {asked}."
    private = [each for each, failed in ready if failed == (Gate.POOL,)]
    if private:
        yield f"{_say_would_fit(private)} kept for a private pool: the owner would have to name you."


def _say_would_fit(classes: Iterable[SlotClass]) -> str:
    count = sum(each.slot_count for each in classes)
    return f"{_say_slots(count)} would fit, but {'is' if count == 1 else 'are'}"


def _say_want(need: Requirements, gate: Gate) -> str:
    if gate is Gate.PACKAGES:
        return "packages to be installed"
    return f"{'the image' if gate is Gate.IMAGE else 'jobs to reach'} {say_asked(need, gate)}"


def say_waiting(found: Explanation) -> str:
    """How the fleet looks to it. Whose turn it is among those that wait is for `turn.py` to say."""
    away = (
        f" {_say_slots(found.away_count)} on nodes that are offline or paused would fit." if found.away_count else ""
    )
    if found.slot_count == 0:
        return f"No node is online and taking work.{away}"
    others = "".join(f" {each.words[0].upper()}{each.words[1:]}." for each in found.gates if each.words)
    if found.pass_count == 0:
        return f"None of the {_say_slots(found.slot_count)} of the fleet fits.{others}{away}"
    fitting = f"{found.pass_count:,} of {_say_slots(found.slot_count)} {'fits' if found.pass_count == 1 else 'fit'}"
    if found.free_count == 0:
        return f"{fitting}, but {'it is' if found.pass_count == 1 else 'all are'} busy.{others}"
    return f"{fitting}, {found.free_count:,} free now: whoever's turn it is should start within seconds."


def list_failed(
    shape: Shape,
    slot: Slot,
    price_microcredits_per_hour: int = 0,
    base_price_microcredits_per_hour: int = 0,
    *,
    account_id: AccountId | None = None,
    by_spot: bool = False,
) -> tuple[Gate, ...]:
    """`by_spot`: the price is what others pay, and not what the owner asks."""
    failed = tuple(gate for gate, check in CHECK_OF.items() if check(shape, slot) is not None)
    if checks.check_pool(account_id, slot) is not None:
        failed = (*failed, Gate.POOL)
    if checks.check_price(shape, price_microcredits_per_hour, base_price_microcredits_per_hour) is None:
        return failed
    return (*failed, Gate.SPOT if by_spot else Gate.PRICE)


def _list_failed_of(shape: Shape, each: SlotClass) -> tuple[Gate, ...]:
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


def least_ceiling(price_microcredits_per_hour: int) -> int | None:
    """The lowest ceiling that pays this price although shapes round it down. None: only any price will do."""
    steps = list_ceiling_steps()
    place = bisect_left(steps, price_microcredits_per_hour)
    return steps[place] if place < len(steps) else None


def _choose_step(asked: int, step: int, levels: int | None) -> int:
    return step if levels is None else max(1, -(-asked // (step * levels))) * step


def _count(classes: Iterable[SlotClass]) -> tuple[int, int]:
    counts = [(each.slot_count, each.free_count) for each in classes]
    return sum(slots for slots, _ in counts), sum(free for _, free in counts)


def _count_gates(need: Requirements, ready: Sequence[tuple[SlotClass, tuple[Gate, ...]]]) -> tuple[GateCount, ...]:
    counts: Counter[Gate] = Counter()
    for each, failed in ready:
        for gate in failed:
            counts[gate] += each.slot_count
    forces = {each.force for each, failed in ready if each.force is not None and Gate.SPOT in failed}
    return tuple(
        GateCount(gate, say_asked(need, gate), counts[gate], _say_forces(need, forces) if gate is Gate.SPOT else None)
        for gate in Gate
        if counts[gate]
    )


def _say_forces(need: Requirements, forces: Iterable[SpotForce]) -> str:
    """Where least is missing."""
    *_, least = sorted(forces, key=lambda each: (-each.spot_microcredits_per_hour, each.tier, each.region))
    place = f"others pay {say_price(least.spot_microcredits_per_hour)} in {least.tier}/{least.region} now"
    if need.slice_price is not None:
        return f"{place}; yours is {say_asked(need, Gate.SPOT)}, over a wall limit of {need.slice_price.seconds:,} s"
    return f"{place}; your ceiling is {say_asked(need, Gate.SPOT).removeprefix('at most ')}"


def _suggest(
    need: Requirements, candidates: Sequence[SlotClass], ready: Sequence[SlotClass]
) -> tuple[Suggestion, ...]:
    """For each smallest set of requirements to relax, the least relaxation of it; the least of all first."""
    options: dict[tuple[Gate, ...], Counter[Requirements]] = defaultdict(Counter)
    for each in candidates:
        relaxed = _relax_for(need, each)
        if relaxed is not None:
            options[relaxed[0]][relaxed[1]] += each.slot_count
    # Work that does without a GPU may still run beside one. Where that is a way at all, a slot whose card is only
    # too small may ask for less of the rest than a slot without a card.
    without_gpu = replace(need, gpu=False, vram_bytes=0)
    for each in candidates:
        if each.slot.kind is not SlotKind.GPU:
            continue
        relaxed = _relax_for(without_gpu, each)
        if relaxed is not None and (Gate.GPU, *relaxed[0]) in options:
            options[(Gate.GPU, *relaxed[0])][relaxed[1]] += each.slot_count
    fewest = min((len(gates) for gates in options), default=0)
    chosen = [
        (min(counts, key=lambda relaxed: _rank(need, relaxed, counts[relaxed])), gates, counts)
        for gates, counts in options.items()
        if len(gates) == fewest
    ]
    chosen.sort(key=lambda item: _rank(need, item[0], item[2][item[0]]))
    return tuple(_to_suggestion(need, relaxed, gates, ready) for relaxed, gates, _ in chosen[:SUGGESTIONS_MAX])


def _relax_for(need: Requirements, each: SlotClass) -> tuple[tuple[Gate, ...], Requirements] | None:
    """The least that must be given up for such a slot, and the request without it. None: it cannot be had."""
    failed = _list_failed_of(to_shape(need), each)
    if any(gate in OWNERS_GATES for gate in failed):
        return None
    relaxed, given_up = need, []
    for gate in failed:
        # Who does without a GPU does without its memory too: one change, not two.
        if gate is Gate.VRAM and Gate.GPU in failed:
            continue
        # The GPU is asked for only by naming cards: then accepting the other tier is the change.
        if gate is Gate.GPU and not (need.gpu or need.vram_bytes):
            continue
        relaxed = _relax_gate(relaxed, gate, each)
        # Whoever pays more pays it to owners and against others alike.
        given_up.append(Gate.PRICE if gate is Gate.SPOT else gate)
    if not given_up or _list_failed_of(to_shape(relaxed), each):
        return None
    return tuple(given_up), relaxed


def _relax_gate(need: Requirements, gate: Gate, each: SlotClass) -> Requirements:
    slot = each.slot
    if gate in _PRICES and need.slice_price is not None:
        return replace(need, slice_price=_raise_price(need.slice_price, each))
    if gate in _PRICES:
        return replace(need, ceiling_microcredits_per_hour=least_ceiling(each.price_microcredits_per_hour))
    if gate is Gate.GPU:
        return replace(need, gpu=False, vram_bytes=0)
    if gate is Gate.VRAM:
        return replace(need, gpu=True, vram_bytes=slot.vram_bytes)
    if gate is Gate.CORES:
        return replace(need, cores=max(1, slot.cores))
    if gate is Gate.RAM:
        return replace(need, ram_bytes=slot.ram_bytes)
    if gate is Gate.DISK:
        return replace(need, disk_bytes=slot.disk_bytes)
    if gate is Gate.ISOLATION:
        return replace(need, isolation=slot.isolation)
    if gate is Gate.SECONDS:
        fixed = need.slice_price and _stretch(need.slice_price, slot.slice_seconds_min)
        return replace(need, slice_seconds=slot.slice_seconds_min, slice_price=fixed)
    if gate is Gate.TIER:
        full = len(need.tiers) >= TIERS_MAX
        return replace(need, tiers=() if full else (*need.tiers, slot.tier))
    if slot.region is None or len(need.regions) >= REGIONS_MAX:
        return replace(need, regions=())
    return replace(need, regions=(*need.regions, slot.region))


def _stretch(fixed: SlicePrice, seconds: int) -> SlicePrice:
    """A slice that may run for longer, for as much an hour."""
    base, ceiling = (
        min(-(-each * seconds // fixed.seconds), PRICE_MICROCREDITS_MAX)
        for each in (fixed.base_microcredits, fixed.ceiling_microcredits)
    )
    return SlicePrice(base, ceiling, seconds)


def _raise_price(fixed: SlicePrice, each: SlotClass) -> SlicePrice:
    """The least fixed price that pays for such a slot; as it was, if nothing that can be named would."""
    base = least_ceiling(each.base_price_microcredits_per_hour)
    ceiling = least_ceiling(each.price_microcredits_per_hour)
    if base is None or ceiling is None:
        return fixed
    raised = replace(
        fixed,
        base_microcredits=max(fixed.base_microcredits, to_whole(base, fixed.seconds)),
        ceiling_microcredits=max(fixed.ceiling_microcredits, to_whole(ceiling, fixed.seconds)),
    )
    return raised if max(raised.base_microcredits, raised.ceiling_microcredits) <= PRICE_MICROCREDITS_MAX else fixed


def _rank(need: Requirements, relaxed: Requirements, slot_count: int) -> tuple[float, int, str]:
    """Smallest first; of equally small changes the one that opens more slots; then anything that is always so."""
    return (measure_change(need, relaxed), -slot_count, repr(relaxed))


def measure_change(need: Requirements, relaxed: Requirements) -> float:
    """How much is given up: the share of each amount, half for each step of a list or ladder, 1 for the GPU.

    Of a price or a time limit, the share by which it rises; any price at all is dearer than all of these.
    """
    without_gpu = (need.gpu or need.vram_bytes > 0) and not (relaxed.gpu or relaxed.vram_bytes > 0)
    amounts = [
        (need.cores, relaxed.cores),
        (need.ram_bytes, relaxed.ram_bytes),
        (need.disk_bytes, relaxed.disk_bytes),
        (0, 0) if without_gpu else (need.vram_bytes, relaxed.vram_bytes),
    ]
    given_up = sum((asked - instead) / asked for asked, instead in amounts if asked > instead)
    ceiling, higher = need.ceiling_microcredits_per_hour, relaxed.ceiling_microcredits_per_hour
    if ceiling is not None:
        given_up += inf if higher is None else (higher - ceiling) / ceiling
    given_up += (relaxed.slice_seconds - need.slice_seconds) / max(1, need.slice_seconds)
    fixed, raised = need.slice_price, relaxed.slice_price
    if fixed is not None and raised is not None:
        given_up += (raised.base_microcredits - fixed.base_microcredits) / fixed.base_microcredits
        given_up += (raised.ceiling_microcredits - fixed.ceiling_microcredits) / fixed.ceiling_microcredits
    steps = need.isolation.rank - relaxed.isolation.rank
    for asked, instead in ((need.tiers, relaxed.tiers), (need.regions, relaxed.regions)):
        # Accepting one more is a smaller change than accepting anything.
        steps += 0 if asked == instead else 1 if instead else 2
    return given_up + 0.5 * steps + (1.0 if without_gpu else 0.0)


def _to_suggestion(
    need: Requirements, relaxed: Requirements, gates: Iterable[Gate], ready: Iterable[SlotClass]
) -> Suggestion:
    shape = to_shape(relaxed)
    opened = [each for each in ready if not _list_failed_of(shape, each)]
    slot_count, free_count = _count(opened)
    changes = tuple(_to_change(need, relaxed, gate) for gate in gates)
    return Suggestion(changes, relaxed, slot_count, free_count, _to_places(opened))


def _to_change(need: Requirements, relaxed: Requirements, gate: Gate) -> Change:
    asked, instead = say_asked(need, gate), say_asked(relaxed, gate)
    if gate in _AMOUNTS and asked == instead:
        asked, instead = f"{_AMOUNTS[gate][1](need):,} bytes", f"{_AMOUNTS[gate][1](relaxed):,} bytes"
    if gate is Gate.GPU:
        words = "do without a GPU"
    elif gate in _AMOUNTS:
        words = f"ask for {instead} of {_AMOUNTS[gate][0]} instead of {asked}"
    elif gate is Gate.CORES:
        words = f"ask for {instead} instead of {asked}"
    elif gate is Gate.ISOLATION:
        words = f"accept isolation {instead} instead of {asked}"
    elif gate is Gate.TIER:
        words = f"accept tier {relaxed.tiers[-1]} too" if relaxed.tiers else "accept any tier"
    elif gate in _PRICES and need.slice_price is not None and relaxed.slice_price is not None:
        words = _say_raise(need.slice_price, relaxed.slice_price)
    elif gate in _PRICES:
        higher = relaxed.ceiling_microcredits_per_hour
        before = asked.removeprefix("at most ")
        words = "accept any price" if higher is None else f"pay up to {say_price(higher)} instead of {before}"
    elif gate is Gate.SECONDS:
        words = (
            f"let a slice run for {instead} instead of {asked}{_say_stretch(need.slice_price, relaxed.slice_price)} "
            f"(the owner takes slices of {say_seconds(relaxed.slice_seconds)} or more)"
        )
    else:
        words = f"accept region {relaxed.regions[-1]} too" if relaxed.regions else "accept any region"
    return Change(gate, asked, instead, words)


def _say_stretch(fixed: SlicePrice | None, raised: SlicePrice | None) -> str:
    """A fixed price is reckoned over the time that a slice may run."""
    return "" if fixed is None or raised is None else f", and {_say_raise(fixed, raised)}"


def _say_raise(fixed: SlicePrice, raised: SlicePrice) -> str:
    base, higher = format_credits(fixed.base_microcredits), format_credits(raised.base_microcredits)
    most, higher_most = format_credits(fixed.ceiling_microcredits), format_credits(raised.ceiling_microcredits)
    changes = []
    if base != higher:
        changes.append(f"pay {higher} credits a slice instead of {base}")
    if most != higher_most:
        changes.append(f"let a slice cost up to {higher_most} credits instead of {most}")
    return ", and ".join(changes)


def _to_places(classes: Iterable[SlotClass]) -> tuple[Place, ...]:
    """The few that say most: the asker's own node first, then where there are most slots."""
    merged: dict[tuple[str, str | None, Standing], list[SlotClass]] = defaultdict(list)
    for each in classes:
        merged[(each.slot.tier, each.slot.region, each.standing)].append(each)
    places = [
        Place(
            *where,
            *_count(group),
            node_name=min((each.node_name for each in group if each.node_name is not None), default=None),
            last_seen_at=max((each.last_seen_at for each in group if each.last_seen_at is not None), default=None),
            opens_at=min((each.opens_at for each in group if each.opens_at is not None), default=None),
        )
        for where, group in merged.items()
    ]
    places.sort(key=lambda p: (p.node_name is None, -p.free_count, -p.slot_count, p.tier, p.region or "", p.standing))
    return tuple(places[:PLACES_MAX])


@dataclass(frozen=True, slots=True)
class Margin:
    gate: Gate
    needs: str
    has: str
    passes: bool
    # What is left over beyond the need; None where nothing is measured.
    spare: str | None = None


def list_margins(
    need: Requirements, slot: Slot, price_microcredits_per_hour: int = 0, *, account_id: AccountId | None = None
) -> tuple[Margin, ...]:
    """Need against slot, for each gate that the request sets, or the slot's owner."""
    shape, price = to_shape(need), price_microcredits_per_hour
    failed = list_failed(shape, slot, price, account_id=account_id)
    asked = {
        Gate.GPU: shape.gpu and not shape.vram_bytes,
        Gate.VRAM: shape.vram_bytes > 0,
        Gate.TIER: bool(shape.tiers),
        Gate.REGION: bool(shape.regions),
        Gate.KIND: bool(slot.job_kinds),
        Gate.SECONDS: slot.slice_seconds_min > 0,
        **{gate: bool(_list_wanted(need, gate)) for gate in WANTS_GATES},
        Gate.POOL: slot.welcome is not None,
        Gate.PRICE: shape.ceiling_microcredits_per_hour is not None,
        # What others pay while it waits is no matter any more.
        Gate.SPOT: False,
    }
    return tuple(
        Margin(
            gate,
            say_asked(need, gate),
            say_has(slot, gate, price),
            gate not in failed,
            _say_spare(need, slot, gate, price),
        )
        for gate in Gate
        if asked.get(gate, True)
    )


_AMOUNTS: Mapping[Gate, tuple[str, Callable[[Requirements | Slot], int]]] = {
    Gate.VRAM: ("VRAM", lambda of: of.vram_bytes),
    Gate.RAM: ("RAM", lambda of: of.ram_bytes),
    Gate.DISK: ("disk", lambda of: of.disk_bytes),
}


def say_asked(need: Requirements, gate: Gate) -> str:
    if gate in _AMOUNTS:
        return say_bytes(_AMOUNTS[gate][1](need))
    if gate is Gate.GPU:
        return "a GPU" if to_shape(need).gpu else "no GPU"
    if gate is Gate.CORES:
        return say_count(need.cores, "core")
    if gate is Gate.ISOLATION:
        return need.isolation.value
    if gate in _PRICES and need.slice_price is not None:
        fixed = need.slice_price
        most = format_credits(fixed.ceiling_microcredits)
        return f"{format_credits(fixed.base_microcredits)} credits a slice, at most {most}"
    if gate in _PRICES:
        ceiling = need.ceiling_microcredits_per_hour
        return "any price" if ceiling is None else f"at most {say_price(ceiling)}"
    if gate is Gate.KIND:
        return need.job_kind
    if gate is Gate.SECONDS:
        return f"up to {say_seconds(need.slice_seconds)}"
    if gate is Gate.PACKAGES:
        return "to be installed" if _list_wanted(need, gate) else "none"
    if gate in WANTS_GATES:
        return " and ".join(_list_wanted(need, gate)) or "none"
    if gate is Gate.POOL:
        return "lent to you"
    return " or ".join(need.tiers if gate is Gate.TIER else need.regions) or "any"


def _list_wanted(need: Requirements, gate: Gate) -> tuple[str, ...]:
    """Images by their names alone: a digest tells nobody anything. Of packages, that there are some."""
    names = wants.list_of(need.wants, *WANTS_GATES[gate])
    return tuple(name.partition("@")[0] for name in names) if gate is Gate.IMAGE else names


def say_has(slot: Slot, gate: Gate, price_microcredits_per_hour: int = 0) -> str:
    if gate in _AMOUNTS:
        return say_bytes(_AMOUNTS[gate][1](slot))
    if gate is Gate.GPU:
        return "a GPU" if slot.kind is SlotKind.GPU else "no GPU"
    if gate is Gate.CORES:
        return say_count(slot.cores, "core")
    if gate is Gate.ISOLATION:
        return slot.isolation.value
    if gate in _PRICES:
        return say_price(price_microcredits_per_hour)
    if gate is Gate.KIND:
        return " and ".join(sorted(slot.job_kinds)) or "all kinds"
    if gate is Gate.SECONDS:
        return f"{say_seconds(slot.slice_seconds_min)} or more"
    if gate is Gate.PACKAGES:
        return "allowed" if wants.PACKAGES in slot.allows else "not allowed"
    if gate in WANTS_GATES:
        return " and ".join(wants.list_of(slot.allows, *WANTS_GATES[gate])) or "none allowed"
    if gate is Gate.POOL:
        return "anybody's" if slot.welcome is None else "a private pool"
    return slot.tier if gate is Gate.TIER else slot.region or "unknown"


def _say_spare(need: Requirements, slot: Slot, gate: Gate, price: int) -> str | None:
    if gate is Gate.PRICE:
        ceiling = need.ceiling_microcredits_per_hour
        return None if ceiling is None or ceiling < price else say_price(ceiling - price)
    if gate is Gate.CORES:
        return str(slot.cores - need.cores) if slot.cores >= need.cores else None
    if gate not in _AMOUNTS:
        return None
    spare = _AMOUNTS[gate][1](slot) - _AMOUNTS[gate][1](need)
    return say_bytes(spare) if spare >= 0 else None


def _say_slots(count: int) -> str:
    return say_count(count, "slot")
