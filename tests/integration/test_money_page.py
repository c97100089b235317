"""docs/concepts/money.md: its example is what a run on a real database comes to today, and its rules are the code's.

No figure of it hangs on a clock: leases are dated back, and what nodes claim decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.hub.services.prices import PriceBook
from computepool.hub.store import ledger
from scripts.money_example import PAGE, Example, fill_page, render_example, render_rules, run_example
from tests.support.spine import Spine, open_spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


def is_up_to_date(example: Example) -> bool:
    text = PAGE.read_text()
    return text == fill_page(text, example=render_example(example), rules=render_rules())


async def test_the_page_shows_what_a_run_comes_to_today(spine):
    example = await run_example(spine)
    assert is_up_to_date(example), "run `python scripts/money_example.py`, and read what has changed"
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []


async def test_control_another_fee_would_be_noticed(spine, monkeypatch):
    prices = spine.leases.prices
    monkeypatch.setattr(prices, "terms", replace(prices.terms, fee_ppm=100_000))
    assert not is_up_to_date(await run_example(spine))


async def test_control_another_rate_would_be_noticed(spine, monkeypatch):
    monkeypatch.setattr(PriceBook, "find_spot", lambda *_: 9_600_001)
    assert not is_up_to_date(await run_example(spine))


async def test_every_transfer_of_the_example_is_shown_and_they_add_up(spine):
    example = await run_example(spine)
    rows = [line for line in render_example(example).splitlines() if line.startswith("| ") and "Asha" in line]
    assert len(rows) == 8
    held = sum(
        line.amount * (1 if line.target.kind is AccountKind.SUBMITTER_HELD else -1)
        for line in example.transfers
        if AccountKind.SUBMITTER_HELD in (line.source.kind, line.target.kind)
    )
    assert held == 0
