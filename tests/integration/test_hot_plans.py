"""Statements that carry whole batches cost what their rows cost: no list is gone through for each row of another.

Their plans are kept, and were made for lists of unknown length, which the server takes for short ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from computepool.hub.store import attempts, deliveries, exchanges, jobs, ledger

HOT = {
    "insert_jobs": jobs._q.insert_jobs.sql,
    "insert_leases": attempts._q.insert_leases.sql,
    "lock_held": deliveries._q.lock_held.sql,
    "exchange": exchanges._q.exchange.sql,
    "record_deliveries": deliveries._q.record_deliveries.sql,
    "post_all": ledger._q.post_all.sql,
    "post_at_once": ledger._q.post_at_once.sql,
}
# A key of another row, or of a list.
KEYED = re.compile(r"\b(?:\w*id|key) = (\(?(?:\w+|\"[^\"]+\")\.\w+|ANY \()")
LISTS = {"CTE Scan", "Function Scan", "Materialize", "Subquery Scan"}


async def explain(conn: asyncpg.Connection, sql: str) -> dict[str, Any]:
    """As a hub's connections for these statements plan it, while all tables are empty."""
    count = max(int(number) for number in re.findall(r"\$(\d+)", sql))
    async with conn.transaction():
        await conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan")
        await conn.execute(f"PREPARE hot AS {sql}")
        values = ", ".join(["NULL"] * count)
        [plan] = json.loads(await conn.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot({values})"))
        await conn.execute("DEALLOCATE hot")
    return plan["Plan"]  # type: ignore[no-any-return]


def walk(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from walk(child)


def list_loops(plan: dict[str, Any]) -> list[str]:
    """Loops whose inner side is a list: what it costs grows with the square of the batch."""
    found = []
    for node in walk(plan):
        if node["Node Type"] == "Nested Loop":
            inner = next(child for child in node["Plans"] if child["Parent Relationship"] == "Inner")
            # What depends on the outer row is made for it, as slices are from their job.
            depends = inner.get("Function Name") == "generate_series"
            if inner["Node Type"] in LISTS and not depends:
                found.append(f"{inner['Node Type']} {inner.get('CTE Name', '')} in a loop")
    return found


@pytest.mark.parametrize("name", HOT)
async def test_no_list_is_gone_through_for_each_row_of_another(conn, name):
    plan = await explain(conn, HOT[name])
    assert list_loops(plan) == []


async def test_a_plain_join_would_be_such_a_loop(conn):
    """The planted fault: what stood there before."""
    joined = HOT["lock_held"].replace("held FULL JOIN counted", "held JOIN counted")
    assert joined != HOT["lock_held"]
    assert list_loops(await explain(conn, joined)) != []


def list_whole_reads(plan: dict[str, Any]) -> list[str]:
    """Scans of tables that do not look up one key after the other: what they cost grows with all that is stored."""
    found = []
    for node in walk(plan):
        if "Relation Name" in node and node["Node Type"] != "ModifyTable":
            condition = node.get("Index Cond") or node.get("Recheck Cond") or ""
            if not KEYED.search(condition):
                found.append(f"{node['Node Type']} of {node['Relation Name']}: {condition}")
    return found


@pytest.mark.parametrize("name", HOT)
async def test_rows_are_looked_up_by_their_keys(conn, name):
    """A plan that is made while the tables are empty must be good when they are not."""
    assert list_whole_reads(await explain(conn, HOT[name])) == []


async def test_naming_the_only_slice_would_read_all_of_them(conn):
    """The planted fault: what stood there before."""
    joined = "JOIN slices s ON s.job_id = e.job_id"
    named = HOT["exchange"].replace(joined, f"{joined} AND s.slice_index = 0")
    assert named != HOT["exchange"]
    assert list_whole_reads(await explain(conn, named)) != []
