"""Gives away what silent nodes hold, but only while this hub could have heard them."""

from __future__ import annotations

import logging

from computepool import clock
from computepool.hub.context import Hub
from computepool.hub.services.attempts import reap_leases

log = logging.getLogger("computepool.sweepers")

BATCH = 500


async def run_once(hub: Hub) -> int:
    # After a start, or after the database was away, every node gets one full lease to be heard again:
    # an outage of ours must not cost them their work.
    if clock.seconds() - hub.beats.hearing_since < hub.settings.lease_seconds:
        return 0
    lost = await reap_leases(hub.pool, grace_seconds=hub.settings.reap_grace_seconds, limit=BATCH, on_end=hub.on_end)
    if lost:
        hub.metrics.leases_reaped.inc(lost)
        hub.rounds.hear("queue")
        log.info("leases_reaped count=%d", lost)
    return lost
