"""The line that stands for a home's is as slow as it says and no slower: plans are measured against it."""

from __future__ import annotations

import asyncio
import time

from tests.support.quickest import quickest_of
from tests.support.tcp_proxy import SlowProxy

BYTES_PER_SECOND = 2.5e6
DELAY_SECONDS = 0.025
SENT_BYTES = 500_000
TOLERATED = 1.1


async def time_upload(size_bytes: int) -> float:
    """Seconds until the last byte is there."""
    arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def take_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(size_bytes)
        arrived.set_result(time.monotonic())
        writer.close()

    server = await asyncio.start_server(take_all, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = SlowProxy(f"127.0.0.1:{port}", bytes_per_second=BYTES_PER_SECOND, delay_seconds=DELAY_SECONDS)
    host, _, own_port = (await proxy.start()).rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(own_port))
        began = time.monotonic()
        writer.write(bytes(size_bytes))
        return await arrived - began
    finally:
        await proxy.close()
        server.close()


async def test_a_slow_line_carries_what_it_says():
    told = SENT_BYTES / BYTES_PER_SECOND + DELAY_SECONDS
    enough = TOLERATED * told
    found = await quickest_of(lambda: time_upload(SENT_BYTES), enough=enough)
    assert told <= found < enough
