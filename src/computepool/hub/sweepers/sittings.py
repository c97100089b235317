"""Has slots show their speed again, when the moment that was drawn for them has come."""

from __future__ import annotations

import logging

from computepool.hub.context import Hub
from computepool.hub.services.sittings import take_turns

log = logging.getLogger("computepool.sweepers")

BATCH = 200


async def run_once(hub: Hub) -> int:
    if not hub.settings.is_proof_asked_again:
        return 0
    await hub.sittings.flush(hub.pool)
    turned = await take_turns(hub.pool, hub.settings, limit=BATCH)
    for node_id in await hub.sittings.refresh(hub.pool):
        hub.reception.note_sittings(node_id)
    if turned:
        log.info("sittings_turned count=%d", turned)
    return turned
