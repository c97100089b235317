"""The backlog: what was queued after somebody began to look is never undone by what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.pools import Fleet
from computepool.core.placement.rounds import Head, Pair, Round, Run, Seen
from computepool.hub.dispatch import backlog as backlog_module
from computepool.hub.dispatch.backlog import Backlog
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
from tests.support.spine import EvenShare

BOUNDED = settings(max_examples=400, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)

SHAPES = {
    ShapeId(1): make_shape(),
    ShapeId(2): make_shape(gpu=True, vram_bytes=8 * GB),
    ShapeId(3): make_shape(cores=4, ceiling_microcredits_per_hour=5),
}
RUNS = [
    make_run(shape_id, account, priority_class)
    for shape_id in SHAPES
    for account in (1, 2)
    for priority_class in (PriorityClass.NORMAL, PriorityClass.HIGH)
]
SLOTS = [
    make_slot(),
    make_slot(vram_bytes=12 * GB),
    make_slot(cores=1),
    make_slot(node_id=node_number(9), cores=4),
    make_slot(welcome=frozenset({account_number(1)})),
    make_slot(welcome=frozenset({account_number(1), account_number(3)}), cores=1),
]


def make_backlog(*runs: Run) -> Backlog:
    backlog = Backlog()
    backlog.shapes.update(SHAPES)
    for run in runs:
        backlog.note(run)
    return backlog


def list_runs(backlog: Backlog) -> set[Run]:
    """As a round sees them."""
    return {
        Run(shape_id, priority_class, account_id)
        for shape_id, classes in backlog.runs.items()
        for priority_class, accounts in classes.items()
        for account_id in accounts
    }


# One at a time


def test_what_was_noted_is_known_until_it_was_found_empty():
    run = make_run()
    backlog = make_backlog(run)
    assert (run in backlog, len(backlog), list_runs(backlog)) == (True, 1, {run})
    backlog.forget([run], as_of=backlog.moment)
    assert (run in backlog, len(backlog), backlog.runs) == (False, 0, {})


def test_what_was_noted_since_the_look_began_is_not_forgotten():
    run = make_run()
    backlog = make_backlog(run)
    began = backlog.moment
    backlog.note(run)
    backlog.forget([run], as_of=began)
    backlog.replace([], as_of=began)
    assert run in backlog


def test_forgetting_what_is_not_known_changes_nothing():
    backlog = make_backlog(make_run())
    backlog.forget([make_run(2)], as_of=backlog.moment)
    assert len(backlog) == 1


def test_what_the_database_holds_replaces_what_was_known():
    old, kept, new = RUNS[:3]
    backlog = make_backlog(old, kept)
    backlog.replace([kept, new], as_of=backlog.moment)
    assert list_runs(backlog) == {kept, new}


def test_no_more_runs_are_known_than_one_hub_should_look_at(monkeypatch):
    monkeypatch.setattr(backlog_module, "RUNS_MAX", 3)
    backlog = make_backlog(*RUNS)
    assert list_runs(backlog) == set(RUNS[:3])
    backlog.forget(RUNS[:1], as_of=backlog.moment)
    backlog.note(RUNS[5])
    assert len(backlog) == 3, "there is room again once some are empty"


def test_shapes_are_counted_once_per_account_whatever_their_classes():
    backlog = make_backlog(*RUNS)
    one, stranger = account_number(1), account_number(9)
    assert (backlog.count_shapes(one), backlog.count_shapes(stranger)) == (3, 0)
    assert (backlog.waits(one, ShapeId(2)), backlog.waits(stranger, ShapeId(2))) == (True, False)
    normal, high = [run for run in RUNS if run.shape_id == 2 and run.account_id == one]
    backlog.forget([normal], as_of=backlog.moment)
    assert (backlog.count_shapes(one), backlog.waits(one, ShapeId(2))) == (3, True)
    backlog.forget([high], as_of=backlog.moment)
    assert (backlog.count_shapes(one), backlog.waits(one, ShapeId(2))) == (2, False)


def test_asking_about_a_stranger_does_not_make_them_known():
    backlog = make_backlog()
    backlog.count_shapes(account_number(9))
    backlog.waits(account_number(9), ShapeId(1))
    assert not backlog._shapes_of


def test_a_slot_could_be_used_exactly_while_something_waits_that_it_could_run():
    card, plain = make_slot(vram_bytes=12 * GB), make_slot()
    backlog = make_backlog()
    assert not backlog.could_use(card)
    backlog.note(gpu_run := make_run(2))
    assert (backlog.could_use(card), backlog.could_use(plain)) == (True, False)
    backlog.note(make_run(1))
    assert backlog.could_use(plain)
    backlog.forget([gpu_run, make_run(1)], as_of=backlog.moment)
    assert (backlog.could_use(card), backlog.could_use(plain)) == (False, False)


def test_no_more_verdicts_are_remembered_than_should_be(monkeypatch):
    monkeypatch.setattr(backlog_module, "VERDICTS_MAX", 4)
    backlog = make_backlog(make_run(1))
    for number in range(20):
        assert backlog.could_use(make_slot(node_id=node_number(number)))
    assert len(backlog._verdicts) <= 4


# How many there are


def looked_at(left: dict[Run, int | None], seen: dict[Run, Seen] | None = None, placed: Sequence[Head] = ()) -> Round:
    """A round, as far as a backlog asks it."""
    fleet = Fleet({})
    round_ = Round(fleet, SHAPES, {}, EvenShare(), grants_max=1)
    round_.left, round_.seen, round_.pairs = left, seen or {}, [Pair(head, make_candidate()) for head in placed]
    return round_


def test_slices_are_counted_as_they_are_noted():
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 3)
    backlog.note(run, 2)
    assert backlog.find_count(run) == 5
    assert backlog.find_count(make_run(2)) is None


def test_once_nobody_knows_how_many_were_queued_nobody_knows_how_many_there_are():
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 3)
    backlog.note(run)
    backlog.note(run, 2)
    assert backlog.find_count(run) is None


def test_what_a_look_has_left_is_the_count_unless_something_came_since():
    looked, joined = make_run(), make_run(2)
    backlog = make_backlog(looked, joined)
    began = backlog.moment
    backlog.note(joined, 1)
    backlog.note_planned(looked_at(left={looked: 4, joined: 4}), as_of=began)
    assert (backlog.find_count(looked), backlog.find_count(joined)) == (4, None)


def test_a_look_at_the_whole_queue_forgets_the_counts_also_those_of_looks_that_began_before():
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 3)
    began = backlog.moment
    backlog.replace([run], as_of=began)
    assert backlog.find_count(run) is None
    backlog.note_planned(looked_at(left={run: 2}), as_of=began)
    assert backlog.find_count(run) is None, "what was put back into the queue meanwhile is not in it"
    backlog.note_planned(looked_at(left={run: 2}), as_of=backlog.moment)
    assert backlog.find_count(run) == 2


def test_a_run_that_was_forgotten_and_comes_back_is_counted_anew():
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 3)
    backlog.forget([run], as_of=backlog.moment)
    backlog.note(run, 1)
    assert backlog.find_count(run) == 1


# Which come first


def make_heads(run: Run, *numbers: int) -> list[Head]:
    return [make_head(slice_index=n, run=run, queued_at=NOW + timedelta(seconds=n)) for n in numbers]


def test_what_this_hub_has_queued_in_an_empty_run_need_not_be_looked_for():
    run = make_run()
    backlog = make_backlog()
    first, second = make_heads(run, 1), make_heads(run, 2, 3)
    backlog.note(run, 1, first)
    backlog.note(run, 2, second)
    assert backlog.fronts.recall(run, 9) == [*first, *second]


def test_what_was_queued_behind_what_nobody_has_seen_must_be_looked_for():
    run = make_run()
    backlog = make_backlog(run)
    backlog.note(run, 1, make_heads(run, 1))
    assert backlog.fronts.recall(run, 1) is None


def test_what_others_have_queued_may_stand_anywhere():
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 1, make_heads(run, 1))
    backlog.note(run)
    assert backlog.fronts.recall(run, 1) is None


def test_what_a_look_brought_is_remembered_but_for_what_was_placed():
    run = make_run()
    backlog = make_backlog(run)
    heads = make_heads(run, 1, 2, 3)
    backlog.note_planned(looked_at({run: 2}, {run: Seen(heads, whole=True)}, heads[:1]), as_of=backlog.moment)
    assert backlog.fronts.recall(run, 9) == heads[1:]


def test_a_look_that_began_before_something_was_queued_has_not_seen_all():
    run = make_run()
    backlog = make_backlog(run)
    began = backlog.moment
    backlog.note(run, 1, make_heads(run, 2))
    backlog.note_planned(looked_at({run: 1}, {run: Seen(make_heads(run, 1), whole=True)}), as_of=began)
    assert backlog.fronts.recall(run, 9) is None


@pytest.mark.parametrize("forget", ["doubt", "forget", "replace"])
def test_what_is_in_doubt_is_looked_for(forget):
    run = make_run()
    backlog = make_backlog()
    backlog.note(run, 1, make_heads(run, 1))
    if forget == "doubt":
        backlog.doubt([run])
    else:
        getattr(backlog, forget)([run], as_of=backlog.moment)
    assert backlog.fronts.recall(run, 1) is None


# Any history

# A look begins, and later ends as a round that found some runs empty, or as one that has read the whole queue.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.sampled_from(RUNS)),
        st.tuples(st.just("note"), st.sampled_from(RUNS)),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("forget"), st.lists(st.sampled_from(RUNS), max_size=4)),
        st.tuples(st.just("replace"), st.lists(st.sampled_from(RUNS), max_size=4)),
        st.tuples(st.just("ask"), st.sampled_from(SLOTS)),
    ),
    max_size=40,
)


def live_through(make: Callable[[], Backlog], steps: list) -> None:
    """Beside it, what should be known: for each run the step in which it was last told of."""
    backlog, looks = make(), []
    told: dict[Run, int] = {}
    for step, (kind, what) in enumerate(steps):
        if kind == "note":
            backlog.note(what)
            told[what] = step
        elif kind == "begin":
            looks.append((step, backlog.moment))
        elif kind in ("forget", "replace") and looks:
            # Looks end in any order.
            began, as_of = looks.pop(len(what) % len(looks))
            empty = what if kind == "forget" else [run for run in RUNS if run not in what]
            getattr(backlog, kind)(what, as_of=as_of)
            for run in empty:
                if told.get(run, step) < began:
                    del told[run]
            if kind == "replace":
                told = {**dict.fromkeys(what, step), **told}
        elif kind == "ask":
            could = any(find_refusal(SHAPES[run.shape_id], what, account_id=run.account_id) is None for run in told)
            assert backlog.could_use(what) is could, "verdicts keep up with what waits"
        assert list_runs(backlog) >= told.keys(), "what was noted after the look began is never lost"
        assert list_runs(backlog) <= told.keys(), "what was found empty is forgotten"
        check(backlog)


def check(backlog: Backlog) -> None:
    """What is kept in several places says the same everywhere, and nothing empty stays behind."""
    runs = list_runs(backlog)
    assert len(backlog) == len(runs), "runs are counted"
    assert all(run in backlog for run in runs), "runs are found"
    assert all(classes and all(classes.values()) for classes in backlog.runs.values()), "nothing empty stays"
    shapes = Counter(run.account_id for run in {Run(r.shape_id, PriorityClass.LOW, r.account_id) for r in runs})
    for account in (account_number(1), account_number(2)):
        assert backlog.count_shapes(account) == shapes[account], "shapes are counted"
    assert len(backlog._shapes_of) == len(shapes), "accounts that have left are forgotten"


@BOUNDED
@given(STEPS)
def test_no_interleaving_loses_what_was_noted_after_a_look_began(steps):
    live_through(make_backlog, steps)


class Forgetful(Backlog):
    """Does not care when the look began."""

    def forget(self, runs, *, as_of):
        super().forget(runs, as_of=self.moment)


class Stubborn(Backlog):
    """Does not look at shapes that have come since it last thought about a slot."""

    def _add(self, run):
        super()._add(run)
        self._begun[run.shape_id] = 0


class Nostalgic(Backlog):
    """Takes for waiting what has fitted once."""

    def _remove(self, run):
        begun = self._begun[run.shape_id]
        super()._remove(run)
        self._begun[run.shape_id] = begun


class Untidy(Backlog):
    def _remove(self, run):
        super()._remove(run)
        self.runs.setdefault(run.shape_id, {})


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Forgetful, "never lost"),
        (Stubborn, "verdicts keep up"),
        (Nostalgic, "verdicts keep up"),
        (Untidy, "nothing empty stays"),
    ],
)
def test_a_broken_backlog_is_noticed(broken, words):
    def make() -> Backlog:
        backlog = broken()
        backlog.shapes.update(SHAPES)
        return backlog

    @settings(BOUNDED, phases=[Phase.generate])
    @given(STEPS)
    def live(steps: list) -> None:
        live_through(make, steps)

    with pytest.raises(AssertionError, match=words):
        live()
