"""taskiq on a Redis stream: the broker of its own that acknowledges, and the fastest of them here."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.peer import CONNECTIONS, STORE

WORKER = (
    "-m",
    "taskiq",
    "worker",
    "benchmarks.peers.taskiq_peer:broker",
    "--workers",
    "1",
    "--log-level",
    "WARNING",
    "--ack-type",
    "when_executed",
)

broker = RedisStreamBroker(STORE, consumer_id="0", max_connection_pool_size=None)


@broker.task(task_name="noop")
async def noop(payload: str) -> None:
    pass


class Taskiq:
    def __init__(self) -> None:
        self._redis = Redis.from_url(STORE, max_connections=CONNECTIONS)

    async def submit(self, payload: str) -> None:
        await noop.kiq(payload)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("taskiq has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        groups = await self._redis.xinfo_groups("taskiq")
        return sum((group["entries-read"] or 0) - group["pending"] for group in groups)


async def open_peer() -> Taskiq:
    await broker.startup()
    return Taskiq()
