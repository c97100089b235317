"""Placement: whoever wins could run it, nothing is used twice, nothing that fits is left over, no order matters.

Each property has a negative control: a `place` broken on purpose, which the same property must catch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import JobId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.nodes.slots import GpuCard, cut_into_slots, list_machine_faults
from computepool.core.placement import place as placement
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.place import AVOID_SECONDS, Head, Pair, list_feasible
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot, SlotKind
from tests.support.builders import GB, NOW, make_head, make_machine, make_shape, make_slot, node_number

BOUNDED = settings(max_examples=150, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
CONTROLLED = settings(BOUNDED, phases=[Phase.generate])

Place = Callable[..., list[Pair]]

TIERS = ["rtx-3060", "rtx-3090"]
CPU_SLOTS = st.builds(
    make_slot,
    cores=st.sampled_from([1, 4]),
    ram_bytes=st.sampled_from([2 * GB, 8 * GB]),
    region=st.sampled_from([None, "IN", "DE"]),
)
GPU_SLOTS = st.builds(
    make_slot,
    vram_bytes=st.sampled_from([8 * GB, 24 * GB]),
    tier=st.sampled_from(TIERS),
    isolation=st.sampled_from(list(IsolationLevel)),
)
SHAPES = st.builds(
    make_shape,
    gpu=st.booleans(),
    vram_bytes=st.sampled_from([0, 0, 8 * GB, 24 * GB]),
    cores=st.sampled_from([1, 1, 4]),
    ram_bytes=st.sampled_from([GB, GB, 8 * GB]),
    tiers=st.sampled_from([(), (), ("rtx-3090",), ("cpu", "rtx-3060")]),
    regions=st.sampled_from([(), (), ("IN",)]),
    isolation=st.sampled_from([IsolationLevel.SANDBOXED, IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER]),
)
HEADS = st.builds(
    make_head,
    shape_id=st.integers(0, 3).map(ShapeId),
    priority=st.integers(-1, 1),
    queued_at=st.sampled_from([1, AVOID_SECONDS, 60]).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    avoid_node_id=st.sampled_from([None, None, node_number(0), node_number(1)]),
)


@dataclass(frozen=True)
class Round:
    """One round's question: queued heads, their shapes, free slots. Two slots to a node, so that nodes repeat."""

    heads: list[Head]
    shapes: dict[ShapeId, Shape]
    slots: list[Slot]

    def place(self, place: Place) -> list[Pair]:
        return place(self.heads, self.shapes, self.slots, now=NOW)


