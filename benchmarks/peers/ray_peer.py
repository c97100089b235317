"""Ray: objects and tasks in memory. It stores nothing, so a submit is answered when the job is done."""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

# Its workers are children of the front, which starts the cluster.
WORKER = None


@ray.remote
def noop(payload: str) -> None:
    pass


class Ray:
    def __init__(self) -> None:
        self._done_count = 0

    async def submit(self, payload: str) -> None:
        await noop.remote(payload)
        self._done_count += 1

    async def submit_many(self, payloads: Sequence[str]) -> None:
        raise TypeError("ray has no bulk call that we measure")

    async def count_done(self, submitted: int) -> int:
        return self._done_count


async def open_peer() -> Ray:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
    )
    return Ray()
