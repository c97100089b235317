"""The fleet index against looking at every slot: the same winner for any question, after any history.

Each property has a negative control: an index broken on purpose, which the same property must catch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count, product
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement import fleet as fleet_module
from computepool.core.placement import leaves as leaves_module
from computepool.core.placement import pools as pools_module
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.pools import Fleet
from computepool.core.placement.scorers import Candidate, break_tie, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference, Weights
from tests.support.builders import GB, account_number, make_shape, make_slot, node_number

# What a control finds is long to tell, and nobody reads it.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

BOUNDED = settings(max_examples=200, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
# Some bugs show in few histories; the first one that does ends the search.
CONTROLLED = settings(BOUNDED, max_examples=1_000, phases=[Phase.generate])

SETS = {
    "default": Weights(price=1.0, speed=1.0, reliability=1.0),
    "classic": Weights(vram_fit=10.0, cores_fit=5.0),
}
CREDIT = 1_000_000


@pytest.fixture(autouse=True)
def _eager_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves are cut, halved and rid of busy slots within a few questions, as they would be in a large fleet."""
    monkeypatch.setattr(leaves_module, "CUT_SIZE_MIN", 2)
    monkeypatch.setattr(leaves_module, "LEAF_SIZE_MAX", 6)
    monkeypatch.setattr(leaves_module, "BUSY_MAX", 1)
    monkeypatch.setattr(fleet_module, "PLANS_MAX", 3)
    monkeypatch.setattr(fleet_module, "MASKS_MAX", 40)
    monkeypatch.setattr(pools_module, "OWN_INDEXES_MAX", 1)


Key = tuple[NodeId, SlotName]
NO_TURNS: Mapping[Key, int] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    shape: Shape
    preference: Preference
    weights: str
    ceiling: int | None
    avoid: NodeId | None
    # What is theirs costs them nothing.
    account_id: AccountId

    def ask(self, fleet: Fleet) -> Candidate | None:
        return fleet.best(
            self.shape,
            self.preference,
            account_id=self.account_id,
            weights=self.weights,
            ceiling=self.ceiling,
            avoid=self.avoid,
        )

    def admits(self, candidate: Candidate) -> bool:
        base_price = candidate.base_price_microcredits_per_hour
        return (
            find_refusal(
                self.shape,
                candidate.slot,
                base_price_microcredits_per_hour=base_price,
                account_id=self.account_id,
            )
            is None
            and (self.ceiling is None or candidate.price_microcredits_per_hour <= self.ceiling)
            and candidate.slot.node_id != self.avoid
        )

    def find_best(self, candidates: dict[Key, Candidate], turns: Mapping[Key, int]) -> Candidate | None:
        """What is one's own comes first where all else is equal."""
        own = {key: to_own(each) for key, each in candidates.items() if each.owner_id == self.account_id}
        return min(
            (*self.rank_all(own, turns)[:1], *self.rank_all(candidates, turns)[:1]),
            key=lambda each: self.rank(each, turns.get(key_of(each), 0)),
            default=None,
        )

    def rank(self, candidate: Candidate, turn: int) -> tuple[float, tuple[object, ...]]:
        points = score(candidate, self.shape, SETS[self.weights], self.preference)
        return -points, break_tie(candidate, gpu=self.shape.gpu, turn=turn)

    def rank_all(self, candidates: dict[Key, Candidate], turns: Mapping[Key, int] = NO_TURNS) -> list[Candidate]:
        """Every gate of every slot, every score: slow and plainly right."""
        return sorted(
            filter(self.admits, candidates.values()), key=lambda each: self.rank(each, turns.get(key_of(each), 0))
        )


def make_candidate(
    slot: Any, speed: float, price: int, reliability: float, base_price: int, owner_id: AccountId | None
) -> Candidate:
    # An owner is welcome in every pool of theirs. What is lent for little in public is paid at spot; those who pay a
    # fixed price find it cheapest where spot is high.
    is_owner = slot.welcome is None or owner_id in slot.welcome
    spot = 2 * CREDIT if slot.welcome is None and slot.region == "IN" else 0
    reference = 0 if slot.welcome is not None else CREDIT if slot.region == "IN" else 3 * CREDIT
    return Candidate(slot, speed, price, reliability, base_price, owner_id if is_owner else None, spot, reference)