def make_round(heads: list[Head], shapes: list[Shape], slots: list[Slot]) -> Round:
    return Round(
        [replace(head, job_id=JobId(UUID(int=index)), slice_index=index) for index, head in enumerate(heads)],
        {ShapeId(index): shape for index, shape in enumerate(shapes)},
        [
            replace(slot, node_id=node_number(index // 2), name=SlotName(f"{slot.kind.value}:{index % 2}"))
            for index, slot in enumerate(slots)
        ],
    )


ROUNDS = st.builds(
    make_round,
    heads=st.lists(HEADS, min_size=1, max_size=8),
    shapes=st.lists(SHAPES, min_size=4, max_size=4),
    slots=st.lists(CPU_SLOTS | GPU_SLOTS, max_size=8),
)


def may_run(round_: Round, head: Head, slot: Slot) -> bool:
    avoided = slot.node_id == head.avoid_node_id and NOW - head.queued_at < timedelta(seconds=AVOID_SECONDS)
    return not avoided and find_refusal(round_.shapes[head.shape_id], slot) is None


def the_winner_is_feasible(round_: Round, place: Place) -> None:
    for pair in round_.place(place):
        assert may_run(round_, pair.head, pair.slot), "the winner is feasible"


def no_slot_and_no_head_is_used_twice(round_: Round, place: Place) -> None:
    pairs = round_.place(place)
    slots = [(pair.slot.node_id, pair.slot.name) for pair in pairs]
    heads = [(pair.head.job_id, pair.head.slice_index) for pair in pairs]
    assert len(set(slots)) == len(slots), "no slot is used twice"
    assert len(set(heads)) == len(heads), "no head is used twice"


def nothing_that_fits_is_left_over(round_: Round, place: Place) -> None:
    pairs = round_.place(place)
    idle = [slot for slot in round_.slots if slot not in [pair.slot for pair in pairs]]
    waiting = [head for head in round_.heads if head not in [pair.head for pair in pairs]]
    assert not [1 for head in waiting for slot in idle if may_run(round_, head, slot)], "nothing that fits is left"


def the_order_of_nodes_and_heads_is_irrelevant(round_: Round, place: Place) -> None:
    pairs = round_.place(place)
    turned = Round(round_.heads[::-1], round_.shapes, round_.slots[::-1])
    rotated = Round(round_.heads[1:] + round_.heads[:1], round_.shapes, round_.slots[1:] + round_.slots[:1])
    assert turned.place(place) == rotated.place(place) == pairs, "the order is irrelevant"


def a_slot_that_fits_nobody_changes_nothing(round_: Round, place: Place) -> None:
    useless = make_slot(node_id=node_number(99), cores=0)
    larger = Round(round_.heads, round_.shapes, [useless, *round_.slots])
    assert larger.place(place) == round_.place(place), "a useless slot changes nothing"


def a_slice_takes_no_slot_above_its_tightest(round_: Round, place: Place) -> None:
    pairs = round_.place(place)
    taken = [pair.slot for pair in pairs]
    for pair in pairs:
        tighter = [
            slot
            for slot in round_.slots
            if slot not in taken
            and may_run(round_, pair.head, slot)
            and (slot.kind is SlotKind.GPU, slot.vram_bytes) < (pair.slot.kind is SlotKind.GPU, pair.slot.vram_bytes)
        ]
        assert tighter == [], "the tightest slot is taken"


def as_many_slots_are_counted_for_a_shape_as_could_run_it(round_: Round, place: Place) -> None:
    counts = list_feasible(round_.shapes, round_.slots)
    for shape_id, shape in round_.shapes.items():
        assert counts.get(shape_id, 0) == len([1 for slot in round_.slots if find_refusal(shape, slot) is None])


PROPERTIES = [
    the_winner_is_feasible,
    no_slot_and_no_head_is_used_twice,
    nothing_that_fits_is_left_over,
    the_order_of_nodes_and_heads_is_irrelevant,
    a_slot_that_fits_nobody_changes_nothing,
    a_slice_takes_no_slot_above_its_tightest,
    as_many_slots_are_counted_for_a_shape_as_could_run_it,
]


@BOUNDED
@given(ROUNDS)
def test_every_round_is_fair_and_complete(round_):
    for holds in PROPERTIES:
        holds(round_, placement.place)


# Negative controls


def place_that_reuses_a_slot(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    slots = list(slots)
    return [pair for head in heads for pair in placement.place([head], shapes, slots, now=now)]


def place_that_gives_a_head_two_slots(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    slots = list(slots)
    pairs = placement.place(heads, shapes, slots, now=now)
    idle = [slot for slot in slots if slot not in [pair.slot for pair in pairs]]
    return pairs + placement.place(heads, shapes, idle, now=now)


def place_that_checks_nothing(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    return [Pair(head, slot) for head, slot in zip(heads, slots, strict=False)]


def place_that_forgets_to_avoid(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    return placement.place(heads, shapes, slots, now=now + timedelta(seconds=AVOID_SECONDS))


def place_that_stops_after_the_first(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    return placement.place(heads, shapes, slots, now=now)[:1]


def place_that_serves_who_comes_first(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    free, pairs = list(slots), []
    for head in heads:
        for pair in placement.place([head], shapes, free, now=now):
            free.remove(pair.slot)
            pairs.append(pair)
    return pairs


def place_that_looks_at_the_first_slots_only(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    return placement.place(heads, shapes, sorted(slots, key=placement.tightness)[:1], now=now)


def place_that_prefers_the_largest(
    heads: Sequence[Head], shapes: Mapping[ShapeId, Shape], slots: Iterable[Slot], *, now: datetime
) -> list[Pair]:
    free, pairs = sorted(slots, key=placement.tightness, reverse=True), []
    for head in sorted(heads, key=lambda head: (head.shape_id, head.slice_index)):
        for slot in free:
            if placement.place([head], shapes, [slot], now=now):
                pairs.append(Pair(head, slot))
                free.remove(slot)
                break
    return pairs


@pytest.mark.parametrize(
    ("holds", "broken"),
    [
        (no_slot_and_no_head_is_used_twice, place_that_reuses_a_slot),
        (no_slot_and_no_head_is_used_twice, place_that_gives_a_head_two_slots),
        (the_winner_is_feasible, place_that_checks_nothing),
        (the_winner_is_feasible, place_that_forgets_to_avoid),
        (nothing_that_fits_is_left_over, place_that_stops_after_the_first),
        (the_order_of_nodes_and_heads_is_irrelevant, place_that_serves_who_comes_first),
        (a_slot_that_fits_nobody_changes_nothing, place_that_looks_at_the_first_slots_only),
        (a_slice_takes_no_slot_above_its_tightest, place_that_prefers_the_largest),
    ],
    ids=lambda function: function.__name__,
)
def test_a_broken_placement_is_noticed(holds, broken):
    @CONTROLLED
    @given(ROUNDS)
    def try_(round_: Round) -> None:
        holds(round_, broken)

    with pytest.raises(AssertionError, match=r"feasible|twice|left|irrelevant|nothing|tightest"):
        try_()


# Shapes and slots

QUICK = settings(BOUNDED, max_examples=60)

NEEDS = st.builds(
    Requirements,
    gpu=st.booleans(),
    vram_bytes=st.integers(0, 30 * GB),
    cores=st.integers(1, 8),
    ram_bytes=st.integers(0, 10 * GB),
    disk_bytes=st.integers(0, 60 * GB),
    tiers=st.lists(st.sampled_from(["cpu", *TIERS]), max_size=3).map(tuple),
    regions=st.lists(st.sampled_from(["IN", "DE"]), max_size=2).map(tuple),
)


@QUICK
@given(NEEDS, CPU_SLOTS | GPU_SLOTS)
def test_a_slot_that_passes_the_shape_passes_the_request(need, slot):
    if find_refusal(to_shape(need), slot) is None:
        assert slot.vram_bytes >= need.vram_bytes
        assert slot.ram_bytes >= need.ram_bytes
        assert slot.disk_bytes >= need.disk_bytes
        assert slot.cores >= need.cores
        assert not need.gpu or slot.kind is SlotKind.GPU
        assert not need.tiers or slot.tier in need.tiers
        assert not need.regions or slot.region in need.regions


@QUICK
@given(NEEDS, NEEDS)
def test_two_digests_are_equal_exactly_when_the_shapes_are(one, other):
    assert (to_shape(one).digest == to_shape(other).digest) == (to_shape(one) == to_shape(other))


@QUICK
@given(NEEDS)
def test_rounding_a_shape_again_changes_nothing(need):
    shape = to_shape(need)
    again = Requirements(
        shape.gpu,
        shape.vram_bytes,
        shape.cores,
        shape.ram_bytes,
        shape.disk_bytes,
        shape.tiers,
        shape.regions,
        shape.isolation,
    )
    assert to_shape(again) == shape


@QUICK
@given(
    gpus=st.lists(st.builds(GpuCard, name=st.just("x"), vram_bytes=st.integers(0, 80 * GB)), max_size=8),
    cpu_slots=st.integers(0, 20),
    cores=st.integers(1, 64),
    ram_bytes=st.integers(1, 100 * GB),
    disk_bytes=st.integers(0, 1000 * GB),
)
def test_slots_together_never_promise_more_memory_or_disk_than_there_is(
    gpus, cpu_slots, cores, ram_bytes, disk_bytes
):
    machine = make_machine(gpus=gpus, cpu_slots=cpu_slots, cores=cores, ram_bytes=ram_bytes, disk_bytes=disk_bytes)
    if list_machine_faults(machine):
        return
    slots = cut_into_slots(node_number(1), machine)
    assert len({slot.name for slot in slots}) == len(slots) == len(gpus) + cpu_slots
    assert sum(slot.ram_bytes for slot in slots) <= ram_bytes
    assert sum(slot.disk_bytes for slot in slots) <= disk_bytes
    assert sum(slot.vram_bytes for slot in slots) == sum(gpu.vram_bytes for gpu in gpus)
    # A slot has one core at least: with more slots than cores they share.
    assert sum(slot.cores for slot in slots) <= max(cores, len(slots))
