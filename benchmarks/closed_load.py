"""As much as the measured side can take: every client sends its next call as soon as the last one is answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import msgspec

from benchmarks import grid, http_load
from benchmarks.http_load import Connection, make_head

CLIENTS = 64
# Submitters pause while this many jobs are unfinished, on every side. Without it a fast submit path starves the
# workers of the processor, and the queue is measured rather than the life.
BACKLOG_MAX = 4_096
DRAIN_SECONDS = 10.0
PAYLOAD_BYTES = 256


def make_payload(number: int) -> str:
    return f"{number}:".ljust(PAYLOAD_BYTES, "x")


def make_spec(number: int = 0) -> dict[str, object]:
    return {"command": ["true"], "env": {"PAYLOAD": make_payload(number)}}


class Tally:
    """Jobs so far, as the clients were told."""

    def __init__(self, *, backlog_max: int = BACKLOG_MAX) -> None:
        self.submitted = 0
        self.done = 0
        self.refused = 0
        # No more submits; then: no more of anything.
        self.closing = False
        self.stopped = False
        self._backlog_max = backlog_max
        self._room = asyncio.Event()
        self._room.set()

    def note(self, *, submitted: int = 0, done: int = 0) -> None:
        self.submitted += submitted
        self.done += done
        if self.closing or self.submitted - self.done < self._backlog_max:
            self._room.set()
        else:
            self._room.clear()

    def note_done(self, count: int) -> None:
        self.note(done=count)

    def close(self) -> None:
        self.closing = True
        self._room.set()

    async def wait_for_room(self) -> None:
        """Everybody who waits goes on at once, so there may be as many too many as there are clients."""
        if not self._room.is_set():
            await self._room.wait()


async def submit_for_ever(
    connection: Connection, heads: Sequence[bytes], body: bytes, tally: Tally, *, batch: int = 1
) -> None:
    """One call after the other, with the heads in turn: each head is an account."""
    for head in itertools.cycle(heads):
        await tally.wait_for_room()
        if tally.closing or tally.stopped:
            return
        status, answer = await connection.send(head, body)
        if status in (200, 201):
            # In a batch each job is taken or refused on its own.
            refused = answer.count(b'"error":{') if batch > 1 else 0
            tally.note(submitted=batch - refused)
            tally.refused += refused
        elif status in (429, 503):
            tally.refused += batch
            await asyncio.sleep(grid.RETRY_SECONDS)
        else:
            raise RuntimeError(f"submit was refused: {status} {answer[:300]!r}")


async def serve_for_ever(node: grid.Node, tally: Tally) -> None:
    """Parks once; then each completion asks for more, until there is no more and it parks again."""
    while not tally.stopped:
        given = await node.next()
        while given and not tally.stopped:
            given = await node.complete(given, tally.note_done)


@contextlib.asynccontextmanager
async def loaded_hubs(
    ports: Sequence[int],
    tally: Tally,
    *,
    clients: int = CLIENTS,
    batch: int = 1,
    accounts: int = 0,
    drained: bool = False,
) -> AsyncIterator[asyncio.Future[Any]]:
    """All clients at work, spread evenly over the hubs; the value fails as soon as one of them does.

    A life is three calls, of which the submitter makes one: so a third of the clients submit and the rest are nodes.
    With `drained`, what was submitted is finished before the block is left.
    """
    submitters = max(1, clients // 3)
    connections = [await http_load.connect(ports[i % len(ports)]) for i in range(clients)]
    owner = await grid.sign_up(connections[0])
    nodes = [grid.Node(grid.make_offer(slots=batch)) for _ in range(clients - submitters)]
    for node, connection in zip(nodes, connections[submitters:], strict=True):
        await node.enrol(connection, owner)
        node.connection = connection
    path = "/v1/jobs" if batch == 1 else "/v1/jobs/batch"
    heads = [
        make_head("POST", path, token=await grid.sign_up(connections[0])) for _ in range(max(accounts, submitters))
    ]
    body = msgspec.json.encode(make_spec() if batch == 1 else {"jobs": [make_spec(i) for i in range(batch)]})
    lives = [serve_for_ever(node, tally) for node in nodes] + [
        submit_for_ever(connections[i], heads[i::submitters], body, tally, batch=batch) for i in range(submitters)
    ]
    load = asyncio.gather(*lives)
    try:
        yield load
        if drained:
            await _drain(tally, load)
    finally:
        await end_load(tally, load, connections)


async def _drain(tally: Tally, load: asyncio.Future[Any]) -> None:
    tally.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while tally.done < tally.submitted:
                await pass_time(0.02, load)


async def end_load(tally: Tally, load: asyncio.Future[Any], connections: Sequence[Connection]) -> None:
    tally.stopped = True
    tally.close()
    load.cancel()
    for connection in connections:
        connection.close()
    await asyncio.gather(load, return_exceptions=True)


async def pass_time(seconds: float, load: asyncio.Future[Any]) -> None:
    """Lets the load run; fails if it has."""
    await asyncio.wait({load}, timeout=seconds)
    if load.done():
        load.result()


async def check_stored(dsn: str, tally: Tally) -> None:
    """A figure counts only if the database holds every job that was acknowledged as done."""
    conn = await asyncpg.connect(dsn)
    stored = await conn.fetchval("SELECT count(*) FROM attempts WHERE state = 'succeeded'")
    await conn.close()
    if stored < tally.done or tally.done == 0:
        raise RuntimeError(f"{tally.done} completions were acknowledged, the database holds {stored}")
