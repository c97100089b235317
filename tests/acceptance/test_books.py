"""Owner, submitter and operator look at the books of a real hub by the command line; and somebody has cheated."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from computepool.cli.main import run
from computepool.hub.services.audit import seal_batch
from computepool.hub.store.connect import create_pool
from computepool.sdk import Client
from tests.support.hub_process import HubProcess
from tests.support.people import Person, sign_in_operator, sign_up
from tests.support.protocol_node import ProtocolNode

LINE_LENGTH_MAX = 80


@dataclass
class Town:
    """A hub where one machine has run three slices of somebody else's."""

    hub: HubProcess
    dsn: str
    submitter: Person
    owner: Person
    operator: Person
    node_id: str
    job_id: str
    day: date

    async def type(self, person: Person | None, *words: str) -> int:
        """A command as that person types it."""
        key = ["--key", person.key] if person else []
        return await asyncio.to_thread(run, [*words, "--hub-url", self.hub.url, *key])

    async def execute(self, *statements: str) -> None:
        conn = await asyncpg.connect(self.dsn)
        try:
            async with conn.transaction():
                for statement in statements:
                    await conn.execute(statement)
        finally:
            await conn.close()

    async def seal(self) -> None:
        """As the hub does every half minute."""
        pool = await create_pool(self.dsn, size_max=1)
        try:
            while await seal_batch(pool):
                pass
        finally:
            await pool.close()


@pytest.fixture
async def town(start_hub: Callable[..., HubProcess], dsn: str) -> Town:
    hub = start_hub()
    submitter, owner = sign_up(hub.url, "submitter"), sign_up(hub.url, "owner")
    node = ProtocolNode([hub.url], owner, name="attic-pc", cpu_slots=1)
    await node.enrol()
    answer = httpx.post(
        f"{hub.url}/v1/jobs",
        json={"command": ["true"], "slice_count": 3},
        headers=submitter.headers,
        timeout=20,
    )
    assert answer.status_code == 201, answer.text
    try:
        for _ in range(3):
            await node.deliver(await node.claim_one())
    finally:
        await node.close()
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    town = Town(hub, dsn, submitter, owner, operator, node.node_id, answer.json()["id"], date.min)
    # All on one day, also when a test runs at midnight.
    await town.execute("UPDATE attempts SET finished_at = (SELECT max(finished_at) FROM attempts)")
    conn = await asyncpg.connect(dsn)
    town.day = await conn.fetchval("SELECT (max(finished_at) AT TIME ZONE 'UTC')::date FROM attempts")
    await conn.close()
    return town


