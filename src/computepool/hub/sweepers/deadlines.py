"""Raises what a deadline presses, within the account that asked for it."""

from __future__ import annotations

import logging

from computepool.hub.context import Hub
from computepool.hub.services.deadlines import raise_pressing

log = logging.getLogger("computepool.sweepers")

JOBS_BATCH = 200
SLICES_BATCH = 2_000


async def run_once(hub: Hub) -> int:
    raised = await raise_pressing(hub.pool, jobs_max=JOBS_BATCH, slices_max=SLICES_BATCH)
    if raised:
        hub.rounds.wake()
        log.info("slices_raised count=%d", raised)
    return raised
