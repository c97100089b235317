"""What the rooms of the dashboard show beside the nouns themselves."""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID

import msgspec

from computepool.core.jobs.state import JobState, SliceState
from computepool.wire.jobs import Attempt
from computepool.wire.live import Counts, LiveEvent


class PlacedAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt, with where it stands in its job and on which kind of slot it ran."""

    job_id: UUID
    slice_index: int
    attempt: Attempt
    # Absent: the node has no such slot any more.
    tier: str | None = None
    # For the node's owner and for operators.
    node_name: str | None = None


class AttemptPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    attempts: list[PlacedAttempt]
    cursor: str | None = None


class Strip(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The states of all slices, those in a row that are alike told together: first, last, state."""

    slice_count: int
    ranges: list[tuple[int, int, SliceState]]
    # There are more ranges than are listed.
    truncated: bool = False


class EarningDay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    day: date
    earned_microcredits: int
    seconds: int
    attempt_count: int


class NodeEarnings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """By day (UTC), oldest first; days without an attempt are left out."""

    node_id: UUID
    days: list[EarningDay]
    earned_microcredits: int


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    job_id: UUID
    name: str
    state: JobState
    held_microcredits: int
    charged_microcredits: int
    created_at: datetime


class HoldPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    holds: list[Hold]
    cursor: str | None = None


class DepthStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    count: int
    # Absent: at any price.
    price_microcredits_per_hour: int | None = None


class Depth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Slots that are lent now by what is asked for them at least, cheapest first; slices that wait and that such a
    slot could run by the most that they pay, highest first."""

    tier: str
    region: str
    asks: list[DepthStep]
    bids: list[DepthStep]


class FeedHealth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The live stream of the hub process that answers."""

    viewers: int
    watermark_seconds: float
    look_seconds: float


class Overview(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the grid stands, and what waits for the operator."""

    version: str
    at: datetime
    # A round trip to the database.
    database_ms: float
    hub_processes: int
    feed: FeedHealth
    counts: Counts
    accounts: int
    accounts_suspended: int
    payouts_waiting: int
    disputes_open: int
    freezes: int
    provider_events_refused: int


class GridPoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    at: datetime
    nodes_online: int
    slots: int
    busy_slots: int
    slices_queued: int


class GridHistory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Oldest first, at most one a minute; long spans are thinned out."""

    points: list[GridPoint]


class EventSearch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Newest first. A page may be short, or empty, while there is more: go on with `before` until it is absent."""

    events: list[LiveEvent]
    before: int | None = None


class Unplug(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    seconds: float = 20.0


class Unplugged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    node: str
    until: datetime
