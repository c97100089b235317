"""Seals what the ledger has taken in since the last time, one hub at a time, a little at a time."""

from __future__ import annotations

import asyncio
import logging

from computepool import clock
from computepool.hub.context import Hub
from computepool.hub.services.audit import ROWS_MAX, seal_batch

log = logging.getLogger("computepool.sweepers")

# It takes at most this part of a run's time, however much there is to seal: calls go first.
TIME_SHARE = 0.2
RUN_SECONDS_MAX = 10.0


async def run_once(hub: Hub) -> int:
    """Until little is left, or for a while."""
    started, sealed = clock.seconds(), 0
    while True:
        batch_started = clock.seconds()
        count = await seal_batch(hub.pool)
        sealed += count
        # A range of ids has gaps: half full means that there is more, rather than that the end is reached.
        if count < ROWS_MAX // 2 or clock.seconds() - started > RUN_SECONDS_MAX:
            break
        await asyncio.sleep((clock.seconds() - batch_started) * (1 / TIME_SHARE - 1))
    if sealed:
        log.info("transfers_sealed count=%d", sealed)
    return sealed
