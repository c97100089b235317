"""How often the hub wants to hear from this node, and the runners from this agent.

The hub's word may change while the agent lives: an operator shortens the leases, and the next job comes with a short
one. Whoever waits by the old rhythm is woken then, since a runner counts by its own lease from its first moment.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from computepool.node import journal
from computepool.node.state_dir import StateDir

TOUCH_SECONDS_MAX = 5.0
# Runners stop their jobs after one lease without a touch; several touches must fit into it.
TOUCHES_PER_LEASE = 4
# At least this many, whatever beat the hub has named before.
BEATS_PER_LEASE = 2


class Rhythm:
    """Until the hub has spoken, runners get their signs of life as if leases were very short."""

    def __init__(self, *, beat_seconds: float = 30.0, lease_seconds: float = 2.0) -> None:
        self.beat_seconds = beat_seconds
        self.lease_seconds = lease_seconds
        # Of the attempts that are held here: each counts by the lease that it came with.
        self._leases: dict[UUID, float] = {}
        self._quickened = asyncio.Event()

    @property
    def touch_seconds(self) -> float:
        shortest = min([self.lease_seconds, *self._leases.values()])
        return min(TOUCH_SECONDS_MAX, shortest / TOUCHES_PER_LEASE)

    def hear(self, *, beat_seconds: float, lease_seconds: float) -> None:
        """The hub's own word on both."""
        before = self.touch_seconds
        self.beat_seconds, self.lease_seconds = beat_seconds, lease_seconds
        self._wake_if_quicker(before)

    def note_held(self, attempt_id: UUID, lease_seconds: float) -> None:
        before = self.touch_seconds
        self._leases[attempt_id] = lease_seconds
        # The hub names its beat only now and then, and this job cannot wait for that.
        self.beat_seconds = min(self.beat_seconds, lease_seconds / BEATS_PER_LEASE)
        self._wake_if_quicker(before)

    def note_gone(self, attempt_id: UUID) -> None:
        self._leases.pop(attempt_id, None)

    def _wake_if_quicker(self, seconds_before: float) -> None:
        if self.touch_seconds < seconds_before:
            self._quickened.set()

    async def run_touches(self, state: StateDir) -> None:
        """A sign of life for the runners, apart from the beats: a slow hub must not look like a dead agent."""
        while True:
            self._quickened.clear()
            try:
                await asyncio.to_thread(state.touch_alive)
            except OSError as error:
                # A full or vanished disk may come back; until then the runners will end their jobs, rightly.
                journal.error("sign_of_life_failed", reason=error)
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.touch_seconds):
                await self._quickened.wait()
        except TimeoutError:
            return
