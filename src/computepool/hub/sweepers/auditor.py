"""Verifies the receipts that nodes have sent with their results. Nothing waits for it but the pay."""

from __future__ import annotations

import asyncio

from computepool import clock
from computepool.hub.context import Hub
from computepool.hub.services.receipts import verify_receipts

# A verification takes a good tenth of a millisecond; in small portions nobody who waits for an answer notices.
BATCH = 16
# It takes at most this part of the process's time, however many receipts there are.
TIME_SHARE = 0.1
RUN_SECONDS_MAX = 60.0


async def run_once(hub: Hub) -> int:
    """Until there are no more, or for a minute."""
    started, verified = clock.seconds(), 0
    while clock.seconds() - started < RUN_SECONDS_MAX:
        portion_started = clock.seconds()
        count = await verify_receipts(hub.pool, hub_id=hub.keyring.hub_id, limit=BATCH)
        verified += count
        if count < BATCH:
            break
        await asyncio.sleep((clock.seconds() - portion_started) * (1 / TIME_SHARE - 1))
    return verified
