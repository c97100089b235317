"""A TCP proxy between two of ours that does what networks do: cuts connections, or falls silent without a word."""

from __future__ import annotations

import asyncio
import contextlib


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
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, target in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(65_536):
                await self._flowing.wait()
                target.write(piece)
                await target.drain()
        with contextlib.suppress(ConnectionError, RuntimeError):
            target.close()
        self._writers.discard(target)
