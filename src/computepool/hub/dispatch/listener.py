"""Hears NOTIFY from the other hubs. An accelerator: whatever it misses, a timer finds within a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import connect
from computepool.hub.store.pooler import TransactionalConnection, is_behind_pooler

log = logging.getLogger("computepool.dispatch")

CHECK_SECONDS = 5.0


async def run_listener(dsn: str, on_notice: Callable[[str], None]) -> None:
    """`on_notice` gets the topic: what kind of change another hub, or this one, has committed."""
    while True:
        try:
            conn = await connect(dsn)
            try:
                if await is_behind_pooler(conn):
                    # Who listens through a pooler listens on a server that serves somebody else in the next moment.
                    log.info("listener_off reason=pooler hint=COMPUTEPOOL_HUB_DATABASE_LISTEN_URL")
                    return
                await _listen(conn, on_notice)
            finally:
                conn.terminate()
        except Exception as error:
            log.warning("listener_lost error=%s", error)
        await asyncio.sleep(1.0)


async def _listen(conn: TransactionalConnection, on_notice: Callable[[str], None]) -> None:
    """Until the connection is lost."""
    lost = asyncio.Event()
    conn.add_termination_listener(lambda _: lost.set())
    await conn.add_listener("computepool", lambda *notice: on_notice(str(notice[-1])))
    while not lost.is_set():
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await lost.wait()
        except TimeoutError:
            # A server that went away without a word is noticed only by asking.
            await hub_store.get_now(conn)
