"""The least change of a request that would open slots to it.

A change is applied to the request and put through the checks of placement before it is told, so that it cannot
promise what placement would refuse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from computepool.core.jobs.spec import Requirements
from computepool.core.placement.gates import AMOUNTS, OWNERS_GATES, PRICE_GATES, Gate, say_asked
from computepool.core.placement.price import (
    PRICE_MICROCREDITS_MAX,
    SlicePrice,
    format_credits,
    say_price,
    to_whole,
)
from computepool.core.placement.shape import list_ceiling_steps, to_shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.slot_classes import Place, SlotClass, count_slots, list_failed_of, to_places
from computepool.core.words import say_seconds

SUGGESTIONS_MAX = 5
# Lists of a request may not grow past these; beyond them only "any" is left to suggest.
TIERS_MAX = 32
REGIONS_MAX = 250


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


def suggest(
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
    failed = list_failed_of(to_shape(need), each)
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
    if not given_up or list_failed_of(to_shape(relaxed), each):
        return None
    return tuple(given_up), relaxed


def _relax_gate(need: Requirements, gate: Gate, each: SlotClass) -> Requirements:
    slot = each.slot
    if gate in PRICE_GATES and need.slice_price is not None:
        return replace(need, slice_price=_raise_price(need.slice_price, each))
    if gate in PRICE_GATES:
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


def least_ceiling(price_microcredits_per_hour: int) -> int | None:
    """The lowest ceiling that pays this price although shapes round it down. None: only any price will do."""
    steps = list_ceiling_steps()
    place = bisect_left(steps, price_microcredits_per_hour)
    return steps[place] if place < len(steps) else None


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
    opened = [each for each in ready if not list_failed_of(shape, each)]
    slot_count, free_count = count_slots(opened)
    changes = tuple(_to_change(need, relaxed, gate) for gate in gates)
    return Suggestion(changes, relaxed, slot_count, free_count, to_places(opened))


def _to_change(need: Requirements, relaxed: Requirements, gate: Gate) -> Change:
    asked, instead = say_asked(need, gate), say_asked(relaxed, gate)
    if gate in AMOUNTS and asked == instead:
        asked, instead = f"{AMOUNTS[gate][1](need):,} bytes", f"{AMOUNTS[gate][1](relaxed):,} bytes"
    if gate is Gate.GPU:
        words = "do without a GPU"
    elif gate in AMOUNTS:
        words = f"ask for {instead} of {AMOUNTS[gate][0]} instead of {asked}"
    elif gate is Gate.CORES:
        words = f"ask for {instead} instead of {asked}"
    elif gate is Gate.ISOLATION:
        words = f"accept isolation {instead} instead of {asked}"
    elif gate is Gate.TIER:
        words = f"accept tier {relaxed.tiers[-1]} too" if relaxed.tiers else "accept any tier"
    elif gate in PRICE_GATES and need.slice_price is not None and relaxed.slice_price is not None:
        words = _say_raise(need.slice_price, relaxed.slice_price)
    elif gate in PRICE_GATES:
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
