"""Three hubs on one database, many accounts, kills: no deadlock, nothing lost, everything finishes.

Short forms; the long ones are `make soak/hubs` and `make soak/hubs ARGS="--kill-every 3"`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from soaks.hubs import run_hubs

pytestmark = pytest.mark.alone

NOTHING_WRONG = {
    "lost": 0,
    "unfinished": 0,
    "duplicate_jobs": 0,
    "double_results": 0,
    "cancelled_unasked": 0,
    "deadlocks": 0,
    "orphans": 0,
    "ledger_sum": 0,
    "drifts": 0,
    "mispaid_jobs": 0,
    "double_payments": 0,
    "held_too_long": 0,
}


@pytest.mark.timeout(300)
async def test_three_hubs_that_share_accounts_and_jobs_never_deadlock(dsn: str, tmp_path: Path):
    outcome = await run_hubs(dsn, tmp_path, seconds=10, accounts=50, acknowledged_min=1_000)
    assert {key: outcome[key] for key in NOTHING_WRONG} == NOTHING_WRONG
    assert outcome["acknowledged"] >= 1_000


@pytest.mark.timeout(300)
async def test_control_hubs_that_lock_jobs_in_any_order_do_deadlock(dsn: str, tmp_path: Path):
    # Two hubs must meet within a fraction of a millisecond: it takes its time now and then.
    outcome = await run_hubs(dsn, tmp_path, seconds=120, accounts=50, planted="unordered_locks", until_deadlock=True)
    assert outcome["deadlocks"] > 0
    # Even then nothing is lost: the loser of a deadlock is cut into smaller pieces and tried again.
    assert outcome["lost"] == outcome["double_results"] == 0


@pytest.mark.timeout(300)
async def test_hubs_that_are_killed_every_few_seconds_lose_nothing_and_their_nodes_go_on_elsewhere(
    dsn: str, tmp_path: Path
):
    outcome = await run_hubs(dsn, tmp_path, seconds=10, accounts=50, kill_every_seconds=2, kills_min=3)
    assert outcome["hub_kills"] >= 3
    assert {key: outcome[key] for key in NOTHING_WRONG} == NOTHING_WRONG