def to_own(candidate: Candidate) -> Candidate:
    return replace(
        candidate,
        price_microcredits_per_hour=0,
        base_price_microcredits_per_hour=0,
        spot_microcredits_per_hour=0,
        reference_microcredits_per_hour=0,
    )


def key_of(candidate: Candidate) -> Key:
    return candidate.slot.node_id, candidate.slot.name


NODES = st.integers(0, 5).map(node_number)
ACCOUNTS = [account_number(number) for number in range(3)]
HAVING = {
    "node_id": NODES,
    "name": st.sampled_from([SlotName("a:0"), SlotName("a:1"), SlotName("a:2")]),
    "vram_bytes": st.sampled_from([0, 0, 8 * GB, 24 * GB]),
    "cores": st.sampled_from([1, 4]),
    "ram_bytes": st.sampled_from([2 * GB, 8 * GB, 8 * GB + 1]),
    "disk_bytes": st.sampled_from([5 * GB, 50 * GB]),
    "region": st.sampled_from([None, "IN", "DE"]),
    "isolation": st.sampled_from(list(IsolationLevel)),
}
ASKING = {
    "slice_seconds_min": st.sampled_from([0, 10, 60]),
    "job_kinds": st.sampled_from([frozenset(), frozenset({"ml"}), frozenset({"ml", "compute"})]),
    "allows": st.sampled_from([frozenset(), frozenset({"packages"}), frozenset({"packages", "egress *.org:443"})]),
    "welcome": st.sampled_from([None, frozenset(ACCOUNTS[:1]), frozenset(ACCOUNTS[:2])]),
}
# Most owners set no conditions.
PLAIN_SLOTS = st.builds(make_slot, **HAVING)
SLOTS = (PLAIN_SLOTS | PLAIN_SLOTS | st.builds(make_slot, **HAVING, **ASKING)).flatmap(
    lambda slot: (
        st.just(slot)
        if slot.kind is SlotKind.CPU
        else st.sampled_from([slot, replace(slot, tier="rtx-4090"), replace(slot, tier="unknown")])
    )
)
# Few values, so that ties are common.
CANDIDATES = st.builds(
    make_candidate,
    slot=SLOTS,
    speed=st.sampled_from([1.0, 2.0, 30.0]),
    price=st.sampled_from([0, CREDIT, 2 * CREDIT, 30 * CREDIT]),
    reliability=st.sampled_from([0.05, 0.5, 0.9]),
    base_price=st.sampled_from([0, CREDIT, 2 * CREDIT]),
    owner_id=st.sampled_from([None, *ACCOUNTS[:2]]),
)
SHAPES = st.builds(
    make_shape,
    gpu=st.booleans(),
    vram_bytes=st.sampled_from([0, 0, 8 * GB, 10 * GB]),
    cores=st.sampled_from([1, 1, 4]),
    ram_bytes=st.sampled_from([0, GB, 8 * GB, 8 * GB + 1]),
    disk_bytes=st.sampled_from([GB, GB, 20 * GB]),
    tiers=st.sampled_from([(), (), ("rtx-4090",), ("cpu", "rtx-3090")]),
    regions=st.sampled_from([(), (), ("IN",), ("DE", "IN")]),
    isolation=st.sampled_from([IsolationLevel.SANDBOXED, *IsolationLevel]),
    job_kind=st.sampled_from(["compute", "ml", "gaming"]),
    slice_seconds=st.sampled_from([0, 10, 3_600]),
    wants=st.sampled_from([(), (), (), ("packages",), ("egress a.org:443", "packages")]),
    base_ceiling_microcredits_per_hour=st.sampled_from([None, None, CREDIT]),
)
# Wishes that many slots fit: who ranks them wrongly is seen only where there is something to rank.
PLAIN_SHAPES = st.sampled_from(
    [make_shape(ram_bytes=0), make_shape(ram_bytes=0, base_ceiling_microcredits_per_hour=2 * CREDIT)]
)
QUESTIONS = st.builds(
    Question,
    shape=SHAPES,
    preference=st.sampled_from(list(Preference)),
    weights=st.sampled_from(sorted(SETS)),
    ceiling=st.sampled_from([None, None, 0, CREDIT, 2 * CREDIT]),
    avoid=st.none() | NODES,
    account_id=st.sampled_from(ACCOUNTS),
)
# Modest in all but the price, so that somebody's own slots often answer.
OWN_QUESTIONS = st.builds(
    Question,
    shape=st.just(make_shape(ram_bytes=0)) | SHAPES,
    preference=st.sampled_from(list(Preference)),
    weights=st.just("default"),
    ceiling=st.sampled_from([0, CREDIT]),
    avoid=st.none(),
    account_id=st.sampled_from(ACCOUNTS),
)
STEPS = st.one_of(
    st.tuples(st.just("add"), CANDIDATES),
    st.tuples(st.just("add"), CANDIDATES),
    st.tuples(st.just("update"), CANDIDATES),
    st.tuples(st.sampled_from(["remove", "take"]), CANDIDATES),
    st.tuples(st.just("give"), st.integers(0, 20)),
    st.tuples(st.just("ask"), QUESTIONS),
    st.tuples(st.just("take best"), QUESTIONS),
    st.tuples(st.just("withdraw best"), QUESTIONS),
    st.tuples(st.sampled_from(["ask", "take best", "withdraw best"]), OWN_QUESTIONS),
)
PLAIN_QUESTIONS = st.builds(
    Question,
    shape=PLAIN_SHAPES,
    preference=st.sampled_from(list(Preference)),
    weights=st.sampled_from(sorted(SETS)),
    ceiling=st.none(),
    avoid=st.none(),
    account_id=st.sampled_from(ACCOUNTS),
)
PLAIN_STEPS = STEPS | st.tuples(st.sampled_from(["ask", "take best"]), PLAIN_QUESTIONS)
FLEETS = st.lists(CANDIDATES, max_size=18, unique_by=key_of)
History = list[tuple[str, Any]]
MakeFleet = Callable[[], Fleet]


