"""Celery on Redis. With late acknowledgement a message stays in the store until its job has run."""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery
from redis import Redis

from benchmarks.peers.peer import STORE

WORKER = (
    "-m",
    "celery",
    "-A",
    "benchmarks.peers.celery_peer",
    "worker",
    "-c",
    "2",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
    "-l",
    "ERROR",
)

app = Celery("bench", broker=STORE)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(payload: str) -> None:
    pass


class CeleryPeer:
    def __init__(self) -> None:
        self._redis = Redis.from_url(STORE)

    async def submit(self, payload: str) -> None:
        # Its client blocks; see huey.
        noop.delay(payload)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("celery has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        return submitted - self._redis.llen("celery") - self._redis.hlen("unacked")


async def open_peer() -> CeleryPeer:
    return CeleryPeer()
