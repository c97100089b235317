"""How often agents call: the beat, and the pace of agents that cannot hold a call open."""

from __future__ import annotations

POLL_SECONDS_MIN = 10.0
POLL_SECONDS_MAX = 60.0


def poll_seconds(empty_count: int, *, jitter: float) -> float:
    """When to ask again after `empty_count` empty or failed answers in a row; `jitter` is in [0, 1).

    The band doubles from 10 s to 60 s. Half of it is random: agents that were cut off in the same second
    by a hub's restart must not come back in the same second for ever after.
    """
    band = min(POLL_SECONDS_MIN * 2.0 ** max(0, min(empty_count, 16) - 1), POLL_SECONDS_MAX)
    return max(POLL_SECONDS_MIN / 2, band * (0.5 + 0.5 * jitter))


def retry_seconds(failure_count: int, *, jitter: float, seconds_max: float = 30.0) -> float:
    """The wait before a failed call is made again: 1, 2, 4 s and so on, spread by half."""
    band = min(2.0 ** max(0, min(failure_count, 16) - 1), seconds_max)
    return band * (0.5 + jitter)


def beat_seconds(node_count: int, *, seconds_min: float, beats_per_second_max: float) -> float:
    """The beat is stretched with the fleet, so that beats never become the load."""
    return max(seconds_min, node_count / beats_per_second_max)
