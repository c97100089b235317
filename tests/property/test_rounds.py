"""Rounds: whoever wins could run it, nothing is used twice, nothing that fits is left over, and the order holds.

Each property has a negative control: a round broken on purpose, which the same property must catch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement import rounds
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.fair_share import FairShare
from computepool.core.placement.rounds import AVOID_SECONDS, LOOK_FURTHER_MAX, Head, Pair, Round, Run, Wish, demand
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import tightness
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
from tests.support.head_queue import HeadQueue, open_round, place, queue_order, run_round

BOUNDED = settings(max_examples=150, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
CONTROLLED = settings(BOUNDED, max_examples=600, phases=[Phase.generate])

SHAPES_COUNT = 4
CREDIT = 1_000_000

# Some are lent to anybody, some to one or two accounts.
WELCOME = st.sampled_from(
    [None, None, frozenset({account_number(1)}), frozenset({account_number(2), account_number(3)})]
)
CPU_SLOTS = st.builds(
    make_slot,
    cores=st.sampled_from([1, 4]),
    ram_bytes=st.sampled_from([2 * GB, 8 * GB]),
    region=st.sampled_from([None, "IN", "DE"]),
    slice_seconds_min=st.sampled_from([0, 0, 60]),
    job_kinds=st.sampled_from([frozenset(), frozenset(), frozenset({"ml"})]),
    welcome=WELCOME,
)
GPU_SLOTS = st.builds(
    make_slot,
    vram_bytes=st.sampled_from([8 * GB, 24 * GB]),
    tier=st.sampled_from(["rtx-3060", "rtx-3090"]),
    isolation=st.sampled_from(list(IsolationLevel)),
    welcome=WELCOME,
)


def make_owned(owner_id: AccountId | None, **values: Any) -> Candidate:
    """An owner is welcome in every pool of theirs."""
    candidate = make_candidate(**values)
    welcome = candidate.slot.welcome
    return replace(candidate, owner_id=owner_id) if welcome is None or owner_id in welcome else candidate


CANDIDATES = st.builds(
    make_owned,
    slot=CPU_SLOTS | GPU_SLOTS,
    price_microcredits_per_hour=st.sampled_from([0, CREDIT, 3 * CREDIT]),
    reliability=st.sampled_from([0.5, 0.9]),
    base_price_microcredits_per_hour=st.sampled_from([0, CREDIT, 3 * CREDIT]),
    owner_id=st.sampled_from([None, None, account_number(1), account_number(2)]),
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
    ceiling_microcredits_per_hour=st.sampled_from([None, None, CREDIT]),
    job_kind=st.sampled_from(["compute", "compute", "ml"]),
    slice_seconds=st.sampled_from([10, 60]),
    base_ceiling_microcredits_per_hour=st.sampled_from([None, None, CREDIT]),
)
# Few, so that slices stand behind each other.
RUNS = st.builds(
    make_run,
    shape_id=st.integers(0, SHAPES_COUNT - 1),
    account=st.sampled_from([1, 1, 2, 3]),
    priority_class=st.sampled_from([PriorityClass.NORMAL, PriorityClass.NORMAL, *PriorityClass]),
)
HEADS = st.builds(
    make_head,
    run=RUNS,
    priority=st.integers(-1, 1),
    queued_at=st.sampled_from([1, AVOID_SECONDS, 60]).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    avoid_node_id=st.sampled_from([None, None, node_number(0), node_number(1)]),
)


@dataclass(frozen=True)
class Scene:
    """One round's question. Two slots to a node, so that nodes repeat."""

    queue: HeadQueue
    candidates: list[Candidate]

    def may_run(self, head: Head, candidate: Candidate) -> bool:
        slot, waited = candidate.slot, NOW - head.queued_at
        if slot.node_id == head.avoid_node_id and waited < timedelta(seconds=AVOID_SECONDS):
            return False
        shape, account_id = self.shape_of(head), head.run.account_id
        # To its owner it was given for nothing; to others it is what it asks.
        candidate = next((each for each in self.candidates if each.slot == slot), candidate)
        if candidate.owner_id == account_id:
            return find_refusal(shape, slot, account_id=account_id) is None
        prices = {
            "price_microcredits_per_hour": candidate.price_microcredits_per_hour,
            "base_price_microcredits_per_hour": candidate.base_price_microcredits_per_hour,
        }
        return find_refusal(shape, slot, **prices, account_id=account_id) is None

    def shape_of(self, head: Head) -> Shape:
        return self.queue.shapes[head.run.shape_id]

    def list_waiting(self, pairs: list[Pair]) -> list[Head]:
        placed = [pair.head for pair in pairs]
        return [head for head in self.queue.heads if head not in placed]

    def list_idle(self, pairs: list[Pair]) -> list[Candidate]:
        taken = {key_of(pair.candidate) for pair in pairs}
        return [candidate for candidate in self.candidates if key_of(candidate) not in taken]


