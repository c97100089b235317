"""huey on Redis. Its queue forgets a job when the worker takes it; done means its result is stored."""

from __future__ import annotations

from collections.abc import Sequence

from huey import RedisHuey

from benchmarks.peers.peer import STORE

WORKER = ("-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_peer.huey", "-k", "thread", "-w", "4", "-q", "-n")

huey = RedisHuey("bench", url=STORE)


@huey.task()
def noop(payload: str) -> bool:
    # A result of None would not be stored, and so never be called done.
    return True


class Huey:
    async def submit(self, payload: str) -> None:
        # Its client blocks. A thread per call costs more than the round trip to a Redis on the same machine.
        noop(payload)

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("huey has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        return huey.storage.result_store_size()


async def open_peer() -> Huey:
    return Huey()
