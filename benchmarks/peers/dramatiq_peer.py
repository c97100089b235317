"""dramatiq on Redis. A message leaves the store when the worker acknowledges it."""

from __future__ import annotations

from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.peer import STORE

WORKER = ("-m", "dramatiq", "benchmarks.peers.dramatiq_peer", "-p", "1", "-t", "8")

broker = RedisBroker(url=STORE)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop(payload: str) -> None:
    pass


class Dramatiq:
    async def submit(self, payload: str) -> None:
        # Its client blocks; see huey.
        noop.send(payload)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("dramatiq has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        return submitted - broker.client.hlen("dramatiq:bench.msgs")


async def open_peer() -> Dramatiq:
    return Dramatiq()
