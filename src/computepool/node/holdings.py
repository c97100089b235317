"""Which attempts this agent holds, which slots are free, and whether it takes more.

The one place that changes these; everybody else asks. `changed` is set whenever the hub should be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID

from computepool import clock
from computepool.core.jobs.cause import Cause
from computepool.core.trust.claims import CPU_SLOT
from computepool.node import completion, journal, tokens
from computepool.node.adoption import LeftBehind
from computepool.node.attempts import HeldAttempt, Surroundings
from computepool.node.completion import Ending
from computepool.node.reporter import Reporter
from computepool.node.tokens import NO_TOKEN, JobToken, TokenRefused
from computepool.wire.attempts import Assignment, Claim, Controls, NextAnswer

# A slot that is asked to show its speed and cannot, because something has come in between, is lent again after this
# long; the hub will ask again.
ASKED_SECONDS_MAX = 300.0


class Holdings:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._attempts: dict[UUID, HeldAttempt] = {}
        self._kept: set[asyncio.Future[None]] = set()
        self._reporter = Reporter(around.hub, around.identity, self, boot_id=around.boot_id)
        self.changed = asyncio.Event()
        self.is_leaving = False  # this agent was told to end, by a signal
        self.is_draining = False  # the owner told the hub to drain this node
        self.is_paused = False  # by the owner's word to the hub
        self.is_paused_here = False  # by the owner's word on this machine
        # Why the machine is its owner's at the moment, in plain words; None: it is lent.
        self.owner_words: str | None = None
        # Whether the hub has answered a call of this start, and so has heard of everything that is held.
        self._is_heard = False
        # Whether this agent measures, and so can show how fast its slots are.
        self.shows_speed = False
        # Set while the hub wants to see how fast slots are; they take nothing before that, up to a time.
        self.asked = asyncio.Event()
        self._asked_until: dict[str, float] = {}
        # What was last written to the log; a hub tells these only now and then while they last.
        self._told = (False, False)

    @property
    def running(self) -> tuple[UUID, ...]:
        """Everything the hub should believe to be in our hands."""
        return tuple(id for id, held in self._attempts.items() if not (held.is_let_go or held.is_answered))

    def list_occupied(self) -> list[tuple[UUID, str]]:
        """What is held here, with its slot, whether the hub knows of it or not."""
        return [(id, held.slot) for id, held in self._attempts.items()]

    @property
    def free_slots(self) -> tuple[str, ...]:
        return self._list_free(but=())

    @property
    def is_empty(self) -> bool:
        return not self._attempts

    @property
    def is_drained(self) -> bool:
        return (self.is_leaving or self.is_draining) and self.is_empty

    def find_claim(self, completed: Collection[UUID]) -> Claim | None:
        """What may be asked for together with these completions: once they count, their slots are free."""
        if not self._is_heard or self._around.hub.doubt is not None:
            # A claim lists all that is held but what it completes: not the way to introduce a new start.
            return None
        free_slots = self._list_free(but=completed)
        if not free_slots:
            return None
        return Claim(free_slots=free_slots, running=tuple(id for id in self.running if id not in completed))

    def accept(self, answer: NextAnswer) -> None:
        """Obeys and begins what an answer brought, whichever call it answers."""
        self.obey(answer.controls)
        if not answer.assignments:
            return
        token, refusal = self._verify(answer.token)
        for assignment in answer.assignments:
            # One that is held already was sent again because an answer got lost: nothing to do.
            if assignment.attempt_id not in self._attempts:
                self._take(assignment, token, refusal)

    def adopt(self, left: LeftBehind) -> None:
        self._hold(
            HeldAttempt(
                left.assignment, self._around, tell=self._reporter.report, adopted=True, let_go=left.is_let_go
            )
        )

    def obey(self, controls: Controls) -> None:
        self._is_heard = True
        for attempt_id, cause in controls.stop.items():
            attempt = self._attempts.get(attempt_id)
            if attempt is not None:
                attempt.stop(cause)
        self.is_draining = controls.drain
        if self.is_draining:
            self._leave_hosts()
        self.is_paused = controls.pause
        if self.shows_speed and controls.prove:
            self._note_asked(controls.prove)
        told = (controls.drain, controls.pause)
        if any(told) and told != self._told:
            journal.info("no_new_work", drain=controls.drain, pause=controls.pause)
            self._told = told

    def _note_asked(self, slots: Sequence[str]) -> None:
        for slot in slots:
            self._asked_until.setdefault(slot, clock.seconds() + ASKED_SECONDS_MAX)
        self.asked.set()
        self.changed.set()

    def list_asked(self) -> list[str]:
        """Slots whose speed is to be shown. What could not be shown for too long is lent again."""
        now = clock.seconds()
        for slot in [slot for slot, until in self._asked_until.items() if until < now]:
            self.note_shown(slot)
        return list(self._asked_until)

    def can_show(self, slot: str) -> bool:
        """Whether nothing would disturb it: for the processor that is whatever runs here."""
        if self._takes_nothing:
            return False
        return not self._attempts if slot == CPU_SLOT else all(a.slot != slot for a in self._attempts.values())

    def note_shown(self, slot: str) -> None:
        self._asked_until.pop(slot, None)
        if not self._asked_until:
            self.asked.clear()
        self.changed.set()

    def leave(self) -> None:
        """Take nothing more. The open call is given up at once, since it offers slots."""
        self.is_leaving = True
        self._leave_hosts()
        self.changed.set()

    def make_way(self, words: str, *, grace_seconds: float) -> None:
        """The owner wants the machine: jobs may save their work for a moment, then end; nothing new is taken."""
        if self.owner_words is None:
            self.changed.set()
        self.owner_words = words
        for attempt in self._attempts.values():
            attempt.hurry(Cause.OWNER_RETURNED, grace_seconds=grace_seconds)

    def take_up(self) -> None:
        """The owner has left."""
        self.owner_words = None
        self.changed.set()

    def pause(self, is_paused: bool) -> None:
        """Running jobs may finish."""
        if is_paused != self.is_paused_here:
            self.is_paused_here = is_paused
            journal.info("paused_here" if is_paused else "resumed_here")
            self.changed.set()

    def _leave_hosts(self) -> None:
        for attempt in self._attempts.values():
            attempt.leave()

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
        await self._reporter.close()

    def _list_free(self, *, but: Collection[UUID]) -> tuple[str, ...]:
        """Slots that nothing occupies but these attempts; none if no more work is taken."""
        if self._takes_nothing or CPU_SLOT in self._asked_until:
            return ()
        occupied = {attempt.slot for id, attempt in self._attempts.items() if id not in but}
        return tuple(name for name in self._around.slots if name not in occupied and name not in self._asked_until)

    @property
    def _takes_nothing(self) -> bool:
        return (
            self.is_leaving
            or self.is_draining
            or self.is_paused
            or self.is_paused_here
            or self.owner_words is not None
        )

    def _verify(self, token: str) -> tuple[JobToken, Ending | None]:
        identity = self._around.identity
        try:
            verified = tokens.verify_job_token(
                token, node_id=identity.node_id, hub_keys=identity.hub_keys, now_seconds=clock.unix_seconds()
            )
        except TokenRefused as error:
            return NO_TOKEN, completion.refuse(Cause.SANDBOX_REFUSED, str(error))
        return verified, None

    def _take(self, assignment: Assignment, token: JobToken, refusal: Ending | None) -> None:
        self._told = (False, False)
        journal.info("assignment_taken", attempt_id=assignment.attempt_id, slot=assignment.slot)
        before = [attempt for attempt in self._attempts.values() if attempt.slot == assignment.slot]
        self._hold(
            HeldAttempt(
                assignment,
                self._around,
                tell=self._reporter.report,
                token=token,
                after=[attempt.gone for attempt in before],
                refusal=self._find_refusal(assignment, before) or refusal,
            )
        )

    def _find_refusal(self, assignment: Assignment, before: Sequence[HeldAttempt]) -> Ending | None:
        if self.is_leaving:
            return completion.refuse(Cause.OWNER_RETURNED, "the node is about to end")
        if self.owner_words is not None:
            return completion.refuse(Cause.OWNER_RETURNED, "the machine's owner came back before the job began")
        if assignment.slot not in self._around.slots:
            return completion.refuse(Cause.SANDBOX_REFUSED, f"this node has no slot {assignment.slot}")
        # One that is over was offered with its own completion: the next one waits for it to be gone.
        if not all(attempt.is_over for attempt in before):
            return completion.refuse(Cause.SANDBOX_REFUSED, f"the slot {assignment.slot} is still in use")
        return None

    def _hold(self, attempt: HeldAttempt) -> None:
        self._attempts[attempt.id] = attempt
        self._around.rhythm.note_held(attempt.id, attempt.lease_seconds)
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
        self._around.rhythm.note_gone(attempt.id)
        attempt.gone.set()
        self.changed.set()
