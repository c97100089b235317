"""How often agents call: the beat, and the pace of agents that cannot hold a call open."""

from __future__ import annotations

POLL_SECONDS_MIN = 10.0
POLL_SECONDS_MAX = 60.0

# The part of a second that a planned call aims at: far enough from its end that an ordinary round trip
# does not push the call into the next one, which has its own callers.
AIM_FROM, AIM_WIDTH = 0.1, 0.6


def poll_seconds(empty_count: int, *, jitter: float) -> float:
    """When to ask again after `empty_count` empty answers in a row, unless the hub said when; `jitter` is in [0, 1).

    The band doubles from 10 s to 60 s. Half of it is random: agents that were cut off in the same second
    by a hub's restart must not come back in the same second for ever after.
    """
    return _poll_band(empty_count) * (0.5 + 0.5 * jitter)


class CallCalendar:
    """A hub's diary of the agents that it told when to call again: who comes next gets the emptiest second.

    Random waits alone leave Poisson noise: a thousand agents make 22 calls in a mean second and 37 in the worst of
    ten minutes. No agent can do better by itself, since none knows the others; the hub knows them all.
    Each hub keeps its own diary: what is even on each of them is even in sum.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._second = 0

    def plan_wait(self, empty_count: int, *, now_seconds: float, jitter: float) -> float:
        """Seconds until this agent's next call, from the same band as `poll_seconds`, and a note in the diary."""
        self._turn_page(int(now_seconds))
        band = _poll_band(empty_count)
        window = range(self._second + int(band / 2), self._second + int(band) + 1)
        fewest = min(self._due.get(second, 0) for second in window)
        emptiest = [second for second in window if self._due.get(second, 0) == fewest]
        choice, aim = divmod(jitter * len(emptiest), 1.0)
        second = emptiest[min(int(choice), len(emptiest) - 1)]
        self._due[second] = fewest + 1
        return second + AIM_FROM + AIM_WIDTH * aim - now_seconds

    def _turn_page(self, second: int) -> None:
        """What is past is forgotten, so the diary never holds more than one longest band."""
        if second == self._second:
            return
        self._second = second
        self._due = {due: count for due, count in self._due.items() if due >= second}


def _poll_band(empty_count: int) -> float:
    """The longest wait after so many empty answers in a row; the shortest is half of it."""
    return min(POLL_SECONDS_MIN * 2.0 ** max(0, min(empty_count, 16) - 1), POLL_SECONDS_MAX)


def retry_seconds(failure_count: int, *, jitter: float, seconds_max: float = 30.0) -> float:
    """The wait before a failed call is made again: 1, 2, 4 s and so on, spread by half."""
    band = min(2.0 ** max(0, min(failure_count, 16) - 1), seconds_max)
    return band * (0.5 + jitter)


def beat_seconds(node_count: int, *, seconds_min: float, beats_per_second_max: float) -> float:
    """The beat is stretched with the fleet, so that beats never become the load."""
    return max(seconds_min, node_count / beats_per_second_max)
