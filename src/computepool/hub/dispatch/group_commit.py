"""Collects single calls while earlier transactions are in flight, and commits them together.

At low load a batch is one call and costs no latency; under load one commit serves many. Every caller is answered
exactly once: with its own answer, with its own refusal, or with the fault that met its batch. A caller that goes
away does not cancel the transaction it is in: a COMMIT is never cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import asyncpg

from computepool.core.errors import ComputePoolError, HubUnavailable

# Fewer calls than this at once are no load.
FEW_ITEMS = 3

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Commit: TypeAlias = Callable[[Sequence[Item]], Awaitable[Sequence["Answer | ComputePoolError"]]]


class Blocked(Exception):
    """A batch met a row that somebody holds for too long. Alone, each of its items may still pass."""


class GroupCommit(Generic[Item, Answer]):
    """`commit` takes a list and gives, in its order, an answer or a refusal for each item.

    A call brings one item or a few, which stay together. `commit` raises `Blocked` when a lock could not be had in
    time: the batch is then cut in two, again and again, so that one blocked call holds up only itself. Any other
    exception is given to everyone in the batch.

    With several lanes, one batch is made while the database writes another. A further lane opens only while so many
    items wait that both have enough to share a commit: cut into small batches, all of them would cost more. Or while
    there are so few that nothing is saved by waiting for each other.
    """

    def __init__(
        self,
        commit: Commit[Item, Answer],
        *,
        batch_max: int = 256,
        waiting_max: int = 20_000,
        lanes: int = 1,
        further_lane_items: int = 1,
    ) -> None:
        self._commit = commit
        self._lanes = lanes
        self._further_lane_items = further_lane_items
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._waiting: deque[_Call[Item, Answer]] = deque()
        self._waiting_count = 0
        self._writing_count = 0
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def put(self, item: Item) -> Answer:
        """The item's answer, after its transaction has committed. Raises its refusal."""
        [answer] = await self.put_all((item,))
        if isinstance(answer, ComputePoolError):
            raise answer
        return answer

    async def put_all(self, items: Sequence[Item]) -> Sequence[Answer | ComputePoolError]:
        """An answer or a refusal for each item of one call, after their transaction has committed."""
        return await self.send(items)

    def send(self, items: Sequence[Item]) -> asyncio.Future[Sequence[Answer | ComputePoolError]]:
        """The same for those who do not want to be a task while they wait."""
        if self._closed:
            raise HubUnavailable("This hub is shutting down. Call again; another may answer.")
        if self._waiting_count >= self._waiting_max:
            raise HubUnavailable(
                "This hub has more calls than it can write. Try again shortly.", retry_after_seconds=2
            )
        call: _Call[Item, Answer] = _Call(items, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._waiting_count += len(items)
        if len(self._running) < self._lanes and self._keeps_busy(len(self._running) + 1):
            self._running.add(asyncio.create_task(self._run()))
        return call.answers

    @property
    def waiting_count(self) -> int:
        """Items whose batch is not being written yet."""
        return self._waiting_count

    def _keeps_busy(self, lanes: int) -> bool:
        """Whether what waits is enough for so many lanes."""
        if not self._waiting:
            return False
        few = self._waiting_count + self._writing_count <= FEW_ITEMS
        return lanes == 1 or few or self._waiting_count >= self._further_lane_items

    async def close(self) -> None:
        """Takes nothing more; returns when everyone who waits has been answered."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)

    async def _run(self) -> None:
        """Lives while there is something to write: an idle hub has no task for it."""
        batch: Sequence[_Call[Item, Answer]] = ()
        try:
            while self._keeps_busy(len(self._running)):
                batch, count = self._next_batch()
                self._writing_count += count
                try:
                    await self._write(batch)
                finally:
                    self._writing_count -= count
        except BaseException:
            # The process is ending: nobody may be left without an answer.
            _fail([*batch, *self._waiting], HubUnavailable("This hub is shutting down. Try again."))
            self._waiting.clear()
            self._waiting_count = 0
            raise
        finally:
            # At once, not by a callback of the task: the next caller must find the lane free.
            self._running.discard(asyncio.current_task())

    def _next_batch(self) -> tuple[list[_Call[Item, Answer]], int]:
        """At least one call, and as many as fit; and how many items they have."""
        batch: list[_Call[Item, Answer]] = []
        count = 0
        while self._waiting and (not batch or count + len(self._waiting[0].items) <= self._batch_max):
            call = self._waiting.popleft()
            batch.append(call)
            count += len(call.items)
        self._waiting_count -= count
        return batch, count

    async def _write(self, batch: Sequence[_Call[Item, Answer]]) -> None:
        try:
            answers = await self._commit([item for call in batch for item in call.items])
        except Blocked as blocked:
            if len(batch) == 1:
                _fail(batch, HubUnavailable(f"The rows are in use ({blocked}). Try again."))
                return
            middle = len(batch) // 2
            await self._write(batch[:middle])
            await self._write(batch[middle:])
        except Exception as error:
            _fail(batch, error)
        else:
            place = 0
            for call in batch:
                end = place + len(call.items)
                if not call.answers.done():
                    call.answers.set_result(answers[place:end])
                place = end


class SingleCommit(Generic[Item, Answer]):
    """A transaction per call, all at once: what group commit is measured against."""

    waiting_count = 0

    def __init__(self, commit: Commit[Item, Answer]) -> None:
        self._commit = commit

    async def put(self, item: Item) -> Answer:
        [answer] = await self._commit((item,))
        if isinstance(answer, ComputePoolError):
            raise answer
        return answer

    async def put_all(self, items: Sequence[Item]) -> Sequence[Answer | ComputePoolError]:
        return await self._commit(items)

    def send(self, items: Sequence[Item]) -> asyncio.Future[Sequence[Answer | ComputePoolError]]:
        return asyncio.ensure_future(self.put_all(items))

    async def close(self) -> None:
        return


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Answer]):
    items: Sequence[Item]
    answers: asyncio.Future[Sequence[Answer | ComputePoolError]]


def _fail(batch: Sequence[_Call[Item, Answer]], error: Exception) -> None:
    for call in batch:
        if not call.answers.done():
            call.answers.set_exception(error)


def tell_blocked(commit: Commit[Item, Answer]) -> Commit[Item, Answer]:
    """Names the database's ways of saying that a lock could not be had."""

    async def run(items: Sequence[Item]) -> Sequence[Answer | ComputePoolError]:
        try:
            return await commit(items)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            raise Blocked(str(error)) from error

    return run
