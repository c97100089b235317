"""What stands at the gate: a web proxy that knows CONNECT and nothing else. Its own process, without rights."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import encodings.idna
import ipaddress
import re
import signal
import socket
from collections.abc import Sequence

from computepool.core.jobs.wants import is_host_allowed
from computepool.node.sandbox.egress import (
    CONNECT_SECONDS_MAX,
    CONNECTIONS_MAX,
    COPY_BYTES,
    HEAD_BYTES_MAX,
    HEAD_SECONDS_MAX,
    IDLE_SECONDS_MAX,
)

# Looked for late, by asyncio and by name lookup, when there is no right to read them any more.
PRELOADED = (concurrent.futures.thread, encodings.idna)
REQUEST = re.compile(rb"CONNECT ([A-Za-z0-9._-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]\r\n")


def serve(listener: int, targets: Sequence[str]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    asyncio.run(_serve(socket.socket(fileno=listener), targets))


async def _serve(listener: socket.socket, targets: Sequence[str]) -> None:
    places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with places:
            try:
                await _attend(reader, writer, targets)
            except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # either side went away or said too much: that connection is over
            finally:
                writer.close()

    server = await asyncio.start_server(attend, sock=listener, limit=HEAD_BYTES_MAX)
    await server.serve_forever()


async def _attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, targets: Sequence[str]) -> None:
    async with asyncio.timeout(HEAD_SECONDS_MAX):
        head = await reader.readuntil(b"\r\n\r\n")
    match = REQUEST.match(head)
    if match is None:
        writer.write(b"HTTP/1.1 405 Only CONNECT\r\n\r\n")
        return
    host, port = match[1].decode("ascii"), int(match[2])
    if not is_host_allowed(f"{host}:{port}", targets):
        writer.write(b"HTTP/1.1 403 Not on the list of this job\r\n\r\n")
        return
    address = await choose_address(host, port, targets)
    if address is None:
        writer.write(b"HTTP/1.1 403 A private address\r\n\r\n")
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            opened = await asyncio.open_connection(address, port)
    except (TimeoutError, OSError):
        writer.write(b"HTTP/1.1 502 Cannot be reached\r\n\r\n")
        return
    far_reader, far_writer = opened
    try:
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    finally:
        far_writer.close()


async def choose_address(host: str, port: int, targets: Sequence[str]) -> str | None:
    """The first public address of the name, looked up once: what was checked is what is connected to."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for *_, where in found:
        address = str(where[0])
        if ipaddress.ip_address(address).is_global or f"{address}:{port}" in targets:
            return address
    return None


async def _read_some(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(IDLE_SECONDS_MAX):
        return await reader.read(COPY_BYTES)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await _read_some(reader):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
