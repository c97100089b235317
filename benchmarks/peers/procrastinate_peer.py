"""procrastinate: PostgreSQL, psycopg. A finished job stays, marked as succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import procrastinate

from benchmarks.peers.peer import CONNECTIONS, STORE, make_stamper

WORKER = ("-m", "benchmarks.peers.procrastinate_peer")
# Jobs in flight in the one worker; more than its connections do not help.
CONCURRENCY = 10

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=STORE, min_size=CONNECTIONS, max_size=CONNECTIONS + 2)
)
stamp = make_stamper()


@app.task(name="noop")
async def noop(payload: str) -> None:
    stamp(payload)


class Procrastinate:
    async def submit(self, payload: str) -> None:
        await noop.defer_async(payload=payload)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        await noop.batch_defer_async(*[{"payload": payload} for payload in payloads])

    async def count_done(self, submitted: int) -> int:
        row = await app.connector.execute_query_one_async(
            "SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return submitted - row["left"]


async def open_peer() -> Procrastinate:
    await app.open_async()
    await app.schema_manager.apply_schema_async()
    return Procrastinate()


async def run_worker() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


if __name__ == "__main__":
    # Run as a module this file is __main__; the task must be the imported module's, whose app submits it.
    from benchmarks.peers import procrastinate_peer

    asyncio.run(procrastinate_peer.run_worker())
