"""The books under a crowd with hubs killed with -9: exact to the microcredit. The long form is `make soak/ledger`."""

from __future__ import annotations

from pathlib import Path

import pytest

from soaks.hubs import run_hubs
from soaks.ledger import NOTHING_WRONG

pytestmark = pytest.mark.alone


@pytest.mark.timeout(300)
async def test_many_clients_on_few_accounts_and_killed_hubs_leave_the_books_exact(dsn: str, tmp_path: Path):
    outcome = await run_hubs(
        dsn,
        tmp_path,
        seconds=8,
        accounts=6,
        clients=40,
        owners=3,
        kill_every_seconds=2,
        kills_min=2,
        acknowledged_min=1_500,
    )
    assert {key: outcome[key] for key in NOTHING_WRONG} == NOTHING_WRONG
    assert outcome["settlements"] > 300
    assert outcome["hub_kills"] >= 2


@pytest.mark.timeout(300)
async def test_control_hubs_that_move_the_money_after_the_fact_lose_some_of_it(dsn: str, tmp_path: Path):
    outcome = await run_hubs(
        dsn,
        tmp_path,
        seconds=8,
        accounts=6,
        clients=20,
        owners=3,
        kill_every_seconds=2,
        kills_min=3,
        planted="post_later",
    )
    assert outcome["drifts"] + outcome["mispaid_jobs"] > 0
