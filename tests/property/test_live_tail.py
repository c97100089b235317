"""A tail takes every committed event once, however transactions overlap; who resumes misses none."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from computepool.core.live import tail as tail_module
from computepool.core.live.tail import Seen, Tail, parse_cursor, say_cursor


@dataclass(frozen=True)
class Row:
    id: int
    xid: int


@dataclass
class Database:
    """Transactions that take ids as they write and show them when they commit."""

    next_id: int = 1
    next_xid: int = 100
    open: dict[int, list[Row]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def begin(self) -> None:
        self.open[self.next_xid] = []
        self.next_xid += 1

    def write(self, which: int) -> None:
        if self.open:
            xid = list(self.open)[which % len(self.open)]
            self.open[xid].append(Row(self.next_id, xid))
            self.next_id += 1

    def end(self, which: int, *, commit: bool) -> None:
        if self.open:
            rows = self.open.pop(list(self.open)[which % len(self.open)])
            self.rows += rows if commit else []

    @property
    def oldest(self) -> int:
        return min(self.open, default=self.next_xid)

    def look(self, tail: Tail[Row], limit: int) -> Seen[Row]:
        new = sorted((row for row in self.rows if row.id > tail.newest_id), key=lambda row: row.id)[:limit]
        late = [row for row in self.rows if row.id in set(tail.gaps)]
        rows = sorted([*late, *new], key=lambda row: row.id)
        return Seen(rows, self.oldest, self.next_xid, has_more=len(new) >= limit)

    def list_since(self, watermark: int) -> set[int]:
        return {row.id for row in self.rows if row.xid >= watermark}


STEPS = st.lists(
    st.one_of(
        st.just(("begin", 0)),
        st.tuples(st.just("write"), st.integers(0, 9)),
        st.tuples(st.just("commit"), st.integers(0, 9)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("look"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(0, 5)),
    ),
    max_size=80,
)


def play(steps, make_tail=Tail) -> tuple[list[int], set[int], list[tuple[int, set[int]]]]:
    """Ids in the order they were taken; those that were committed; at each look the watermark and what was taken."""
    database, seconds = Database(), 0.0
    tail, taken, looks = make_tail(0, database.oldest), [], []

    def look(limit: int) -> None:
        taken.extend(row.id for row in tail.take(database.look(tail, limit), seconds=seconds))
        looks.append((tail.watermark, set(taken)))

    for name, number in steps:
        if name == "begin":
            database.begin()
        elif name == "write":
            database.write(number)
        elif name in ("commit", "abort"):
            database.end(number, commit=name == "commit")
        elif name == "look":
            look(number)
        else:
            seconds += number
    while database.open:
        database.end(0, commit=True)
    for _ in range(len(database.rows) + 2):
        seconds += tail_module.GAP_SECONDS_MIN
        look(5)
    since = [(mark, database.list_since(mark) | seen) for mark, seen in looks]
    return taken, {row.id for row in database.rows}, since


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_every_committed_event_is_taken_once_and_a_resume_from_any_look_completes_what_was_seen(steps):
    taken, committed, since = play(steps)
    assert sorted(taken) == sorted(committed)
    assert all(known == committed for _, known in since)


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_no_gap_is_waited_for_once_every_transaction_is_over(steps):
    database, tail = Database(), None
    for name, number in steps:
        if name == "begin":
            database.begin()
        elif name == "write":
            database.write(number)
        elif name in ("commit", "abort"):
            database.end(number, commit=name == "commit")
        tail = tail or Tail(0, database.oldest)
        tail.take(database.look(tail, 100), seconds=0.0)
    while database.open:
        database.end(0, commit=False)
    tail = tail or Tail(0, database.oldest)
    tail.take(database.look(tail, 100), seconds=100.0)
    assert tail.gaps == []


class ByIdAlone(Tail[Row]):
    """What most would write first: everything after the newest id that was seen."""

    @property
    def gaps(self) -> list[int]:
        return []


def test_control_a_tail_that_goes_by_ids_alone_misses_what_commits_late():
    late_commit = [("begin", 0), ("write", 0), ("begin", 0), ("write", 1), ("commit", 1), ("look", 3), ("commit", 0)]
    taken, committed, _ = play(late_commit, ByIdAlone)
    assert committed == {1, 2}
    assert taken == [2]
    assert sorted(play(late_commit)[0]) == [1, 2]


def test_a_long_transaction_holds_up_the_watermark_and_nothing_else():
    database = Database()
    database.begin()
    tail: Tail[Row] = Tail(0, database.oldest)
    for second in range(60):
        database.begin()
        database.write(1)
        database.end(1, commit=True)
        assert [row.id for row in tail.take(database.look(tail, 100), seconds=float(second))] == [second + 1]
    assert tail.watermark == 100
    assert tail.find_age(seconds=59.0) >= 58.0
    database.end(0, commit=True)
    tail.take(database.look(tail, 100), seconds=60.0)
    assert tail.find_age(seconds=60.0) == 0.0


def test_a_tail_that_would_have_to_remember_too_much_says_so():
    tail: Tail[Row] = Tail(0, 100)
    tail.take(Seen([Row(tail_module.GAPS_MAX + 10, 101)], 100, 102), seconds=0.0)
    assert tail.overflowed
    assert tail.gaps == []


def test_cursors_are_read_as_they_were_written_and_nothing_else_is():
    assert parse_cursor(say_cursor(7, 9)) == (7, 9)
    for text in (None, "", "7", "7:", ":9", "-1:2", "1:2:3", "a:b", "١:٢", "9" * 30 + ":1"):
        assert parse_cursor(text) is None
