"""Tells the hub that the node lives when no other call does, and tells the runners that the agent lives.

Never waits for a job: everything here is a timer, a touch of a file and a short call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from computepool import clock
from computepool.core.errors import ComputePoolError, HubUnavailable, NodeRemoved, StaleBoot
from computepool.node import journal, patience
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient
from computepool.node.state_dir import StateDir
from computepool.wire.attempts import HeartbeatAnswer, HeartbeatRequest

# A held call lasts one beat and some travel; only when its answer is overdue is a beat of its own needed.
OVERDUE_RATIO = 1.2
TOUCH_SECONDS_MAX = 5.0
# Runners stop their jobs after one lease without a touch; several touches must fit into it.
TOUCHES_PER_LEASE = 4


@dataclass
class Rhythm:
    """The hub's word on how often it wants to hear from a node; it may change with every answer.

    Until the hub has spoken, runners get their signs of life as if leases were very short.
    """

    beat_seconds: float = 30.0
    lease_seconds: float = 2.0


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
            return await asyncio.wait_for(self._hub.heartbeat(request, seconds=seconds), 2 * seconds)
        except asyncio.TimeoutError:
            raise HubUnavailable("The hub did not answer a beat in time.") from None

    def _obey(self, answer: HeartbeatAnswer) -> None:
        self._rhythm.beat_seconds = answer.beat_seconds
        self._rhythm.lease_seconds = answer.lease_seconds
        self._holdings.obey(answer.controls)


async def run_touches(state: StateDir, rhythm: Rhythm) -> None:
    """A sign of life for the runners, apart from the beats: a slow hub must not look like a dead agent."""
    while True:
        try:
            await asyncio.to_thread(state.touch_alive)
        except OSError as error:
            # A full or vanished disk may come back; until then the runners will end their jobs, rightly.
            journal.error("sign_of_life_failed", reason=error)
        await asyncio.sleep(min(TOUCH_SECONDS_MAX, rhythm.lease_seconds / TOUCHES_PER_LEASE))
