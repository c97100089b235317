"""Views say once what several queries ask, and cost no more than the query written out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import asyncpg


async def explain(conn: asyncpg.Connection, query: str) -> list[dict[str, Any]]:
    """Every node of the plan, with what it really did."""
    [plan] = json.loads(await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"))
    return list(walk(plan["Plan"]))


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from walk(below)


async def fill_queue(conn: asyncpg.Connection, *, shapes: int, slices: int) -> None:
    await conn.execute(
        """INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation)
           SELECT sha256(i::text::bytea), false, 0, 1, 1, 1, '{}', '{}', 'sandboxed'
             FROM generate_series(1, $1) AS i""",
        shapes,
    )
    await conn.execute(
        """INSERT INTO slices (job_id, slice_index, account_id, shape_id, priority)
           SELECT gen_random_uuid(), i, '00000000-0000-0000-0000-000000000001', id, 0
             FROM shapes, generate_series(0, $1 - 1) AS i""",
        slices,
    )
    await conn.execute("ANALYZE slices")


async def test_the_queue_is_walked_no_further_than_is_asked_and_by_runs_not_by_slices(conn):
    await fill_queue(conn, shapes=200, slices=50)
    assert await conn.fetchval("SELECT count(*) FROM queued_runs") == 200
    few = await explain(conn, "SELECT shape_id, priority_class, account_id FROM queued_runs LIMIT 5")
    [recursion] = [node for node in few if node["Node Type"] == "Recursive Union"]
    assert recursion["Actual Rows"] <= 6
    scans = [node for node in few if node.get("Index Name") == "slices_queue_idx"]
    assert scans
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 20


async def test_what_transfers_did_after_an_id_is_found_without_reading_those_before(conn):
    await conn.execute(
        """INSERT INTO ledger_transfers (key, leg, kind, source_id, target_id, amount)
           SELECT 'k' || i, 0, 'top_up', 'world/0', 'submitter_available/' || gen_random_uuid(), 1
             FROM generate_series(1, 40000) AS i"""
    )
    await conn.execute("SELECT brin_summarize_new_values('ledger_transfers_range_idx')")
    await conn.execute("ANALYZE ledger_transfers")
    nodes = await explain(conn, "SELECT name, sum(delta) FROM ledger_sides WHERE id > 39990 GROUP BY name")
    heaps = [node for node in nodes if node.get("Relation Name") == "ledger_transfers"]
    assert len(heaps) == 4
    assert {node["Node Type"] for node in heaps} == {"Bitmap Heap Scan"}
    # The last few pages, and not the hundreds before them.
    assert sum(node.get("Rows Removed by Index Recheck", 0) for node in heaps) < 4 * 10_000
