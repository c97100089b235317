"""Who lends the most."""

from __future__ import annotations

from datetime import datetime

import msgspec

from computepool.core.live.leaderboard import Measure, Period


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    pseudonym: str
    # Microcredits earned, seconds worked, slices with a verified receipt, or reliability in parts in a million.
    value: int


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    by: Measure
    period: Period
    rows: list[Leader]
    # Absent: nothing was counted yet.
    counted_at: datetime | None = None
