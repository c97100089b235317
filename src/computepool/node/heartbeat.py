"""Tells the hub that the node lives when no other call does.

Never waits for a job: everything here is a timer and a short call.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from computepool import clock
from computepool.core.errors import ComputePoolError, HubUnavailable, NodeRemoved, StaleBoot
from computepool.node import journal, patience
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient
from computepool.node.rhythm import Rhythm
from computepool.wire.attempts import HeartbeatAnswer, HeartbeatRequest

# A held call lasts one beat and some travel; only when its answer is overdue is a beat of its own needed.
OVERDUE_RATIO = 1.2


class Heartbeat:
    def __init__(self, hub: HubClient, holdings: Holdings, rhythm: Rhythm, *, boot_id: UUID) -> None:
        self._hub = hub
        self._holdings = holdings
        self._rhythm = rhythm
        self._boot_id = boot_id

    async def run(self) -> None:
        """Raises StaleBoot or NodeRemoved when the hub wants this agent to end."""
        failure_count = 0
        while True:
            overdue_in = self._hub.heard_at + OVERDUE_RATIO * self._rhythm.beat_seconds - clock.seconds()
            if overdue_in > 0:
                failure_count = 0
                await asyncio.sleep(overdue_in)
                continue
            try:
                self._obey(await self._beat())
            except (StaleBoot, NodeRemoved):
                raise
            except ComputePoolError as error:
                failure_count += 1
                wait = patience.wait_seconds(error, failure_count, seconds_max=max(1.0, self._rhythm.beat_seconds))
                journal.warning("beat_failed", reason=error.message, wait_seconds=wait)
                await asyncio.sleep(wait)

    async def _beat(self) -> HeartbeatAnswer:
        seconds = max(1.0, min(10.0, self._rhythm.lease_seconds / 4))
        request = HeartbeatRequest(boot_id=self._boot_id, running=self._holdings.running)
        try:
            async with asyncio.timeout(2 * seconds):
                return await self._hub.heartbeat(request, seconds=seconds)
        except TimeoutError:
            raise HubUnavailable("The hub did not answer a beat in time.") from None

    def _obey(self, answer: HeartbeatAnswer) -> None:
        self._rhythm.hear(beat_seconds=answer.beat_seconds, lease_seconds=answer.lease_seconds)
        self._holdings.obey(answer.controls)
