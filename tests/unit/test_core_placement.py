"""Shapes, the hard gates, and who gets which slot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from uuid import UUID

import pytest

from computepool.core.ids import JobId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.placement import checks
from computepool.core.placement.checks import CHECKS, find_refusal
from computepool.core.placement.place import AVOID_SECONDS, Head, Pair, list_feasible, place
from computepool.core.placement.shape import DISK_STEP_BYTES, RAM_STEP_BYTES, VRAM_STEP_BYTES, Shape, to_shape
from computepool.core.placement.slot import Slot
from tests.support.builders import GB, NOW, make_head, make_shape, make_slot, node_number

# Shapes


@pytest.mark.parametrize(
    ("field", "step"),
    [("vram_bytes", VRAM_STEP_BYTES), ("ram_bytes", RAM_STEP_BYTES), ("disk_bytes", DISK_STEP_BYTES)],
)
def test_sizes_are_rounded_up_to_the_next_step_and_never_down(field, step):
    def rounded(size_bytes: int) -> int:
        return getattr(to_shape(Requirements(**{field: size_bytes})), field)

    assert [rounded(size) for size in (0, 1, step - 1, step, step + 1)] == [0, step, step, step, 2 * step]


def test_cores_are_not_rounded():
    assert to_shape(Requirements(cores=3)).cores == 3


@pytest.mark.parametrize(
    ("need", "gpu"),
    [
        (Requirements(), False),
        (Requirements(gpu=True), True),
        (Requirements(vram_bytes=1), True),
        (Requirements(tiers=("rtx-4090",)), True),
        (Requirements(tiers=("cpu",)), False),
        (Requirements(tiers=("cpu", "rtx-4090")), False),
        (Requirements(tiers=("cpu",), gpu=True), True),
    ],
)
def test_whoever_asks_for_vram_or_a_card_asks_for_a_gpu(need, gpu):
    assert to_shape(need).gpu is gpu


def test_equal_wishes_in_another_order_are_one_shape_with_one_digest():
    one = to_shape(Requirements(tiers=("b", "a", "b"), regions=("IN", "DE"), ram_bytes=GB - 5))
    other = to_shape(Requirements(tiers=("a", "b"), regions=("DE", "IN", "IN"), ram_bytes=GB))
    assert one == other
    assert one.digest == other.digest


def test_a_digest_is_the_same_on_every_hub():
    assert make_shape().digest.hex() == "451dba67254767e94459e7f6ea94114390087bf3fd728cf42cfaab7b745429a8"


@pytest.mark.parametrize(
    "difference",
    [
        {"gpu": True},
        {"vram_bytes": 1},
        {"cores": 2},
        {"ram_bytes": 2 * GB},
        {"disk_bytes": 2 * GB},
        {"tiers": ("a",)},
        {"regions": ("IN",)},
        {"isolation": IsolationLevel.GVISOR},
    ],
)
def test_shapes_that_differ_in_anything_have_different_digests(difference):
    assert make_shape(**difference).digest != make_shape().digest


def test_tiers_and_regions_are_told_apart_in_the_digest():
    assert make_shape(tiers=("a",)).digest != make_shape(regions=("a",)).digest
    assert make_shape(tiers=("a", "b")).digest != make_shape(tiers=("a-b",)).digest


# Checks

CARD = make_slot(vram_bytes=24 * GB, tier="rtx-3090")


@pytest.mark.parametrize(
    ("check", "shape", "slot", "reason"),
    [
        (checks.check_gpu, make_shape(gpu=True), make_slot(), "needs a GPU"),
        (
            checks.check_vram,
            make_shape(vram_bytes=24 * GB + 1),
            CARD,
            "needs 24.0 GB of VRAM, the slot has 24.0 GB",
        ),
        (checks.check_cores, make_shape(cores=5), make_slot(cores=4), "needs 5 cores, the slot has 4"),
        (
            checks.check_ram,
            make_shape(ram_bytes=8 * GB),
            make_slot(ram_bytes=7 * GB),
            "needs 8.0 GB of RAM, the slot has 7.0 GB",
        ),
        (
            checks.check_disk,
            make_shape(disk_bytes=8 * GB),
            make_slot(disk_bytes=7 * GB),
            "needs 8.0 GB of disk, the slot has 7.0 GB",
        ),
        (
            checks.check_isolation,
            make_shape(isolation=IsolationLevel.CONTAINER),
            make_slot(),
            "needs isolation container, the node offers sandboxed",
        ),
        (
            checks.check_tier,
            make_shape(tiers=("rtx-4090", "rtx-5090")),
            CARD,
            "needs tier rtx-4090 or rtx-5090, the slot is rtx-3090",
        ),
        (
            checks.check_region,
            make_shape(regions=("DE",)),
            make_slot(),
            "needs region DE, the node is in IN",
        ),
        (
            checks.check_region,
            make_shape(regions=("DE",)),
            make_slot(region=None),
            "needs region DE, the node is in no known region",
        ),
    ],
)
def test_a_slot_that_misses_a_gate_is_refused_by_that_check_alone_with_the_reason(check, shape, slot, reason):
    assert check(shape, slot) == reason
    assert [other for other in CHECKS if other(shape, slot) is not None] == [check]
    assert find_refusal(shape, slot) == reason


@pytest.mark.parametrize(
    ("shape", "slot"),
    [
        (make_shape(), make_slot()),
        (make_shape(), CARD),
        (make_shape(gpu=True), CARD),
        (make_shape(gpu=True, vram_bytes=24 * GB), CARD),
        (make_shape(cores=4), make_slot(cores=4)),
        (make_shape(ram_bytes=8 * GB), make_slot(ram_bytes=8 * GB)),
        (make_shape(disk_bytes=8 * GB), make_slot(disk_bytes=8 * GB)),
        (make_shape(isolation=IsolationLevel.CONTAINER), make_slot(isolation=IsolationLevel.CONTAINER)),
        (make_shape(isolation=IsolationLevel.CONTAINER), make_slot(isolation=IsolationLevel.GVISOR)),
        (make_shape(tiers=("cpu",)), make_slot()),
        (make_shape(tiers=("rtx-3090", "rtx-4090")), CARD),
        (make_shape(regions=("DE", "IN")), make_slot()),
        (make_shape(), make_slot(region=None)),
    ],
)
def test_a_slot_that_just_meets_a_gate_is_not_refused(shape, slot):
    assert find_refusal(shape, slot) is None


def test_of_several_reasons_the_first_gate_is_told():
    assert find_refusal(make_shape(gpu=True, cores=99), make_slot()) == "needs a GPU"


def test_every_check_of_the_module_is_in_the_list():
    assert {check.__name__ for check in CHECKS} == {name for name in vars(checks) if name.startswith("check_")}


# Placement

CPU, GPU, BIG = ShapeId(1), ShapeId(2), ShapeId(3)
SHAPES: dict[ShapeId, Shape] = {
    CPU: make_shape(),
    GPU: make_shape(gpu=True, vram_bytes=8 * GB),
    BIG: make_shape(gpu=True, vram_bytes=20 * GB),
}
SMALL_CARD = make_slot(node_id=node_number(1), vram_bytes=12 * GB, tier="rtx-3060")
LARGE_CARD = make_slot(node_id=node_number(2), vram_bytes=24 * GB)
CPU_SLOT = make_slot(node_id=node_number(3))


def head(shape_id: ShapeId, index: int = 0, **overrides: object) -> Head:
    return make_head(shape_id=shape_id, slice_index=index, **overrides)


def placed(heads: list[Head], slots: list[Slot]) -> dict[int, Slot]:
    return {pair.head.slice_index: pair.slot for pair in place(heads, SHAPES, slots, now=NOW)}


def test_gpu_work_is_placed_before_cpu_work_whatever_its_priority():
    assert placed([head(CPU, 0, priority=10), head(GPU, 1)], [SMALL_CARD]) == {1: SMALL_CARD}


def test_the_larger_demand_is_placed_first():
    assert placed([head(GPU, 0), head(BIG, 1)], [LARGE_CARD]) == {1: LARGE_CARD}


def test_a_slice_takes_the_tightest_slot_that_fits():
    assert placed([head(GPU)], [LARGE_CARD, SMALL_CARD]) == {0: SMALL_CARD}
    assert placed([head(BIG)], [SMALL_CARD, LARGE_CARD]) == {0: LARGE_CARD}


def test_a_large_card_is_kept_for_the_work_that_needs_it():
    assert placed([head(GPU, 0), head(BIG, 1)], [LARGE_CARD, SMALL_CARD]) == {0: SMALL_CARD, 1: LARGE_CARD}


@pytest.mark.parametrize("tighter", [{"cores": 2}, {"ram_bytes": 4 * GB}])
def test_among_cpu_slots_the_smaller_one_is_tighter(tighter):
    small = replace(CPU_SLOT, name=SlotName("cpu:9"), **tighter)
    assert placed([head(CPU)], [CPU_SLOT, small]) == {0: small}


def test_cpu_work_leaves_gpus_alone_while_a_cpu_slot_is_free():
    roomy = replace(CPU_SLOT, cores=64, ram_bytes=512 * GB)
    assert placed([head(CPU)], [SMALL_CARD, roomy]) == {0: roomy}


def test_cpu_work_takes_a_gpu_when_nothing_else_is_free():
    assert placed([head(CPU, 0), head(CPU, 1)], [SMALL_CARD, CPU_SLOT]) == {0: CPU_SLOT, 1: SMALL_CARD}


def test_among_equals_the_higher_priority_goes_first():
    assert placed([head(CPU, 0), head(CPU, 1, priority=1)], [CPU_SLOT]) == {1: CPU_SLOT}


def test_among_equal_priorities_the_longer_wait_goes_first():
    longer = NOW - timedelta(hours=1)
    assert placed([head(CPU, 0), head(CPU, 1, queued_at=longer)], [CPU_SLOT]) == {1: CPU_SLOT}


def test_among_equal_waits_the_older_job_and_the_first_slice_go_first():
    older, newer = JobId(UUID(int=1)), JobId(UUID(int=2))
    heads = [head(CPU, 0, job_id=newer), head(CPU, 2, job_id=older), head(CPU, 1, job_id=older)]
    [pair] = place(heads, SHAPES, [CPU_SLOT], now=NOW)
    assert pair == Pair(heads[2], CPU_SLOT)


def test_work_that_names_a_tier_goes_before_work_that_takes_any_card():
    shapes = {GPU: make_shape(gpu=True), BIG: make_shape(gpu=True, tiers=("rtx-3060",))}
    [pair] = place([head(GPU, 0, priority=10), head(BIG, 1)], shapes, [SMALL_CARD], now=NOW)
    assert pair.head.slice_index == 1


def test_a_slice_keeps_away_from_the_node_that_failed_it():
    moment_ago = NOW - timedelta(seconds=1)
    again = head(CPU, avoid_node_id=CPU_SLOT.node_id, queued_at=moment_ago)
    assert placed([again], [CPU_SLOT]) == {}
    assert placed([again], [CPU_SLOT, LARGE_CARD]) == {0: LARGE_CARD}


@pytest.mark.parametrize(("seconds", "taken"), [(AVOID_SECONDS - 0.001, False), (AVOID_SECONDS, True)])
def test_after_ten_seconds_the_same_node_is_better_than_none(seconds, taken):
    again = head(CPU, avoid_node_id=CPU_SLOT.node_id, queued_at=NOW - timedelta(seconds=seconds))
    assert bool(placed([again], [CPU_SLOT])) is taken


def test_a_slice_that_keeps_away_does_not_hold_up_the_one_behind_it():
    again = head(CPU, 0, avoid_node_id=CPU_SLOT.node_id, queued_at=NOW - timedelta(seconds=1), priority=10)
    assert placed([again, head(CPU, 1)], [CPU_SLOT]) == {1: CPU_SLOT}


def test_nothing_is_placed_without_slots_or_without_work():
    assert place([head(CPU)], SHAPES, [], now=NOW) == []
    assert place([], SHAPES, [CPU_SLOT], now=NOW) == []


def test_the_order_in_which_nodes_called_does_not_matter():
    heads = [head(CPU, 0), head(GPU, 1), head(BIG, 2)]
    slots = [SMALL_CARD, LARGE_CARD, CPU_SLOT, replace(CPU_SLOT, node_id=node_number(4))]
    outcomes = [place(heads, SHAPES, list(order), now=NOW) for order in permutations(slots)]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_feasible_slots_are_counted_for_each_shape():
    assert list_feasible(SHAPES, [SMALL_CARD, LARGE_CARD, CPU_SLOT]) == {CPU: 3, GPU: 2, BIG: 1}


def test_a_shape_that_no_slot_could_serve_is_not_listed():
    assert list_feasible(SHAPES, [CPU_SLOT]) == {CPU: 1}
    assert list_feasible({}, [CPU_SLOT]) == {}
