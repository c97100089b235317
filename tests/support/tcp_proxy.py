"""TCP proxies between two of ours that do what networks do: cut connections, fall silent without a word, are slow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

# As a packet or a few: what is sent at once on a slow line.
PIECE_BYTES = 8_192
PIECES_UNDER_WAY = 64
# What is left of its multiples fills 0..1 evenly and in no rhythm: as by chance, and the same every time.
GOLDEN = 0.618_033_988_749_895


@dataclass(frozen=True, slots=True)
class Stalls:
    """When a line stands still: once in every span of time, somewhere in it, for half to one and a half of that."""

    every_seconds: float
    seconds: float

    @property
    def time_share(self) -> float:
        return self.seconds / self.every_seconds

    def skip(self, at_seconds: float, line: int) -> float:
        """When what would leave at that time does leave. Every line has stalls of its own."""
        starts, ends = self._find(int(at_seconds // self.every_seconds), line)
        return ends if starts <= at_seconds < ends else at_seconds

    def carry(self, at_seconds: float, seconds: float, line: int) -> float:
        """When what takes so long is through, if it begins then: a stall also holds up what is half gone."""
        span, at_seconds = int(at_seconds // self.every_seconds), self.skip(at_seconds, line)
        while True:
            starts, ends = self._find(span, line)
            free = max(0.0, starts - at_seconds)
            if seconds <= free:
                return at_seconds + seconds
            if at_seconds < ends:
                at_seconds, seconds = ends, seconds - free
            span += 1

    def _find(self, span: int, line: int) -> tuple[float, float]:
        seconds = self.seconds * (0.5 + GOLDEN * (span + 3 * line) % 1)
        # Far enough from the end of the span to be over within it.
        starts = span * self.every_seconds + (self.every_seconds - seconds) * (GOLDEN * (5 * span + 7 * line) % 1)
        return starts, starts + seconds


class TcpProxy:
    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0
        self.refuses = False

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Every connection ends now, as when a router restarts."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Nothing passes any more and nobody is told."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        self.connections += 1
        line = self.connections
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, target in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, target, line=line, upward=target is back))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, line: int, upward: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            await self._carry(source, target, line=line, upward=upward)
        with contextlib.suppress(ConnectionError, RuntimeError):
            target.close()
        self._writers.discard(target)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, line: int, upward: bool
    ) -> None:
        while piece := await source.read(65_536):
            await self._flowing.wait()
            target.write(piece)
            await target.drain()


class SlowProxy(TcpProxy):
    """A home's line for every connection: so many bytes a second upwards, a delay both ways, and stalls of both."""

    def __init__(
        self, target: str, *, bytes_per_second: float, delay_seconds: float, stalls: Stalls | None = None
    ) -> None:
        super().__init__(target)
        self._bytes_per_second = bytes_per_second
        self._delay_seconds = delay_seconds
        self._stalls = stalls

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, line: int, upward: bool
    ) -> None:
        """What is on its way keeps its order and its distance; the line holds as much as a router does."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_UNDER_WAY)
        arriving = asyncio.create_task(self._arrive(under_way, target))
        try:
            await self._depart(source, under_way, line=line, upward=upward)
            await under_way.join()
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

    async def _depart(self, source: asyncio.StreamReader, under_way: Any, *, line: int, upward: bool) -> None:
        """Reckons when each piece has left and does not wait for it: a sleep ends up to a millisecond late, and added
        up over the pieces of a tensor that made the line a fifth slower than it says."""
        free_at = 0.0
        while piece := await source.read(PIECE_BYTES):
            free_at = max(time.monotonic(), free_at)
            seconds = len(piece) / self._bytes_per_second if upward else 0.0
            free_at = free_at + seconds if self._stalls is None else self._stalls.carry(free_at, seconds, line)
            await under_way.put((free_at + self._delay_seconds, piece))

    async def _arrive(self, under_way: Any, target: asyncio.StreamWriter) -> None:
        while True:
            due_at, piece = await under_way.get()
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            await self._flowing.wait()
            target.write(piece)
            with contextlib.suppress(ConnectionError):
                await target.drain()
            under_way.task_done()
