"""The market at a real hub: what is quoted is held, spot follows the queue, and where it has force less waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import httpx
import pytest

from computepool.cli.main import run
from computepool.core.placement.price import say_price
from computepool.sdk import Client
from computepool.wire.statements import JobLines
from tests.support.people import Person, sign_up
from tests.support.postgres import connected, wait_for
from tests.support.protocol_node import Held, ProtocolNode

CREDIT = 1_000_000
# Of an hour of a CPU slot in no region: 12 x 0.8.
REFERENCE = 9_600_000


async def say(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


def access(hub: Any, person: Person) -> list[str]:
    return ["--hub-url", hub.url, "--key", person.key]


@contextlib.asynccontextmanager
async def lend(hub: Any, owner: Person) -> AsyncIterator[ProtocolNode]:
    """One slot, always heard, whether it works or not."""
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    await node.heartbeat()

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError):
                await node.heartbeat()

    beating = asyncio.create_task(beat())
    try:
        yield node
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await node.close()


@pytest.fixture
async def node(hub, owner) -> AsyncIterator[ProtocolNode]:
    async with lend(hub, owner) as node:
        yield node


async def stop_clock(dsn: str) -> None:
    """As if the market had just ticked: it does so when a test wants it, and at no other moment."""
    async with connected(dsn) as conn:
        await conn.execute(
            "INSERT INTO market_clock (ticked_at) VALUES (now() + interval '1 hour') "
            "ON CONFLICT (only_row) DO UPDATE SET ticked_at = excluded.ticked_at"
        )


@pytest.fixture
async def hub(dsn, start_hub) -> Any:
    await stop_clock(dsn)
    return start_hub()


async def have_ticked(hub: Any, dsn: str) -> None:
    """Turns the market's clock back; the hub then ticks, follows, and says so."""
    told = partial(count_ticks, hub)
    before = told()
    async with connected(dsn) as conn:
        await conn.execute("DELETE FROM market_clock")
    await wait_for(lambda: told() > before, what="a tick")
    await stop_clock(dsn)


def count_ticks(hub: Any) -> int:
    return hub.log_path.read_text().count("market_ticked")


async def test_a_quote_says_what_a_submit_then_holds_and_costs_nothing_itself(hub, submitter, node, capsys):
    options = ["--slices", "3", "--wall", "30m", "--max-price", "12.34", "--expect", "10m"]
    assert await say("quote", *options, *access(hub, submitter)) == 0
    shown = capsys.readouterr().out
    assert "3 slices would cost 4.8 credits, likely" in shown
    assert "It could start at once." in shown
    assert await say("quote", *options, "--json", *access(hub, submitter)) == 0
    quoted = json.loads(capsys.readouterr().out)
    with Client(hub.url, submitter.key) as client:
        before = client.credits.get()
        assert before.held_microcredits == 0
        client.submit(command=["true"], slices=3, wall_seconds=1_800, max_price="12.34")
        after = client.credits.get()
    assert after.held_microcredits == quoted["hold_microcredits"] > 0
    assert before.available_microcredits - after.available_microcredits == quoted["hold_microcredits"]
    assert quoted["cost"]["high_microcredits"] <= quoted["hold_microcredits"]


