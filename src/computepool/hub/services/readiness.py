"""Whether this hub can serve."""

from __future__ import annotations

import asyncio

from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool

ANSWER_SECONDS = 2.0


async def check_database(pool: Pool) -> None:
    async with asyncio.timeout(ANSWER_SECONDS), pool.acquire() as conn:
        await hub_store.get_now(conn)
