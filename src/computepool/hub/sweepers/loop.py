"""Runs a sweeper for ever: one failed run is logged, counted and forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from computepool import entropy
from computepool.hub.metrics import HubMetrics

log = logging.getLogger("computepool.sweepers")


async def run_every(
    seconds: float, name: str, run_once: Callable[[], Awaitable[object]], metrics: HubMetrics
) -> None:
    # Sweepers that all began at the same moment would all run at the same moments, and calls would wait for them.
    wait_seconds = seconds * entropy.jitter()
    while True:
        await asyncio.sleep(wait_seconds)
        wait_seconds = seconds
        try:
            await run_once()
        except Exception as error:
            metrics.sweeps_failed.labels(name).inc()
            log.warning("sweep_failed sweeper=%s error=%r", name, error)