def make_index() -> FleetIndex:
    return FleetIndex(SETS)


def make_fleet() -> Fleet:
    return Fleet(SETS)


class Ledger:
    """What a fleet should know, kept in dicts."""

    def __init__(self, make: MakeFleet) -> None:
        self.index = make()
        self.known: dict[Key, Candidate] = {}
        self.busy: set[Key] = set()
        self.working: set[Key] = set()
        # When each last came back from work.
        self.turns: dict[Key, int] = {}
        self._turn = count(1)

    @property
    def free(self) -> dict[Key, Candidate]:
        return {key: candidate for key, candidate in self.known.items() if key not in self.busy}

    def do(self, step: str, what: Any) -> None:
        if isinstance(what, Question):
            found = what.ask(self.index)
            assert found == what.find_best(self.free, self.turns), "the best is found"
            if step != "ask" and found is not None:
                self.do(step.removesuffix(" best"), self.known[key_of(found)])
            return
        if step == "give":
            if self.busy:
                key = sorted(self.busy)[what % len(self.busy)]
                self.busy.discard(key)
                if key in self.working:
                    self.working.discard(key)
                    self.turns[key] = next(self._turn)
                self.index.give(*key)
            return
        key = key_of(what)
        if step == "add":
            self._forget(key)
            self.known[key] = what
            self.index.add(what)
        elif step == "update" and key in self.known:
            self.known[key] = what
            self.index.update(what)
        elif step == "remove" and key in self.known:
            self._forget(key)
            self.index.remove(*key)
        elif step == "take" and key in self.free:
            self.busy.add(key)
            self.working.add(key)
            assert self.index.take(*key) == self.known[key], "what was put in comes out"
        elif step == "withdraw" and key in self.free:
            self.busy.add(key)
            self.index.withdraw(*key)

    def _forget(self, key: Key) -> None:
        self.known.pop(key, None)
        self.turns.pop(key, None)
        self.busy.discard(key)
        self.working.discard(key)


# Properties


def every_question_finds_the_best_at_any_time(history: History, questions: list[Question], make: MakeFleet) -> None:
    ledger = Ledger(make)
    for step, what in history:
        ledger.do(step, what)
    for question in questions:
        ledger.do("ask", question)