async def test_a_quote_says_why_it_is_dearer_than_yesterday(hub, dsn, submitter, node, capsys):
    await have_ticked(hub, dsn)
    async with connected(dsn) as conn:
        # A day ago twice as many slots were lent, at half the price.
        await conn.execute(
            "INSERT INTO spot_history SELECT tier, region, at - interval '25 hours', surge_ppm, "
            "spot_microcredits_per_hour / 2, reference_microcredits_per_hour, rate_card_version, 2 * slot_count, "
            "busy_count, waiting_count FROM spot_history"
        )
    assert await say("quote", *access(hub, submitter)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "100 % dearer than yesterday: fewer slots are lent (1, yesterday 2)" in shown


async def test_the_rate_card_spot_and_its_history_are_for_everybody(hub, dsn, node):
    await have_ticked(hub, dsn)
    with httpx.Client(base_url=hub.url, timeout=20) as anybody:
        card = anybody.get("/v1/market/rate-card").json()
        assert (card["base_microcredits_per_hour"], card["fee_ppm"]) == (12 * CREDIT, 200_000)
        assert anybody.get("/v1/market/rate-card", params={"version": card["version"]}).json() == card
        assert anybody.get("/v1/market/rate-card", params={"version": "gold"}).status_code == 404
        [spot] = anybody.get("/v1/market/spot").json()["spots"]
        assert (spot["tier"], spot["region"], spot["slot_count"]) == ("cpu", "default", 1)
        assert spot["reference_microcredits_per_hour"] == REFERENCE
        assert spot["spot_microcredits_per_hour"] == REFERENCE * spot["surge_ppm"] // 10**6
        [point] = anybody.get("/v1/market/history", params={"tier": "cpu"}).json()["points"]
        assert point["surge_ppm"] == spot["surge_ppm"]
        assert anybody.get("/v1/market/history", params={"tier": "gold"}).status_code == 400
        assert anybody.get("/v1/market/history", params={"tier": "cpu", "hours": "nan"}).status_code == 400
    async with connected(dsn) as conn:
        assert await conn.fetchval("SELECT array_agg(version) FROM rate_cards") == [card["version"]]


async def test_owners_see_what_their_machine_would_earn(hub, dsn, owner, node, capsys):
    await have_ticked(hub, dsn)
    assert await say("earnings", *access(hub, owner)) == 0
    shown = capsys.readouterr().out
    assert "1 slot of yours: cpu in the region default." in shown
    assert "rtx-4090" in shown
    table = shown.partition("TIMES")[2].partition("\n\n")[0]
    usual = [float(row.split()[3]) for row in table.splitlines()[1:]]
    assert len(usual) >= 11
    assert usual == sorted(usual), "an hour pays more, the higher the tier"
    assert await say("earnings", "--tier", "rtx-4090", "--country", "IN", "--json", *access(hub, owner)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["buckets"][0]["reference_microcredits_per_hour"] == 12 * 3 * 7 * CREDIT // 10


@dataclass
class Contest:
    """Three who pay any price have the one slot and a queue; a miser waits behind them for half the price."""

    payers: list[Client]
    paid: list[Any]
    miser: Client
    cheap: Any

    async def serve(self, node: ProtocolNode, count: int) -> tuple[Held, list[str]]:
        """The jobs of the next slices, in the order in which they were given; the node holds the last of them."""
        [held] = node.held.values()
        served = []
        for _ in range(count):
            [held] = await node.complete_and_claim(held)
            served.append(held.order["job_id"])
        return held, served


async def open_contest(hub: Any, dsn: str, node: ProtocolNode) -> Contest:
    miser = Client(hub.url, sign_up(hub.url, "miser").key)
    payers = [Client(hub.url, sign_up(hub.url, "payer").key) for _ in range(3)]
    paid = [payer.submit(command=["true"], slices=5, max_price=100) for payer in payers]
    await node.claim_one()
    contest = Contest(payers, paid, miser, miser.submit(command=["true"], max_price=5))
    await have_ticked(hub, dsn)
    return contest


@pytest.mark.timeout(280)
async def test_while_others_pay_spot_a_lower_ceiling_waits_and_then_it_runs_at_its_own(hub, dsn, node):
    contest = await open_contest(hub, dsn, node)
    [spot] = contest.miser.market.spot().spots
    assert spot.contested
    assert REFERENCE < spot.spot_microcredits_per_hour < 2 * REFERENCE
    quote = contest.miser.quote(max_price=5)
    assert [place.refusal for place in quote.places] == ["ceiling_below_spot"]
    asked = contest.cheap.why().waiting
    words = f"others pay {say_price(spot.spot_microcredits_per_hour)} in cpu/default now; your ceiling is 5 credits/h"
    assert [(gate.gate.value, gate.failed_count, gate.words) for gate in asked.gates] == [("spot", 1, words)]
    assert words[1:] in asked.words
    [suggestion] = asked.suggestions
    assert suggestion.requirements.ceiling_microcredits_per_hour >= spot.spot_microcredits_per_hour
    held, served = await contest.serve(node, 8)
    assert str(contest.cheap.id) not in served
    for job in contest.paid:
        job.cancel()
    await node.complete(held)
    node.forget(held.attempt_id)
    last = await node.claim_one()
    assert last.order["job_id"] == str(contest.cheap.id)
    async with connected(dsn) as conn:
        rates = await conn.fetch("SELECT DISTINCT rate_microcredits_per_hour AS rate FROM attempts ORDER BY rate")
    # The miser's own, the reference before the tick, and spot.
    assert [row["rate"] for row in rates] == [5 * CREDIT, REFERENCE, spot.spot_microcredits_per_hour]


@pytest.mark.timeout(280)
async def test_owners_use_their_own_machine_for_nothing_whatever_others_pay_for_it(hub, dsn, owner, node):
    contest = await open_contest(hub, dsn, node)
    with Client(hub.url, owner.key) as client:
        client.set_floor(node_id=node.node_id, credits_per_hour=80)
        before = client.credits.get().available_microcredits
        mine = client.submit(command=["true"], max_price=1)
        fixed = client.submit(command=["true"], price_per_slice="0.01")
        _, served = await contest.serve(node, 14)
        assert {str(mine.id), str(fixed.id)} <= set(served)
        assert str(contest.cheap.id) not in served
        assert client.credits.get().available_microcredits == before
    async with connected(dsn) as conn:
        rows = await conn.fetch("SELECT * FROM attempts WHERE job_id = ANY($1)", [mine.id, fixed.id])
    assert [row["charged_microcredits"] for row in rows] == [None, None]
    assert {row["rate_microcredits_per_hour"] or row["slice_price_microcredits"] or 0 for row in rows} == {0}


async def test_a_ceiling_below_every_floor_waits_and_says_why(hub, owner, submitter, node, capsys):
    with Client(hub.url, owner.key) as client:
        client.set_floor(node_id=node.node_id, credits_per_hour=20)
    with Client(hub.url, submitter.key) as client:
        # One says nothing of a price, and gets a ceiling from the hub; one names its own; one pays by the slice.
        jobs = [client.submit(command=["true"], **price) for price in ({}, {"max_price": 12}, {"price_per_slice": 9})]
        for job, instead in zip(jobs, ("14 credits/h", "12 credits/h", "9, and let"), strict=True):
            asked = job.why().waiting
            assert [gate.gate.value for gate in asked.gates] == ["price"]
            assert f"instead of {instead}" in asked.suggestions[0].changes[0].words
        assert await say("why", str(jobs[2].id), *access(hub, submitter)) == 0
        assert "computepool run --price-per-slice 25 --max-price-per-slice 20 ..." in capsys.readouterr().out
    assert (await node.next(wait_seconds=1.0)).status_code == 204


async def test_a_fixed_price_is_typed_agreed_paid_whole_or_by_its_part_and_explained(
    hub, submitter, owner, node, capsys
):
    price = ["--slices", "2", "--retries", "0", "--wall", "10m", "--price-per-slice", "2.5"]
    assert await say("quote", *price[:2], *price[4:], *access(hub, submitter)) == 0
    shown = capsys.readouterr().out
    assert "2 slices would cost 4 credits, likely; 4 at least, 4 at most." in shown
    assert await say("run", "--detach", *price, *access(hub, submitter), "--", "true") == 0
    job_id = capsys.readouterr().out.strip()
    [second] = await node.complete_and_claim(await node.claim_one())
    # A beat says that it runs; the node claims a minute of it and has had seconds.
    await node.heartbeat()
    await node.complete(second, exit_code=1, cause="exit_code", usage={"run_seconds": 60.0})
    with Client(hub.url, submitter.key) as client:
        job = client.get_job(job_id=job_id).job
        assert job.price.microcredits_per_slice == 2_500_000
        whole, part = client.books.job_statement(job_id=job.id, lines=JobLines.ATTEMPTS).attempts
    assert (whole.slice_price_microcredits, whole.rate_microcredits_per_hour) == (2 * CREDIT, None)
    assert whole.charged_microcredits == 2 * CREDIT
    assert 0 < part.charged_microcredits == 2 * CREDIT * part.metered_seconds // 600 < CREDIT
    assert job.charged_microcredits == whole.charged_microcredits + part.charged_microcredits
    # One day, or two around midnight.
    for day in {each.finished_at.date().isoformat() for each in (whole, part)}:
        asked = ["why", "--payment", "--node", str(node.node_id), "--day", day, "--all"]
        assert await say(*asked, *access(hub, owner)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fixed price 2 credits; rule metered" in shown
    assert "1.6 credits, the owner's part of the fixed price of 2 credits, as agreed." in shown
    assert "Everything agrees: rules, attempts and ledger." in shown


@pytest.mark.timeout(280)
async def test_control_where_spot_has_no_force_the_miser_is_served_among_the_first(start_hub, dsn):
    await stop_clock(dsn)
    hub = start_hub(program=("-m", "tests.support.planted_hub", "spot_without_force"))
    async with lend(hub, sign_up(hub.url, "owner")) as node:
        contest = await open_contest(hub, dsn, node)
        assert contest.miser.market.spot().spots[0].contested
        _, served = await contest.serve(node, 8)
    assert str(contest.cheap.id) in served


# The index

WASH_PRICE = 10 * REFERENCE


async def sell(node: ProtocolNode, buyer: Client, *, slices: int, max_price: int) -> None:
    """The node runs all of this job, and nobody else asks for work meanwhile."""
    buyer.submit(command=["true"], slices=slices, max_price=max_price, wall_seconds=60)
    for _ in range(slices):
        held = await node.claim_one()
        assert (await node.complete(held)).status_code == 200
        node.forget(held.attempt_id)


async def trade_with_oneself(hub: Any, dsn: str) -> Client:
    """Three honest deals; and thirty, at ten times the price, of two accounts that are paid out to one place. One
    tick looks at all of them."""
    honest, washer, straw = (sign_up(hub.url, name) for name in ("honest", "washer", "straw"))
    buyer = Client(hub.url, sign_up(hub.url, "buyer").key)
    async with lend(hub, honest) as node:
        await sell(node, buyer, slices=3, max_price=12)
    async with lend(hub, washer) as node:
        owner = Client(hub.url, washer.key)
        owner.set_floor(node_id=UUID(node.node_id), credits_per_hour=WASH_PRICE // CREDIT)
        owner.credits.set_payout_details(region="IN", destination="HDFC 0001")
        buyer_of_his_own = Client(hub.url, straw.key)
        buyer_of_his_own.credits.set_payout_details(region="US", destination="hdfc-0001")
        await sell(node, buyer_of_his_own, slices=30, max_price=120)
        await have_ticked(hub, dsn)
    async with connected(dsn) as conn:
        rates = await conn.fetch(
            "SELECT rate_microcredits_per_hour AS rate, count(*) AS n FROM attempts "
            "WHERE charged_microcredits > 0 GROUP BY 1 ORDER BY 1"
        )
    assert [(row["rate"], row["n"]) for row in rates] == [(REFERENCE, 3), (WASH_PRICE, 30)], "all of it was paid for"
    return buyer


@pytest.mark.timeout(280)
async def test_wash_trades_of_linked_accounts_do_not_move_the_index(hub, dsn, capsys):
    buyer = await trade_with_oneself(hub, dsn)
    [level] = buyer.market.index().levels
    assert (level.tier, level.region, level.price_microcredits_per_hour) == ("cpu", "default", REFERENCE)
    assert (level.deal_count, level.ratio_ppm) == (3, 10**6)
    [point] = buyer.market.index(tier="cpu").points
    assert point.price_microcredits_per_hour == REFERENCE
    with httpx.Client(base_url=hub.url, timeout=20) as anybody:
        assert anybody.get("/v1/market/index").json()["levels"][0]["deal_count"] == 3
        for bad in ({"tier": "gold"}, {"hours": "nan"}, {"hours": 1_000}):
            assert anybody.get("/v1/market/index", params=bad).status_code == 400
    assert await say("market", "--hub-url", hub.url) == 0
    # The honest slot may still be counted at the tick, without work: then spot has begun to fall.
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"cpu default (9.6 9.6 9.6 0|9.5 9.6 9.6 1) 0 0", shown), shown
    assert await say("market", "--tier", "cpu", "--hub-url", hub.url) == 0
    assert "Strangers paid 9.6, 100 % of the usual price: the median by time of 3 deals." in capsys.readouterr().out


@pytest.mark.timeout(280)
async def test_control_an_index_of_all_that_was_paid_is_moved_by_them(start_hub, dsn):
    await stop_clock(dsn)
    hub = start_hub(program=("-m", "tests.support.planted_hub", "index_of_everything"))
    buyer = await trade_with_oneself(hub, dsn)
    [level] = buyer.market.index().levels
    assert (level.price_microcredits_per_hour, level.deal_count) == (WASH_PRICE, 33)
