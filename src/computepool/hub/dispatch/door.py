"""Where nodes knock: makes a parked call of a request, and puts what dispatch has for the node into words."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from computepool import clock
from computepool.core.ids import AttemptId
from computepool.hub.dispatch.parked import Dismissals, ParkedCall, Tidings
from computepool.hub.dispatch.reception import Reception
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.leases import Leases
from computepool.wire.attempts import NextAnswer

log = logging.getLogger("computepool.dispatch")

# A claim needs one round; with the database away it gets an empty answer.
CLAIM_SECONDS = 5.0

# Called once, when there is something to say or nothing more to wait for.
Reply = Callable[[ParkedCall, NextAnswer | None], None]


@dataclass(frozen=True, slots=True)
class Claim:
    call: ParkedCall
    found: asyncio.Future[NextAnswer | None]


class Door:
    def __init__(self, reception: Reception, leases: Leases) -> None:
        self._reception = reception
        self._leases = leases
        self._speaking: set[asyncio.Task[None]] = set()
        self._dismissals = Dismissals()
        # One for all calls: there are thousands.
        self._answer = self._speak
        # Answers that wait to be signed together, and whether there may be more of them.
        self._waiting: list[tuple[ParkedCall, Reply]] = []
        self._gathering = 0
        reception.together = self.together

    def open(
        self,
        node: NodeCaller,
        free_slots: Iterable[str],
        running: frozenset[AttemptId],
        reply: Reply,
        *,
        hurried: bool,
    ) -> ParkedCall:
        return ParkedCall(
            node_id=node.node_id,
            free_slots=to_slots(tuple(free_slots)),
            running=running,
            answer=self._answer,
            parked_at=clock.seconds(),
            reply=reply,
            state=node.state,
            hurried=hurried,
        )

    async def park(self, call: ParkedCall, seconds: float) -> None:
        self._dismissals.add(call, seconds)
        await self._reception.park(call)

    def park_at_once(self, call: ParkedCall, seconds: float) -> bool:
        """False if the node is not known here yet: use `park`."""
        if not self._reception.knows(call.node_id):
            return False
        self._dismissals.add(call, seconds)
        self._reception.park_known(call)
        return True

    def knows(self, node: NodeCaller) -> bool:
        """Whether its slots are known here: `open_claim` needs that."""
        return self._reception.knows(node.node_id)

    async def prepare_claim(
        self, node: NodeCaller, free_slots: Iterable[str], running: frozenset[AttemptId]
    ) -> Claim:
        """To be handed in together with a completion, or by `claim` alone."""
        await self._reception.introduce(node.node_id)
        return self.open_claim(node, free_slots, running)

    def open_claim(self, node: NodeCaller, free_slots: Iterable[str], running: frozenset[AttemptId]) -> Claim:
        """The same for a node that is known here. Its call leaves the reception before it is answered."""
        found: asyncio.Future[NextAnswer | None] = asyncio.get_running_loop().create_future()
        call = ParkedCall(
            node_id=node.node_id,
            free_slots=to_slots(tuple(free_slots)),
            running=running,
            answer=self._answer,
            parked_at=clock.seconds(),
            reply=partial(_settle, found),
            state=node.state,
            hurried=True,
            claim=True,
            # A claim asks for work alone; what else there is to say, the node's parked call hears.
            greeted=True,
        )
        return Claim(call, found)

    async def claim(self, claim: Claim) -> NextAnswer | None:
        """What these slots can have at once."""
        self._dismissals.add(claim.call, CLAIM_SECONDS)
        await self._reception.park(claim.call)
        return await self.hear(claim)

    async def hear(self, claim: Claim) -> NextAnswer | None:
        """What a claim has come to."""
        try:
            return await claim.found
        finally:
            self._reception.leave(claim.call)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Nodes that are given work within this block are answered when it ends, all under one signature."""
        self._gathering += 1
        try:
            yield
        finally:
            self._gathering -= 1
            if self._waiting and not self._gathering:
                waiting, self._waiting = self._waiting, []
                self._say(waiting)

    def _speak(self, call: ParkedCall) -> None:
        """At once where that is possible, nearly always: a task of its own would cost more than the words."""
        tidings, reply = call.tidings, call.reply
        self._reception.leave(call)
        if not tidings:
            reply(call, None)
        elif not self._leases.can_word(tidings.leased):
            speaking = asyncio.create_task(self._load_and_say(call, reply))
            self._speaking.add(speaking)
            speaking.add_done_callback(self._speaking.discard)
        elif self._gathering:
            self._waiting.append((call, reply))
        else:
            self._say([(call, reply)])

    def _say(self, waiting: Sequence[tuple[ParkedCall, Reply]]) -> None:
        try:
            answers = self._leases.word_all([call.tidings.leased for call, _ in waiting])
        except Exception as error:
            if len(waiting) > 1:
                # What cannot be said to one must not keep the others without their words.
                for one in waiting:
                    self._say([one])
                return
            _note_unsaid(error)
            [(call, reply)] = waiting
            reply(call, None)
            return
        for (call, reply), answer in zip(waiting, answers, strict=True):
            try:
                reply(call, self._complete(call.tidings, answer))
            except Exception as error:
                _note_unsaid(error)

    async def _load_and_say(self, call: ParkedCall, reply: Reply) -> None:
        tidings = call.tidings
        try:
            answer: NextAnswer | None = self._complete(tidings, await self._leases.answer(tidings.leased))
        except Exception as error:
            answer = None
            _note_unsaid(error)
        reply(call, answer)

    def _complete(self, tidings: Tidings, answer: NextAnswer) -> NextAnswer:
        self._reception.note_sent(lease.id for lease in tidings.leased)
        if tidings.controls is None:
            return answer
        return NextAnswer(assignments=answer.assignments, token=answer.token, controls=tidings.controls)


def _note_unsaid(error: Exception) -> None:
    """What is leased stays leased, and is delivered when the node calls again."""
    log.warning("answer_failed error=%r", error)


def _settle(found: asyncio.Future[NextAnswer | None], _: ParkedCall, answer: NextAnswer | None) -> None:
    if not found.done():
        found.set_result(answer)


def to_slots(names: tuple[str, ...]) -> frozenset[str]:
    """Thousands of nodes offer the same few names: they share one set of them."""
    is_usual = len(names) <= 16 and all(len(name) <= 16 for name in names)
    return _usual_slots(names) if is_usual else frozenset(names)


@lru_cache(maxsize=4_096)
def _usual_slots(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)
