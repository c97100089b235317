"""Fixed prices per slice on a real database: what is held, agreed and paid, whatever happens to the slice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.ids import AccountId
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.accounts import owner_pending, submitter_available, submitter_held
from computepool.core.ledger.charging import (
    End,
    FrozenPrice,
    PriceMode,
    count_paid_seconds,
    price_attempt,
    price_seconds,
)
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.market.rate_card import Bucket
from computepool.core.placement.weights import Preference
from computepool.hub.http.jobs import to_attempt, to_job
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import billing
from computepool.hub.services import jobs as job_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.prices import load_rate_card, read_rate_card
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.jobs import JobPrice, Requirements
from computepool.wire.nodes import Gpu
from tests.support.builders import GB
from tests.support.paid_jobs import FAILED, acknowledge, lease, ran
from tests.support.spine import EnrolledNode, Spine, open_spine

CREDIT = 1_000_000
# On a slot without a card, where the rate card knows no discount: 12.5 x 0.8.
BASE, PRICE = 12_500_000, 10 * CREDIT
WALL_SECONDS = 100
# What the price comes to an hour.
RATE = PRICE * 36
CPU = Bucket("cpu", "default")


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine
        async with spine.pool.acquire() as conn:
            assert await ledger.list_drifts(conn) == []
        uncovered = "held_remaining < reserve_microcredits * " + (
            "(slice_count - succeeded_count - failed_count - cancelled_count)"
        )
        assert await spine.fetch(f"SELECT id FROM jobs WHERE finished_at IS NULL AND {uncovered}") == []
        assert await spine.fetch("SELECT id FROM jobs WHERE finished_at IS NOT NULL AND held_remaining > 0") == []


@pytest.fixture
async def submitter(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=1_000)


@pytest.fixture
async def node(spine: Spine) -> EnrolledNode:
    return await spine.enrol()


def fixed(microcredits: int | None = BASE, ceiling: int | None = None) -> JobPrice:
    return JobPrice(
        mode=PriceMode.PER_SLICE, microcredits_per_slice=microcredits, ceiling_microcredits_per_slice=ceiling
    )


async def submit(spine: Spine, by: AccountCaller, **spec: Any) -> Job:
    return await spine.submit(by=by, **{"price": fixed(), "wall_seconds": WALL_SECONDS, **spec})


async def balances(spine: Spine, account_id: AccountId) -> tuple[float, float, float]:
    """Available, held, and earned but held back, in credits."""
    accounts = [submitter_available(account_id), submitter_held(account_id), owner_pending(account_id)]
    async with spine.pool.acquire() as conn:
        found = await ledger.get_balances(conn, accounts)
    return tuple(found[account] / CREDIT for account in accounts)


async def ask_for(spine: Spine, node: EnrolledNode, floor: int) -> None:
    async with spine.pool.acquire() as conn:
        await conn.execute("UPDATE nodes SET floor_microcredits_per_hour = $1 WHERE id = $2", floor, node.id)


# What is held


@pytest.mark.parametrize(
    ("price", "held"),
    [
        ({"price": fixed()}, 30),
        ({"price": fixed(ceiling=8 * CREDIT)}, 24),
        ({"price": fixed(ceiling=10**12)}, 30),
        ({"price": fixed(None)}, 2.4),
        ({"price": fixed(None), "kind": "ml"}, 6),
        ({"price": fixed(), "requirements": Requirements(regions=("IN",))}, 21),
        ({"price": fixed(), "requirements": Requirements(tiers=("rtx-4090",))}, 112.5),
    ],
)
async def test_a_job_holds_what_its_slices_cost_on_the_dearest_slots_that_it_may_get(spine, submitter, price, held):
    job = await submit(spine, submitter, slice_count=3, **price)
    assert await balances(spine, submitter.account_id) == (1_000 - held, held, 0)
    shown = to_job(job)
    assert shown.price.mode is PriceMode.PER_SLICE
    assert shown.price.ceiling_microcredits_per_slice * 3 == shown.held_microcredits == held * CREDIT


async def test_a_job_that_the_account_cannot_pay_is_refused_with_the_figures(spine):
    poor = await spine.sign_up(credits=29)
    with pytest.raises(InsufficientCredits, match=r"up to 30 credits.*You have 29.*--max-price-per-slice"):
        await submit(spine, poor, slice_count=3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"price": fixed(0)}, "price.microcredits_per_slice is 0; it must be between 1"),
        ({"price": fixed(-1)}, "price.microcredits_per_slice is -1"),
        ({"price": fixed(10**15 + 1)}, "price.microcredits_per_slice is 1000000000000001"),
        ({"price": fixed(10**15), "slice_count": 2}, "more than any job may"),
        ({"price": fixed(ceiling=0)}, "price.ceiling_microcredits_per_slice is 0"),
        ({"price": fixed(None), "kind": "poetry"}, "there are compute, gaming, ml"),
        ({"price": fixed(1), "wall_seconds": 86_400}, "less than a microcredit an hour"),
        ({"price": JobPrice(microcredits_per_slice=1)}, "goes with price.mode per_slice"),
        ({"price": JobPrice(ceiling_microcredits_per_slice=1)}, "goes with price.mode per_slice"),
        (
            {"requirements": Requirements(ceiling_microcredits_per_hour=1)},
            "set price.ceiling_microcredits_per_slice instead",
        ),
    ],
)
async def test_a_price_that_is_none_is_refused_with_what_would_be_one(spine, submitter, spec, words):
    with pytest.raises(InvalidSpec, match=words):
        await submit(spine, submitter, **spec)
    assert await balances(spine, submitter.account_id) == (1_000, 0, 0)


# What is agreed


async def test_the_price_is_frozen_with_the_lease_and_the_attempt_says_so(spine, submitter, node):
    job = await submit(spine, submitter)
    grant = await spine.grant_one(node)
    row = await spine.attempt(grant)
    assert (row["slice_price_microcredits"], row["rate_microcredits_per_hour"]) == (PRICE, None)
    assert row["rate_card_version"] == spine.leases.prices.card.version
    [detail] = await job_service.list_slices(spine.pool, submitter, job.id, after=-1, limit=1, state=None)
    assert to_attempt(detail.attempts[0]).slice_price_microcredits == PRICE


async def test_a_slice_that_is_born_leased_and_a_hub_that_never_saw_the_job_agree_on_the_same(spine, submitter, node):
    other = await spine.enrol()
    spine.bench.put(await spine.list_candidates(other))
    await submit(spine, submitter, slice_count=2)
    [grant] = await spine.open_second_hub().grant(node)
    rows = await spine.fetch("SELECT slice_price_microcredits AS price FROM attempts")
    assert [row["price"] for row in rows] == [PRICE, PRICE]
    assert grant.slice_price_microcredits == PRICE


@pytest.mark.parametrize(
    ("hardware", "region", "price"),
    [({}, "IN", 7), ({}, "DE", 9.5), ({"gpus": (Gpu(name="RTX 4090", vram_bytes=24 * GB),)}, "IN", 10)],
    ids=["another region", "another", "no card was asked for"],
)
async def test_the_price_grows_with_tier_and_region_of_the_slot_and_never_past_what_is_held(
    spine, submitter, hardware, region, price
):
    node = await spine.enrol(**{"cpu_slots": 1, **hardware, **({"cpu_slots": 0} if hardware else {})})
    await spine.fetch("UPDATE nodes SET region = $2 WHERE id = $1", node.id, region)
    await submit(spine, submitter)
    assert (await spine.grant_one(node)).slice_price_microcredits == price * CREDIT


async def test_a_dearer_rate_card_takes_no_more_than_is_held_and_the_base_stays_as_it_was_agreed(
    spine, submitter, node
):
    by_figure = await submit(spine, submitter)
    by_card = await submit(spine, submitter, price=fixed(None))
    _, text = read_rate_card()
    spine.leases.prices.card = load_rate_card(
        text.replace("cpu = 0.8", "cpu = 1.6").replace("compute = 1.0", "compute = 9.0")
    )
    grants = {grant.job_id: grant for grant in [await spine.grant_one(node), *await spine.grant(await spine.enrol())]}
    assert grants[by_figure.id].slice_price_microcredits == PRICE
    assert grants[by_card.id].slice_price_microcredits == 800_000


# Who takes it


@pytest.mark.parametrize(("floor", "granted"), [(RATE, 1), (RATE + 1, 0)])
async def test_the_owners_floor_holds_for_the_whole_wall_limit(spine, submitter, node, floor, granted):
    await ask_for(spine, node, floor)
    await submit(spine, submitter)
    assert len(await spine.grant(node)) == granted


@pytest.mark.parametrize(("spot", "granted"), [(RATE, 1), (RATE + 1, 0)])
async def test_where_others_wait_and_pay_spot_a_price_that_comes_to_less_waits(spine, submitter, node, spot, granted):
    prices = spine.leases.prices
    prices.spots, prices.contested = {CPU: spot}, frozenset({CPU})
    await submit(spine, submitter)
    assert len(await spine.grant(node)) == granted


async def test_where_nobody_waits_spot_is_nothing_to_a_fixed_price(spine, submitter, node):
    spine.leases.prices.spots = {CPU: 1_000 * RATE}
    await submit(spine, submitter)
    assert (await spine.grant_one(node)).slice_price_microcredits == PRICE


@pytest.mark.parametrize(("price", "taken"), [(fixed(), "IN"), (JobPrice(), "US")], ids=["fixed", "by the second"])
async def test_cheapest_is_where_the_slice_costs_least_whatever_others_pay_there_by_the_hour(
    spine, submitter, price, taken
):
    """In one region tier and region make the price small, in the other spot is low."""
    spine.leases.prices.spots = {Bucket("cpu", "in"): 9 * CREDIT, Bucket("cpu", "us"): 8 * CREDIT}
    nodes = {}
    for region in ("IN", "US"):
        nodes[region] = await spine.enrol()
        await spine.fetch("UPDATE nodes SET region = $2 WHERE id = $1", nodes[region].id, region)
    await submit(spine, submitter, price=price, prefer=Preference.CHEAPEST)
    [grant] = await spine.grant(*nodes.values())
    assert grant.node_id == nodes[taken].id


# What is paid


@pytest.mark.parametrize("seconds", [0.0, 1.0, 40.0, 1e9])
async def test_a_result_costs_the_whole_price_however_long_it_took(spine, submitter, node, seconds):
    await submit(spine, submitter)
    grant = await lease(spine, node)
    await spine.succeed(node, grant, **ran(seconds))
    assert await balances(spine, submitter.account_id) == (990, 0, 0)
    assert (await balances(spine, node.caller.account_id))[2] == 8
    row = await spine.attempt(grant)
    assert (row["charged_microcredits"], row["fee_microcredits"]) == (PRICE, PRICE // 5)


async def test_the_submitters_own_failure_costs_its_part_and_another_try_is_covered_anew(spine, submitter, node):
    job = await submit(spine, submitter, retries=3)
    await spine.succeed(node, await lease(spine, node), **FAILED, **ran(30.0))
    assert await balances(spine, submitter.account_id) == (987, 10, 0)
    assert await spine.slice_state(job) == "queued"
    other = await spine.enrol()
    await spine.succeed(other, await lease(spine, other), **ran(1.0))
    assert await balances(spine, submitter.account_id) == (987, 0, 0)
    assert await spine.fetch_value("SELECT charged_microcredits FROM jobs WHERE id = $1", job.id) == 13 * CREDIT


async def test_with_nothing_left_for_another_try_the_slice_ends_with_what_went_wrong(spine, node):
    poor = await spine.sign_up(credits=12)
    job = await submit(spine, poor, retries=3)
    await spine.succeed(node, await lease(spine, node), **FAILED, **ran(30.0))
    assert await spine.slice_state(job) == "failed"
    assert await balances(spine, poor.account_id) == (9, 0, 0)


async def test_what_ran_into_its_limit_costs_all_of_it(spine, submitter, node):
    await submit(spine, submitter, retries=0)
    grant = await lease(spine, node, held_seconds=101.0)
    await spine.succeed(node, grant, exit_code=None, cause=Cause.TIMED_OUT, **ran(100.0))
    assert await balances(spine, submitter.account_id) == (990, 0, 0)


@pytest.mark.parametrize(("running", "cost"), [(True, 5), (False, 0)], ids=["running", "not yet begun"])
async def test_who_cancels_pays_for_the_part_that_has_run(spine, submitter, node, running, cost):
    job = await submit(spine, submitter)
    grant = await lease(spine, node, held_seconds=49.5)
    if running:
        await acknowledge(spine, node, grant)
    await job_service.cancel_job(spine.pool, submitter, job.id)
    available, held, _ = await balances(spine, submitter.account_id)
    assert held == 0
    assert available == pytest.approx(1_000 - cost, abs=0.2)


async def test_a_nodes_fault_costs_nothing(spine, submitter, node):
    await submit(spine, submitter)
    await spine.succeed(node, await lease(spine, node), exit_code=None, cause=Cause.GPU_LOST, **ran(30.0))
    assert await balances(spine, submitter.account_id) == (990, 10, 0)


async def test_a_silent_node_is_paid_nothing_unless_it_delivers_after_all(spine, submitter, node):
    await submit(spine, submitter)
    grant = await lease(spine, node)
    await spine.let_lease_pass(grant)
    await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=10)
    assert await balances(spine, submitter.account_id) == (990, 10, 0)
    await spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    rival = await spine.grant_one(await spine.enrol())
    await spine.succeed(node, grant, **ran(20.0))
    assert await balances(spine, submitter.account_id) == (990, 0, 0)
    assert (await spine.attempt(rival))["charged_microcredits"] is None


# One's own machines


async def put_out_of_reach(spine: Spine, node: EnrolledNode) -> None:
    """For strangers: a floor above all ceilings, and others who pay more still."""
    await ask_for(spine, node, 1_000 * RATE)
    prices = spine.leases.prices
    prices.spots, prices.contested = {CPU: 2_000 * RATE}, frozenset({CPU})


CHEAP = {"requirements": Requirements(ceiling_microcredits_per_hour=1), "price": JobPrice()}


@pytest.mark.parametrize("spec", [{}, CHEAP], ids=["per slice", "per second"])
async def test_neither_floor_nor_spot_nor_ceiling_keeps_owners_from_their_own_slots_which_are_free(spine, node, spec):
    owner = await spine.sign_up(credits=1_000)
    own, stranger = await spine.enrol(owner=owner, cpu_slots=2), await spine.sign_up(credits=1_000)
    await put_out_of_reach(spine, own)
    theirs = await submit(spine, stranger, **spec)
    mine = await submit(spine, owner, slice_count=3, **spec)
    grants = await spine.grant(node, own)
    assert {(grant.job_id, grant.node_id) for grant in grants} == {(mine.id, own.id)}
    assert len(grants) == 2
    assert await spine.slice_state(theirs) == "queued"
    for grant in grants:
        row = await spine.attempt(grant)
        assert (row["rate_microcredits_per_hour"] or 0, row["slice_price_microcredits"] or 0) == (0, 0)
        await spine.succeed(own, grant, **ran(40.0))
    await job_service.cancel_job(spine.pool, owner, mine.id)
    assert await balances(spine, owner.account_id) == (1_000, 0, 0)


@pytest.mark.parametrize("spec", [{}, CHEAP], ids=["per slice", "per second"])
async def test_a_job_is_born_on_its_owners_slot_where_a_strangers_in_the_same_batch_found_none(spine, node, spec):
    owner, stranger = await spine.sign_up(credits=1_000), await spine.sign_up(credits=1_000)
    own = await spine.enrol(owner=owner)
    await put_out_of_reach(spine, own)
    spine.bench.put(await spine.list_candidates(own))
    spec = {"price": fixed(), "wall_seconds": WALL_SECONDS, **spec}
    submitted = await spine.submit_all(*(spine.submission(by, **spec) for by in (stranger, owner, stranger)))
    [grant] = submitted.grants
    assert (grant.account_id, grant.node_id) == (owner.account_id, own.id)


async def test_control_a_hub_that_knows_no_owners_lets_them_wait(spine, node):
    owner = await spine.sign_up(credits=1_000)
    own = await spine.enrol(owner=owner)
    await put_out_of_reach(spine, own)
    await submit(spine, owner)
    await spine.fetch("UPDATE nodes SET account_id = $2 WHERE id = $1", own.id, node.caller.account_id)
    assert await spine.grant(own) == []


# Controls: the same day under a hub with a planted bug


async def live_a_day(spine: Spine, submitter: AccountCaller) -> list[float]:
    """What came of: a result of 20 s, a failure of 30 s, a cancelled run of 50 s, a node that was lost."""
    costs = []
    for end in (deliver, fail, cancel, vanish):
        node = await spine.enrol()
        job = await submit(spine, submitter, retries=0)
        grant = await lease(spine, node, held_seconds=49.5)
        await acknowledge(spine, node, grant)
        await end(spine, submitter, node, job, grant)
        charged = (await spine.attempt(grant))["charged_microcredits"] or 0
        costs.append(round(charged / CREDIT, 1))
        await job_service.cancel_job(spine.pool, submitter, job.id)
    return costs


async def deliver(spine: Spine, _: AccountCaller, node: EnrolledNode, __: Job, grant: Grant) -> None:
    await spine.succeed(node, grant, **ran(20.0))


async def fail(spine: Spine, _: AccountCaller, node: EnrolledNode, __: Job, grant: Grant) -> None:
    await spine.succeed(node, grant, **FAILED, **ran(30.0))


async def cancel(spine: Spine, submitter: AccountCaller, _: EnrolledNode, job: Job, __: Grant) -> None:
    await job_service.cancel_job(spine.pool, submitter, job.id)


async def vanish(spine: Spine, _: AccountCaller, __: EnrolledNode, ___: Job, grant: Grant) -> None:
    await spine.let_lease_pass(grant)
    await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=10)


A_DAY = [10, 3, 5, 0]


async def test_a_day_costs_what_the_rules_say(spine, submitter):
    assert await live_a_day(spine, submitter) == A_DAY


def by_the_second(price: FrozenPrice, end: End, **_: Any) -> int:
    return price_seconds(RATE, count_paid_seconds(end))


def all_of_it_for_a_failure(price: FrozenPrice, end: End, **_: Any) -> int:
    return price.microcredits if count_paid_seconds(end) else 0


def nothing_for_a_failure(price: FrozenPrice, end: End, **options: Any) -> int:
    return price_attempt(price, end, **options) if end.cause is None else 0


def all_of_it_for_a_lost_node(price: FrozenPrice, end: End, **options: Any) -> int:
    return price.microcredits if end.cause is Cause.NODE_VANISHED else price_attempt(price, end, **options)


@pytest.mark.parametrize(
    "bug", [by_the_second, all_of_it_for_a_failure, nothing_for_a_failure], ids=lambda bug: bug.__name__
)
async def test_control_a_hub_that_charges_otherwise_is_noticed(
    spine, submitter, monkeypatch, bug: Callable[..., int]
):
    monkeypatch.setattr(billing, "price_attempt", bug)
    assert await live_a_day(spine, submitter) != A_DAY


async def test_control_a_hub_that_pays_a_lost_node_is_noticed(spine, submitter, monkeypatch):
    """To be lost is no end, so the hub must take it for one, too."""
    monkeypatch.setattr(billing, "price_attempt", all_of_it_for_a_lost_node)
    monkeypatch.setattr(billing, "_UNENDED", billing._UNENDED[:2])
    assert await live_a_day(spine, submitter) != A_DAY
