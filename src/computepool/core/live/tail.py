"""Reads a table of events in which ids appear out of order, and misses none.

An id is taken when a row is written and seen when its transaction commits, so that a larger one may be seen first.
The tail remembers the ids that it skipped and asks for them again, until every transaction that could bring one is
over. So nobody waits for a long transaction but those who wait for its own events.

The watermark is what a viewer resumes from: every transaction below it is over, and everything it wrote was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

# An id may be taken a moment before its transaction has a number: a gap is kept this long at least.
GAP_SECONDS_MIN = 2.0
# With more skipped ids than this, what they hold is not waited for: viewers are told to load everything afresh.
GAPS_MAX = 20_000
STALE_SECONDS = 5.0
_MARKS_MAX = 4_096


class Numbered(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=Numbered)


@dataclass(frozen=True, slots=True)
class Seen(Generic[Row]):
    """One look at the table, by one snapshot of the database."""

    # After the newest id that was asked for, and those of the gaps that have come, in order of id.
    rows: Sequence[Row]
    # Transactions below `oldest` are over; none from `following` on has begun.
    oldest: int
    following: int
    # There are more rows than were read.
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class _Gap:
    # What was the next transaction when the id was skipped: whoever holds it is older.
    following: int
    seconds: float


@dataclass(slots=True)
class Tail(Generic[Row]):
    newest_id: int
    watermark: int
    # Too much was skipped, and is lost to this tail; whoever reads it takes the flag back.
    overflowed: bool = False
    _gaps: dict[int, _Gap] = field(default_factory=dict)
    # (following, when): everything below was over no later than it was told of here.
    _marks: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MARKS_MAX))
    _complete_seconds: float | None = None

    @property
    def gaps(self) -> list[int]:
        return list(self._gaps)

    def take(self, seen: Seen[Row], *, seconds: float) -> list[Row]:
        """The rows that were not taken before, in order of id. `seconds` is any clock that only goes forward."""
        fresh = []
        for row in seen.rows:
            if row.id > self.newest_id:
                self._skip(range(self.newest_id + 1, row.id), seen.following, seconds)
                self.newest_id = row.id
                fresh.append(row)
            elif self._gaps.pop(row.id, None) is not None:
                fresh.append(row)
        if not seen.has_more:
            self.watermark = max(self.watermark, seen.oldest)
            self._forget_gaps(seen.oldest, seconds)
        self._mark(seen, seconds)
        return fresh

    def find_age(self, *, seconds: float) -> float:
        """How old the watermark is: whatever committed before that was taken."""
        return 0.0 if self._complete_seconds is None else max(0.0, seconds - self._complete_seconds)

    def _skip(self, ids: range, following: int, seconds: float) -> None:
        if len(self._gaps) + len(ids) > GAPS_MAX:
            self._gaps.clear()
            self.overflowed = True
            return
        for id in ids:
            self._gaps[id] = _Gap(following, seconds)

    def _forget_gaps(self, oldest: int, seconds: float) -> None:
        """Who skipped an id and is over without it has rolled back."""
        over = [
            id
            for id, gap in self._gaps.items()
            if gap.following <= oldest and seconds - gap.seconds >= GAP_SECONDS_MIN
        ]
        for id in over:
            del self._gaps[id]

    def _mark(self, seen: Seen[Row], seconds: float) -> None:
        if self._complete_seconds is None:
            self._complete_seconds = seconds
        self._marks.append((seen.following, seconds))
        while self._marks and self._marks[0][0] <= self.watermark:
            self._complete_seconds = self._marks.popleft()[1]


def say_cursor(watermark: int, id: int) -> str:
    return f"{watermark}:{id}"


def parse_cursor(text: str | None) -> tuple[int, int] | None:
    """(watermark, id); None if there is none that we have written."""
    first, _, second = (text or "").partition(":")
    if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
        return None
    return (int(first), int(second)) if len(first) < 20 and len(second) < 20 else None