def a_history_leaves_no_trace_but_who_has_had_work(
    history: History, questions: list[Question], make: MakeFleet
) -> None:
    ledger = Ledger(make)
    for step, what in history:
        ledger.do(step, what)
    fresh = make()
    for candidate in ledger.free.values():
        fresh.add(candidate)
    for key in sorted(ledger.free.keys() & ledger.turns.keys(), key=ledger.turns.__getitem__):
        fresh.take(*key)
        fresh.give(*key)
    assert len(ledger.index) == len(fresh) == len(ledger.free), "the free ones are counted"
    assert {key_of(candidate) for candidate in ledger.index} == ledger.free.keys(), "the free ones are listed"
    for question in questions:
        assert question.ask(ledger.index) == question.ask(fresh), "the best is found, whatever went before"


def a_slot_that_is_gone_is_never_returned(history: History, questions: list[Question], make: MakeFleet) -> None:
    ledger = Ledger(make)
    for step, what in history:
        ledger.do(step, what)
    for question in questions:
        found = question.ask(ledger.index)
        while found is not None:
            there = ledger.free.get(key_of(found))
            assert there is not None, "the best is found among those that are there"
            assert found in (there, to_own(there)), "the best is found as it is"
            ledger.do("remove", there)
            found = question.ask(ledger.index)


PROPERTIES = [
    every_question_finds_the_best_at_any_time,
    a_history_leaves_no_trace_but_who_has_had_work,
    a_slot_that_is_gone_is_never_returned,
]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda function: function.__name__)
def test_the_index_keeps_its_word(holds):
    @BOUNDED
    @given(st.lists(STEPS, max_size=40), st.lists(QUESTIONS, min_size=1, max_size=4))
    def try_(history: History, questions: list[Question]) -> None:
        holds(history, questions, make_fleet)

    try_()


