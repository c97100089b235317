"""dask.distributed: a scheduler in memory. It stores nothing, so a submit is answered when the job is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from distributed import Client, LocalCluster

from benchmarks.peers.peer import STORE

WORKER = ("-m", "benchmarks.peers.dask_peer")


def noop(payload: str) -> None:
    pass


class Dask:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._done_count = 0

    async def submit(self, payload: str) -> None:
        await self._client.submit(noop, payload, pure=False)
        self._done_count += 1

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("dask has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        return self._done_count


async def open_peer() -> Dask:
    return Dask(await Client(STORE, asynchronous=True, timeout=30))


async def run_cluster() -> None:
    port = int(STORE.rsplit(":", 1)[1])
    async with LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=True,
        host="127.0.0.1",
        scheduler_port=port,
        dashboard_address=None,
        asynchronous=True,
        silence_logs=40,
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_cluster())