def key_of(candidate: Candidate) -> tuple[NodeId, SlotName]:
    return candidate.slot.node_id, candidate.slot.name


def make_scene(
    heads: list[Head], shapes: list[Shape], candidates: list[Candidate], empty: list, wishes: list[Preference]
) -> Scene:
    heads = [head._replace(job_id=JobId(UUID(int=index)), slice_index=index) for index, head in enumerate(heads)]
    waiting = {head.run for head in heads}
    queue = HeadQueue(
        heads,
        {ShapeId(index): shape for index, shape in enumerate(shapes)},
        frozenset(run for run in empty if run not in waiting),
        {head.job_id: Wish(wish, "default") for head, wish in zip(heads, wishes, strict=False)},
    )
    return Scene(
        queue,
        [
            replace(each, slot=replace(each.slot, node_id=node_number(index // 2), name=SlotName(f"s:{index % 2}")))
            for index, each in enumerate(candidates)
        ],
    )


SCENES = st.builds(
    make_scene,
    heads=st.lists(HEADS, min_size=1, max_size=10),
    shapes=st.lists(SHAPES, min_size=SHAPES_COUNT, max_size=SHAPES_COUNT),
    candidates=st.lists(CANDIDATES, max_size=8),
    empty=st.lists(RUNS, max_size=2),
    wishes=st.lists(st.sampled_from(list(Preference)), min_size=10, max_size=10),
)
# Where nobody keeps away from a node, the order of the queue holds without exception.
CALM_SCENES = SCENES.map(
    lambda scene: replace(
        scene, queue=replace(scene.queue, heads=[head._replace(avoid_node_id=None) for head in scene.queue.heads])
    )
)

Place = Callable[[HeadQueue, list[Candidate]], list[Pair]]


def place_whole(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, candidates)


def the_winner_passes_every_gate(scene: Scene, place: Place) -> None:
    for pair in place(scene.queue, scene.candidates):
        assert scene.may_run(pair.head, pair.candidate), "the winner passes every gate"


def no_slot_and_no_head_is_used_twice(scene: Scene, place: Place) -> None:
    pairs = place(scene.queue, scene.candidates)
    slots = [(pair.candidate.slot.node_id, pair.candidate.slot.name) for pair in pairs]
    heads = [(pair.head.job_id, pair.head.slice_index) for pair in pairs]
    assert len(set(slots)) == len(slots), "no slot is used twice"
    assert len(set(heads)) == len(heads), "no head is used twice"


def nothing_that_fits_is_left_over(scene: Scene, place: Place) -> None:
    pairs = place(scene.queue, scene.candidates)
    left = [(head, idle) for head in scene.list_waiting(pairs) for idle in scene.list_idle(pairs)]
    assert not [pair for pair in left if scene.may_run(*pair)], "nothing that fits is left"


def ones_own_slots_cost_nothing_and_others_what_they_ask(scene: Scene, place: Place) -> None:
    asked = {key_of(each): each for each in scene.candidates}
    for pair in place(scene.queue, scene.candidates):
        offered = asked[key_of(pair.candidate)]
        own = offered.owner_id == pair.head.run.account_id
        price = 0 if own else offered.price_microcredits_per_hour
        assert pair.candidate.price_microcredits_per_hour == price, "own slots cost nothing"


def the_order_of_nodes_is_irrelevant(scene: Scene, place: Place) -> None:
    pairs, candidates = place(scene.queue, scene.candidates), scene.candidates
    assert place(scene.queue, candidates[::-1]) == pairs, "the order is irrelevant"
    assert place(scene.queue, candidates[1:] + candidates[:1]) == pairs, "the order is irrelevant"


def a_slot_that_fits_nobody_changes_nothing(scene: Scene, place: Place) -> None:
    useless = make_candidate(make_slot(node_id=node_number(99), cores=0))
    larger = place(scene.queue, [useless, *scene.candidates])
    assert larger == place(scene.queue, scene.candidates), "a useless slot changes nothing"


def a_slot_serves_the_most_demanding_shape_that_it_can(scene: Scene, place: Place) -> None:
    pairs = place(scene.queue, scene.candidates)
    for pair in pairs:
        for waiting in scene.list_waiting(pairs):
            if demand(scene.shape_of(waiting)) > demand(scene.shape_of(pair.head)):
                assert not scene.may_run(waiting, pair.candidate), "the most demanding shape is served first"


def a_higher_class_goes_first_among_shapes_of_equal_demand(scene: Scene, place: Place) -> None:
    pairs = place(scene.queue, scene.candidates)
    for pair in pairs:
        for waiting in scene.list_waiting(pairs):
            equal = demand(scene.shape_of(waiting)) == demand(scene.shape_of(pair.head))
            if equal and waiting.run.priority_class.rank > pair.head.run.priority_class.rank:
                assert not scene.may_run(waiting, pair.candidate), "the higher class is served first"


def an_accounts_own_slices_keep_their_order(scene: Scene, place: Place) -> None:
    pairs = place(scene.queue, scene.candidates)
    for run in {pair.head.run for pair in pairs}:
        waiting = [head for head in scene.list_waiting(pairs) if head.run == run]
        placed = [pair.head for pair in pairs if pair.head.run == run]
        assert not waiting or max(map(queue_order, placed)) < min(map(queue_order, waiting)), "own order is kept"


PROPERTIES = [
    the_winner_passes_every_gate,
    no_slot_and_no_head_is_used_twice,
    nothing_that_fits_is_left_over,
    ones_own_slots_cost_nothing_and_others_what_they_ask,
    the_order_of_nodes_is_irrelevant,
    a_slot_that_fits_nobody_changes_nothing,
]
CALM_PROPERTIES = [
    a_slot_serves_the_most_demanding_shape_that_it_can,
    a_higher_class_goes_first_among_shapes_of_equal_demand,
    an_accounts_own_slices_keep_their_order,
]


def count_truly(queue: HeadQueue) -> Callable[[Run], int | None]:
    return Counter(head.run for head in queue.heads).__getitem__


def place_counted(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, candidates, find_count=count_truly(queue))


def place_crowded(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    """Beside other hubs, and as if there were always enough slots to ask for spare heads."""
    with patch.object(rounds, "SPARES_FROM", 1):
        return place(queue, candidates, share=Clocked(FairShare()), crowded=True)


WAYS = pytest.mark.parametrize("way", [place_whole, place_counted, place_crowded], ids=lambda way: way.__name__)


@WAYS
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_in_every_round(holds, way):
    @BOUNDED
    @given(SCENES)
    def try_(scene: Scene) -> None:
        holds(scene, way)

    try_()


@WAYS
@pytest.mark.parametrize("holds", CALM_PROPERTIES, ids=lambda holds: holds.__name__)
def test_in_every_round_in_which_nobody_keeps_away(holds, way):
    @BOUNDED
    @given(CALM_SCENES)
    def try_(scene: Scene) -> None:
        holds(scene, way)

    try_()


# Others may have taken some, or queued more; a run that is known has one at least.
MISCOUNTS = st.lists(st.integers(-3, 3), min_size=12, max_size=12)


def miscount(queue: HeadQueue, errors: list[int]) -> Callable[[Run], int | None]:
    runs = sorted({head.run for head in queue.heads} | queue.empty_runs)
    true = count_truly(queue)
    wrong = {run: max(1, (true(run) or 0) + error) for run, error in zip(runs, errors, strict=False)}
    return wrong.get


@dataclass(frozen=True)
class Clocked:
    """The real share, which plans for nobody more than their cap."""

    share: FairShare

    def plan(self, accounts: Any, count: int, caps: Any) -> Any:
        return self.share.plan(accounts, count, caps, now=0.0)


def place_miscounted(errors: list[int]) -> Place:
    return lambda queue, candidates: place(
        queue, candidates, share=Clocked(FairShare()), find_count=miscount(queue, errors)
    )


@BOUNDED
@given(SCENES, MISCOUNTS)
def test_wrong_counts_leave_nothing_over_that_fits(scene, errors):
    nothing_that_fits_is_left_over(scene, place_miscounted(errors))


def test_control_a_round_that_believes_its_counts_leaves_something_over(monkeypatch):
    monkeypatch.setattr(Round, "_count_more", lambda self, run: self._placed[run] + self._looked[run])

    @CONTROLLED
    @given(SCENES, MISCOUNTS)
    def try_(scene: Scene, errors: list[int]) -> None:
        nothing_that_fits_is_left_over(scene, place_miscounted(errors))

    with pytest.raises(AssertionError):
        try_()


@BOUNDED
@given(SCENES, MISCOUNTS)
def test_what_a_round_says_is_left_is_left(scene, errors):
    round_ = open_round(scene.queue, scene.candidates, find_count=miscount(scene.queue, errors))
    run_round(round_, scene.queue)
    waiting = Counter(head.run for head in scene.list_waiting(round_.pairs))
    for run, left in round_.left.items():
        true = count_truly(scene.queue)(run) or 0
        believed = miscount(scene.queue, errors)(run)
        if believed is None or believed <= true:
            assert left is None or left == waiting[run] or believed < true
        if run in round_.emptied:
            assert left == 0


def test_a_counted_round_finds_out_by_one_look_that_the_first_have_little():
    """Without counts it asks those who come first for everything, and the next ones by another look."""
    runs = [make_run(0, account) for account in (1, 2, 3)]
    queue, candidates = make_crowd(1, 6, 6, slots=6)

    def count_looks(find_count: Callable[[Run], int | None]) -> int:
        share = FairShare()
        for run, seconds in zip(runs, (0.0, 500.0, 500.0), strict=True):
            share.charge_lease(run.account_id, AttemptId(UUID(int=7)), expected_seconds=seconds, now=0.0)
        round_ = open_round(queue, candidates, share=Clocked(share), find_count=find_count)
        looks = 0
        while round_.list_takes():
            run_round(round_, queue, looks=1)
            looks += 1
        assert len(round_.pairs) == 6
        return looks

    assert count_looks(count_truly(queue)) == 1
    assert count_looks(lambda _: None) > 1


def make_crowd(*counts: int, slots: int = 8) -> tuple[HeadQueue, list[Candidate]]:
    """So many slices of one account each, and slots that all of them fit."""
    runs = [make_run(0, account) for account in range(1, len(counts) + 1)]
    heads = [make_head(run=run) for run, count in zip(runs, counts, strict=True) for _ in range(count)]
    heads = [head._replace(job_id=JobId(UUID(int=index))) for index, head in enumerate(heads)]
    free = [make_slot(node_id=node_number(index), name=SlotName("cpu:0")) for index in range(slots)]
    return HeadQueue(heads, {ShapeId(0): make_shape()}, frozenset(runs)), [make_candidate(slot) for slot in free]


def share_crowd(queue: HeadQueue) -> Clocked:
    """The last account has had most."""
    share = FairShare()
    for account in {head.run.account_id for head in queue.heads} | {run.account_id for run in queue.empty_runs}:
        share.charge_lease(account, AttemptId(account), expected_seconds=float(account.int), now=0.0)
    return Clocked(share)


def count_crowd_looks(*, crowded: bool) -> int:
    # What the first twelve had, others have taken.
    queue, candidates = make_crowd(*[0] * 12, *[1] * 12)
    round_ = open_round(queue, candidates, share=share_crowd(queue), crowded=crowded)
    looks = 0
    while round_.list_takes():
        run_round(round_, queue, looks=1)
        looks += 1
    assert len(round_.pairs) == 8
    return looks


def test_who_takes_beside_others_asks_for_spare_heads_and_looks_less_often():
    assert count_crowd_looks(crowded=True) < count_crowd_looks(crowded=False)


def test_spare_heads_are_used_only_for_those_who_have_none():
    queue, candidates = make_crowd(*[1] * 16)
    pairs = place(queue, candidates, share=share_crowd(queue), crowded=True)
    assert {pair.head.run.account_id for pair in pairs} == {
        make_run(0, account).account_id for account in range(1, 9)
    }


def test_control_spare_heads_that_are_used_by_age_would_go_to_those_who_had_most(monkeypatch):
    """Where nobody is planned for, everything is spare."""
    queue, candidates = make_crowd(*[1] * 16)
    late_first = [head._replace(queued_at=NOW - timedelta(seconds=100 + i)) for i, head in enumerate(queue.heads)]
    queue = HeadQueue(late_first, queue.shapes, queue.empty_runs)
    right = place(queue, candidates, share=share_crowd(queue), crowded=True)
    real = Round._plan_quotas

    def plan_loosely(self: Round, accounts: Any, count: int, caps: Any) -> None:
        real(self, accounts, count, caps)
        self._quotas += self._spares
        self._spares.clear()

    monkeypatch.setattr(Round, "_plan_quotas", plan_loosely)
    loose = place(queue, candidates, share=share_crowd(queue), crowded=True)
    assert {pair.head.run for pair in right} == {make_run(0, account) for account in range(1, 9)}
    assert {pair.head.run for pair in loose} != {pair.head.run for pair in right}


def test_runs_that_more_was_taken_from_than_was_used_are_named():
    queue, candidates = make_crowd(*[2] * 16)
    round_ = open_round(queue, candidates, share=share_crowd(queue), crowded=True)
    run_round(round_, queue)
    taken = {pair.head.run for pair in round_.pairs}
    assert round_.spared <= {head.run for head in queue.heads}
    assert round_.spared - taken, "those of whom nothing was used at all"


@BOUNDED
@given(SCENES)
def test_a_round_ends_and_tells_of_empty_runs_only_if_they_are(scene):
    round_ = open_round(scene.queue, scene.candidates)
    looks = 0
    while takes := round_.list_takes():
        run_round(round_, scene.queue, looks=1)
        looks += 1
        assert looks < 30, takes
        assert all(0 < count <= LOOK_FURTHER_MAX for count in takes.values())
    waiting = scene.list_waiting(round_.pairs)
    assert not {head.run for head in waiting} & round_.emptied


@BOUNDED
@given(SCENES, st.integers(0, 3))
def test_the_queue_may_be_found_empty_by_somebody_else_while_a_round_is_under_way(scene, looks):
    round_ = open_round(scene.queue, scene.candidates)
    run_round(round_, scene.queue, looks=looks)
    before = list(round_.pairs)
    round_._runs.clear()
    round_._takes = None
    assert not round_.list_takes()
    assert round_.pairs == before


@BOUNDED
@given(SCENES, st.integers(0, 5))
def test_no_more_is_granted_than_one_transaction_should_hold(scene, most):
    assert len(place(scene.queue, scene.candidates, grants_max=most)) <= most


@BOUNDED
@given(SCENES)
def test_what_is_paired_is_busy_and_what_is_not_is_free(scene):
    round_ = open_round(scene.queue, scene.candidates)
    pairs = run_round(round_, scene.queue)
    taken = {(pair.candidate.slot.node_id, pair.candidate.slot.name) for pair in pairs}
    for candidate in scene.candidates:
        key = candidate.slot.node_id, candidate.slot.name
        assert round_._fleet.is_free(*key) is (key not in taken)


@BOUNDED
@given(SCENES, st.integers(1, 60))
def test_heads_that_keep_away_from_the_free_nodes_do_not_hold_up_those_behind_them(scene, keeping_away):
    """However many of them stand in front, in the same run or in another."""
    pairs = place_whole(scene.queue, scene.candidates)
    for pair in pairs[:1]:
        node_id = pair.candidate.slot.node_id
        only = [each for each in scene.candidates if each.slot.node_id == node_id]
        behind = pair.head._replace(avoid_node_id=None)
        in_front = [
            behind._replace(slice_index=100 + number, priority=10, avoid_node_id=node_id, queued_at=NOW)
            for number in range(keeping_away)
        ]
        queue = replace(scene.queue, heads=[*in_front, behind], empty_runs=frozenset())
        assert [found.head for found in place_whole(queue, only)] == [behind]


# Negative controls


def place_that_reuses_a_slot(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return [pair for head in queue.heads for pair in place(replace(queue, heads=[head]), candidates)]


def place_that_gives_a_head_two_slots(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    pairs = place(queue, candidates)
    return pairs + place(queue, Scene(queue, candidates).list_idle(pairs))


def place_that_checks_nothing(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return [Pair(head, candidate) for head, candidate in zip(queue.heads, candidates, strict=False)]


def place_that_forgets_to_avoid(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    by_key = {(head.job_id, head.slice_index): head for head in queue.heads}
    blind = replace(queue, heads=[head._replace(avoid_node_id=None) for head in queue.heads])
    return [pair._replace(head=by_key[pair.head.job_id, pair.head.slice_index]) for pair in place(blind, candidates)]


def place_that_forgets_the_price(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    free = {id: replace(shape, ceiling_microcredits_per_hour=None) for id, shape in queue.shapes.items()}
    return place(replace(queue, shapes=free), candidates)


def place_that_forgets_the_price_per_slice(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    free = {id: replace(shape, base_ceiling_microcredits_per_hour=None) for id, shape in queue.shapes.items()}
    return place(replace(queue, shapes=free), candidates)


def place_that_knows_no_owners(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, [replace(each, owner_id=None) for each in candidates])


def place_that_takes_everybody_for_the_owner(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, [replace(each, price_microcredits_per_hour=0) for each in candidates])


def place_that_stops_after_the_first(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, candidates)[:1]


def place_that_takes_who_called_first(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    free, pairs = list(candidates), []
    for head in queue.heads:
        for candidate in free:
            if place(replace(queue, heads=[head]), [candidate]):
                pairs.append(Pair(head, candidate))
                free.remove(candidate)
                break
    return pairs


def place_that_looks_at_the_tightest_slot_only(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    return place(queue, sorted(candidates, key=lambda each: tightness(each.slot))[:1])


def place_that_serves_the_modest_first(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    free, pairs = list(candidates), []
    for shape_id in sorted(queue.shapes, key=lambda id: demand(queue.shapes[id])):
        served = place(replace(queue, heads=[h for h in queue.heads if h.run.shape_id == shape_id]), free)
        pairs += served
        free = [each for each in free if key_of(each) not in {key_of(pair.candidate) for pair in served}]
    return pairs


def place_that_knows_no_classes(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    by_key = {(head.job_id, head.slice_index): head for head in queue.heads}
    levelled = [
        head._replace(run=head.run._replace(priority_class=PriorityClass.NORMAL), priority=-1)
        for head in sorted(queue.heads, key=lambda head: head.run.priority_class.rank)
    ]
    return [
        pair._replace(head=by_key[pair.head.job_id, pair.head.slice_index])
        for pair in place(replace(queue, heads=levelled, empty_runs=frozenset()), candidates)
    ]


def place_that_turns_priorities_round(queue: HeadQueue, candidates: list[Candidate]) -> list[Pair]:
    by_key = {(head.job_id, head.slice_index): head for head in queue.heads}
    turned = replace(queue, heads=[head._replace(priority=-head.priority) for head in queue.heads])
    return [pair._replace(head=by_key[pair.head.job_id, pair.head.slice_index]) for pair in place(turned, candidates)]


@pytest.mark.parametrize(
    ("holds", "broken"),
    [
        (no_slot_and_no_head_is_used_twice, place_that_reuses_a_slot),
        (no_slot_and_no_head_is_used_twice, place_that_gives_a_head_two_slots),
        (the_winner_passes_every_gate, place_that_checks_nothing),
        (the_winner_passes_every_gate, place_that_forgets_to_avoid),
        (the_winner_passes_every_gate, place_that_forgets_the_price),
        (the_winner_passes_every_gate, place_that_forgets_the_price_per_slice),
        (nothing_that_fits_is_left_over, place_that_knows_no_owners),
        (ones_own_slots_cost_nothing_and_others_what_they_ask, place_that_knows_no_owners),
        (ones_own_slots_cost_nothing_and_others_what_they_ask, place_that_takes_everybody_for_the_owner),
        (nothing_that_fits_is_left_over, place_that_stops_after_the_first),
        (the_order_of_nodes_is_irrelevant, place_that_takes_who_called_first),
        (a_slot_that_fits_nobody_changes_nothing, place_that_looks_at_the_tightest_slot_only),
        (a_slot_serves_the_most_demanding_shape_that_it_can, place_that_serves_the_modest_first),
        (a_higher_class_goes_first_among_shapes_of_equal_demand, place_that_knows_no_classes),
        (an_accounts_own_slices_keep_their_order, place_that_turns_priorities_round),
    ],
    ids=lambda function: function.__name__,
)
def test_a_broken_round_is_noticed(holds, broken):
    @CONTROLLED
    @given(CALM_SCENES if holds in CALM_PROPERTIES else SCENES)
    def try_(scene: Scene) -> None:
        holds(scene, broken)

    with pytest.raises(AssertionError, match=r"gate|twice|left|irrelevant|nothing|first|own order|own slots"):
        try_()
