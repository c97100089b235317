"""Blocking work beside the event loop, for work that must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def finish_in_thread(function: Callable[[], Result]) -> Result:
    """Like asyncio.to_thread, but a cancelled caller leaves only after the work has ended.

    A thread cannot be cancelled. Without this wait, a stop that arrives while a runner is being started
    would clean up first and leave a running job behind.
    """
    working = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
