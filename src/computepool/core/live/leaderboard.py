"""What owners are compared by, over which time, and which days must be counted anew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from enum import Enum


class Measure(str, Enum):
    EARNED = "earned"
    HOURS = "hours"
    VERIFIED_SLICES = "verified_slices"
    RELIABILITY = "reliability"


class Period(str, Enum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ALL = "all"


_DAYS = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 30}

# Pay can be taken back, and receipts be verified, for some days: these are counted again, older ones stand.
OPEN_DAYS = 4
TODAY_SECONDS = 60.0
OPEN_SECONDS = 3_600.0


def first_day(period: Period, today: date) -> date:
    days = _DAYS.get(period)
    return date.min if days is None else today - timedelta(days=days - 1)


def find_due_day(counted: Mapping[date, datetime], now: datetime) -> date | None:
    """The day to count next: today most often, the open ones every hour; None if none is due."""
    today = now.date()
    for back in range(OPEN_DAYS):
        day = today - timedelta(days=back)
        last = counted.get(day)
        if last is None or (now - last).total_seconds() >= (TODAY_SECONDS if back == 0 else OPEN_SECONDS):
            return day
    return None
