"""Hours of the week as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.market.hours import TEXT_LENGTH_MAX, parse_hours, say_hours, say_moment
from computepool.core.market.offers import HOURS_PER_WEEK, to_hours

ALL = (1 << HOURS_PER_WEEK) - 1
DAY = 24


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("mon 9-17", [(9, 17)]),
        ("tue-wed 9-17", [(DAY + 9, DAY + 17), (2 * DAY + 9, 2 * DAY + 17)]),
        ("mon-fri 19-7", [(DAY * day + 19, DAY * day + 31) for day in range(5)]),
        ("sun 22-2", [(6 * DAY + 22, 2)]),
        ("sat-sun", [(5 * DAY, HOURS_PER_WEEK)]),
        ("fri-mon 0-1", [(DAY * day, DAY * day + 1) for day in (4, 5, 6, 0)]),
        ("19-7", [(DAY * day + 19, (DAY * day + 31) % HOURS_PER_WEEK) for day in range(7)]),
        ("mon 8-8", [(8, 32)]),
        ("Monday 8:00-12:00, MON 13-17", [(8, 12), (13, 17)]),
    ],
)
def test_hours_are_read_as_people_mean_them(text, spans):
    assert parse_hours(text) == to_hours(spans)


def test_a_whole_week_may_be_written_in_many_ways():
    assert {parse_hours(text) for text in ("mon-sun", "0-24", "mon-sun 0-24", "mon-sun 5-5", "tue-mon")} == {ALL}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "such as"),
        ("mon-", "such as"),
        ("mon 9", "such as"),
        ("mon,,tue", "such as"),
        ("9-17:30", "such as"),
        ("someday", "there are mon, tue"),
        ("mo 9-17", "there are mon, tue"),
        ("25-26", "the hours 0 to 24"),
        ("24-3", "the hours 0 to 24"),
        ("9-25", "the hours 0 to 24"),
        ("mon, " * TEXT_LENGTH_MAX, "are allowed"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_to_write(text, advice):
    with pytest.raises(ValueError, match=advice):
        parse_hours(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mon-fri 19-7", "mon-fri 19-7"),
        ("sat,sun", "sat-sun"),
        ("0-24", "mon-sun"),
        ("sun 22-2", "sun 22-2"),
        ("mon 19-24, tue, wed 0-7", "mon 19-24, tue, wed 0-7"),
        ("mon-wed 8-12, mon-wed 13-17", "mon-wed 8-12, mon-wed 13-17"),
    ],
)
def test_hours_are_said_in_few_words(text, said):
    assert say_hours(parse_hours(text)) == said


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.integers(1, ALL) | st.lists(st.integers(1, ALL), min_size=3, max_size=3).map(lambda b: b[0] | b[1] | b[2]))
def test_what_is_said_is_read_back_as_the_same(hours):
    assert parse_hours(say_hours(hours)) == hours


def test_a_moment_is_said_on_its_own_clock():
    at = datetime(2030, 1, 7, 18, 0, tzinfo=UTC)
    assert say_moment(at) == "Monday 18:00"
    assert say_moment(at.astimezone(ZoneInfo("Asia/Kolkata"))) == "Monday 23:30"
