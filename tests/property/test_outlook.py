"""What the outlook leaves out fits nowhere, whatever came and went since it was last asked.

The other way round it may be wrong: a shape that no slot fits any more may still be looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import ShapeId, SlotName
from computepool.core.placement import leaves
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.leaves import Leaf, Plan
from computepool.core.placement.outlook import Outlook
from computepool.core.placement.pools import Fleet
from computepool.core.placement.rounds import Run
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference
from computepool.hub.dispatch.backlog import Backlog
from tests.property.test_rounds import CANDIDATES, RUNS, SHAPES, SHAPES_COUNT
from tests.support.builders import GB, account_number, make_candidate, make_run, make_shape, make_slot, node_number
from tests.support.head_queue import SETS

BOUNDED = settings(max_examples=300, deadline=None, derandomize=True, database=None)
NUMBERS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(NUMBERS, CANDIDATES)),
        st.tuples(st.just("add"), st.tuples(NUMBERS, CANDIDATES)),
        st.tuples(st.just("remove"), NUMBERS),
        st.tuples(st.just("take"), NUMBERS),
        st.tuples(st.just("ask"), st.integers(0, SHAPES_COUNT - 1)),
        st.tuples(st.just("wait"), RUNS),
        st.tuples(st.just("leave"), RUNS),
    ),
    max_size=30,
)
WAITING = st.lists(SHAPES, min_size=SHAPES_COUNT, max_size=SHAPES_COUNT)
HOLD = Leaf.hold


def may_run(run: Run, shape: Shape, candidate: Candidate) -> bool:
    prices = {
        "price_microcredits_per_hour": candidate.price_microcredits_per_hour,
        "base_price_microcredits_per_hour": candidate.base_price_microcredits_per_hour,
    }
    if candidate.owner_id == run.account_id:
        prices = {}
    return find_refusal(shape, candidate.slot, **prices, account_id=run.account_id) is None


def live_through(steps: list, shapes: list[Shape], make: Callable[[], Backlog] = Backlog) -> None:
    fleet, backlog = Fleet(SETS), make()
    backlog.shapes.update({ShapeId(number): shape for number, shape in enumerate(shapes)})
    slots: dict[int, Candidate] = {}
    waiting: set[Run] = set()
    for kind, what in steps:
        if kind == "add":
            number, candidate = what
            slot = replace(candidate.slot, node_id=node_number(number), name=SlotName("s:0"))
            slots[number] = replace(candidate, slot=slot)
            fleet.add(slots[number])
        elif kind == "remove" and slots.pop(what, None) is not None:
            fleet.remove(node_number(what), SlotName("s:0"))
        elif kind == "take" and what in slots and fleet.is_free(node_number(what), SlotName("s:0")):
            # Who waits for a busy slot is not without hope.
            fleet.take(node_number(what), SlotName("s:0"))
        elif kind == "ask":
            # Questions cut leaves.
            fleet.best(shapes[what], Preference.VALUE, ceiling=shapes[what].ceiling_microcredits_per_hour)
        elif kind == "wait":
            backlog.note(what)
            waiting.add(what)
        elif kind == "leave" and what in waiting:
            backlog.forget([what], as_of=backlog.moment)
            waiting.discard(what)
        hopeful = backlog.outlook.list_hopeful(fleet, backlog.shapes, backlog.runs)
        for run in waiting:
            if any(may_run(run, shapes[run.shape_id], candidate) for candidate in slots.values()):
                assert run.shape_id in hopeful, "what fits somewhere is looked at"
        assert set(hopeful) <= {run.shape_id for run in waiting}, "nothing is looked at that does not wait"


@BOUNDED
@given(STEPS, WAITING)
def test_what_fits_somewhere_is_always_looked_at(steps, shapes):
    # Leaves of two slots are cut, too.
    with patch.object(leaves, "CUT_SIZE_MIN", 2):
        live_through(steps, shapes)


def never_widens(self: Leaf, entry: leaves.Entry) -> bool:
    HOLD(self, entry)
    return False


def widens_by_numbers_alone(self: Leaf, entry: leaves.Entry) -> bool:
    before = self.top
    HOLD(self, entry)
    return self.top != before


def suits_none_that_just_suffice(self: Plan, leaf: Leaf) -> bool:
    return any(top <= wish for top, wish in zip(leaf.top, self.wish, strict=True))


class Unmoved(Backlog):
    """Takes no notice of who else begins to wait."""

    def _add(self, run: Run) -> None:
        with patch.object(self.outlook, "forget"):
            super()._add(run)


PLANTED = {
    "slots that widen the fleet are not told of": lambda: patch.object(Leaf, "hold", never_widens),
    "what just suffices does not": lambda: patch.object(Plan, "suits_none", suits_none_that_just_suffice),
    "owners and pools are not told of": lambda: patch.object(
        Fleet, "version", property(lambda self: self._public.widened_count)
    ),
    "only what is free counts": lambda: patch.object(
        FleetIndex, "may_suit", lambda self, shape, ceiling=None: self.count_feasible(shape, ceiling=ceiling) > 0
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_broken_outlook_is_noticed(fault):
    @settings(BOUNDED, max_examples=2_000, phases=[Phase.generate])
    @given(STEPS, WAITING)
    def live(steps: list, shapes: list[Shape]) -> None:
        live_through(steps, shapes)

    with PLANTED[fault](), pytest.raises(AssertionError, match="is looked at"):
        live()


# Histories that a generator seldom comes upon.
SHAPES_OF_GERMANY = [make_shape(regions=("DE",))] * SHAPES_COUNT
A_REGION_COMES = [
    ("wait", make_run(0)),
    ("add", (0, make_candidate(make_slot(region="IN")))),
    ("add", (1, make_candidate(make_slot(region="DE")))),
]
POOL = make_slot(welcome=frozenset({account_number(2)}))
A_MEMBER_WAITS = [("add", (0, make_candidate(POOL))), ("wait", make_run(0, 1)), ("wait", make_run(0, 2))]


def test_a_region_that_nobody_was_in_brings_hope():
    live_through(A_REGION_COMES, SHAPES_OF_GERMANY)
    with patch.object(Leaf, "hold", widens_by_numbers_alone), pytest.raises(AssertionError, match="is looked at"):
        live_through(A_REGION_COMES, SHAPES_OF_GERMANY)


def test_somebody_who_is_in_a_pool_has_hope_where_others_have_none():
    live_through(A_MEMBER_WAITS, [make_shape()] * SHAPES_COUNT)
    with pytest.raises(AssertionError, match="is looked at"):
        live_through(A_MEMBER_WAITS, [make_shape()] * SHAPES_COUNT, Unmoved)


def test_what_has_too_little_of_something_everywhere_is_looked_at_once():
    """And not again when slots come, go and work that are like those that were there."""
    fleet, outlook = Fleet(SETS), Outlook()
    slots = [make_candidate(make_slot(node_id=node_number(n), cores=1)) for n in range(40)]
    for slot in slots:
        fleet.add(slot)
    shapes = {ShapeId(1): make_shape(cores=2), ShapeId(2): make_shape(), ShapeId(3): make_shape(gpu=True)}
    runs = {run.shape_id: {run.priority_class: {run.account_id}} for run in map(make_run, shapes)}
    asked: Counter[Shape] = Counter()
    may_suit = Fleet.may_suit

    def count(self: Fleet, shape: Shape, accounts: object) -> bool:
        asked[shape] += 1
        return may_suit(self, shape, accounts)  # type: ignore[arg-type]

    with patch.object(Fleet, "may_suit", count):
        for slot in slots:
            assert outlook.list_hopeful(fleet, shapes, runs) == [2]
            fleet.take(slot.slot.node_id, slot.slot.name)
            fleet.update(replace(slot, reliability=0.5))
            fleet.remove(slot.slot.node_id, slot.slot.name)
            fleet.add(slot)
        assert set(asked.values()) == {1}
        fleet.add(make_candidate(make_slot(node_id=node_number(99), cores=2, vram_bytes=8 * GB)))
        assert outlook.list_hopeful(fleet, shapes, runs) == [1, 2, 3]
