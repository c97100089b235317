"""Which attempts this agent holds, which slots are free, and whether it takes more.

The one place that changes these; everybody else asks. `changed` is set whenever the hub should be told.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from computepool.core.jobs.cause import Cause
from computepool.node import completion, journal
from computepool.node.attempts import HeldAttempt, Surroundings
from computepool.wire.attempts import Assignment, Controls


class Holdings:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._attempts: dict[UUID, HeldAttempt] = {}
        self._kept: set[asyncio.Future[None]] = set()
        self.changed = asyncio.Event()
        self.is_leaving = False  # this agent was told to end, by a signal
        self.is_draining = False  # the owner told the hub to drain this node
        self.is_paused = False
        # What was last written to the log; a hub tells these only now and then while they last.
        self._told = (False, False)

    @property
    def running(self) -> tuple[UUID, ...]:
        """Everything the hub should believe to be in our hands."""
        return tuple(id for id, held in self._attempts.items() if not (held.is_let_go or held.is_answered))

    @property
    def free_slots(self) -> tuple[str, ...]:
        if self.is_leaving or self.is_draining or self.is_paused:
            return ()
        occupied = {attempt.slot for attempt in self._attempts.values()}
        return tuple(name for name in self._around.slots if name not in occupied)

    @property
    def is_empty(self) -> bool:
        return not self._attempts

    @property
    def is_drained(self) -> bool:
        return (self.is_leaving or self.is_draining) and self.is_empty

    def take(self, assignment: Assignment) -> None:
        """Begins an attempt. One that is held already was sent again because an answer got lost: nothing to do."""
        if assignment.attempt_id in self._attempts:
            return
        self._told = (False, False)
        journal.info("assignment_taken", attempt_id=assignment.attempt_id, slot=assignment.slot)
        refusal = None
        if self.is_leaving:
            refusal = completion.refuse(Cause.OWNER_RETURNED, "the node is about to end")
        elif assignment.slot not in self._around.slots:
            refusal = completion.refuse(Cause.SANDBOX_REFUSED, f"this node has no slot {assignment.slot}")
        elif any(attempt.slot == assignment.slot for attempt in self._attempts.values()):
            refusal = completion.refuse(Cause.SANDBOX_REFUSED, f"the slot {assignment.slot} is still in use")
        self._hold(HeldAttempt(assignment, self._around, refusal=refusal))

    def adopt(self, attempt: HeldAttempt) -> None:
        self._hold(attempt)

    def obey(self, controls: Controls) -> None:
        for attempt_id, cause in controls.stop.items():
            attempt = self._attempts.get(attempt_id)
            if attempt is not None:
                attempt.stop(cause)
        self.is_draining = controls.drain
        self.is_paused = controls.pause
        told = (controls.drain, controls.pause)
        if any(told) and told != self._told:
            journal.info("no_new_work", drain=controls.drain, pause=controls.pause)
            self._told = told

    def leave(self) -> None:
        """Take nothing more. The open call is given up at once, since it offers slots."""
        self.is_leaving = True
        self.changed.set()

    def hurry_all(self, cause: Cause) -> None:
        for attempt in self._attempts.values():
            attempt.hurry(cause)

    def stop_all(self, cause: Cause) -> None:
        for attempt in self._attempts.values():
            attempt.stop(cause)

    async def wait_until_empty(self, seconds_max: float) -> bool:
        if self._kept:
            await asyncio.wait(set(self._kept), timeout=seconds_max)
        return self.is_empty

    async def abandon(self) -> None:
        """The agent ends now. Runners go on by themselves, for the next agent to adopt."""
        for keeping in self._kept:
            keeping.cancel()
        await asyncio.gather(*self._kept, return_exceptions=True)

    def _hold(self, attempt: HeldAttempt) -> None:
        self._attempts[attempt.id] = attempt
        keeping = asyncio.ensure_future(self._keep(attempt))
        self._kept.add(keeping)
        keeping.add_done_callback(self._kept.discard)

    async def _keep(self, attempt: HeldAttempt) -> None:
        try:
            await attempt.keep()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The claim loop hears the same refusal (removed, replaced) and ends the agent; this one stands aside.
            journal.warning("attempt_set_aside", attempt_id=attempt.id, reason=error)
        self._attempts.pop(attempt.id, None)
        self.changed.set()