def say(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr().out
    wide = [line for line in out.splitlines() if len(line) > LINE_LENGTH_MAX and "Attempt " not in line]
    assert wide == [], "fits a terminal of 80 columns"
    return out


async def test_an_owner_is_shown_the_underpayment_that_was_planted(town: Town, capsys):
    asked = ["why", "--payment", "--node", "attic-pc", "--day", town.day.isoformat()]
    assert await town.type(town.owner, *asked) == 0
    honest = say(capsys)
    assert "Everything agrees: rules, attempts and ledger." in honest
    assert "paid         3" in honest.replace("  paid", "paid")
    await town.execute("UPDATE attempts SET charged_microcredits = charged_microcredits - 500 WHERE slice_index = 1")
    assert await town.type(town.owner, *asked) == 0
    told = say(capsys)
    assert "underpaid" in told
    assert "You were paid 0.0005 credits too little." in told
    assert f"job {town.job_id} slice 1" in told
    assert "rule metered" in told
    assert await town.type(town.owner, *asked, "--all") == 0
    assert capsys.readouterr().out.count("Attempt ") == 3
    # Nobody else hears of it.
    assert await town.type(town.submitter, "why", "--payment", "--node", town.node_id, *asked[4:]) == 2
    assert "(not_found)" in capsys.readouterr().err


async def test_statements_are_read_by_people_and_by_spreadsheets(town: Town, tmp_path: Path, capsys):
    assert await town.type(town.submitter, "statement") == 0
    assert "settle" in say(capsys)
    assert await town.type(town.submitter, "statement", "--job", town.job_id[-8:]) == 0
    assert "has cost" in capsys.readouterr().out
    assert await town.type(town.owner, "statement", "--node", "attic-pc") == 0
    assert "pending" in say(capsys)
    file = tmp_path / "statement.csv"
    assert await town.type(town.submitter, "statement", "--csv", "--out", str(file)) == 0
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert {row["kind"] for row in rows} == {"top_up", "hold", "settle", "refund"}
    job = await asyncio.to_thread(
        lambda: Client(town.hub.url, town.submitter.key).books.job_statement(job_id=town.job_id)
    )
    settled = sum(int(row["amount_microcredits"]) for row in rows if row["kind"] == "settle")
    assert settled == job.cost_microcredits == job.earned_microcredits + job.fee_microcredits > 0
    assert job.held_microcredits == job.cost_microcredits + job.refunded_microcredits


async def test_a_long_statement_is_fetched_page_by_page(town: Town, monkeypatch, capsys):
    from computepool.sdk import books

    assert await town.type(town.submitter, "statement", "--csv") == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(books, "_PAGE_LENGTH", 2)
    assert await town.type(town.submitter, "statement", "--csv") == 0
    assert capsys.readouterr().out == whole
    assert len(whole.splitlines()) > 5


async def test_a_forged_transfer_is_named_by_the_operators_check(town: Town, capsys):
    await town.seal()
    assert await town.type(town.operator, "audit", "verify") == 0
    good = capsys.readouterr().out
    assert "Good: the chain holds" in good
    head = good.splitlines()[-1]
    assert await town.type(None, "audit", "proof") == 0
    proof = capsys.readouterr().out
    assert "All accounts come to zero." in proof
    assert proof.splitlines()[-1] == head
    assert town.submitter.account_id not in proof
    await town.execute(
        "ALTER TABLE ledger_transfers DISABLE TRIGGER ledger_transfers_never_change",
        "UPDATE ledger_transfers SET amount = amount - 1 WHERE kind = 'refund'",
        "ALTER TABLE ledger_transfers ENABLE TRIGGER ledger_transfers_never_change",
    )
    assert await town.type(town.operator, "audit", "verify", "--known", head) == 1
    told = capsys.readouterr().out
    assert "(transfer_changed)" in told
    assert "BAD: account submitter_available/" in told
    assert await town.type(town.owner, "audit", "verify") == 2
    assert "(forbidden)" in capsys.readouterr().err


async def test_an_operator_closes_a_day_and_again(town: Town, tmp_path: Path, monkeypatch, capsys):
    # Short names, whatever the folder is called: what is said fits a terminal.
    monkeypatch.chdir(tmp_path)
    file, theirs = Path("payouts.csv"), Path("provider.csv")
    theirs.write_text("id,currency,amount_minor\n00000000-0000-0000-0000-000000000007,INR,100\n")
    asked = ["books", "close", "--day", "2026-01-01"]
    assert await town.type(town.operator, *asked, "--payouts", str(file)) == 0
    first = say(capsys)
    assert "Everything agrees." in first
    assert file.read_text().startswith("payout_id,")
    assert file.stat().st_mode & 0o777 == 0o600
    assert await town.type(town.operator, *asked, "--payouts", str(file)) == 0
    assert say(capsys) == first
    assert await town.type(town.operator, *asked, "--provider-books", str(theirs)) == 1
    assert "provider: " in capsys.readouterr().out
    assert await town.type(town.operator, "books", "close", "--day", town.day.isoformat()) == 2
    assert "not over yet" in capsys.readouterr().err
    assert await town.type(town.submitter, *asked) == 2
    assert "(forbidden)" in capsys.readouterr().err


BAD = [
    ("/v1/credits/statement?from=yesterday", 400),
    ("/v1/credits/statement?from=2026-01-01&to=2025-01-01", 400),
    ("/v1/credits/statement?format=pdf", 400),
    ("/v1/credits/statement?cursor=%27", 400),
    ("/v1/credits/statement?limit=-5", 200),
    ("/v1/credits/statement?account=00000000-0000-0000-0000-000000000007", 404),
    ("/v1/credits/why?node=attic&day=2026-01-01", 400),
    ("/v1/credits/why?node=00000000-0000-0000-0000-000000000007&day=tuesday", 400),
    ("/v1/credits/why?node=00000000-0000-0000-0000-000000000007&day=2026-01-01", 404),
    ("/v1/credits/why?day=2026-01-01", 400),
]


async def test_nonsense_is_refused_politely(town: Town):
    async with httpx.AsyncClient(base_url=town.hub.url, headers=town.owner.headers, timeout=60) as client:
        answers = [(path, (await client.get(path)).status_code) for path, _ in BAD]
        assert answers == BAD
    async with httpx.AsyncClient(base_url=town.hub.url, headers=town.operator.headers, timeout=60) as client:
        for path in ("batches?number=0", "batches?known=1:abc", "batches?number=x"):
            assert (await client.get(f"/v1/operator/audit/{path}")).status_code == 400
        body: Any
        for body in ({}, {"day": "x"}, {"day": "2026-01-01", "more": 1}, {"day": "9999-12-31"}):
            assert (await client.post("/v1/operator/books/close", json=body)).status_code == 400
