"""The line that stands for a home's is as slow as it says and no slower: plans are measured against it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from tests.support.network_grid import HOME_STALLS
from tests.support.quickest import quickest_of
from tests.support.tcp_proxy import SlowProxy, Stalls

BYTES_PER_SECOND = 2.5e6
DELAY_SECONDS = 0.025
SENT_BYTES = 500_000
TOLERATED = 1.1


async def time_upload(size_bytes: int, stalls: Stalls | None = None) -> float:
    """Seconds until the last byte is there."""
    arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def take_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(size_bytes)
        arrived.set_result(time.monotonic())
        writer.close()

    server = await asyncio.start_server(take_all, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = SlowProxy(
        f"127.0.0.1:{port}", bytes_per_second=BYTES_PER_SECOND, delay_seconds=DELAY_SECONDS, stalls=stalls
    )
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


async def test_a_line_that_stalls_is_slower_by_its_stalls():
    """Whatever the moment, so short a rhythm has ten of them in the upload."""
    rhythm = Stalls(every_seconds=0.02, seconds=0.01)
    told = SENT_BYTES / BYTES_PER_SECOND / (1 - rhythm.time_share) + DELAY_SECONDS
    enough = 1.2 * told
    found = await quickest_of(lambda: time_upload(SENT_BYTES, rhythm), enough=enough)
    assert told / 1.2 < found < enough


def find_still_share(stalls: Stalls, *lines: int) -> float:
    """Of a thousand seconds, how much at least one of the lines stands still."""
    moments = [each / 100 for each in range(100_000)]
    return sum(any(stalls.skip(at, line) != at for line in lines) for at in moments) / len(moments)


@pytest.mark.parametrize("line", [1, 2, 9])
def test_a_line_stands_still_for_the_share_of_time_that_is_said(line: int):
    assert find_still_share(HOME_STALLS, line) == pytest.approx(HOME_STALLS.time_share, rel=0.05)
    assert find_still_share(replace(HOME_STALLS, seconds=0.0), line) == 0.0


def test_every_line_has_stalls_of_its_own():
    assert find_still_share(HOME_STALLS, 1, 2) > 1.5 * HOME_STALLS.time_share


@pytest.mark.parametrize("piece_seconds", [0.001, 0.1, 3.0])
def test_a_line_loses_the_same_to_stalls_whatever_it_is_sent_in(piece_seconds: float):
    """Pieces that a stall cannot hold up once they are begun would make the line faster, the longer they are."""
    stalls, through = Stalls(every_seconds=0.02, seconds=0.01), 0.0
    for _ in range(round(6.0 / piece_seconds)):
        through = stalls.carry(through, piece_seconds, line=1)
    assert through == pytest.approx(6.0 / (1 - stalls.time_share), rel=0.01)


def test_what_leaves_in_a_stall_leaves_when_it_ends_and_in_its_order():
    left = [HOME_STALLS.carry(each / 100, 0.0, 1) for each in range(10_000)]
    assert left == sorted(left)
    waited = [at - each / 100 for each, at in enumerate(left)]
    assert 0.0 <= min(waited) < 0.15 < max(waited) <= 1.5 * HOME_STALLS.seconds
