"""An answer waits for the disk; what a hub only keeps in step with others, and says again a moment later, does not.

Each commit that waits is in the way of those who must: a hub at rest would send the disk several a second.
"""

from __future__ import annotations

import re

from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.queries import SQL_DIR, load_queries
from tests.support.spine import open_spine

RELAXED = "set_config('synchronous_commit', 'off', true)"
# Beats, usage, evidence, summaries, the last use of a key: lost with a crash, they are there again within a beat.
RELAXES = {
    "attempts.extend_leases",
    "fair_usage.add_usage",
    "hub.exchange_summaries",
    "keys.touch_keys",
    "nodes.see_nodes",
    "reliabilities.set_reliabilities",
}


def list_relaxed() -> set[str]:
    return {
        f"{file.stem}.{name}"
        for file in SQL_DIR.glob("*.sql")
        for name in load_queries(file.stem).available_queries
        if not name.endswith("_cursor") and "synchronous_commit" in getattr(load_queries(file.stem), name).sql
    }


def test_nothing_else_goes_without_the_disk():
    """Whoever adds to this list says why in the query: what is acknowledged, leased or paid is never among them."""
    assert list_relaxed() == RELAXES
    for file in SQL_DIR.glob("*.sql"):
        assert set(re.findall(r"set_config\([^)]*\)", file.read_text())) <= {RELAXED}


async def test_it_holds_for_its_own_transaction_alone(dsn):
    async with open_spine(dsn) as spine:
        node = await spine.enrol()
        async with spine.pool.acquire() as conn:
            for relax in (
                lambda: hub_store.exchange_summaries(conn, hub_process_id=node.id, free={}, seconds=1.0),
                lambda: node_store.see_nodes(conn, [node.id]),
            ):
                async with conn.transaction():
                    await relax()
                    assert await conn.fetchval("SHOW synchronous_commit") == "off"
                assert await conn.fetchval("SHOW synchronous_commit") == "on"
                await relax()
                assert await conn.fetchval("SHOW synchronous_commit") == "on"
