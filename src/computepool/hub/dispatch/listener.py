"""Hears NOTIFY from the other hubs. An accelerator: whatever it misses, a timer finds within a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import connect

log = logging.getLogger("computepool.dispatch")

CHECK_SECONDS = 5.0


async def run_listener(dsn: str, on_notice: Callable[[str], None]) -> None:
    """`on_notice` gets the topic: what kind of change another hub, or this one, has committed."""
    while True:
        try:
            conn = await connect(dsn)
            try:
                await conn.add_listener("computepool", lambda *notice: on_notice(str(notice[-1])))
                while not conn.is_closed():
                    await asyncio.sleep(CHECK_SECONDS)
                    await hub_store.get_now(conn)
            finally:
                conn.terminate()
        except Exception as error:
            log.warning("listener_lost error=%s", error)
            await asyncio.sleep(1.0)
