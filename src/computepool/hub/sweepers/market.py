"""Moves the market when it is time, one hub for all, and lets this hub follow it."""

from __future__ import annotations

import logging

from computepool.hub.context import Hub
from computepool.hub.services.market import follow, tick

log = logging.getLogger("computepool.sweepers")


async def run_once(hub: Hub) -> bool:
    """True: this hub has made the tick."""
    moved = await tick(hub.pool, hub.prices.card, silence_seconds=hub.settings.lease_seconds)
    backlog = hub.backlog
    shapes = [backlog.shapes[id] for id in list(backlog.runs) if id in backlog.shapes]
    if await follow(hub.pool, hub.prices, shapes):
        await hub.registry.reprice()
        # What was too dear a moment ago may start now.
        hub.rounds.hear_of_queue()
    if moved is not None:
        log.info("market_ticked buckets=%d contested=%d", len(moved), sum(each.contested for each in moved.values()))
    return moved is not None
