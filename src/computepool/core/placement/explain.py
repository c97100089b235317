"""Why a slice waits. Everything here follows from the same checks that placement obeys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC

from computepool.core.jobs.spec import Requirements
from computepool.core.market.hours import say_moment
from computepool.core.placement.gates import WANTS_GATES, Gate, say_asked
from computepool.core.placement.price import say_price
from computepool.core.placement.shape import to_shape
from computepool.core.placement.slot_classes import (
    Place,
    SlotClass,
    SpotForce,
    Standing,
    count_slots,
    cut_to_steps,
    list_failed_of,
    to_places,
)
from computepool.core.placement.suggestions import Suggestion, suggest
from computepool.core.words import say_count


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
    failures = [(each, list_failed_of(shape, each)) for each in known]
    ready = [(each, failed) for each, failed in failures if each.standing is Standing.READY]
    passing = [each for each, failed in ready if not failed]
    away = [each for each, failed in failures if each.standing is not Standing.READY and not failed]
    closed = [each for each in away if each.standing is Standing.CLOSED]
    pass_count, free_count = count_slots(passing)
    candidates = [each for each, failed in ready if failed and (not pass_count or each.free_count)]
    return Explanation(
        slot_count=sum(each.slot_count for each, _ in ready),
        pass_count=pass_count,
        free_count=free_count,
        gates=_count_gates(need, ready),
        suggestions=() if free_count else suggest(need, candidates, [each for each, _ in ready]),
        places=to_places(passing or closed or away),
        away_count=sum(each.slot_count for each in away if each.standing is not Standing.CLOSED),
        notes=() if free_count else tuple(_list_notes(need, ready, closed)),
    )


def _list_notes(
    need: Requirements, ready: Sequence[tuple[SlotClass, tuple[Gate, ...]]], closed: Sequence[SlotClass]
) -> Iterator[str]:
    """Of slots that nothing else stands in the way of."""
    if closed:
        opens = min((each.opens_at for each in closed if each.opens_at is not None), default=None)
        when = f" The first of them opens on {say_moment(opens.astimezone(UTC))} UTC." if opens else ""
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


def _say_slots(count: int) -> str:
    return say_count(count, "slot")
