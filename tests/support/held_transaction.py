"""A write transaction that somebody leaves open, in a thread of its own: the test's loop may be taken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import asyncpg

HOLD_SECONDS_MAX = 300.0


@contextmanager
def hold_transaction(dsn: str) -> Iterator[None]:
    """Open within the block."""
    held, release = threading.Event(), threading.Event()

    async def hold() -> None:
        conn = await asyncpg.connect(dsn)
        try:
            async with conn.transaction():
                await conn.execute("SELECT pg_current_xact_id()")
                held.set()
                await asyncio.to_thread(release.wait, HOLD_SECONDS_MAX)
        finally:
            await conn.close()

    with ThreadPoolExecutor(1) as apart:
        holding = apart.submit(asyncio.run, hold())
        try:
            assert held.wait(60), "the transaction has not begun"
            yield
        finally:
            release.set()
            holding.result(60)
