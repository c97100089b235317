"""Where nodes knock: makes a parked call of a request, and puts what dispatch has for the node into words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from computepool import clock
from computepool.core.ids import AttemptId
from computepool.hub.dispatch.parked import ParkedCall, Tidings
from computepool.hub.dispatch.rounds import Rounds
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.leases import Leases
from computepool.wire.attempts import NextAnswer

log = logging.getLogger("computepool.dispatch")

# A claim needs one round; with the database away it gets an empty answer.
CLAIM_SECONDS = 5.0

Reply = Callable[[NextAnswer | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Claim:
    call: ParkedCall
    found: asyncio.Future[NextAnswer | None]


class Door:
    def __init__(self, rounds: Rounds, leases: Leases) -> None:
        self._rounds = rounds
        self._leases = leases
        self._speaking: set[asyncio.Task[None]] = set()

    def open(
        self,
        node: NodeCaller,
        free_slots: Iterable[str],
        running: frozenset[AttemptId],
        reply: Reply,
        *,
        hurried: bool,
    ) -> ParkedCall:
        """`reply` is called once, when there is something to say or nothing more to wait for."""
        call = ParkedCall(
            node_id=node.node_id,
            free_slots=frozenset(free_slots),
            running=running,
            answer=lambda tidings: self._speak(call, tidings, reply),
            parked_at=clock.seconds(),
            state=node.state,
            hurried=hurried,
        )
        return call

    async def park(self, call: ParkedCall, seconds: float) -> None:
        call.timer = asyncio.get_running_loop().call_later(seconds, call.dismiss)
        await self._rounds.park(call)

    async def prepare_claim(
        self, node: NodeCaller, free_slots: Iterable[str], running: frozenset[AttemptId]
    ) -> Claim:
        """To be handed in together with a completion, or by `claim` alone."""
        await self._rounds.introduce(node.node_id)
        found: asyncio.Future[NextAnswer | None] = asyncio.get_running_loop().create_future()
        call = ParkedCall(
            node_id=node.node_id,
            free_slots=frozenset(free_slots),
            running=running,
            answer=lambda tidings: self._answer_claim(call, tidings, found),
            parked_at=clock.seconds(),
            state=node.state,
            hurried=True,
            claim=True,
            # A claim asks for work alone; what else there is to say, the node's parked call hears.
            greeted=True,
        )
        return Claim(call, found)

    async def claim(self, claim: Claim) -> NextAnswer | None:
        """What these slots can have at once."""
        claim.call.timer = asyncio.get_running_loop().call_later(CLAIM_SECONDS, claim.call.dismiss)
        await self._rounds.park(claim.call)
        return await self.hear(claim)

    async def hear(self, claim: Claim) -> NextAnswer | None:
        """What a claim has come to."""
        try:
            return await claim.found
        finally:
            self._rounds.leave(claim.call)

    def _answer_claim(self, call: ParkedCall, tidings: Tidings, found: asyncio.Future[NextAnswer | None]) -> None:
        """At once where that is possible, nearly always: a task of its own would cost more than the words."""
        if tidings and not (tidings.controls is None and self._leases.can_word(tidings.leased)):

            async def reply(answer: NextAnswer | None) -> None:
                _settle(found, answer)

            self._speak(call, tidings, reply)
            return
        self._rounds.leave(call)
        if not tidings:
            _settle(found, None)
            return
        self._rounds.note_sent(lease.id for lease in tidings.leased)
        _settle(found, self._leases.word(tidings.leased))

    def _speak(self, call: ParkedCall, tidings: Tidings, reply: Reply) -> None:
        self._rounds.leave(call)
        speaking = asyncio.create_task(self._say(tidings, reply))
        self._speaking.add(speaking)
        speaking.add_done_callback(self._speaking.discard)

    async def _say(self, tidings: Tidings, reply: Reply) -> None:
        answer = None
        try:
            if tidings:
                answer = await self._leases.answer(tidings.leased)
                self._rounds.note_sent(lease.id for lease in tidings.leased)
                if tidings.controls is not None:
                    answer = NextAnswer(assignments=answer.assignments, token=answer.token, controls=tidings.controls)
        except Exception as error:
            # What is leased stays leased, and is delivered when the node calls again.
            log.warning("answer_failed error=%r", error)
        try:
            await reply(answer)
        except Exception as error:
            log.info("reply_failed error=%r", error)


def _settle(found: asyncio.Future[NextAnswer | None], answer: NextAnswer | None) -> None:
    if not found.done():
        found.set_result(answer)
