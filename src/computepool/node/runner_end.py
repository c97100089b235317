"""Waits for a process that may be anybody's child: the kernel wakes us when it ends, without polling."""

from __future__ import annotations

import asyncio
import os

POLL_SECONDS = 0.1


async def wait_for_end(process_id: int | None, *, or_event: asyncio.Event, seconds_max: float) -> None:
    """Returns when the process has ended, when the event is set or when the time is over, whichever comes first.

    Whoever calls looks at the facts again: a number may have been reused, and only costs one look too many.
    """
    descriptor = _find_descriptor(process_id)
    if descriptor is None:
        seconds_max = min(seconds_max, POLL_SECONDS)
    loop = asyncio.get_running_loop()
    try:
        if descriptor is not None:
            loop.add_reader(descriptor, or_event.set)
        async with asyncio.timeout(seconds_max):
            await or_event.wait()
    except TimeoutError:
        pass
    finally:
        or_event.clear()
        if descriptor is not None:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _find_descriptor(process_id: int | None) -> int | None:
    if process_id is None or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(process_id)
    except OSError:
        return None
