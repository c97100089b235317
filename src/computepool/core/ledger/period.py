"""Periods of statements and closes, and how people and programs write them. Days are days of UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from computepool.core.errors import InvalidRequest

DAYS_DEFAULT = 31
DAYS_MAX = 366


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` up to, and without, `until`."""

    since: datetime
    until: datetime


def day_period(day: date) -> Period:
    if not 2000 <= day.year <= 2999:
        raise InvalidRequest(f"{day} is no day of this hub.")
    since = datetime.combine(day, time(), tzinfo=UTC)
    return Period(since, since + timedelta(days=1))


def choose_period(since: str | None, until: str | None, *, now: datetime) -> Period:
    """As asked for; without a beginning the last month before the end, without an end up to now."""
    end = _read_moment(until) if until else now
    start = _read_moment(since) if since else end - timedelta(days=DAYS_DEFAULT)
    if not start < end <= start + timedelta(days=DAYS_MAX):
        raise InvalidRequest(f"A period ends after it begins, and within {DAYS_MAX} days.")
    return Period(start, end)


def read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not a day; write it as 2026-11-17.") from None


def write_cursor(at: datetime, id: UUID) -> str:
    return f"{at.isoformat()}~{id}"


def read_cursor(text: str) -> tuple[datetime, UUID]:
    at, _, id = text.partition("~")
    try:
        moment, named = datetime.fromisoformat(at), UUID(id)
    except ValueError:
        raise InvalidRequest("This cursor is not one that the hub has given.") from None
    if moment.tzinfo is None:
        raise InvalidRequest("This cursor is not one that the hub has given.")
    return moment, named


def _read_moment(text: str) -> datetime:
    """A day means its beginning; a time says its offset from UTC."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not a time; write 2026-11-17 or 2026-11-17T08:00:00Z.") from None
    if moment.tzinfo is None:
        if len(text) > len("2026-11-17"):
            raise InvalidRequest(f"{text[:40]!r} does not say its offset from UTC; write 2026-11-17T08:00:00Z.")
        moment = moment.replace(tzinfo=UTC)
    if not 2000 <= moment.year <= 2999:
        raise InvalidRequest(f"{text[:40]!r} is in no time of this hub.")
    return moment.astimezone(UTC)
