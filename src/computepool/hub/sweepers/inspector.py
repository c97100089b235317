"""Looks at results that are checked, at what follows for their nodes, and at nodes that are tried."""

from __future__ import annotations

from computepool.hub.context import Hub
from computepool.hub.services.inspections import inspect_due
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.standings import follow_due, readmit_due
from computepool.hub.services.trials import run_trials

BATCH = 50
BATCHES_MAX = 20


async def run_once(hub: Hub) -> int:
    inspector = _to_inspector(hub)
    looked_at = 0
    for _ in range(BATCHES_MAX):
        count = await inspect_due(inspector, limit=BATCH)
        looked_at += count
        if count < BATCH:
            break
    return looked_at + await follow_due(hub.pool, limit=BATCH)


async def try_nodes_once(hub: Hub) -> None:
    await readmit_due(hub.pool)
    await run_trials(_to_inspector(hub))


def _to_inspector(hub: Hub) -> Inspector:
    return Inspector(
        hub.pool, hub.blobs, hub.prices, hub.settings, hub.keyring.audit_key, hub.on_end, hub.blocked_inputs
    )
