"""Hands approved payouts to their providers, and asks what became of what providers did not tell."""

from __future__ import annotations

import contextlib
import logging

from computepool.core.errors import NotFound
from computepool.hub.context import Hub
from computepool.hub.services.payouts import send_payouts
from computepool.hub.services.provider_events import hear_short_again
from computepool.hub.services.reconciliation import reconcile_payouts, reconcile_top_ups

log = logging.getLogger("computepool.sweepers")

# Each is a call to a provider, one after the other.
SEND_BATCH = 20
ASK_BATCH = 20
SHORT_BATCH = 100


async def send_once(hub: Hub) -> int:
    sent = await send_payouts(hub.pool, hub.providers, limit=SEND_BATCH)
    if sent:
        log.info("payouts_sent count=%d", sent)
    return sent


async def reconcile_once(hub: Hub) -> int:
    moved = await reconcile_payouts(hub.pool, hub.providers, limit=ASK_BATCH)
    moved += await reconcile_top_ups(hub.pool, hub.providers, limit=ASK_BATCH)
    if moved:
        log.info("payments_reconciled count=%d", moved)
    return moved


async def hear_again_once(hub: Hub) -> int:
    """What could not be booked for want of cash."""
    # Another hub may have settled one of them meanwhile; the rest has its turn next time.
    with contextlib.suppress(NotFound):
        return await hear_short_again(hub.pool, limit=SHORT_BATCH)
    return 0
