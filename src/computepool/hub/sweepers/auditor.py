"""Verifies the receipts that nodes have sent with their results. Nothing waits for it but the pay.

So it works while the hub has little else to do. Only receipts that have waited for long are verified in any case.
"""

from __future__ import annotations

import asyncio

from computepool import clock
from computepool.hub.context import Hub
from computepool.hub.services.receipts import is_overdue, verify_receipts

# Read and written at once: each portion costs the database a commit that others wait behind.
BATCH = 64
# It takes at most this part of the process's time, however many receipts there are. A verification takes a good tenth
# of a millisecond; one at a time, nobody who waits for an answer notices.
TIME_SHARE = 0.2
RUN_SECONDS_MAX = 60.0
# A process that uses more of a processor than this is busy.
BUSY_SHARE = 0.4
BUSY_LOOK_SECONDS = 0.5
# Half of the shortest time that pay is held back.
PATIENCE_SECONDS = 3 * 3_600.0


async def run_once(hub: Hub) -> int:
    """Until there are no more, or for a minute."""
    started, verified = clock.seconds(), 0
    while clock.seconds() - started < RUN_SECONDS_MAX:
        if await _is_busy() and not await is_overdue(hub.pool, seconds=PATIENCE_SECONDS):
            break
        count = await _verify_for_a_while(hub)
        verified += count
        if not count:
            break
    return verified


async def _is_busy() -> bool:
    cpu, wall = clock.cpu_seconds(), clock.seconds()
    await asyncio.sleep(BUSY_LOOK_SECONDS)
    return (clock.cpu_seconds() - cpu) / (clock.seconds() - wall) > BUSY_SHARE


async def _verify_for_a_while(hub: Hub) -> int:
    verified, ends_at = 0, clock.seconds() + 2 * BUSY_LOOK_SECONDS
    while clock.seconds() < ends_at:
        count = await verify_receipts(hub.pool, hub_id=hub.keyring.hub_id, limit=BATCH, time_share=TIME_SHARE)
        verified += count
        if count < BATCH:
            break
    return verified
