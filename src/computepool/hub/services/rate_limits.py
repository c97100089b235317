"""Calls per minute, counted in memory per hub process. A first line against floods, not an accountant."""

from __future__ import annotations

from computepool import clock
from computepool.core.errors import RateLimited

BUCKETS_MAX = 200_000


class RateLimits:
    def __init__(self) -> None:
        self._buckets: dict[object, tuple[float, float]] = {}

    def spend(self, who: object, *, per_minute: int) -> None:
        """Takes one call from a bucket that holds ten seconds' worth and refills evenly."""
        now = clock.seconds()
        size = per_minute / 6 if per_minute > 6 else 1.0
        bucket = self._buckets.get(who)
        if bucket is None:
            level = size
        else:
            level = bucket[0] + (now - bucket[1]) * per_minute / 60
            if level > size:
                level = size
        if level < 1:
            wait = max(1, round((1 - level) * 60 / per_minute))
            raise RateLimited(
                f"More than {per_minute} calls a minute. Wait {wait} s, or use fewer and larger calls.",
                retry_after_seconds=wait,
            )
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.clear()
        self._buckets[who] = (level - 1, now)
