"""Counts how attempts ended for or against their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce

from computepool.core.trust.reputation import Reliability, record_fault, record_finished
from computepool.hub.store import reliabilities as reliability_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.reliabilities import EvidenceKey


async def record_outcomes(
    pool: Pool, outcomes: Mapping[EvidenceKey, Iterable[bool]], *, now: datetime
) -> dict[EvidenceKey, Reliability]:
    """Each outcome is whether an attempt ended well or by the node's fault, oldest first. Returns the sum of it."""
    keys = sorted(outcomes)
    async with pool.acquire() as conn, conn.transaction():
        known = await reliability_store.lock_reliabilities(conn, keys, now=now)
        for key in keys:
            known[key] = _record_all(known[key], outcomes[key], now)
        await reliability_store.set_reliabilities(conn, known)
    return known


def _record_all(known: Reliability, outcomes: Iterable[bool], now: datetime) -> Reliability:
    return reduce(lambda k, well: (record_finished if well else record_fault)(k, now=now), outcomes, known)
