"""Fronts: whatever was queued, found, leased and forgotten, what is recalled is what stands first in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import JobId
from computepool.core.placement import fronts as fronts_module
from computepool.core.placement.fronts import Fronts
from computepool.core.placement.rounds import Head, Run
from tests.support.builders import NOW, make_head, make_run
from tests.support.head_queue import queue_order

BOUNDED = settings(max_examples=300, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
CONTROLLED = settings(BOUNDED, max_examples=1_000, phases=[Phase.generate])

RUNS = [make_run(1), make_run(1, account=2), make_run(2)]
RUN = RUNS[0]
# More than any history here queues.
ALL = 1_000
# Of one run, and in all: so that both are often reached, and as they are.
LIMITS = [(8, 14), (fronts_module.FRONT_HEADS_MAX, fronts_module.HEADS_MAX)]


def set_limits(patch: pytest.MonkeyPatch, of_run: int, in_all: int) -> None:
    patch.setattr(fronts_module, "FRONT_HEADS_MAX", of_run)
    patch.setattr(fronts_module, "HEADS_MAX", in_all)


def make_job(number: int, slices: int, *, run: Run = RUN, priority: int = 0, second: int | None = None) -> list[Head]:
    """Queued in the second of its number, unless that is given."""
    queued_at = NOW + timedelta(seconds=number if second is None else second)
    job_id = JobId(UUID(int=number))
    return [
        make_head(job_id=job_id, slice_index=i, run=run, priority=priority, queued_at=queued_at)
        for i in range(slices)
    ]


def list_keys(heads: Iterable[Head]) -> list[tuple[JobId, int]]:
    return [(head.job_id, head.slice_index) for head in heads]


# One at a time


def test_of_a_run_that_nobody_told_of_nothing_is_recalled():
    fronts = Fronts()
    assert (fronts.recall(RUN, 1), fronts.recall(RUN, 0), len(fronts)) == (None, None, 0)


def test_a_whole_front_that_is_shorter_than_asked_is_all_there_is():
    fronts, job = Fronts(), make_job(1, 3)
    fronts.replace(RUN, job, whole=True)
    assert (fronts.recall(RUN, 2), fronts.recall(RUN, 9)) == (job[:2], job)
    for head in job:
        fronts.remove(RUN, head.job_id, head.slice_index)
    assert (fronts.recall(RUN, 9), len(fronts)) == ([], 0), "it is known that nothing is left"


def test_a_front_with_more_behind_it_that_is_shorter_than_asked_has_to_be_looked_for():
    fronts, job = Fronts(), make_job(1, 3)
    fronts.replace(RUN, job, whole=False)
    assert (fronts.recall(RUN, 3), fronts.recall(RUN, 4)) == (job, None)


def test_beyond_what_is_remembered_of_one_run_a_front_is_not_whole(monkeypatch):
    set_limits(monkeypatch, 4, 100)
    fronts, first, second = Fronts(), make_job(1, 4), make_job(2, 1)
    fronts.replace(RUN, first, whole=True)
    assert fronts.recall(RUN, 9) == first
    fronts.add(RUN, second, whole=True)
    assert (fronts.recall(RUN, 4), fronts.recall(RUN, 5), len(fronts)) == (first, None, 4)


@pytest.mark.parametrize("tell", [Fronts.replace, Fronts.add])
def test_beyond_what_is_remembered_in_all_everything_is_forgotten(monkeypatch, tell):
    set_limits(monkeypatch, 4, 6)
    fronts = Fronts()
    fronts.replace(RUNS[0], make_job(1, 4), whole=True)
    fronts.replace(RUNS[1], [], whole=True)
    tell(fronts, RUNS[1], make_job(2, 2, run=RUNS[1]), whole=True)
    assert len(fronts) == 6
    fronts.replace(RUNS[2], [], whole=True)
    tell(fronts, RUNS[2], make_job(3, 1, run=RUNS[2]), whole=True)
    assert ([fronts.recall(run, 1) for run in RUNS], len(fronts)) == ([None] * 3, 0)


def test_a_job_of_a_higher_priority_comes_in_front():
    fronts, first, urgent = Fronts(), make_job(1, 2), make_job(2, 2, priority=1)
    fronts.replace(RUN, first, whole=True)
    fronts.add(RUN, urgent, whole=True)
    assert fronts.recall(RUN, 9) == [*urgent, *first]


def test_adding_to_a_run_that_is_not_known_changes_nothing():
    fronts = Fronts()
    fronts.add(RUN, make_job(1, 2), whole=True)
    assert (fronts.recall(RUN, 1), len(fronts)) == (None, 0), "others may stand in front of it"


@pytest.mark.parametrize("slices", [1, 3])
def test_what_a_look_found_before_it_was_told_of_is_counted_once(slices):
    # A look may fall between a submit's commit and the moment in which its hub goes on.
    fronts, job = Fronts(), make_job(1, slices)
    fronts.replace(RUN, job, whole=True)
    fronts.add(RUN, job, whole=True)
    assert fronts.recall(RUN, 9) == job
    assert len(fronts) == slices


# Any history

RUN_NUMBERS = st.integers(0, len(RUNS) - 1)
# Priority, seconds that it is late by, and slices. Most are the newest of their run.
JOBS = st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from([0, 0, 0, 0, 1, 3]), st.integers(1, 6))
QUEUE = st.tuples(
    st.just("queue"),
    RUN_NUMBERS,
    # Several at once are told of as one; how much of it is told.
    st.tuples(st.lists(JOBS, min_size=1, max_size=2), st.sampled_from([ALL, ALL, ALL, 1, 3]), st.booleans()),
)
LEASE = st.tuples(
    st.just("lease"), RUN_NUMBERS, st.tuples(st.integers(1, 6), st.sets(st.integers(0, 5), min_size=1, max_size=4))
)
STEPS = st.lists(
    st.one_of(
        QUEUE,
        QUEUE,
        LEASE,
        st.tuples(st.just("look"), RUN_NUMBERS, st.integers(1, 12)),
        # Seldom one and more seldom all, or little would ever be known.
        st.tuples(st.just("forget"), RUN_NUMBERS, st.sampled_from(["all", "one", "one", None, None, None])),
    ),
    min_size=12,
    max_size=40,
)


class Queue:
    """What really waits in each run, and beside it what a hub remembers of that."""

    def __init__(self, fronts: Fronts) -> None:
        self.fronts = fronts
        self.waiting: dict[Run, set[Head]] = {run: set() for run in RUNS}
        self._second = 0
        self._jobs = 0

    def list(self, run: Run) -> list[Head]:
        return sorted(self.waiting[run], key=queue_order)

    def queue(self, run: Run, jobs: Sequence[tuple[int, int, int]], told_max: int, anew: bool) -> None:
        self._second += 1
        heads: list[Head] = []
        for priority, late, slices in jobs:
            self._jobs += 1
            # Those of one second stand in the order of ids, which is not that of arrival.
            number = self._jobs * 37 % 1009
            heads += make_job(number, slices, run=run, priority=priority, second=self._second - late)
        heads.sort(key=queue_order)
        told = heads if len(jobs) > 1 else heads[:told_max]
        whole = len(told) == len(heads)
        is_new = anew and not self.waiting[run]
        keeps = is_new or self.fronts.recall(run, ALL) is not None
        has_room = len(self.fronts) + len(told) <= fronts_module.HEADS_MAX
        self.waiting[run].update(heads)
        (self.fronts.replace if is_new else self.fronts.add)(run, told, whole=whole)
        if whole and keeps and has_room and len(self.waiting[run]) <= fronts_module.FRONT_HEADS_MAX:
            assert self.fronts.recall(run, ALL) is not None, "whoever knew all and was told all knows all"

    def look(self, run: Run, count: int) -> None:
        found = self.list(run)[:count]
        has_room = len(self.fronts) + len(found) <= fronts_module.HEADS_MAX
        self.fronts.replace(run, found, whole=len(found) == len(self.waiting[run]))
        if has_room:
            seen = min(len(found), fronts_module.FRONT_HEADS_MAX)
            assert self.fronts.recall(run, seen) is not None, "what was found need not be looked for again"

    def lease(self, run: Run, count: int, which: set[int]) -> None:
        recalled = self.fronts.recall(run, count)
        # Where somebody has to look, they may lease also what is not remembered.
        heads = self.list(run)[:count] if recalled is None else recalled
        for i, head in enumerate(heads):
            if i in which:
                self.waiting[run].discard(head)
                self.fronts.remove(run, head.job_id, head.slice_index)

    def check(self) -> None:
        for run in RUNS:
            truth = list_keys(self.list(run))
            for count in (0, 1, 2, 3, 5, 8, 9, 13, ALL):
                recalled = self.fronts.recall(run, count)
                assert recalled is None or list_keys(recalled) == truth[:count], "recalled is what stands first"
        sizes = [len(front.heads) for front in self.fronts._fronts.values()]
        assert len(self.fronts) == sum(sizes), "heads are counted"
        assert max(sizes, default=0) <= fronts_module.FRONT_HEADS_MAX, "no run is remembered too far"
        assert sum(sizes) <= fronts_module.HEADS_MAX, "no more is remembered in all than should be"


def live_through(make: Callable[[], Fronts], steps: list) -> None:
    queue = Queue(make())
    for kind, number, what in steps:
        run = RUNS[number]
        if kind == "queue":
            queue.queue(run, *what)
        elif kind == "look":
            queue.look(run, what)
        elif kind == "lease":
            queue.lease(run, *what)
        elif what == "one":
            queue.fronts.forget(run)
            assert queue.fronts.recall(run, 0) is None, "what is forgotten is not recalled"
        elif what == "all":
            queue.fronts.forget_all()
            assert [queue.fronts.recall(each, 0) for each in RUNS] == [None] * 3, "what is forgotten is not recalled"
        queue.check()


@pytest.mark.parametrize("limits", LIMITS)
def test_what_is_recalled_is_always_what_stands_first(limits, monkeypatch):
    set_limits(monkeypatch, *limits)

    @BOUNDED
    @given(STEPS)
    def live(steps: list) -> None:
        live_through(Fronts, steps)

    live()


class TakesAllAsWhole(Fronts):
    def _extend(self, front, heads, *, whole):
        super()._extend(front, heads, whole=whole)
        front.whole = True


class Appends(Fronts):
    """Does not mind the order."""

    def add(self, run, heads, *, whole):
        front = self._fronts.get(run)
        if front is not None and front.whole:
            self.replace(run, [*front.heads.values(), *heads], whole=whole)


class Merges(Fronts):
    """Does not mind that others, which are not known, may stand between those that are."""

    def add(self, run, heads, *, whole):
        front = self._fronts.get(run)
        if front is not None:
            merged = sorted((*front.heads.values(), *heads), key=queue_order)
            self.replace(run, merged, whole=whole and front.whole)


class Keeps(Fronts):
    """What is leased too."""

    def remove(self, run, job_id, slice_index):
        pass


class Miscounts(Fronts):
    def remove(self, run, job_id, slice_index):
        count = self._count
        super().remove(run, job_id, slice_index)
        self._count = count


class Hoards(Fronts):
    """Also when it is too much."""

    def forget_all(self):
        if self._count <= fronts_module.HEADS_MAX:
            super().forget_all()


class Neglects(Fronts):
    """Would rather look than add."""

    def add(self, run, heads, *, whole):
        self.forget(run)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (TakesAllAsWhole, "what stands first"),
        (Appends, "what stands first"),
        (Merges, "what stands first"),
        (Keeps, "what stands first"),
        (Miscounts, "heads are counted"),
        (Hoards, "no more is remembered in all"),
        (Neglects, "knows all"),
    ],
)
def test_broken_fronts_are_noticed(broken, words, monkeypatch):
    set_limits(monkeypatch, *LIMITS[0])

    @CONTROLLED
    @given(STEPS)
    def live(steps: list) -> None:
        live_through(broken, steps)

    with pytest.raises(AssertionError, match=words):
        live()
