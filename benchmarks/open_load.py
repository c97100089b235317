"""Submits at a steady rate, whatever becomes of them, and the time until a parked node holds each."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks import grid, http_load, tables
from benchmarks.closed_load import make_payload
from benchmarks.http_load import Connection, ConnectionLost, make_head

SUBMITTERS = 8
WARM_SECONDS = 1.0
GRACE_SECONDS = 3.0
SAMPLES_MIN = 20


@dataclass(slots=True)
class Ages:
    """How old each slice was when a node held it, in milliseconds; `waiting` are those that nobody holds yet."""

    begins_at_ns: int = 0
    ages_ms: list[float] = field(default_factory=list)
    waiting: dict[int, None] = field(default_factory=dict)
    troubles: list[BaseException] = field(default_factory=list)

    def note(self, sent_ns: int) -> None:
        now = time.perf_counter_ns()
        # A slice that is delivered again is the same one; its first delivery counts.
        if sent_ns in self.waiting:
            del self.waiting[sent_ns]
            if sent_ns >= self.begins_at_ns:
                self.ages_ms.append((now - sent_ns) / 1e6)

    def to_figures(self) -> dict[str, float]:
        if self.troubles:
            raise RuntimeError(f"{len(self.troubles)} calls failed, the first with {self.troubles[0]!r}")
        if not self.ages_ms:
            # A hub that gives out nothing is broken, not slow: there is no figure to print.
            raise RuntimeError(f"none of {len(self.waiting)} slices reached a node; see the hub's log")
        now = time.perf_counter_ns()
        # What never arrived is no reason for a better figure: it counts with its age at the end.
        lost = [(now - sent_ns) / 1e6 for sent_ns in self.waiting if sent_ns >= self.begins_at_ns]
        return to_figures(self.ages_ms + lost, missing=len(lost))


def to_figures(ages_ms: Sequence[float], *, missing: int = 0) -> dict[str, float]:
    if len(ages_ms) < SAMPLES_MIN:
        raise RuntimeError(f"only {len(ages_ms)} samples")
    return {
        "p50_ms": tables.quantile(ages_ms, 0.5) or 0.0,
        "p99_ms": tables.quantile(ages_ms, 0.99) or 0.0,
        "samples": float(len(ages_ms)),
        "missing": float(missing),
    }


async def at_rate(act: Callable[[], Awaitable[None]], *, per_second: float, seconds: float) -> None:
    """Starts `act` so often whether or not the earlier ones are answered: a slow system gets no rest.

    Each start is shifted at random within its turn, so that no timer of the measured side runs in step with us.
    """
    chance = random.Random(1)
    started, acts = time.perf_counter(), []
    for number in range(int(seconds * per_second)):
        due = started + (number + chance.random()) / per_second
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        acts.append(asyncio.ensure_future(act()))
    await asyncio.wait(acts, timeout=GRACE_SECONDS)
    for each in acts:
        each.cancel()


class Submitters:
    """A few connections; who finds none free waits, and the wait counts."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._free: asyncio.Queue[Connection] = asyncio.Queue()
        self._all = connections
        for connection in connections:
            self._free.put_nowait(connection)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        connection = await self._free.get()
        try:
            yield connection
        finally:
            self._free.put_nowait(connection)

    def close(self) -> None:
        for connection in self._all:
            connection.close()


async def open_submitters(port: int, count: int = SUBMITTERS) -> Submitters:
    return Submitters([await http_load.connect(port) for _ in range(count)])


async def submit_slices(port: int, key: str, ages: Ages, *, per_second: float, seconds: float) -> None:
    """With a second of warm-up before; returns when all have arrived, or when there is no more hope for the rest."""
    submitters = await open_submitters(port)
    head = make_head("POST", "/v1/jobs", token=key)

    async def submit() -> None:
        sent_ns = time.perf_counter_ns()
        # Noted before it is sent: the assignment may be in a node's hands before the answer is in ours.
        ages.waiting[sent_ns] = None
        body = msgspec.json.encode({"command": ["true"], "env": {"PAYLOAD": make_payload(sent_ns)}})
        async with submitters.one() as connection:
            status, answer = await connection.send(head, body)
        if status != 201:
            ages.troubles.append(RuntimeError(f"submit was refused: {status} {answer[:200]!r}"))

    ages.begins_at_ns = time.perf_counter_ns() + int(WARM_SECONDS * 1e9)
    await at_rate(submit, per_second=per_second, seconds=WARM_SECONDS + seconds)
    deadline = time.monotonic() + GRACE_SECONDS
    while ages.waiting and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    submitters.close()


async def live_as_node(node: grid.Node, ages: Ages) -> None:
    try:
        while True:
            given = await node.next()
            while given:
                for one in given:
                    ages.note(read_sent_ns(one))
                given = await node.complete(given, lambda count: None)
    except ConnectionLost:
        # It left, or the run is over.
        return
    except Exception as error:
        # A node that ended by mistake would otherwise look like a hub that gives out nothing.
        ages.troubles.append(error)


class _Order(msgspec.Struct):
    env: dict[str, str]


_decode_text = msgspec.json.Decoder(str).decode
_decode_order = msgspec.json.Decoder(_Order).decode


def read_sent_ns(given: grid.Given) -> int:
    return int(_decode_order(_decode_text(given.order)).env["PAYLOAD"].partition(":")[0])
