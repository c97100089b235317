"""Beats are heard in memory and written in one statement a second."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from computepool import clock
from computepool.core.ids import AttemptId, NodeId
from computepool.hub.config import HubSettings
from computepool.hub.services.attempts import Beat, record_beats
from computepool.hub.services.nodes import record_boot
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.dispatch")

FLUSH_SECONDS = 1.0
BOOTS_REMEMBERED_MAX = 200_000


class Beats:
    def __init__(self, pool: Pool, settings: HubSettings, *, on_end: OnEnd = ignore_end) -> None:
        self._pool = pool
        self._on_end = on_end
        self._settings = settings
        self._heard: dict[NodeId, Beat] = {}
        self._boots: dict[NodeId, tuple[UUID, float]] = {}
        # Since when this hub could have heard every node and told the database: the reaper asks.
        self.hearing_since = clock.seconds()
        self._flushed_at = clock.seconds()

    async def hear(self, node_id: NodeId, boot_id: UUID, running: frozenset[AttemptId]) -> bool:
        """Notes the beat. True when the agent has started anew, so that its lost work is queued again."""
        if self.hear_at_once(node_id, boot_id, running):
            return False
        booted = await self._check_boot(node_id, boot_id, running)
        self._heard[node_id] = Beat(node_id, running)
        return booted

    def hear_at_once(self, node_id: NodeId, boot_id: UUID, running: frozenset[AttemptId]) -> bool:
        """Notes the beat of an agent that goes on as it did, as nearly all do. False: use `hear`."""
        known = self._boots.get(node_id)
        # Looked up again after a while: a newer agent may have called another hub since.
        if known is None or known[0] != boot_id or known[1] <= clock.seconds():
            return False
        self._heard[node_id] = Beat(node_id, running)
        return True

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(FLUSH_SECONDS, self._settings.beat_seconds / 2))
            try:
                await self.flush()
            except Exception as error:
                log.warning("beats_not_written error=%s", error)

    async def flush(self) -> None:
        beats, self._heard = self._heard, {}
        try:
            if beats:
                await record_beats(self._pool, list(beats.values()), lease_seconds=self._settings.lease_seconds)
            else:
                async with self._pool.acquire() as conn:
                    await hub_store.get_now(conn)
        except Exception:
            # Heard is heard: what could not be written is written with the next flush.
            self._heard = {**beats, **self._heard}
            raise
        now = clock.seconds()
        if now - self._flushed_at > self._settings.beat_seconds:
            # The database was away for longer than a beat; nodes have had no chance to be heard by it.
            self.hearing_since = now
        self._flushed_at = now

    async def _check_boot(self, node_id: NodeId, boot_id: UUID, running: frozenset[AttemptId]) -> bool:
        booted = await record_boot(self._pool, node_id, boot_id, running, on_end=self._on_end)
        if len(self._boots) >= BOOTS_REMEMBERED_MAX:
            self._boots.clear()
        self._boots[node_id] = (boot_id, clock.seconds() + self._settings.lease_seconds)
        return booted
