"""Hours of the week as people write them: "mon-fri 19-7, sat-sun". Bits as in `Schedule`: bit 0 is Monday 0:00."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from computepool.core.market.offers import HOURS_PER_WEEK, to_hours

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# As long as the worst week that `say_hours` can be asked to say.
TEXT_LENGTH_MAX = 2_000

_EXAMPLE = 'write days and whole hours, such as "mon-fri 19-7, sat-sun"'
_PART = re.compile(r"(?P<days>[a-z]+(?:-[a-z]+)?)?\s*(?P<hours>\d{1,2}(?::00)?-\d{1,2}(?::00)?)?\Z")
_WHOLE_DAY = (0, 24)


def parse_hours(text: str) -> int:
    """Days without hours are whole days, hours without days are daily, and 19-7 ends on the following morning.

    Raises ValueError with what to write instead.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"the hours take {len(text):,} characters; {TEXT_LENGTH_MAX:,} are allowed")
    return to_hours(span for part in text.lower().split(",") for span in _parse_part(part.strip()))


def _parse_part(part: str) -> Iterator[tuple[int, int]]:
    found = _PART.match(part)
    if not part or found is None:
        raise ValueError(f"{part!r} names no hours; {_EXAMPLE}")
    first, last = _parse_hours_of_day(found["hours"]) if found["hours"] else _WHOLE_DAY
    length = (last - first) % 24 or 24
    for day in _parse_days(found["days"]) if found["days"] else range(7):
        start = 24 * day + first
        yield start, (start + length) % HOURS_PER_WEEK


def _parse_hours_of_day(text: str) -> tuple[int, int]:
    first, last = (int(each.removesuffix(":00")) for each in text.split("-"))
    if not (first < 24 and last <= 24):
        raise ValueError(f"{text!r} is no part of a day; a day has the hours 0 to 24")
    return first, last


def _parse_days(text: str) -> list[int]:
    first, _, last = text.partition("-")
    start, end = _find_day(first), _find_day(last or first)
    return [(start + number) % 7 for number in range((end - start) % 7 + 1)]


def _find_day(text: str) -> int:
    for number, name in enumerate(DAY_NAMES):
        if len(text) >= 3 and name.lower().startswith(text):
            return number
    raise ValueError(f"{text!r} is no day; there are {', '.join(DAYS)}")


def say_hours(hours: int) -> str:
    """The same in few words; `parse_hours` reads it back."""
    days_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for start, length in _list_spans(hours):
        for day, span in _cut_at_midnight(start, length):
            days_of[span].append(day)
    parts = [
        (first, span, _say_days(first, count) + ("" if span == _WHOLE_DAY else f" {span[0]}-{span[1]}"))
        for span, days in days_of.items()
        for first, count in _list_runs(sorted(days))
    ]
    return ", ".join(words for _, _, words in sorted(parts))


def _list_spans(hours: int) -> Iterator[tuple[int, int]]:
    """Open hours that follow each other, over the end of the week too: each with its first and how many there are."""
    if hours == (1 << HOURS_PER_WEEK) - 1:
        yield 0, HOURS_PER_WEEK
        return
    for hour in range(HOURS_PER_WEEK):
        if hours >> hour & 1 and not hours >> (hour - 1) % HOURS_PER_WEEK & 1:
            length = 1
            while hours >> (hour + length) % HOURS_PER_WEEK & 1:
                length += 1
            yield hour, length


def _cut_at_midnight(start: int, length: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Days with their hours. A night stays one piece; what is longer is cut into days."""
    day, hour = divmod(start, 24)
    if length <= 24 and hour:
        yield day, (hour, (hour + length) % 24 or 24)
        return
    while length:
        taken = min(length, 24 - hour)
        yield day % 7, (hour, hour + taken)
        day, hour, length = day + 1, 0, length - taken


def _list_runs(days: list[int]) -> Iterator[tuple[int, int]]:
    """Days that follow each other within a week: the first, and how many."""
    first = count = 0
    for day in days:
        if count and day == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = day, 1
    if count:
        yield first, count


def _say_days(first: int, count: int) -> str:
    return DAYS[first] if count == 1 else f"{DAYS[first]}-{DAYS[first + count - 1]}"


def say_moment(at: datetime) -> str:
    """On the clock that it comes with: Monday 19:00."""
    return f"{DAY_NAMES[at.weekday()]} {at:%H:%M}"
