"""Shapes, the hard gates, and who gets which slot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest

from computepool.core.ids import JobId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import Requirements
from computepool.core.placement import checks
from computepool.core.placement.checks import CHECKS, find_refusal
from computepool.core.placement.rounds import (
    AVOID_SECONDS,
    ELSEWHERE_SECONDS_MAX,
    ELSEWHERE_SECONDS_MIN,
    Head,
    Wish,
    demand,
    patience_seconds,
)
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import DISK_STEP_BYTES, RAM_STEP_BYTES, VRAM_STEP_BYTES, Shape, to_shape
from computepool.core.placement.slot import Slot, tightness
from computepool.core.placement.weights import Preference
from tests.support.builders import (
    GB,
    NOW,
    account_number,
    make_candidate,
    make_head,
    make_run,
    make_shape,
    make_slot,
    node_number,
)
from tests.support.head_queue import HeadQueue, ScriptedShare, open_round, place, run_round

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


def test_what_was_queued_before_jobs_had_kinds_keeps_its_digest():
    before = Shape(False, 0, 1, GB, GB, (), (), IsolationLevel.SANDBOXED, 12)
    assert replace(before, job_kind="compute", slice_seconds=0).digest == before.digest
    # An account's jobs of seconds and of hours, or of another kind, stand in other runs of the queue.
    others = [
        replace(before, slice_seconds=10),
        replace(before, job_kind="ml"),
        replace(before, job_kind="ml", slice_seconds=10),
    ]
    assert len({each.digest for each in [before, *others]}) == 4


@pytest.mark.parametrize(("seconds", "step"), [(0, 0), (9, 0), (10, 10), (3_599, 1_800), (10**6, 14_400)])
def test_the_length_of_a_slice_is_rounded_down_to_what_owners_choose_from(seconds, step):
    assert to_shape(Requirements(slice_seconds=seconds)).slice_seconds == step


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
        {"job_kind": "ml"},
        {"slice_seconds": 60},
        {"wants": ("packages",)},
        {"wants": ("egress example.org:443",)},
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
        (
            checks.check_job_kind,
            make_shape(job_kind="compute"),
            make_slot(job_kinds=frozenset({"ml", "gaming"})),
            "is a job of the kind compute, the owner takes gaming and ml",
        ),
        (
            checks.check_slice_seconds,
            make_shape(slice_seconds=10),
            make_slot(slice_seconds_min=60),
            "its slices run for 10 s at most, the owner takes those of 1 min or more",
        ),
        (
            checks.check_image,
            make_shape(wants=("image docker.io/library/python@sha256:ab", "packages")),
            make_slot(allows=frozenset({"image ghcr.io/*", "packages"})),
            "brings the image docker.io/library/python@sha256:ab, which the owner does not allow",
        ),
        (
            checks.check_egress,
            make_shape(wants=("egress a.example.org:443", "egress a.example.org:80")),
            make_slot(allows=frozenset({"egress *.example.org:443"})),
            "wants to reach a.example.org:80, which the owner does not allow",
        ),
        (
            checks.check_packages,
            make_shape(wants=("packages",)),
            make_slot(allows=frozenset({"image *"})),
            "wants packages installed, which the owner does not allow",
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
        (make_shape(job_kind="ml"), make_slot(job_kinds=frozenset({"ml"}))),
        (make_shape(job_kind="ml"), make_slot()),
        (make_shape(slice_seconds=60), make_slot(slice_seconds_min=60)),
        (
            make_shape(wants=("egress a.b.example.org:443", "image python@sha256:ab", "packages")),
            make_slot(allows=frozenset({"egress *.Example.org:443", "image python@sha256:ab", "packages"})),
        ),
    ],
)
def test_a_slot_that_just_meets_a_gate_is_not_refused(shape, slot):
    assert find_refusal(shape, slot) is None


def test_a_slot_of_a_private_pool_is_for_those_who_are_welcome():
    slot = make_slot(welcome=frozenset({account_number(1), account_number(2)}))
    refusals = [find_refusal(make_shape(), slot, account_id=each) for each in (*map(account_number, (1, 2, 3)), None)]
    assert refusals == [None, None, *["the owner keeps it for a private pool"] * 2]
    assert find_refusal(make_shape(), make_slot()) is None


def test_of_several_reasons_the_first_gate_is_told():
    assert find_refusal(make_shape(gpu=True, cores=99), make_slot()) == "needs a GPU"


def test_every_check_of_the_module_is_in_the_list():
    listed = {check.__name__ for check in CHECKS}
    # What is asked of whom is not the shape's and the slot's alone: pool and price stand apart, and last.
    assert {*listed, "check_pool", "check_price"} == {name for name in vars(checks) if name.startswith("check_")}


@pytest.mark.parametrize(
    ("ceiling", "price", "reason"),
    [
        (None, 10**12, None),
        (1_500_000, 1_500_000, None),
        (1_500_000, 1_500_001, "pays at most 1.5 credits/h, the slot asks 1.500001 credits/h"),
        (0, 0, None),
        (0, 1_000_000, "pays at most 0 credits/h, the slot asks 1 credit/h"),
    ],
)
def test_a_slot_may_cost_as_much_as_the_submitter_pays_and_no_more(ceiling, price, reason):
    shape = make_shape(ceiling_microcredits_per_hour=ceiling)
    assert checks.check_price(shape, price) == reason
    assert find_refusal(shape, make_slot(), price_microcredits_per_hour=price) == reason


def test_of_a_gate_of_the_slot_and_the_price_the_gate_of_the_slot_is_told():
    shape = make_shape(cores=99, ceiling_microcredits_per_hour=0)
    assert find_refusal(shape, make_slot(), price_microcredits_per_hour=1) == "needs 99 cores, the slot has 4"


# Placement

CPU, GPU, BIG, NAMED = ShapeId(1), ShapeId(2), ShapeId(3), ShapeId(4)
SHAPES: dict[ShapeId, Shape] = {
    CPU: make_shape(),
    GPU: make_shape(gpu=True, vram_bytes=8 * GB),
    BIG: make_shape(gpu=True, vram_bytes=20 * GB),
    NAMED: make_shape(gpu=True, vram_bytes=8 * GB, tiers=("rtx-3060",)),
}
SMALL_CARD = make_slot(node_id=node_number(1), vram_bytes=12 * GB, tier="rtx-3060")
LARGE_CARD = make_slot(node_id=node_number(2), vram_bytes=24 * GB)
CPU_SLOT = make_slot(node_id=node_number(3))


def head(
    shape_id: ShapeId,
    index: int = 0,
    *,
    account: int = 1,
    priority_class: PriorityClass = PriorityClass.NORMAL,
    **overrides: object,
) -> Head:
    run = make_run(shape_id, account, priority_class)
    return make_head(slice_index=index, run=run, **overrides)


def placed(heads: list[Head], slots: list[Slot], **options: object) -> dict[int, Slot]:
    queue = HeadQueue(heads, SHAPES)
    pairs = place(queue, [make_candidate(slot) for slot in slots], **options)
    return {pair.head.slice_index: pair.candidate.slot for pair in pairs}


def test_gpu_work_is_placed_before_cpu_work_whatever_its_priority():
    assert placed([head(CPU, 0, priority=10), head(GPU, 1)], [SMALL_CARD]) == {1: SMALL_CARD}


def test_the_larger_demand_is_placed_first():
    assert placed([head(GPU, 0), head(BIG, 1)], [LARGE_CARD]) == {1: LARGE_CARD}


def test_the_larger_demand_is_placed_first_even_before_a_higher_class():
    high = head(GPU, 0, priority_class=PriorityClass.HIGH)
    assert placed([high, head(BIG, 1)], [LARGE_CARD]) == {1: LARGE_CARD}


def test_a_slice_takes_the_slot_with_the_best_score():
    cheap = make_candidate(SMALL_CARD, price_microcredits_per_hour=10)
    dear = make_candidate(LARGE_CARD, price_microcredits_per_hour=1_000)
    queue = HeadQueue([head(GPU)], SHAPES)
    assert [pair.candidate for pair in place(queue, [dear, cheap])] == [cheap]
    fastest = replace(queue, wishes={JobId(UUID(int=1)): Wish(Preference.FASTEST, "default")})
    assert [pair.candidate for pair in place(fastest, [dear, cheap])] == [dear]


def test_a_large_card_is_kept_for_the_work_that_needs_it():
    assert placed([head(GPU, 0), head(BIG, 1)], [LARGE_CARD, SMALL_CARD]) == {0: SMALL_CARD, 1: LARGE_CARD}


@pytest.mark.parametrize("tighter", [{"cores": 2}, {"ram_bytes": 4 * GB}])
def test_among_cpu_slots_of_equal_score_the_smaller_one_is_taken(tighter):
    small = replace(CPU_SLOT, name=SlotName("cpu:9"), **tighter)
    candidates = [make_candidate(slot, speed_tflops=1.0) for slot in (CPU_SLOT, small)]
    [pair] = place(HeadQueue([head(CPU)], SHAPES), candidates)
    assert pair.candidate.slot == small


def test_cpu_work_leaves_gpus_alone_while_a_cpu_slot_is_free():
    roomy = replace(CPU_SLOT, cores=64, ram_bytes=512 * GB)
    assert placed([head(CPU)], [SMALL_CARD, roomy]) == {0: roomy}


def test_cpu_work_takes_a_gpu_when_nothing_else_is_free():
    assert placed([head(CPU, 0), head(CPU, 1)], [SMALL_CARD, CPU_SLOT]) == {0: CPU_SLOT, 1: SMALL_CARD}


def test_cpu_work_does_not_wait_behind_gpu_work_that_no_slot_can_serve():
    heads = [head(GPU, index, priority=10) for index in range(600)]
    assert placed([*heads, head(CPU, 999)], [CPU_SLOT]) == {999: CPU_SLOT}


def test_a_higher_class_goes_first_whatever_the_priority_and_the_wait():
    longer = NOW - timedelta(hours=1)
    high = head(CPU, 1, priority_class=PriorityClass.HIGH, queued_at=NOW)
    assert placed([head(CPU, 0, priority=10, queued_at=longer), high], [CPU_SLOT]) == {1: CPU_SLOT}


def test_a_higher_class_goes_first_among_shapes_of_equal_demand_too():
    shapes = {ShapeId(1): make_shape(), ShapeId(2): make_shape(ram_bytes=2 * GB)}
    for high_id, low_id in ((1, 2), (2, 1)):
        high = head(ShapeId(high_id), 0, priority_class=PriorityClass.HIGH)
        low = head(ShapeId(low_id), 1, priority_class=PriorityClass.LOW, priority=10)
        for heads in ([high, low], [low, high]):
            [pair] = place(HeadQueue(heads, shapes), [make_candidate(CPU_SLOT)])
            assert pair.head == high


def test_a_backlog_of_one_shape_does_not_hide_another_of_equal_demand():
    """Account 2 is next by its fair share; that it asks for more memory must not make it wait for account 1."""
    shapes = {ShapeId(1): make_shape(), ShapeId(2): make_shape(ram_bytes=2 * GB)}
    fair = ScriptedShare([account_number(2), account_number(1)])
    for crowded, other in ((1, 2), (2, 1)):
        backlog = [head(ShapeId(crowded), index, account=1) for index in range(50)]
        due = head(ShapeId(other), 99, account=2)
        for heads in ([*backlog, due], [due, *backlog]):
            [pair] = place(HeadQueue(heads, shapes), [make_candidate(CPU_SLOT)], share=fair)
            assert pair.head == due


def test_between_accounts_the_fair_share_decides_and_not_the_priority_that_they_give_themselves():
    fair = ScriptedShare([account_number(2), account_number(1)])
    heads = [head(CPU, 0, account=1, priority=10), head(CPU, 1, account=2, priority=-10)]
    assert placed(heads, [CPU_SLOT], share=fair) == {1: CPU_SLOT}


def test_among_an_accounts_own_the_higher_priority_goes_first():
    assert placed([head(CPU, 0), head(CPU, 1, priority=1)], [CPU_SLOT]) == {1: CPU_SLOT}


def test_among_equal_priorities_the_longer_wait_goes_first():
    longer = NOW - timedelta(hours=1)
    assert placed([head(CPU, 0), head(CPU, 1, queued_at=longer)], [CPU_SLOT]) == {1: CPU_SLOT}


def test_among_equal_waits_the_older_job_and_the_first_slice_go_first():
    older, newer = JobId(UUID(int=1)), JobId(UUID(int=2))
    heads = [head(CPU, 0, job_id=newer), head(CPU, 2, job_id=older), head(CPU, 1, job_id=older)]
    [pair] = place(HeadQueue(heads, SHAPES), [make_candidate(CPU_SLOT)])
    assert pair.head == heads[2]


def test_work_that_names_a_tier_goes_before_work_that_takes_any_card():
    assert placed([head(GPU, 0, priority=10), head(NAMED, 1)], [SMALL_CARD]) == {1: SMALL_CARD}


def test_a_slice_keeps_away_from_the_node_that_failed_it():
    moment_ago = NOW - timedelta(seconds=1)
    again = head(CPU, avoid_node_id=CPU_SLOT.node_id, queued_at=moment_ago)
    assert placed([again], [CPU_SLOT]) == {}
    assert placed([again], [CPU_SLOT, LARGE_CARD]) == {0: LARGE_CARD}


@pytest.mark.parametrize(("seconds", "taken"), [(AVOID_SECONDS - 0.001, False), (AVOID_SECONDS, True)])
def test_after_ten_seconds_the_same_node_is_better_than_none(seconds, taken):
    again = head(CPU, avoid_node_id=CPU_SLOT.node_id, queued_at=NOW - timedelta(seconds=seconds))
    assert bool(placed([again], [CPU_SLOT])) is taken


@pytest.mark.parametrize("keeping_away", [1, 3, 40])
@pytest.mark.parametrize("behind", [{}, {"account": 2}, {"priority_class": PriorityClass.LOW}])
def test_slices_that_keep_away_do_not_hold_up_those_behind_them(keeping_away, behind):
    moment_ago = NOW - timedelta(seconds=1)
    again = [
        head(CPU, index, avoid_node_id=CPU_SLOT.node_id, queued_at=moment_ago, priority=10)
        for index in range(keeping_away)
    ]
    assert placed([*again, head(CPU, 99, **behind)], [CPU_SLOT]) == {99: CPU_SLOT}


def test_a_slot_that_an_account_cannot_fill_is_filled_by_another_in_the_same_round():
    slots = [replace(CPU_SLOT, name=SlotName(f"cpu:{index}")) for index in range(4)]
    heads = [head(CPU, 0, account=1), *(head(CPU, index, account=2) for index in range(1, 9))]
    assert len(placed(heads, slots)) == 4


def test_a_run_that_is_empty_is_told_and_holds_up_nobody():
    nobody, somebody = make_run(CPU, 1), head(CPU, 0, account=2)
    queue = HeadQueue([somebody], SHAPES, empty_runs=frozenset({nobody}))
    round_ = open_round(queue, [make_candidate(CPU_SLOT)])
    assert [pair.head for pair in run_round(round_, queue)] == [somebody]
    assert nobody in round_.emptied


def test_a_run_whose_slices_were_left_over_is_not_told_to_be_empty():
    again = head(CPU, avoid_node_id=CPU_SLOT.node_id, queued_at=NOW)
    queue = HeadQueue([again], SHAPES)
    round_ = open_round(queue, [make_candidate(CPU_SLOT)])
    assert (run_round(round_, queue), round_.emptied) == ([], set())


def test_nothing_is_placed_without_slots_or_without_work():
    assert placed([head(CPU)], []) == {}
    assert placed([], [CPU_SLOT]) == {}


def test_no_more_is_granted_than_asked_for():
    slots = [replace(CPU_SLOT, name=SlotName(f"cpu:{index}")) for index in range(6)]
    assert len(placed([head(CPU, index) for index in range(6)], slots, grants_max=4)) == 4


def test_the_order_in_which_nodes_called_does_not_matter():
    heads = [head(CPU, 0), head(GPU, 1), head(BIG, 2)]
    slots = [SMALL_CARD, LARGE_CARD, CPU_SLOT, replace(CPU_SLOT, node_id=node_number(4))]
    outcomes = [placed(heads, list(order)) for order in permutations(slots)]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_price_above_the_ceiling_is_a_gate_like_any_other():
    shapes = {CPU: make_shape(ceiling_microcredits_per_hour=100)}
    queue = HeadQueue([head(CPU)], shapes)
    assert place(queue, [make_candidate(CPU_SLOT, price_microcredits_per_hour=101)]) == []
    assert len(place(queue, [make_candidate(CPU_SLOT, price_microcredits_per_hour=100)])) == 1


# Private pools


def pool_slot(number: int, *accounts: int, **options) -> Candidate:
    slot = make_slot(node_id=node_number(number), welcome=frozenset(map(account_number, accounts)))
    return make_candidate(slot, **options)


def test_a_pool_serves_those_that_it_is_for_and_nobody_else():
    heads = [head(CPU, index, account=account) for index, account in enumerate((1, 2, 3))]
    pairs = place(HeadQueue(heads, SHAPES), [pool_slot(1, 2), pool_slot(2, 2, 3)])
    assert {pair.head.run.account_id: pair.candidate.slot.node_id for pair in pairs} == {
        account_number(2): node_number(1),
        account_number(3): node_number(2),
    }


def test_slices_of_strangers_that_stand_first_do_not_keep_a_pool_idle():
    strangers = [head(CPU, index, account=1, priority_class=PriorityClass.HIGH, priority=9) for index in range(50)]
    own = head(CPU, 99, account=2)
    [pair] = place(HeadQueue([*strangers, own], SHAPES), [pool_slot(1, 2)])
    assert pair.head == own


def test_who_has_a_pool_takes_the_better_of_pool_and_market():
    cheap = make_candidate(make_slot(node_id=node_number(9)), price_microcredits_per_hour=5)
    queue = HeadQueue([head(CPU, account=2)], SHAPES)
    for price, chosen in ((1, node_number(1)), (50, node_number(9))):
        [pair] = place(queue, [cheap, pool_slot(1, 2, price_microcredits_per_hour=price)])
        assert pair.candidate.slot.node_id == chosen


def test_a_slot_of_ones_pool_is_not_left_for_what_another_hub_may_have():
    queue = HeadQueue([head(CPU, account=2, queued_at=NOW)], SHAPES)
    round_ = open_round(queue, [pool_slot(1, 2)], gap_elsewhere=lambda *_: 1.0)
    assert len(run_round(round_, queue)) == 1


# Other hubs


def run_with_gap(gap: float, *, waited_seconds: float) -> tuple[int, float | None]:
    queue = HeadQueue([head(CPU, queued_at=NOW - timedelta(seconds=waited_seconds))], SHAPES)
    round_ = open_round(queue, [make_candidate(CPU_SLOT)], gap_elsewhere=lambda *_: gap)
    return len(run_round(round_, queue)), round_.postponed_seconds


def test_a_slice_leaves_a_slot_alone_for_a_moment_while_another_hub_has_a_better_one():
    paired, postponed_seconds = run_with_gap(1.0, waited_seconds=ELSEWHERE_SECONDS_MAX / 2)
    assert paired == 0
    assert postponed_seconds == pytest.approx(ELSEWHERE_SECONDS_MAX / 2)
    assert run_with_gap(0.0, waited_seconds=0.0) == (1, None)


def test_a_slice_that_has_waited_for_a_better_slot_takes_what_there_is():
    assert run_with_gap(1.0, waited_seconds=ELSEWHERE_SECONDS_MAX) == (1, None)


def test_a_slot_that_is_nearly_as_good_is_taken_before_one_that_is_far_worse():
    """So the slice goes to the best hub that can be had, whoever of them looks first."""
    waited = (ELSEWHERE_SECONDS_MIN + ELSEWHERE_SECONDS_MAX) / 2
    assert run_with_gap(0.02, waited_seconds=waited)[0] == 1
    assert run_with_gap(0.9, waited_seconds=waited)[0] == 0


def test_patience_grows_with_what_there_is_to_gain_and_has_an_end():
    gaps = [0.0, 0.01, 0.1, 0.5, 1.0, 50.0]
    seconds = [patience_seconds(gap) for gap in gaps]
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (0.0, ELSEWHERE_SECONDS_MAX)


def test_other_hubs_are_asked_on_behalf_of_the_account():
    asked: list[Any] = []

    def find_gap(*question: Any) -> float:
        asked.append(question)
        return 0.0

    queue = HeadQueue([head(CPU, account=2, queued_at=NOW)], SHAPES)
    run_round(open_round(queue, [make_candidate(CPU_SLOT)], gap_elsewhere=find_gap), queue)
    assert [question[-1] for question in asked] == [account_number(2)]


# What a round tells


def test_every_slot_is_told_as_it_is_paired():
    told: list[Candidate] = []
    slots = [replace(CPU_SLOT, name=SlotName(f"cpu:{index}")) for index in range(3)]
    queue = HeadQueue([head(CPU, index) for index in range(2)], SHAPES)
    pairs = place(queue, [make_candidate(slot) for slot in slots], on_pair=told.append)
    assert told == [pair.candidate for pair in pairs]
    assert len(told) == 2


def test_a_round_that_is_undone_names_the_slots_to_be_given_back():
    queue = HeadQueue([head(CPU)], SHAPES)
    round_ = open_round(queue, [make_candidate(CPU_SLOT)])
    [pair] = run_round(round_, queue)
    round_.undo()
    assert (round_.undone, round_.pairs) == ([pair.candidate], [])


def test_the_demand_of_a_shape_grows_with_what_few_slots_can_give():
    in_order = [
        make_shape(),
        make_shape(gpu=True),
        make_shape(gpu=True, vram_bytes=8 * GB),
        make_shape(gpu=True, vram_bytes=8 * GB, tiers=("rtx-3090",)),
        make_shape(gpu=True, vram_bytes=24 * GB),
    ]
    assert sorted(in_order, key=demand) == in_order
    assert len({demand(shape) for shape in in_order}) == 5


def test_slots_are_tighter_the_less_they_offer():
    order = [
        replace(CPU_SLOT, cores=1),
        replace(CPU_SLOT, ram_bytes=4 * GB),
        CPU_SLOT,
        replace(SMALL_CARD, cores=1),
        SMALL_CARD,
        LARGE_CARD,
    ]
    assert sorted([order[3], *order[:3], *order[4:]], key=tightness) == order
