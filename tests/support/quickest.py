"""How long a thing takes by itself: a busy machine only ever adds to it, so the least of a few tries tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

TRIES = 5


def quickest(measure: Callable[[], float], *, enough: float, tries: int = TRIES) -> float:
    """Seconds of the best try. There is another one only while none was under `enough`."""
    found = measure()
    while found >= enough and (tries := tries - 1):
        found = min(found, measure())
    return found


async def quickest_of(measure: Callable[[], Awaitable[float]], *, enough: float, tries: int = TRIES) -> float:
    found = await measure()
    while found >= enough and (tries := tries - 1):
        found = min(found, await measure())
    return found