@given(FLEETS, st.lists(QUESTIONS, min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(BOUNDED)
def test_the_order_of_adding_is_irrelevant(candidates, questions, rng):
    turned = list(candidates)
    rng.shuffle(turned)
    one, other = make_fleet(), make_fleet()
    for candidate in candidates:
        one.add(candidate)
    for candidate in turned:
        other.add(candidate)
    assert [question.ask(one) for question in questions] == [question.ask(other) for question in questions]


@given(FLEETS, st.lists(QUESTIONS, min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(BOUNDED)
def test_nor_does_it_matter_who_gets_what_when_slots_come_back_from_work(candidates, questions, rng):
    """Two indexes that were filled in another order live through the same work."""
    turned = list(candidates)
    rng.shuffle(turned)
    indexes = make_fleet(), make_fleet()
    for index, fleet in zip(indexes, (candidates, turned), strict=True):
        for candidate in fleet:
            index.add(candidate)
    out: list[Key] = []
    for question in questions:
        one, other = (question.ask(index) for index in indexes)
        assert one == other
        if one is not None:
            out.append(key_of(one))
            for index in indexes:
                index.take(*key_of(one))
        if len(out) > 2:
            back = out.pop(0)
            for index in indexes:
                index.give(*back)


def serve_one_by_one(index: FleetIndex, jobs: int) -> Counter[NodeId]:
    """Who works, when there is never more than one job for six slots that are alike."""
    for number in range(6):
        index.add(Candidate(make_slot(node_id=node_number(number)), 1.0, CREDIT, 0.9))
    served: Counter[NodeId] = Counter()
    for _ in range(jobs):
        best = index.best(make_shape(), Preference.VALUE)
        assert best is not None
        index.take(*key_of(best))
        served[best.slot.node_id] += 1
        index.give(*key_of(best))
    return served


def test_among_slots_that_are_alike_work_goes_round():
    served = serve_one_by_one(make_index(), 60)
    assert set(served.values()) == {10}
    assert len(served) == 6


def test_control_where_nobody_loses_their_turn_one_node_gets_everything():
    assert list(serve_one_by_one(IndexThatForgetsWhoHadWork(SETS), 60).values()) == [60]


def test_a_better_slot_is_the_next_one_however_much_it_has_worked():
    index = make_index()
    cheap, dear = (Candidate(make_slot(node_id=node_number(number)), 1.0, number * CREDIT, 0.9) for number in (1, 2))
    index.add(cheap)
    index.add(dear)
    for _ in range(5):
        assert index.best(make_shape(), Preference.VALUE) == cheap
        index.take(*key_of(cheap))
        index.give(*key_of(cheap))


def slots_keep_their_turns(index: FleetIndex) -> None:
    first, second = (Candidate(make_slot(node_id=node_number(number)), 1.0, CREDIT, 0.9) for number in (1, 2))
    index.add(first)
    index.add(second)
    index.withdraw(*key_of(first))
    index.give(*key_of(first))
    assert index.best(make_shape(), Preference.VALUE) == first
    index.take(*key_of(first))
    index.give(*key_of(first))
    for price in (2 * CREDIT, CREDIT):
        index.update(replace(first, price_microcredits_per_hour=price))
    assert index.best(make_shape(), Preference.VALUE) == second


def test_a_slot_that_was_only_withdrawn_keeps_its_turn_and_so_does_one_with_a_new_price():
    slots_keep_their_turns(make_index())


@given(FLEETS, QUESTIONS, st.lists(CANDIDATES, max_size=6))
@settings(BOUNDED)
def test_a_slot_that_does_not_fit_changes_nothing(candidates, question, others):
    index = make_fleet()
    for candidate in candidates:
        index.add(candidate)
    before = question.ask(index)
    for number, other in enumerate(others):
        elsewhere = replace(other, slot=replace(other.slot, node_id=node_number(50 + number)))
        if not question.admits(elsewhere) and elsewhere.owner_id != question.account_id:
            index.add(elsewhere)
    assert question.ask(index) == before


@given(FLEETS, st.lists(QUESTIONS, min_size=1, max_size=3), st.integers(0, 5))
@settings(BOUNDED)
def test_runners_up_stand_in_order_and_are_counted(candidates, questions, k):
    # Pools are another's to know.
    candidates = [replace(each, slot=replace(each.slot, welcome=None)) for each in candidates]
    indexes = {fixed: FleetIndex(SETS, fixed=fixed) for fixed in (False, True)}
    for index, candidate in product(indexes.values(), candidates):
        index.add(candidate)
    for question in questions:
        index = indexes[question.shape.base_ceiling_microcredits_per_hour is not None]
        index.best(question.shape, question.preference, weights=question.weights, ceiling=question.ceiling)
        ranking = question.rank_all({key_of(candidate): candidate for candidate in candidates})
        wish = {"ceiling": question.ceiling}
        listed = index.ranked(
            question.shape, question.preference, k, weights=question.weights, avoid=question.avoid, **wish
        )
        assert listed == ranking[:k]
        whole = replace(question, avoid=None)
        count = len(whole.rank_all({key_of(candidate): candidate for candidate in candidates}))
        assert index.count_feasible(question.shape, **wish) == count
        assert index.count_feasible(question.shape, **wish, limit=k) == min(k, count)


@given(FLEETS, QUESTIONS, st.integers(0, 5))
@settings(BOUNDED)
def test_the_slots_of_pools_and_of_owners_are_counted_for_those_who_may_have_them(candidates, question, limit):
    fleet = make_fleet()
    for candidate in candidates:
        fleet.add(candidate)
    question = replace(question, avoid=None)
    pooled = [each for each in candidates if each.slot.welcome is not None]
    owned = [each for each in candidates if each.owner_id is not None]
    own = [to_own(each) for each in owned if each.owner_id == question.account_id]
    count = sum(len(question.rank_all({key_of(each): each for each in some})) for some in (pooled, own))
    counted = fleet.count_apart(question.shape, question.account_id, ceiling=question.ceiling, limit=limit)
    assert counted == min(count, limit)
    welcome = {each.owner_id for each in owned}.union(*(each.slot.welcome for each in pooled))
    assert fleet.list_apart(set(ACCOUNTS)) == welcome
    assert {id for id in ACCOUNTS if fleet.is_apart(id)} == welcome
    for candidate in (*pooled, *(each for each in owned if each.slot.welcome is None)):
        fleet.remove(*key_of(candidate))
    assert not fleet.list_apart(set(ACCOUNTS)), "a pool that is empty is forgotten, and an owner without slots"


def test_many_slots_that_fail_one_gate_are_cut_off_and_the_answer_stays_right():
    index = make_index()
    for number in range(300):
        poor = make_slot(node_id=node_number(number), ram_bytes=8 * GB - 1)
        index.add(Candidate(poor, 100.0, CREDIT, 0.9))
    worse = Candidate(make_slot(node_id=node_number(999)), 1.0, CREDIT, 0.9)
    index.add(worse)
    leaf_count = index.leaf_count
    for _ in range(300):
        assert index.best(make_shape(ram_bytes=8 * GB), Preference.VALUE) == worse
    assert index.leaf_count > leaf_count


def test_a_slot_that_moves_into_a_pool_and_out_of_it_stays_busy_or_free():
    fleet, public = make_fleet(), Candidate(make_slot(), 1.0, 1, 1.0)
    private = replace(public, slot=replace(public.slot, welcome=frozenset(ACCOUNTS[:1])))
    other = replace(public, slot=replace(public.slot, welcome=frozenset(ACCOUNTS)))
    fleet.add(public)
    for busy in (False, True):
        if busy:
            fleet.take(*key_of(public))
        for candidate in (private, other, public):
            fleet.update(candidate)
            assert (len(fleet), fleet.is_free(*key_of(public))) == (int(not busy), not busy)
            best = [fleet.best(make_shape(), Preference.VALUE, account_id=id) for id in (*ACCOUNTS[:2], None)]
            welcome = candidate.slot.welcome
            expected = [welcome is None or id in welcome for id in (*ACCOUNTS[:2], None)]
            assert best == [candidate if fits and not busy else None for fits in expected]


def test_a_public_question_is_not_slowed_by_pools():
    """However many there are, their slots lie apart."""
    fleet = make_fleet()
    for number in range(200):
        slot = make_slot(node_id=node_number(number), welcome=frozenset({account_number(1_000 + number)}))
        fleet.add(Candidate(slot, 1.0, 1, 1.0))
    assert len(fleet) == 200
    assert len(fleet._public._leaves) == 0
    assert fleet.best(make_shape(), Preference.VALUE, account_id=ACCOUNTS[0]) is None


@pytest.mark.parametrize("make", [make_index, make_fleet])
@pytest.mark.parametrize("change", ["take", "give", "remove", "update"])
def test_a_change_of_a_slot_that_is_not_there_is_refused(change, make):
    index, candidate = make(), Candidate(make_slot(), 1.0, 1, 1.0)
    with pytest.raises(KeyError):
        index.update(candidate) if change == "update" else getattr(index, change)(*key_of(candidate))


def test_a_slot_is_neither_taken_nor_given_twice():
    index, candidate = make_index(), Candidate(make_slot(), 1.0, 1, 1.0)
    index.add(candidate)
    with pytest.raises(ValueError, match="free already"):
        index.give(*key_of(candidate))
    index.take(*key_of(candidate))
    with pytest.raises(ValueError, match="taken already"):
        index.take(*key_of(candidate))
    assert key_of(candidate) in index


def test_a_busy_slot_that_changes_stays_busy():
    index, candidate = make_index(), Candidate(make_slot(), 1.0, 1, 1.0)
    index.add(candidate)
    index.take(*key_of(candidate))
    index.update(replace(candidate, reliability=0.5))
    assert len(index) == 0
    assert index.best(make_shape(), Preference.VALUE) is None
    index.give(*key_of(candidate))
    assert index.best(make_shape(), Preference.VALUE) == replace(candidate, reliability=0.5)


# Negative controls


class IndexThatForgetsIsolation(FleetIndex):
    def best(self, shape: Shape, *args: Any, **options: Any) -> Candidate | None:
        return super().best(replace(shape, isolation=IsolationLevel.SANDBOXED), *args, **options)


class IndexThatForgetsTheCeiling(FleetIndex):
    def best(self, *args: Any, **options: Any) -> Candidate | None:
        return super().best(*args, **{**options, "ceiling": None})


class IndexThatForgetsThePricePerSlice(FleetIndex):
    def best(self, shape: Shape, *args: Any, **options: Any) -> Candidate | None:
        return super().best(replace(shape, base_ceiling_microcredits_per_hour=None), *args, **options)


class IndexThatForgetsToAvoid(FleetIndex):
    def best(self, *args: Any, **options: Any) -> Candidate | None:
        return super().best(*args, **{**options, "avoid": None})


class IndexThatDoesNotSortAgain(FleetIndex):
    """An update changes the slot, but not its place."""

    def update(self, candidate: Candidate) -> None:
        self._entries[key_of(candidate)].candidate = candidate


class IndexThatKeepsItsLeavesInPlace(FleetIndex):
    """A better slot than all others of its leaf does not lift the leaf."""

    def _offer(self, entry: Any) -> None:
        places = list(entry.leaf.bounds)
        super()._offer(entry)
        for ordering, key in zip(self._orderings, places, strict=True):
            if key is not None:
                ordering.move(entry.leaf, key)


class IndexThatReturnsTheTaken(FleetIndex):
    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        candidate = super().take(node_id, slot_name)
        super().give(node_id, slot_name)
        return candidate

    def give(self, node_id: NodeId, slot_name: SlotName, *, turn: int | None = None) -> None:
        """It is free already."""


class IndexThatForgetsWhoHadWork(FleetIndex):
    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        candidate = super().take(node_id, slot_name)
        self._entries[node_id, slot_name].worked = False
        return candidate


class IndexThatPunishesAbsence(FleetIndex):
    """A slot that was only withdrawn goes to the back as well."""

    def withdraw(self, node_id: NodeId, slot_name: SlotName) -> None:
        self.take(node_id, slot_name)


class IndexThatForgetsTurnsWithPrices(FleetIndex):
    def update(self, candidate: Candidate) -> None:
        self._entries[key_of(candidate)].turn = 0
        super().update(candidate)


class IndexThatLosesOldLeaves(FleetIndex):
    """What is remembered of a shape is not brought up to date after a cut."""

    def _cut(self, leaf: Any, gate: int, value: Any) -> None:
        super()._cut(leaf, gate, value)
        for mask in self._masks.values():
            mask.known = len(self._leaves)


class IndexThatForgetsKinds(FleetIndex):
    def _mask(self, gate: int, wish: Any) -> int:
        return -1 if gate == leaves_module.JOB_KIND else super()._mask(gate, wish)


class IndexThatForgetsTheShortestSlice(FleetIndex):
    def _mask(self, gate: int, wish: Any) -> int:
        return -1 if gate == leaves_module.SLICE_SECONDS else super()._mask(gate, wish)


class IndexThatForgetsWhatIsAllowed(FleetIndex):
    def _mask(self, gate: int, wish: Any) -> int:
        return -1 if gate == leaves_module.WANTS else super()._mask(gate, wish)


class FleetWhosePoolsAreForAll(Fleet):
    def best(self, *args: Any, account_id: AccountId | None = None, **options: Any) -> Candidate | None:
        found = [super(FleetWhosePoolsAreForAll, self).best(*args, account_id=id, **options) for id in ACCOUNTS]
        return next((each for each in found if each is not None), None)


class FleetThatForgetsPools(Fleet):
    def best(self, *args: Any, account_id: AccountId | None = None, **options: Any) -> Candidate | None:
        return super().best(*args, **options)


class FleetThatPrefersPools(Fleet):
    """A slot of a pool is taken although a public one is better."""

    def best(self, *args: Any, account_id: AccountId | None = None, **options: Any) -> Candidate | None:
        pools = [self._pools[welcome] for welcome in self._pools_of.get(account_id, ())]
        found = [pool.best(*args, **options) for pool in pools]
        return next((each for each in found if each is not None), None) or super().best(*args, **options)


class FleetThatChargesOwners(Fleet):
    def _find_own(self, account_id: AccountId) -> FleetIndex | None:
        return None


class FleetThatKeepsNoTrackOfOwnSlots(Fleet):
    """An owner who has asked once is never told of what has changed since."""

    def __init__(self, sets: Any) -> None:
        super().__init__(sets)
        self.kept: dict[AccountId, FleetIndex] = {}

    def _find_own(self, account_id: AccountId) -> FleetIndex | None:
        own = super()._find_own(account_id)
        self._own.clear()
        return None if own is None else self.kept.setdefault(account_id, own)


class FleetThatOrdersFixedPricesBySpot(Fleet):
    def _find_public(self, shape: Shape) -> FleetIndex:
        return self._public


class FleetThatKeepsNoTrackOfFixedPrices(Fleet):
    """Whoever has asked with a fixed price once is never told of what has changed since."""

    kept: FleetIndex | None = None

    def _find_public(self, shape: Shape) -> FleetIndex:
        found = super()._find_public(shape)
        if found is self._public:
            return found
        self._fixed = None
        if self.kept is None:
            self.kept = found
        return self.kept


class FleetThatForgetsWhoHadWork(Fleet):
    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        index = self._find_index(node_id, slot_name)
        self.withdraw(node_id, slot_name)
        return index.get(node_id, slot_name)


def fixed_prices_have_an_order_of_their_own(fleet: Fleet) -> None:
    crowded = make_candidate(make_slot(node_id=node_number(1), region="IN"), 1.0, 0, 0.9, 0, None)
    calm = make_candidate(make_slot(node_id=node_number(2), region="DE"), 1.0, CREDIT, 0.9, 0, None)
    for candidate in (crowded, calm):
        fleet.add(candidate)
    hourly = make_shape(ram_bytes=0)
    fixed = replace(hourly, base_ceiling_microcredits_per_hour=CREDIT)
    assert fleet.best(hourly, Preference.CHEAPEST) == calm
    assert fleet.best(fixed, Preference.CHEAPEST) == crowded
    fleet.take(*key_of(crowded))
    assert fleet.best(fixed, Preference.CHEAPEST) == calm
    fleet.give(*key_of(crowded))
    assert fleet.best(fixed, Preference.CHEAPEST) == crowded
    fleet.remove(*key_of(crowded))
    assert fleet.best(fixed, Preference.CHEAPEST) == calm


def test_whoever_pays_a_fixed_price_is_served_by_what_that_comes_to():
    fixed_prices_have_an_order_of_their_own(make_fleet())


def test_control_a_fleet_that_orders_fixed_prices_by_spot_is_noticed():
    with pytest.raises(AssertionError):
        fixed_prices_have_an_order_of_their_own(FleetThatOrdersFixedPricesBySpot(SETS))


@pytest.mark.parametrize(
    "broken",
    [
        FleetWhosePoolsAreForAll,
        FleetThatForgetsPools,
        FleetThatPrefersPools,
        FleetThatChargesOwners,
        FleetThatKeepsNoTrackOfOwnSlots,
        FleetThatKeepsNoTrackOfFixedPrices,
        FleetThatForgetsWhoHadWork,
    ],
)
def test_a_broken_fleet_is_noticed(broken):
    @CONTROLLED
    @given(st.lists(PLAIN_STEPS, min_size=10, max_size=60), st.lists(PLAIN_QUESTIONS, min_size=1, max_size=4))
    def try_(history: History, questions: list[Question]) -> None:
        every_question_finds_the_best_at_any_time(history, questions, lambda: broken(SETS))

    with pytest.raises(AssertionError, match="the best is found"):
        try_()


@pytest.mark.parametrize(
    "broken",
    [
        IndexThatForgetsKinds,
        IndexThatForgetsTheShortestSlice,
        IndexThatForgetsWhatIsAllowed,
        IndexThatForgetsIsolation,
        IndexThatForgetsTheCeiling,
        IndexThatForgetsThePricePerSlice,
        IndexThatForgetsToAvoid,
        IndexThatDoesNotSortAgain,
        IndexThatKeepsItsLeavesInPlace,
        IndexThatReturnsTheTaken,
        IndexThatLosesOldLeaves,
    ],
    ids=lambda cls: cls.__name__,
)
def test_a_broken_index_is_noticed(broken, monkeypatch):
    monkeypatch.setattr(pools_module, "FleetIndex", broken)

    @CONTROLLED
    @given(st.lists(STEPS, min_size=10, max_size=60), st.lists(QUESTIONS, min_size=1, max_size=4))
    def try_(history: History, questions: list[Question]) -> None:
        every_question_finds_the_best_at_any_time(history, questions, make_fleet)

    # A wrong answer, a slot that is given back twice, or an order that has fallen apart.
    with pytest.raises((AssertionError, ValueError, IndexError), match=r"is found|comes out|is free already|range"):
        try_()


@pytest.mark.parametrize(
    "broken", [IndexThatForgetsWhoHadWork, IndexThatPunishesAbsence, IndexThatForgetsTurnsWithPrices]
)
def test_an_index_that_muddles_turns_is_noticed(broken):
    with pytest.raises(AssertionError):
        slots_keep_their_turns(broken(SETS))
