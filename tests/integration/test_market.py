"""The market on a real database: what a tick counts and moves, that it happens once, and what hubs make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from computepool import clock, entropy
from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.jobs.spec import Requirements
from computepool.core.market.index import find_median
from computepool.core.market.offers import Audience
from computepool.core.market.rate_card import Bucket, parse_rate_card
from computepool.core.market.spot import RULE, TICK_SECONDS
from computepool.core.placement.price import SlicePrice
from computepool.core.placement.scorers import make_candidate
from computepool.core.placement.shape import to_shape
from computepool.hub.services import market as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.hub.store import audit, checkpoints
from computepool.hub.store import market as store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.market import StoredSpot
from computepool.hub.store.upgrade import ADVISORY_LOCK
from computepool.wire.nodes import Gpu
from tests.support.builders import GB
from tests.support.market_rows import insert_index, insert_point
from tests.support.stored_grid import StoredGrid, open_grid

CARD = load_rate_card()
SHIPPED = files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8")
CPU = Bucket("cpu", "in")
REFERENCE = CARD.reference(CPU)
PPM = 1_000_000
DEAR, CHEAP = 100 * PPM, REFERENCE // 2


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[StoredGrid]:
    async with open_grid(dsn) as grid:
        yield grid


@pytest.fixture
async def owner(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


@pytest.fixture
def prices() -> PriceBook:
    return PriceBook(CARD, holdback_seconds=60)


async def lend(grid: StoredGrid, owner: AccountCaller, count: int, **options: Any) -> list[Any]:
    return [await grid.enrol(owner, region="IN", **options) for _ in range(count)]


async def queue(grid: StoredGrid, by: AccountCaller, slices: int, *, ceiling: int = DEAR, **need: Any) -> Any:
    asked = Requirements(ceiling_microcredits_per_hour=ceiling, **need)
    return await grid.add_job(by, slices=slices, need=asked)


async def occupy(grid: StoredGrid, by: AccountCaller, nodes: list[Any], *, ceiling: int = DEAR) -> None:
    """One slice of this account runs on the first slot of each node."""
    job_id = await queue(grid, by, len(nodes), ceiling=ceiling)
    for index, node_id in enumerate(nodes):
        await grid.add_attempt(job_id, node_id, "cpu:0", index=index, expected_seconds=120.0)


async def tick(grid: StoredGrid, every_seconds: float = 0.0) -> Any:
    return await service.tick(
        grid.pool, CARD, silence_seconds=grid.settings.lease_seconds, every_seconds=every_seconds
    )


async def tick_cpu(grid: StoredGrid) -> StoredSpot:
    return (await tick(grid))[CPU]


# What moves it


async def test_a_queue_raises_spot_step_by_step_and_within_bounds(grid, owner):
    nodes = await lend(grid, owner, 4)
    await occupy(grid, await grid.sign_up(), nodes)
    for _ in range(6):
        await queue(grid, await grid.sign_up(), 5)
    surges = [PPM]
    for _ in range(40):
        found = await tick_cpu(grid)
        assert (found.slot_count, found.busy_count, found.waiting_count) == (4, 4, 30)
        assert found.spot_microcredits_per_hour == REFERENCE * found.state.surge_ppm // PPM
        surges.append(found.state.surge_ppm)
    for before, after in pairwise(surges):
        assert before <= after <= before + before * RULE.step_ppm_max // PPM
    assert surges[1] > PPM
    assert RULE.surge_ppm_max * 95 // 100 <= surges[-1] <= RULE.surge_ppm_max


async def test_control_the_same_slots_without_a_queue_do_not_rise_above_the_reference(grid, owner):
    nodes = await lend(grid, owner, 4)
    await occupy(grid, await grid.sign_up(), nodes)
    for _ in range(5):
        assert (await tick_cpu(grid)).spot_microcredits_per_hour <= REFERENCE


async def test_a_queue_that_pays_less_than_spot_does_not_move_it(grid, owner):
    nodes = await lend(grid, owner, 2)
    await occupy(grid, await grid.sign_up(), nodes)
    for _ in range(4):
        await queue(grid, await grid.sign_up(), 10, ceiling=CHEAP)
    found = await tick_cpu(grid)
    assert found.spot_microcredits_per_hour <= REFERENCE
    assert (found.waiting_count, found.contested) == (0, False)


async def test_work_with_a_ceiling_below_spot_fills_slots_and_does_not_count_as_busy(grid, owner):
    nodes = await lend(grid, owner, 2)
    await occupy(grid, await grid.sign_up(), nodes[:1], ceiling=CHEAP)
    await occupy(grid, await grid.sign_up(), nodes[1:])
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count) == (2, 1)
    assert found.seconds_mean == 120
    assert dict(found.bids) == {
        to_shape(Requirements(ceiling_microcredits_per_hour=each)).ceiling_microcredits_per_hour: 120
        for each in (CHEAP, DEAR)
    }


async def test_a_slot_whose_floor_is_above_spot_is_no_supply(grid, owner):
    await lend(grid, owner, 1)
    await lend(grid, owner, 2, floor=REFERENCE + 1)
    assert (await tick_cpu(grid)).slot_count == 1


async def test_a_node_that_is_silent_or_paused_is_no_supply(grid, owner):
    await lend(grid, owner, 1)
    await lend(grid, owner, 1, online=False)
    [paused] = await lend(grid, owner, 1)
    await grid.execute("UPDATE nodes SET state = 'paused' WHERE id = $1", paused)
    assert (await tick_cpu(grid)).slot_count == 1


async def test_a_node_that_is_closed_or_kept_for_a_private_pool_is_no_supply_and_its_work_no_demand(grid, owner):
    friend = await grid.sign_up()
    await lend(grid, owner, 1)
    private, named, closed, open_ = await lend(grid, owner, 4)
    await grid.set_offer(owner, private, audience=Audience.OWN)
    await grid.set_offer(owner, named, audience=Audience.NAMED, accounts=(str(friend.account_id),))
    now = clock.now()
    await grid.set_offer(owner, closed, **hours_of(now + timedelta(days=3)))
    await grid.set_offer(owner, open_, hours="mon-sun", zone="Asia/Kolkata", seconds_min=60, kinds=("ml",))
    assert (await tick_cpu(grid)).slot_count == 2
    await occupy(grid, friend, [named, closed])
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count, found.seconds_mean) == (2, 0, None)
    await grid.set_offer(owner, closed, **hours_of(now))
    await grid.set_offer(owner, named)
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count) == (4, 2), "the control: they were counted before"


def hours_of(moment: datetime) -> dict[str, str]:
    """Open around this hour of the week."""
    return {"hours": f"{moment:%A} {moment.hour}-{(moment.hour + 2) % 24}", "zone": "UTC"}


@pytest.mark.parametrize(
    ("terms", "need", "presses"),
    [
        ({"kinds": ("ml",)}, {"job_kind": "ml"}, True),
        ({"kinds": ("ml",)}, {}, False),
        ({"seconds_min": 60}, {"slice_seconds": 60}, True),
        ({"seconds_min": 60}, {"slice_seconds": 59}, False),
    ],
)
async def test_who_waits_presses_only_where_owners_take_such_work(grid, owner, terms, need, presses):
    [node] = await lend(grid, owner, 1)
    await grid.set_offer(owner, node, **terms)
    await queue(grid, await grid.sign_up(), 10, **need)
    assert (await tick_cpu(grid)).waiting_count == (10 if presses else 0)


async def test_owners_do_not_lift_the_price_by_work_of_their_own(grid, owner):
    nodes = await lend(grid, owner, 4)
    await lend(grid, await grid.sign_up(), 4)
    await occupy(grid, owner, nodes)
    await queue(grid, owner, 500)
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count) == (4, 0), "what runs one's own work is neither supply nor busy"
    assert found.state.surge_ppm <= PPM


async def test_nor_by_work_of_an_account_that_is_paid_out_to_the_same_place(grid, owner):
    nodes = await lend(grid, owner, 4)
    await lend(grid, await grid.sign_up(), 4)
    straw = await grid.sign_up()
    await occupy(grid, straw, nodes)
    await queue(grid, straw, 500)
    await link(grid, owner, straw)
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count) == (4, 0)
    assert found.state.surge_ppm <= PPM


async def test_control_the_same_work_of_a_stranger_does_lift_it(grid, owner):
    nodes = await lend(grid, owner, 4)
    others = await lend(grid, await grid.sign_up(), 4)
    stranger = await grid.sign_up()
    await occupy(grid, stranger, [*nodes, *others])
    await queue(grid, stranger, 500)
    found = await tick_cpu(grid)
    assert (found.slot_count, found.busy_count) == (8, 8)
    assert found.state.surge_ppm > PPM


async def test_who_waits_presses_only_where_they_could_run(grid, owner):
    await lend(grid, owner, 1)
    await lend(grid, owner, 1, gpus=(Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=25_769_803_776),))
    for _ in range(3):
        await queue(grid, await grid.sign_up(), 10, gpu=True, vram_bytes=16 * GB)
    found = await tick(grid)
    assert found[Bucket("rtx-4090", "in")].waiting_count == 30
    assert found[CPU].waiting_count == 0


async def test_a_fixed_price_bids_in_each_bucket_what_it_comes_to_there(grid, owner):
    """Over ten minutes, at a base of 1.05 credits: 3.5 an hour on a CPU in India and 13.125 on an RTX 4090."""
    cheap, cards = replace(CARD, base_microcredits_per_hour=5 * PPM), Bucket("rtx-4090", "in")
    await lend(grid, owner, 1)
    gpu = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=25_769_803_776)
    nodes = await lend(grid, owner, 2, gpus=(gpu,), cpu_slots=0)
    need = Requirements(slice_price=SlicePrice(1_050_000, 10**9, 600))
    running = await grid.add_job(await grid.sign_up(), need=need)
    await grid.add_attempt(running, nodes[0], "gpu:0", expected_seconds=120.0)
    for _ in range(3):
        await grid.add_job(await grid.sign_up(), slices=10, need=need)
    found = await service.tick(grid.pool, cheap, silence_seconds=60, every_seconds=0)
    assert (found[CPU].waiting_count, found[cards].waiting_count) == (12, 21), "in each by its part of the slots"
    assert (found[cards].busy_count, found[cards].bids) == (1, ((13_125_000, 120),))
    await grid.execute("UPDATE spot_states SET surge_ppm = 2000000, target_ppm = 2000000 WHERE tier = 'cpu'")
    found = await service.tick(grid.pool, cheap, silence_seconds=60, every_seconds=0)
    assert (found[CPU].waiting_count, found[cards].waiting_count) == (0, 30)


async def test_a_bucket_that_has_gone_dark_keeps_its_surge_and_loses_its_force(grid, owner):
    nodes = await lend(grid, owner, 1)
    await occupy(grid, await grid.sign_up(), nodes)
    for _ in range(3):
        await queue(grid, await grid.sign_up(), 10)
    lit = await tick_cpu(grid)
    assert lit.contested
    await grid.execute("UPDATE nodes SET last_seen_at = now() - interval '1 day'")
    dark = await tick_cpu(grid)
    assert dark.state == lit.state
    assert (dark.slot_count, dark.contested) == (0, False)


async def test_slots_are_priced_in_the_same_buckets_by_the_tick_and_by_a_lease(grid, owner, prices):
    """Two ways to one answer: SQL over the fleet, and the price book slot by slot."""
    cards = [("NVIDIA GeForce RTX 4090", 25_769_803_776, None), ("Some Card", 8 * GB, None)]
    cards += [("Some Card", 8 * GB, tflops) for tflops in (0.5, 4.9, 5.0, 5.5, 8.0, 500.0)]
    nodes = []
    for country in (None, "IN", "DE", "GB", "US", "BR"):
        for name, vram_bytes, tflops in cards:
            gpu = Gpu(name=name, vram_bytes=vram_bytes, tflops=tflops)
            nodes.append(await grid.enrol(owner, region=country, gpus=(gpu,)))
    expected: dict[Bucket, int] = {}
    async with grid.pool.acquire() as conn:
        for each in await node_store.list_candidates(conn, nodes):
            candidate = make_candidate(
                each.slot, price_microcredits_per_hour=0, reliability=1, declared_tflops=each.declared_tflops
            )
            bucket = prices.find_bucket(candidate.slot, candidate.speed_tflops)
            expected[bucket] = expected.get(bucket, 0) + 1
    found = await tick(grid)
    assert {bucket: each.slot_count for bucket, each in found.items()} == expected
    assert len({bucket.tier for bucket in expected}) >= 4


# The index


async def pay(
    grid: StoredGrid, by: AccountCaller, node_id: Any, price: int, seconds: int, *, ago: float = 1.0, **columns: Any
) -> None:
    """An attempt that ended and was paid for."""
    at = clock.now() - timedelta(seconds=ago)
    await grid.add_attempt(
        await grid.add_job(by),
        node_id,
        "cpu:0",
        **{
            "state": "succeeded",
            "leased_at": at - timedelta(seconds=seconds),
            "finished_at": at,
            "rate_microcredits_per_hour": price,
            "charged_microcredits": price * seconds // 3_600,
            "fee_microcredits": 0,
            "earning_state": "pending",
            "release_at": at,
            **columns,
        },
    )


async def link(grid: StoredGrid, *accounts: AccountCaller, places: list[str] | None = None) -> None:
    for account, place in zip(accounts, places or ["bank 1"] * len(accounts), strict=True):
        await grid.execute(
            "INSERT INTO payout_details (id, account_id, region, currency, destination) "
            "VALUES ($1, $2, 'IN', 'INR', $3)",
            entropy.new_id(),
            account.account_id,
            place,
        )


async def read_index(grid: StoredGrid, bucket: Bucket | None = CPU, hours: float = 24) -> Any:
    return await service.find_index(grid.pool, CARD, bucket, hours=hours)


async def test_every_tick_keeps_what_strangers_paid_by_the_median_of_seconds(grid, owner):
    [node] = await lend(grid, owner, 1)
    buyer = await grid.sign_up()
    for price, seconds in ((6 * PPM, 600), (8 * PPM, 700), (9 * PPM, 600)):
        await pay(grid, buyer, node, price, seconds)
    await tick(grid)
    [level], [point] = await read_index(grid)
    assert level.bucket == CPU
    assert level.level == point.level
    assert (level.level.price_microcredits_per_hour, level.level.deal_count) == (8 * PPM, 3)
    assert level.level.seconds == 1_900
    assert level.level.ratio_ppm == 8 * PPM * PPM // REFERENCE
    assert level.reference_microcredits_per_hour == REFERENCE
    assert (await read_index(grid, None))[0] == [level]


async def test_a_deal_counts_at_one_tick_only_and_what_was_not_paid_at_none(grid, owner):
    [node] = await lend(grid, owner, 1)
    buyer = await grid.sign_up()
    await pay(grid, buyer, node, 8 * PPM, 600)
    unpaid = {"charged_microcredits": None, "fee_microcredits": None, "earning_state": None, "release_at": None}
    await pay(grid, buyer, node, 80 * PPM, 6_000, **unpaid)
    await pay(grid, buyer, node, 80 * PPM, 6_000, earning_state="reversed")
    await tick(grid)
    await tick(grid)
    assert await grid.fetch_value("SELECT count(*) FROM price_index") == 1
    [level], _ = await read_index(grid)
    assert (level.level.price_microcredits_per_hour, level.level.deal_count) == (8 * PPM, 1)


async def test_a_tick_after_a_long_silence_looks_back_for_an_hour(grid, owner):
    [node] = await lend(grid, owner, 1)
    buyer = await grid.sign_up()
    await pay(grid, buyer, node, 8 * PPM, 600, ago=3_500)
    await pay(grid, buyer, node, 20 * PPM, 6_000, ago=3_700)
    await grid.execute("INSERT INTO market_clock (ticked_at) VALUES (now() - interval '1 day')")
    await tick(grid)
    [level], _ = await read_index(grid)
    assert level.level.price_microcredits_per_hour == 8 * PPM


@dataclass
class Washing:
    """An honest deal, and two accounts that trade with each other at ten times the price and for far longer."""

    owner: AccountCaller
    straw: AccountCaller

    @classmethod
    async def open(cls, grid: StoredGrid) -> Washing:
        owner, straw = await grid.sign_up(), await grid.sign_up()
        [node] = await lend(grid, owner, 1)
        await pay(grid, await grid.sign_up(), node, 8 * PPM, 600)
        for _ in range(20):
            await pay(grid, straw, node, 80 * PPM, 3_000)
        return cls(owner, straw)


async def read_price(grid: StoredGrid) -> int:
    await tick(grid)
    [level], _ = await read_index(grid)
    return int(level.level.price_microcredits_per_hour)


@pytest.mark.parametrize(
    "places",
    [["bank 1", "bank 1"], ["UPI anna@bank", "upi: Anna@Bank"], ["DE12 3456", "de123456"]],
    ids=["the same words", "other letters", "other gaps"],
)
async def test_deals_between_accounts_that_are_paid_out_to_one_place_do_not_move_the_index(grid, places):
    washing = await Washing.open(grid)
    await link(grid, washing.owner, washing.straw, places=places)
    assert await read_price(grid) == 8 * PPM


async def test_nor_between_accounts_that_are_linked_through_a_third(grid):
    washing, third = await Washing.open(grid), await grid.sign_up()
    await link(grid, washing.owner, third, places=["bank 1", "bank 1"])
    await link(grid, third, washing.straw, places=["bank 2", "bank 2"])
    assert await read_price(grid) == 8 * PPM


async def test_nor_does_a_new_place_to_be_paid_out_to_undo_a_link(grid):
    washing = await Washing.open(grid)
    await link(grid, washing.owner, washing.straw)
    await link(grid, washing.straw, places=["another bank"])
    assert await read_price(grid) == 8 * PPM


@pytest.mark.parametrize(
    "columns",
    [
        {"pooled": True},
        {"rate_microcredits_per_hour": None, "slice_price_microcredits": 80 * PPM},
    ],
    ids=["in a private pool", "at a fixed price per slice"],
)
async def test_nor_do_deals_that_say_nothing_of_what_strangers_pay_for_an_hour(grid, columns):
    owner, buyer = await grid.sign_up(), await grid.sign_up()
    [node] = await lend(grid, owner, 1)
    await pay(grid, buyer, node, 8 * PPM, 600)
    for _ in range(20):
        await pay(grid, buyer, node, 80 * PPM, 3_000, **columns)
    assert await read_price(grid) == 8 * PPM


async def test_control_the_same_deals_between_strangers_move_it(grid):
    washing = await Washing.open(grid)
    await link(grid, washing.owner, washing.straw, places=["bank 1", "bank 2"])
    assert await read_price(grid) == 80 * PPM


async def test_the_index_over_a_long_time_is_the_median_of_its_ticks_and_is_thinned_out(grid):
    """Two ways to one answer: SQL over many ticks, and the rule of core."""
    counted = []
    for number in range(50):
        price, seconds = 5 * PPM + number * number % 37 * 100_000, 60 + number * 7 % 50
        counted.append((price, seconds))
        await grid.execute(
            insert_index(
                at=f"now() - interval '{number * 29 + 1} minutes'", price_microcredits_per_hour=price, seconds=seconds
            )
        )
    [level], points = await read_index(grid, hours=48)
    assert level.level.price_microcredits_per_hour == find_median(sorted(counted))
    assert (level.level.deal_count, level.level.seconds) == (50, sum(seconds for _, seconds in counted))
    assert [point.level.price_microcredits_per_hour for point in points] == [price for price, _ in counted[::-1]]
    with patch.object(service, "HISTORY_POINTS_MAX", 10):
        _, thin = await read_index(grid, hours=48)
    assert 5 <= len(thin) <= 12
    assert sum(point.level.deal_count for point in thin) == 50


async def test_an_index_of_too_long_a_time_or_of_a_strange_bucket_is_refused(grid):
    for hours in (0, -1, float("nan"), 49):
        with pytest.raises(InvalidRequest, match="48 at most"):
            await read_index(grid, None, hours)
    assert await read_index(grid, CPU, 49) == ([], [])
    with pytest.raises(InvalidRequest, match="2,160 at most"):
        await read_index(grid, CPU, 2_161)
    with pytest.raises(InvalidRequest, match="no tier"):
        await read_index(grid, Bucket("gold", "in"))


# Once for all hubs


async def test_hubs_that_tick_at_the_same_time_tick_once_and_not_again_before_it_is_time(grid, owner):
    await lend(grid, owner, 2)
    found = await asyncio.gather(*(tick(grid, TICK_SECONDS) for _ in range(4)))
    assert sum(each is not None for each in found) == 1
    assert await tick(grid, TICK_SECONDS) is None
    assert await grid.fetch_value("SELECT count(*) FROM spot_history") == 1
    await grid.execute("UPDATE market_clock SET ticked_at = ticked_at - $1 * interval '1 second'", TICK_SECONDS)
    assert await tick(grid, TICK_SECONDS) is not None
    assert await grid.fetch_value("SELECT count(*) FROM spot_history") == 2


async def test_control_without_the_lock_two_hubs_tick_at_once(grid, owner):
    await lend(grid, owner, 2)
    here, both_here = [], asyncio.Event()

    async def anyone(conn: Any) -> bool:
        here.append(conn)
        if len(here) == 2:
            both_here.set()
        await asyncio.wait_for(both_here.wait(), 60)
        return True

    with patch.object(store, "try_lock", anyone), patch.object(store, "set_clock", lambda *_: asyncio.sleep(0)):
        found = await asyncio.gather(*(tick(grid, TICK_SECONDS) for _ in range(2)))
    assert sum(each is not None for each in found) == 2


async def test_history_older_than_ninety_days_is_dropped_by_the_tick(grid, owner):
    await lend(grid, owner, 1)
    for days in (91, 120, 89, 1):
        await grid.execute(insert_point(at=f"now() - interval '{days} days'"))
        await grid.execute(insert_index(at=f"now() - interval '{days} days'"))
    await tick(grid)
    for table, left in (("spot_history", [89, 1, 0]), ("price_index", [89, 1])):
        ages = await grid.fetch_value(f"SELECT array_agg(extract(day FROM now() - at) ORDER BY at) FROM {table}")
        assert [int(age) for age in ages] == left


async def test_a_bite_of_old_history_is_bounded(grid, owner):
    for days in range(100, 105):
        await grid.execute(insert_point(at=f"now() - interval '{days} days'"))
    with patch.object(service, "HISTORY_DELETED_MAX", 2):
        for left in (3, 1, 0):
            await tick(grid)
            assert await grid.fetch_value("SELECT count(*) FROM spot_history") == left


async def test_a_long_span_of_history_is_thinned_out_and_a_strange_bucket_refused(grid):
    for hours in range(48):
        await grid.execute(insert_point(at=f"now() - interval '{hours} hours'", surge_ppm=PPM + hours))
    points = await service.list_history(grid.pool, CARD, CPU, hours=40)
    assert [point.surge_ppm - PPM for point in points] == list(range(39, -1, -1))
    with patch.object(service, "HISTORY_POINTS_MAX", 10):
        thin = await service.list_history(grid.pool, CARD, CPU, hours=40)
    assert 9 <= len(thin) <= 12
    for bucket in (Bucket("gold", "in"), Bucket("cpu", "moon")):
        with pytest.raises(InvalidRequest):
            await service.list_history(grid.pool, CARD, bucket, hours=1)


# What hubs make of it


async def test_every_hub_follows_and_spot_has_force_only_while_somebody_waits_who_pays_it(grid, owner, prices):
    nodes = await lend(grid, owner, 2)
    await occupy(grid, await grid.sign_up(), nodes)
    for _ in range(3):
        await queue(grid, await grid.sign_up(), 10)
    moved = await tick_cpu(grid)
    assert moved.contested
    payer = to_shape(Requirements(ceiling_microcredits_per_hour=DEAR))
    miser = to_shape(Requirements(ceiling_microcredits_per_hour=CHEAP))
    elsewhere = to_shape(Requirements(ceiling_microcredits_per_hour=DEAR, regions=("DE",)))
    assert await service.follow(grid.pool, prices, [miser, elsewhere, payer])
    assert prices.spots == {CPU: moved.spot_microcredits_per_hour}
    assert prices.contested == {CPU}
    assert not await service.follow(grid.pool, prices, [payer]), "nothing has changed"
    assert await service.follow(grid.pool, prices, [miser, elsewhere])
    assert prices.contested == frozenset()


async def test_spot_has_no_force_where_slots_stand_idle(grid, owner):
    """Somebody waits who would pay, and yet nobody takes the free slots: they are of no use to them."""
    await lend(grid, owner, 4)
    for _ in range(3):
        await queue(grid, await grid.sign_up(), 10)
    found = await tick_cpu(grid)
    assert (found.waiting_count, found.contested) == (30, False)


async def test_a_hub_with_another_rate_card_keeps_the_surge_and_not_the_price(grid, owner):
    await lend(grid, owner, 1)
    await tick(grid)
    dearer = replace(CARD, base_microcredits_per_hour=2 * CARD.base_microcredits_per_hour, version="f" * 16)
    states = await service.list_states(grid.pool)
    assert service.list_spots(dearer, states)[CPU] == pytest.approx(2 * service.list_spots(CARD, states)[CPU], abs=1)
    gone = replace(CARD, regions={name: terms for name, terms in CARD.regions.items() if name != "in"})
    assert CPU not in service.list_spots(gone, states)


async def test_what_every_version_of_the_rate_card_said_is_kept_once(grid):
    for content in ("as first written", "with a comment more"):
        await service.keep_rate_card(grid.pool, CARD, content)
    card, found = await service.get_rate_card(grid.pool, CARD)
    assert card is CARD
    assert (found.version, found.content) == (CARD.version, "as first written")
    assert clock.now() - found.first_used_at < timedelta(minutes=5)


async def test_an_earlier_rate_card_can_be_read_by_its_version(grid):
    await service.keep_rate_card(grid.pool, CARD, SHIPPED)
    dearer = SHIPPED.replace("base_credits_per_hour = 12", "base_credits_per_hour = 13")
    now = parse_rate_card(dearer)
    await service.keep_rate_card(grid.pool, now, dearer)
    before, kept = await service.get_rate_card(grid.pool, now, CARD.version)
    assert (before, kept.content) == (CARD, SHIPPED)
    assert (await service.get_rate_card(grid.pool, now))[0] is now
    with pytest.raises(NotFound, match="ever had the version 'gold'"):
        await service.get_rate_card(grid.pool, now, "gold")


@pytest.mark.parametrize("content", ["no card at all", SHIPPED.replace("fee = 0.20", "fee = 0.10")])
async def test_an_earlier_rate_card_that_reads_otherwise_by_now_is_not_told_with_other_figures(grid, content):
    await service.keep_rate_card(grid.pool, replace(CARD, version="0123456789abcdef"), content)
    with pytest.raises(Conflict, match="earlier form"):
        await service.get_rate_card(grid.pool, CARD, "0123456789abcdef")


async def test_a_great_queue_is_counted_up_to_a_limit(grid, owner):
    await lend(grid, owner, 1)
    for _ in range(3):
        await queue(grid, await grid.sign_up(), 50)
    with patch.object(service, "WAITING_MAX", 20):
        assert (await tick_cpu(grid)).waiting_count == 60
    with patch.object(service, "RUNS_MAX", 2):
        assert (await tick_cpu(grid)).waiting_count == 100


def test_the_lock_of_the_market_is_not_that_of_another_chore():
    assert len({store._ADVISORY_LOCK, audit._ADVISORY_LOCK, checkpoints._ADVISORY_LOCK, ADVISORY_LOCK}) == 4
