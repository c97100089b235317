"""Releases what owners have earned when its holdback is over, makes lost time good, and collects what is owed.

Before that it judges the checkpoints that slices have gone on without.
"""

from __future__ import annotations

import logging

from computepool.hub.context import Hub
from computepool.hub.services.checkpoint_proofs import judge_due
from computepool.hub.services.debts import collect_all_debts, collect_debts
from computepool.hub.services.make_good import make_good
from computepool.hub.services.releases import release_due

log = logging.getLogger("computepool.sweepers")

BATCH = 500
BATCHES_MAX = 40
DEBTORS_BATCH = 100


async def run_once(hub: Hub) -> int:
    released_count = 0
    # Before anything is released: what is forged goes back to whoever has paid it.
    await judge_due(hub.pool, limit=BATCH)
    for _ in range(BATCHES_MAX):
        released = await release_due(hub.pool, limit=BATCH)
        released_count += released.attempt_count
        if released.owner_ids:
            await collect_debts(hub.pool, released.owner_ids)
        if released.attempt_count + released.put_off_count < BATCH:
            break
    if released_count:
        log.info("earnings_released count=%d", released_count)
    await make_good(hub.pool, limit=BATCH)
    return released_count


async def collect_once(hub: Hub) -> int:
    """From whoever got something otherwise: the rest of a hold, a payout that came back."""
    asked = await collect_all_debts(hub.pool, limit=DEBTORS_BATCH)
    if asked:
        log.info("debts_collected count=%d", asked)
    return asked
