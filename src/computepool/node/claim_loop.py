"""Asks for work: one call is held open all the time, busy or free. It is the heartbeat too, and brings controls.

When a slot becomes free the open call is given up for a new one that lists the slot. An assignment that was on
its way in the old answer is not lost: it is missing from `running`, so the hub sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from computepool import clock, entropy
from computepool.core.errors import ComputePoolError, HubUnavailable, NodeRemoved, StaleBoot
from computepool.core.jobs.polling import poll_seconds, retry_seconds
from computepool.node import journal, patience
from computepool.node.config import NodeConfig, Poll
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient, NextReply
from computepool.node.rhythm import Rhythm
from computepool.wire.attempts import NextRequest

# A held call that comes back empty sooner than this was not held: the hub is shutting down, or told us to pause.
HELD_SECONDS_MIN = 1.0


@dataclass
class Pace:
    """How often the last calls went wrong or brought nothing; decides the wait before the next one."""

    failure_count: int = 0
    empty_count: int = 0

    def wait_after_failure(self, error: ComputePoolError) -> float:
        self.failure_count += 1
        return patience.wait_seconds(error, self.failure_count)

    def wait_after_answer(self, *, brought_work: bool, poll: Poll, held_seconds: float, told: float | None) -> float:
        self.failure_count = 0
        if brought_work or (poll is Poll.LONG and held_seconds >= HELD_SECONDS_MIN):
            self.empty_count = 0
            return 0.0
        self.empty_count += 1
        if poll is Poll.LONG:
            return retry_seconds(self.empty_count, jitter=entropy.jitter())
        return told if told is not None else poll_seconds(self.empty_count, jitter=entropy.jitter())


class ClaimLoop:
    def __init__(
        self,
        hub: HubClient,
        holdings: Holdings,
        rhythm: Rhythm,
        config: NodeConfig,
        *,
        boot_id: UUID,
        find_doubt: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`find_doubt` says why this machine must take no work now, if so."""
        self._hub = hub
        self._holdings = holdings
        self._rhythm = rhythm
        self._config = config
        self._boot_id = boot_id
        self._pace = Pace()
        self._find_doubt = find_doubt
        self._doubt: str | None = None

    @property
    def doubt(self) -> str | None:
        """Why no slot was offered in the last call, if so."""
        return self._doubt

    async def run(self) -> None:
        """Returns when the node is drained. Raises StaleBoot or NodeRemoved when the hub wants this agent to end."""
        while not self._holdings.is_drained:
            try:
                wait = await self._ask_once()
            except (StaleBoot, NodeRemoved):
                raise
            except Exception as error:
                # The top of the loop: a fault in one answer must not end the node.
                journal.error("claim_broke", trace=error)
                wait = self._pace.wait_after_failure(HubUnavailable("the last answer could not be used"))
            if wait > 0:
                await self._rest(wait)

    async def _ask_once(self) -> float:
        """One call, and how long to wait before the next one."""
        self._holdings.changed.clear()
        began = clock.seconds()
        try:
            reply = await self._call_unless_changed()
        except (StaleBoot, NodeRemoved):
            raise
        except ComputePoolError as error:
            wait = self._pace.wait_after_failure(error)
            journal.warning("hub_does_not_answer", reason=error.message, code=error.code, wait_seconds=wait)
            # Not cut short by a change: a hub in trouble is not to be asked more often because jobs end.
            await asyncio.sleep(wait)
            return 0.0
        if reply is None:
            return 0.0
        self._holdings.accept(reply.answer)
        return self._pace.wait_after_answer(
            brought_work=bool(reply.answer.assignments or reply.answer.controls.stop),
            poll=self._config.poll,
            held_seconds=clock.seconds() - began,
            told=reply.poll_seconds,
        )

    async def _call_unless_changed(self) -> NextReply | None:
        """None when the call was given up because there is something new to tell."""
        calling = asyncio.ensure_future(self._call())
        changing = asyncio.ensure_future(self._holdings.changed.wait())
        try:
            await asyncio.wait({calling, changing}, return_when=asyncio.FIRST_COMPLETED)
            return await calling if calling.done() else None
        finally:
            calling.cancel()
            changing.cancel()
            await asyncio.gather(calling, changing, return_exceptions=True)

    async def _call(self) -> NextReply:
        # First the token: its answer tells whether clocks and keys agree, and hence what may be offered.
        await self._hub.get_ready()
        return await self._hub.next(self._make_request())

    def _make_request(self) -> NextRequest:
        # A call never outlasts a beat, so that every answer is in time to stand for one.
        wait = min(self._config.wait_seconds, self._rhythm.beat_seconds)
        return NextRequest(
            boot_id=self._boot_id,
            free_slots=() if self._has_doubts() else self._holdings.free_slots,
            running=self._holdings.running,
            wait_seconds=wait if self._config.poll is Poll.LONG else 0.0,
        )

    def _has_doubts(self) -> bool:
        doubt = self._hub.doubt or self._find_doubt()
        if (doubt is None) != (self._doubt is None):
            if doubt is None:
                journal.info("taking_work_again")
            else:
                journal.error("taking_no_work", reason=doubt)
        self._doubt = doubt
        return doubt is not None

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._holdings.changed.wait()
        except TimeoutError:
            return
