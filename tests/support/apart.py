"""Coroutines for tests whose own thread has a loop that is not theirs, such as those of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

APART_SECONDS_MAX = 120.0
Found = TypeVar("Found")


def run_apart(work: Coroutine[Any, Any, Found]) -> Found:
    """In a thread and a loop of its own."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, work).result(APART_SECONDS_MAX)
