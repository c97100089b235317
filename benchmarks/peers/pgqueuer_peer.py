"""pgqueuer: PostgreSQL, asyncpg. A finished job leaves the queue table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.peers.peer import CONNECTIONS, STORE, make_stamper

WORKER = ("-m", "benchmarks.peers.pgqueuer_peer")
# Jobs that the worker takes and reports at once. Its default of 10 is slower in both modes.
BATCH_SIZE = int(os.environ.get("BENCH_WORKER_BATCH", "64"))


class PgQueuer:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._queries = Queries(AsyncpgPoolDriver(pool))

    async def submit(self, payload: str) -> None:
        await self._queries.enqueue("noop", payload.encode(), 0)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        count = len(payloads)
        await self._queries.enqueue(["noop"] * count, [p.encode() for p in payloads], [0] * count)

    async def count_done(self, submitted: int) -> int:
        return submitted - await self._pool.fetchval("SELECT count(*) FROM pgqueuer")


async def open_peer() -> PgQueuer:
    pool = await asyncpg.create_pool(STORE, min_size=CONNECTIONS, max_size=CONNECTIONS)
    with contextlib.suppress(asyncpg.DuplicateObjectError):
        await Queries(AsyncpgPoolDriver(pool)).install()
    return PgQueuer(pool)


async def run_worker() -> None:
    stamp = make_stamper()
    manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(STORE))))

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        stamp((job.payload or b"").decode())

    await manager.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    uvloop.run(run_worker())
