"""Whether the books are right after a soak: what is kept in two ways, counted both ways."""

from __future__ import annotations

import asyncpg

from computepool.hub.store import ledger

# Jobs whose attempts, whose own sum and whose settlements do not come to the same.
_MISPAID = """
SELECT count(*) FROM jobs j
  LEFT JOIN (SELECT job_id, sum(charged_microcredits) AS charged FROM attempts
              GROUP BY job_id) AS a ON a.job_id = j.id
  LEFT JOIN (SELECT job_id, sum(amount) AS paid FROM ledger_transfers WHERE kind IN ('settle', 'pay_to')
              GROUP BY job_id) AS t ON t.job_id = j.id
 WHERE j.charged_microcredits <> coalesce(a.charged, 0) OR j.charged_microcredits <> coalesce(t.paid, 0)
"""
# Slices that cost more than one result of theirs can: somebody was paid for the same work twice.
_TWICE = """
SELECT count(*) FROM (
    SELECT job_id, slice_index FROM attempts WHERE state = 'succeeded' AND charged_microcredits > 0
     GROUP BY job_id, slice_index HAVING count(*) > 1) AS paid
"""
_HELD_TOO_LONG = "SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL AND held_remaining <> 0"
_UNCOVERED = """
SELECT count(*) FROM jobs WHERE finished_at IS NULL AND held_remaining < reserve_microcredits
       * (slice_count - succeeded_count - failed_count - cancelled_count)
"""


async def count_money(conn: asyncpg.Connection) -> dict[str, int]:
    return {
        "ledger_sum": int(await conn.fetchval("SELECT coalesce(sum(balance), 0) FROM ledger_accounts")),
        "drifts": len(await ledger.list_drifts(conn)),
        "mispaid_jobs": await conn.fetchval(_MISPAID),
        "double_payments": await conn.fetchval(_TWICE),
        "held_too_long": await conn.fetchval(_HELD_TOO_LONG),
        "uncovered_jobs": await conn.fetchval(_UNCOVERED),
        "settlements": await conn.fetchval("SELECT count(*) FROM ledger_transfers WHERE kind = 'settle'"),
    }
