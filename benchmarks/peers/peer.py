"""What the front needs of a peer, and what every peer is told through its environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

# PostgreSQL's DSN, Redis' URL or a scheduler's address.
STORE = os.environ.get("BENCH_STORE", "")
# As many as the hub's own default, so that nobody has more of the database than the other.
CONNECTIONS = 10


class Peer(Protocol):
    async def submit(self, payload: str) -> None:
        """Returns when the peer holds the job as safely as it ever will."""

    async def submit_many(self, payloads: Sequence[str]) -> None:
        """The peer's own bulk path, or a refusal."""

    async def count_done(self, submitted: int) -> int:
        """How many of `submitted` jobs the peer's own store calls done."""


def make_stamper() -> Callable[[str], None]:
    """Writes how old a payload is when its job starts; does nothing unless a file was asked for.

    The clock behind perf_counter is the machine's, not the process', so both ends may be different processes.
    """
    path = os.environ.get("BENCH_STAMPS")
    if not path:
        return lambda payload: None
    file = open(path, "a", buffering=1)  # noqa: SIM115 - lives as long as the worker

    def stamp(payload: str) -> None:
        now = time.perf_counter_ns()
        file.write(f"{now - int(payload.partition(':')[0])}\n")

    return stamp
