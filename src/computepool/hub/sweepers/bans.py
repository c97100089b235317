"""Carries the operator's word to every hub: blocked inputs, and open jobs of accounts that are suspended."""

from __future__ import annotations

import logging

from computepool.hub.context import Hub
from computepool.hub.services.blocked_inputs import stop_jobs_of_suspended, stop_jobs_using

log = logging.getLogger("computepool.sweepers")

JOBS_BATCH = 500


async def run_once(hub: Hub) -> int:
    """A hub that had not heard of it yet may have let a job in after the others were stopped."""
    stopped = 0
    for sha256 in await hub.blocked_inputs.refresh(hub.pool):
        stopped += await stop_jobs_using(hub.pool, sha256, on_end=hub.on_end)
    stopped += await stop_jobs_of_suspended(hub.pool, limit=JOBS_BATCH, on_end=hub.on_end)
    if stopped:
        log.info("banned_jobs_stopped count=%d", stopped)
    return stopped
