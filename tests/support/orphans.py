"""Rows whose parent is not there: the tables that every slice's life writes have no foreign keys, so we look."""

from __future__ import annotations

from typing import Any

# child -> how its parent is found; what is null has none.
PARENTS = {
    "jobs of accounts": ("jobs c", "accounts p ON p.id = c.account_id", "true"),
    "jobs of shapes": ("jobs c", "shapes p ON p.id = c.shape_id", "true"),
    "slices of jobs": (
        "slices c",
        "jobs p ON p.id = c.job_id AND p.account_id = c.account_id AND p.shape_id = c.shape_id "
        "AND p.priority_class = c.priority_class "
        # A slice that is run again to check a result keeps its number.
        "AND (c.slice_index BETWEEN 0 AND p.slice_count - 1 OR p.checks_attempt_id IS NOT NULL)",
        "true",
    ),
    "attempts of slices": (
        "attempts c",
        "slices p ON p.job_id = c.job_id AND p.slice_index = c.slice_index AND c.number <= p.attempt_count",
        "true",
    ),
    "attempts of nodes": ("attempts c", "nodes p ON p.id = c.node_id", "true"),
    "accepted results of slices": (
        "slices c",
        "attempts p ON p.id = c.accepted_attempt_id AND p.job_id = c.job_id AND p.slice_index = c.slice_index "
        "AND p.state = 'succeeded'",
        "c.accepted_attempt_id IS NOT NULL",
    ),
    "receipts of attempts": (
        "attempts c",
        "receipts p ON p.id = c.receipt_id AND p.node_id = c.node_id",
        "c.receipt_id IS NOT NULL",
    ),
    "attempts of receipts": ("receipts c", "attempts p ON p.receipt_id = c.id", "true"),
    "nodes of receipts": ("receipts c", "nodes p ON p.id = c.node_id", "true"),
    "logs of attempts": ("log_chunks c", "attempts p ON p.id = c.attempt_id", "true"),
    "jobs of keys": ("idempotency c", "jobs p ON p.id = c.job_id AND p.account_id = c.account_id", "true"),
}

# Jobs that have fewer or more slices than they say, or that count other ends than their slices have had.
MISCOUNTED = """
SELECT count(*) FROM jobs j JOIN LATERAL (
    SELECT count(*) AS slices, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled
      FROM slices s WHERE s.job_id = j.id) c ON true
 WHERE (j.slice_count, j.succeeded_count, j.failed_count, j.cancelled_count)
       <> (c.slices, c.succeeded, c.failed, c.cancelled)
"""


async def count_orphans(conn: Any) -> dict[str, int]:
    """What should be empty: kinds of orphans, and how many of each there are."""
    found = {
        # `p.*` is null when no parent was found; a parent always has some column that is not.
        name: await conn.fetchval(f"SELECT count(*) FROM {child} LEFT JOIN {parent} WHERE {condition} AND p IS NULL")
        for name, (child, parent, condition) in PARENTS.items()
    }
    found["jobs that miscount"] = await conn.fetchval(MISCOUNTED)
    return {name: count for name, count in found.items() if count}
