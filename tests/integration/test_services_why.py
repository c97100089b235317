"""Why, asked of a real database: prices, turns and scores are those of the rows, and nothing is told to strangers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.ids import JobId, NodeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import Requirements
from computepool.core.market.rate_card import Bucket
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.explain import say_waiting
from computepool.core.placement.gates import Gate
from computepool.core.placement.idleness import IdleReason
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX, SlicePrice
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.weights import Split, WeightBook, Weights
from computepool.core.trust.reputation import to_job_class
from computepool.hub.http.why import _to_job_why, _to_node_why
from computepool.hub.services import why as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.hub.services.why import Choice, JobStory, NodeStory
from computepool.hub.store import nodes as node_store
from computepool.hub.store import shapes as shape_store
from computepool.wire.nodes import Gpu
from tests.support.builders import GB
from tests.support.stored_grid import StoredGrid, open_grid

CREDIT = 1_000_000
BOOK = WeightBook(
    {"default": Weights(1.0, 1.0, 1.0), "classic": Weights(vram_fit=10.0, cores_fit=5.0)},
    Split("default", "classic", 0.5),
)
PRICES = PriceBook(load_rate_card(), holdback_seconds=60)
RTX_4090 = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=25_769_803_776)
RTX_3060 = Gpu(name="NVIDIA GeForce RTX 3060", vram_bytes=12_884_901_888)


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[StoredGrid]:
    async with open_grid(dsn) as grid:
        yield grid


@pytest.fixture
async def person(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


@pytest.fixture
async def owner(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


@pytest.fixture
async def operator(grid: StoredGrid) -> AccountCaller:
    """Knows all nodes by name, and owns none."""
    return await grid.sign_up(roles=frozenset(Role))


async def ask(grid: StoredGrid, caller: AccountCaller, job_id: JobId, prices: PriceBook = PRICES) -> JobStory:
    story = await service.explain_job(grid.pool, grid.settings, BOOK, prices, caller, job_id, slice_index=None)
    # The wire takes it as it is, whatever the story.
    _to_job_why(story)
    return story


async def ask_node(grid: StoredGrid, caller: AccountCaller, node_id: NodeId) -> NodeStory:
    story = await service.explain_node(grid.pool, grid.settings, PRICES, caller, node_id)
    _to_node_why(story)
    return story


# Prices


@pytest.mark.parametrize("kinds_max", [2_000, 1])
async def test_every_slot_that_is_too_dear_is_counted_and_a_suggested_price_reaches_as_many_as_it_says(
    grid, person, owner, monkeypatch, kinds_max: int
):
    monkeypatch.setattr(service, "CLASSES_MAX", kinds_max)
    floors = [0, 9_500_000, 10_000_001, 12_000_000, 12_100_000, 40_000_000, PRICE_MICROCREDITS_MAX]
    nodes = [await grid.enrol(owner, floor=floor) for floor in floors]
    need = Requirements(ram_bytes=128 * GB, ceiling_microcredits_per_hour=10_000_000)
    job = await grid.add_job(person, need=need)
    found = (await ask(grid, person, job)).waiting.explanation
    async with grid.pool.acquire() as conn:
        offered = await node_store.list_candidates(conn, nodes)
    shape = to_shape(need)
    dear = sum(each.floor_microcredits_per_hour > shape.ceiling_microcredits_per_hour for each in offered)
    assert {g.gate: g.failed_count for g in found.gates} == {Gate.RAM: 7, Gate.PRICE: dear}
    for suggestion in found.suggestions:
        relaxed = to_shape(suggestion.requirements)
        opened = [
            each
            for each in offered
            if find_refusal(relaxed, each.slot, price_microcredits_per_hour=each.floor_microcredits_per_hour) is None
        ]
        assert suggestion.slot_count == len(opened) > 0


async def test_only_the_price_stands_in_the_way_and_the_least_that_helps_is_told(grid, person, owner):
    await grid.enrol(owner, floor=12 * CREDIT, region="IN")
    await grid.enrol(owner, floor=30 * CREDIT)
    job = await grid.add_job(person, need=Requirements(ceiling_microcredits_per_hour=10 * CREDIT))
    [suggestion] = (await ask(grid, person, job)).waiting.explanation.suggestions
    assert [change.gate for change in suggestion.changes] == [Gate.PRICE]
    assert suggestion.slot_count == 1
    assert 12 * CREDIT <= suggestion.requirements.ceiling_microcredits_per_hour < 13 * CREDIT


async def test_an_owner_who_asks_too_much_is_told_what_would_fit_for_less(grid, person, owner):
    node = await grid.enrol(owner, floor=12 * CREDIT)
    await grid.add_job(person, slices=7, need=Requirements(ceiling_microcredits_per_hour=8 * CREDIT))
    found = (await ask_node(grid, owner, node)).idleness
    assert found.reason is IdleReason.NOTHING_FITS
    assert found.lower_floor is not None
    assert found.lower_floor.slice_count == 7
    assert found.lower_floor.floor_microcredits_per_hour <= 8 * CREDIT
    await grid.execute(
        "UPDATE nodes SET floor_microcredits_per_hour = $1", found.lower_floor.floor_microcredits_per_hour
    )
    assert (await ask_node(grid, owner, node)).idleness.reason is IdleReason.WORK_FITS


async def test_a_ceiling_below_every_floor_waits_and_says_why_also_where_nobody_named_it(grid, person, owner):
    await grid.enrol(owner, floor=50 * CREDIT)
    # What a submit makes of a request without a ceiling.
    shape = PRICES.fill_ceiling(Requirements())
    job = await grid.add_job(person, need=Requirements(), shape_id=await store_shape(grid, shape))
    found = (await ask(grid, person, job)).waiting.explanation
    assert [(g.gate, g.asked, g.failed_count) for g in found.gates] == [(Gate.PRICE, "at most 14 credits/h", 1)]
    [suggestion] = found.suggestions
    assert suggestion.changes[0].words == "pay up to 50 credits/h instead of 14 credits/h"


async def store_shape(grid: StoredGrid, shape: Shape) -> int:
    async with grid.pool.acquire() as conn:
        return (await shape_store.get_or_insert_shapes(conn, {shape}))[shape]


# What others pay

CARDS = Bucket("rtx-4090", "in")


def contested(bucket: Bucket = CARDS, spot: int = 14 * CREDIT) -> PriceBook:
    """Others wait there and pay it."""
    prices = PriceBook(load_rate_card(), holdback_seconds=60)
    prices.spots, prices.contested = {bucket: spot}, frozenset({bucket})
    return prices


async def lend_card(
    grid: StoredGrid, owner: AccountCaller, floor: int = 0, region: str = "IN", **more: Any
) -> NodeId:
    return await grid.enrol(owner, gpus=(RTX_4090,), cpu_slots=0, region=region, floor=floor, **more)


async def test_where_others_pay_spot_a_lower_ceiling_is_told_what_they_pay_and_the_least_that_would_do(
    grid, person, owner
):
    await lend_card(grid, owner)
    await lend_card(grid, owner, floor=12 * CREDIT)
    job = await grid.add_job(person, need=Requirements(gpu=True, ceiling_microcredits_per_hour=12 * CREDIT))
    waiting = (await ask(grid, person, job, contested())).waiting
    found = waiting.explanation
    [gate] = found.gates
    assert (gate.gate, gate.failed_count) == (Gate.SPOT, 2)
    assert gate.words == "others pay 14 credits/h in rtx-4090/in now; your ceiling is 12 credits/h"
    assert say_waiting(found) == (
        "None of the 2 slots of the fleet fits. Others pay 14 credits/h in rtx-4090/in now; your ceiling is "
        "12 credits/h."
    )
    [suggestion] = found.suggestions
    assert suggestion.changes[0].words == "pay up to 14 credits/h instead of 12 credits/h"
    assert (suggestion.slot_count, suggestion.free_count) == (2, 2)


async def test_control_where_nobody_bids_the_same_job_fits(grid, person, owner):
    await lend_card(grid, owner)
    job = await grid.add_job(person, need=Requirements(gpu=True, ceiling_microcredits_per_hour=12 * CREDIT))
    for prices in (PRICES, contested(spot=12 * CREDIT), contested(Bucket("rtx-4090", "us"))):
        found = (await ask(grid, person, job, prices)).waiting.explanation
        assert (found.free_count, found.gates) == (1, ())


async def test_floors_and_spot_are_told_apart_and_a_change_serves_both(grid, person, owner):
    await lend_card(grid, owner, floor=13 * CREDIT)
    await lend_card(grid, owner, floor=5 * CREDIT)
    await lend_card(grid, owner, floor=30 * CREDIT, region="US")
    job = await grid.add_job(person, need=Requirements(gpu=True, ceiling_microcredits_per_hour=12 * CREDIT))
    found = (await ask(grid, person, job, contested())).waiting.explanation
    assert {g.gate: g.failed_count for g in found.gates} == {Gate.PRICE: 2, Gate.SPOT: 1}
    [suggestion] = found.suggestions
    assert suggestion.requirements.ceiling_microcredits_per_hour == 14 * CREDIT
    assert suggestion.slot_count == 2


async def test_of_several_places_that_one_is_told_where_least_is_missing(grid, person, owner):
    prices = contested()
    there = Bucket("rtx-4090", "us")
    prices.spots, prices.contested = {**prices.spots, there: 13 * CREDIT}, frozenset({CARDS, there})
    await lend_card(grid, owner)
    await lend_card(grid, owner, region="US")
    job = await grid.add_job(person, need=Requirements(gpu=True, ceiling_microcredits_per_hour=12 * CREDIT))
    [gate] = (await ask(grid, person, job, prices)).waiting.explanation.gates
    assert gate.words == "others pay 13 credits/h in rtx-4090/us now; your ceiling is 12 credits/h"


async def test_neither_floor_nor_spot_stands_between_an_owner_and_their_own_slot(grid, person, owner):
    await lend_card(grid, owner, floor=50 * CREDIT)
    need = Requirements(gpu=True, ceiling_microcredits_per_hour=CREDIT)
    mine, theirs = await grid.add_job(owner, need=need), await grid.add_job(person, need=need)
    assert (await ask(grid, owner, mine, contested())).waiting.explanation.free_count == 1
    found = (await ask(grid, person, theirs, contested())).waiting.explanation
    assert (found.pass_count, [g.gate for g in found.gates]) == (0, [Gate.PRICE])


async def test_ones_own_slot_is_scored_as_free_in_the_table_that_explains_a_choice(grid, person, owner):
    own = await lend_card(grid, owner, floor=50 * CREDIT, name="own")
    await lend_card(grid, person, floor=CREDIT)
    job = await grid.add_job(owner, need=Requirements(gpu=True, ceiling_microcredits_per_hour=2 * CREDIT))
    await grid.add_attempt(job, own, "gpu:0")
    choice = (await ask(grid, owner, job)).story.choice
    assert [each.candidate.price_microcredits_per_hour for each in choice.ranked] == [0, CREDIT]
    # Of a stranger's slot spot would be paid, up to the ceiling.
    assert list_rates(choice) == [0, 2 * CREDIT]
    assert choice.ranked[0].chosen


async def test_the_table_that_explains_a_choice_tells_what_an_hour_costs_and_not_what_is_asked_at_least(
    grid, person, owner
):
    node = await lend_card(grid, owner, floor=0)
    job = await grid.add_job(person, need=Requirements(gpu=True, ceiling_microcredits_per_hour=100 * CREDIT))
    await grid.add_attempt(job, node, "gpu:0")
    choice = (await ask(grid, person, job)).story.choice
    # The rate card's: 12 credits, times 3 for the tier, times 0.7 for India.
    assert list_rates(choice) == [25_200_000]


def list_rates(choice: Choice) -> list[int]:
    slots = [each.candidate.slot for each in choice.ranked]
    return [choice.rates[slot.node_id, slot.name] for slot in slots]


# Fixed prices


def fixed(credits: float, *, most: float = 1_000, seconds: int = 3_600, **need: Any) -> Requirements:
    price = SlicePrice(int(credits * CREDIT), int(most * CREDIT), seconds)
    return Requirements(gpu=True, slice_price=price, **need)


async def test_a_price_per_slice_that_does_not_cover_a_floor_says_so_and_what_would(grid, person, owner):
    # 2.1 times the price of a slice, in an hour.
    await lend_card(grid, owner, floor=21 * CREDIT)
    job = await grid.add_job(person, need=fixed(5))
    found = (await ask(grid, person, job)).waiting.explanation
    [gate] = found.gates
    assert (gate.gate, gate.asked) == (Gate.PRICE, "5 credits a slice, at most 1,000")
    [suggestion] = found.suggestions
    assert suggestion.changes[0].words == "pay 10 credits a slice instead of 5"
    await grid.add_job(person, need=suggestion.requirements)
    again = await grid.add_job(person, need=suggestion.requirements)
    assert (await ask(grid, person, again)).waiting.explanation.free_count == 1


async def test_of_a_fixed_price_the_ceiling_may_be_what_is_too_low(grid, person, owner):
    await lend_card(grid, owner, floor=21 * CREDIT)
    job = await grid.add_job(person, need=fixed(10, most=20))
    [suggestion] = (await ask(grid, person, job)).waiting.explanation.suggestions
    assert suggestion.changes[0].words == "let a slice cost up to 21 credits instead of 20"


async def test_a_fixed_price_below_spot_is_told_what_others_pay(grid, person, owner):
    await lend_card(grid, owner)
    job = await grid.add_job(person, need=fixed(5, seconds=7_200))
    found = (await ask(grid, person, job, contested())).waiting.explanation
    [gate] = found.gates
    assert gate.words == (
        "others pay 14 credits/h in rtx-4090/in now; yours is 5 credits a slice, at most 1,000, over a wall limit of "
        "7,200 s"
    )
    # 14 an hour are 28 for two, and 28 / 2.1 before tier and region.
    [suggestion] = found.suggestions
    assert 13.33 * CREDIT <= suggestion.requirements.slice_price.base_microcredits <= 14 * CREDIT


async def test_slots_that_a_fixed_price_does_not_pay_are_no_runners_up(grid, person, owner, operator):
    chosen = await lend_card(grid, owner, floor=10 * CREDIT)
    await lend_card(grid, owner, floor=12 * CREDIT)
    await lend_card(grid, owner, floor=12 * CREDIT, region="US")
    job = await grid.add_job(person, need=fixed(5))
    await grid.add_attempt(job, chosen, "gpu:0")
    choice = (await ask(grid, operator, job)).story.choice
    # 5 credits are 10.5 in India and 15 in the US.
    assert [each.candidate.price_microcredits_per_hour for each in choice.ranked] == [10 * CREDIT, 12 * CREDIT]
    assert list_rates(choice) == [10_500_000, 15 * CREDIT]
    assert choice.fit_count == 2


async def test_an_owner_is_told_which_floor_a_fixed_price_would_pay(grid, person, owner):
    node = await lend_card(grid, owner, floor=12 * CREDIT)
    await grid.add_job(person, slices=7, need=fixed(5))
    found = (await ask_node(grid, owner, node)).idleness
    assert (found.reason, found.lower_floor.slice_count) == (IdleReason.NOTHING_FITS, 7)
    assert found.lower_floor.floor_microcredits_per_hour == 10_500_000
    await grid.execute("UPDATE nodes SET floor_microcredits_per_hour = 10500000")
    assert (await ask_node(grid, owner, node)).idleness.reason is IdleReason.WORK_FITS


# Turns


async def test_what_goes_before_a_slice_is_counted_by_class_account_and_own_order(grid, person, owner):
    node = await grid.enrol(owner)
    busy = await grid.add_job(owner)
    await grid.add_attempt(busy, node, "cpu:0")
    start = clock.now() - timedelta(minutes=10)
    await grid.add_job(person, slices=3, at=start)
    await grid.add_job(person, slices=2, priority=5)
    await grid.add_job(person, slices=50, need=Requirements(cores=2))
    await grid.add_job(owner, slices=9, at=start)
    await grid.add_job(owner, slices=4, priority_class="high")
    await grid.add_job(person, slices=6, priority_class="low", at=start)
    job = await grid.add_job(person, slices=8, deadline_at=clock.now() + timedelta(hours=1))
    turn = (await ask(grid, person, job)).waiting.turn
    assert (turn.own_ahead.count, turn.class_ahead.count, turn.others.count) == (5, 4, 1)
    assert (turn.priority_class, turn.raised_at) == (PriorityClass.NORMAL, None)
    assert turn.deadline_at is not None


async def test_a_slice_that_was_moved_to_the_front_says_so(grid, person):
    await grid.add_job(person, slices=5, at=clock.now() - timedelta(minutes=1))
    job = await grid.add_job(person)
    await grid.execute("UPDATE slices SET raised_at = now(), priority = 11 WHERE job_id = $1", job)
    turn = (await ask(grid, person, job)).waiting.turn
    assert turn.raised_at is not None
    assert turn.own_ahead.count == 0


async def test_use_is_faded_and_weighed_before_accounts_are_compared(grid, person):
    others = [await grid.sign_up() for _ in range(3)]
    for account, slot_seconds, weight, days in [
        (person, 1_000.0, 1.0, 0.0),
        (others[0], 1_500.0, 2.0, 0.0),
        (others[1], 3_000.0, 1.0, 2.0),
        (others[2], 1_100.0, 1.0, 0.0),
    ]:
        await grid.execute("UPDATE accounts SET fair_weight = $2 WHERE id = $1", account.account_id, weight)
        await grid.execute(
            "INSERT INTO fair_usage VALUES ($1, $2, clock_timestamp() - $3 * interval '1 day')",
            account.account_id,
            slot_seconds,
            days,
        )
    for other in others:
        await grid.add_job(other)
    turn = (await ask(grid, person, await grid.add_job(person))).waiting.turn
    # Less: 1,500 at twice the weight, and 3,000 of which two days have left a quarter.
    assert (turn.others.count, turn.others_less_count) == (3, 2)
    assert turn.use.slot_seconds == pytest.approx(1_000.0, rel=0.01)


async def test_counts_stop_at_their_limits_and_say_so(grid, person, monkeypatch):
    monkeypatch.setattr(service, "AHEAD_MAX", 10)
    monkeypatch.setattr(service, "ACCOUNTS_MAX", 2)
    for _ in range(4):
        await grid.add_job(await grid.sign_up(), slices=20, priority_class="high")
        await grid.add_job(await grid.sign_up())
    await grid.add_job(person, slices=20, at=clock.now() - timedelta(minutes=1))
    turn = (await ask(grid, person, await grid.add_job(person))).waiting.turn
    assert (turn.own_ahead.count, turn.own_ahead.is_more) == (10, True)
    assert (turn.class_ahead.count, turn.class_ahead.is_more) == (10, True)
    assert (turn.others.count, turn.others.is_more) == (2, True)


async def test_a_fleet_that_is_too_large_is_looked_at_in_part(grid, person, owner, monkeypatch):
    monkeypatch.setattr(service, "FLEET_SLOTS_MAX", 2)
    monkeypatch.setattr(service, "FLEET_NODES_MAX", 2)
    nodes = [await grid.enrol(owner) for _ in range(4)]
    waiting = (await ask(grid, person, await grid.add_job(person))).waiting
    assert (waiting.explanation.slot_count, waiting.fleet_is_more) == (2, True)
    job = await grid.add_job(person)
    await grid.add_attempt(job, nodes[3], "cpu:0")
    choice = (await ask(grid, person, job)).story.choice
    assert choice.is_cut
    assert any(each.chosen for each in choice.ranked)


# Scores


async def add_cards(grid: StoredGrid, owner: AccountCaller) -> list[NodeId]:
    """From the best value to the worst."""
    return [
        await grid.enrol(owner, name="best", gpus=(RTX_4090,), cpu_slots=0, floor=20 * CREDIT, region="IN"),
        await grid.enrol(owner, name="dear", gpus=(RTX_4090,), cpu_slots=0, floor=40 * CREDIT),
        await grid.enrol(owner, name="slow", gpus=(RTX_3060,), cpu_slots=0, floor=20 * CREDIT),
        await grid.enrol(owner, name="shaky", gpus=(RTX_3060,), cpu_slots=0, floor=20 * CREDIT),
        await grid.enrol(owner, name="worst", gpus=(RTX_3060,), cpu_slots=0, floor=90 * CREDIT),
    ]


async def rely(grid: StoredGrid, node_id: NodeId, finished: float, failed: float) -> None:
    await grid.execute(
        "INSERT INTO reliabilities VALUES ($1, $2, $3, $4, 0, now())",
        node_id,
        to_job_class(gpu=True),
        finished,
        failed,
    )


GPU_WORK = Requirements(gpu=True)


def names_of(story: JobStory) -> list[str]:
    choice = story.story.choice
    return [choice.node_names[each.candidate.slot.node_id, each.candidate.slot.name] for each in choice.ranked]


async def test_a_placed_slice_is_shown_with_the_best_slots_and_their_scores(grid, person, owner, operator):
    nodes = await add_cards(grid, owner)
    await rely(grid, nodes[3], 0.0, 20.0)
    job = await grid.add_job(person, need=GPU_WORK)
    await grid.add_attempt(job, nodes[0], "gpu:0")
    await grid.add_attempt(await grid.add_job(person, need=GPU_WORK), nodes[2], "gpu:0")
    story = await ask(grid, operator, job)
    choice = story.story.choice
    assert names_of(story) == ["best", "dear", "slow", "worst"]
    assert [each.rank for each in choice.ranked] == [1, 2, 3, 4]
    assert [(each.chosen, each.busy) for each in choice.ranked] == [
        (True, True),
        (False, False),
        (False, True),
        (False, False),
    ]
    assert choice.fit_count == 5
    assert choice.words.startswith("Of 5 slots that fit, it has the highest score today: mostly for its price")
    assert choice.ranked[0].candidate.speed_tflops == 82.6


async def test_a_slot_that_was_worse_than_others_keeps_its_true_rank(grid, owner):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(owner, need=GPU_WORK)
    await grid.add_attempt(job, nodes[4], "gpu:0")
    choice = (await ask(grid, owner, job)).story.choice
    assert [each.rank for each in choice.ranked] == [1, 2, 3, 5]
    assert choice.ranked[-1].chosen
    assert "4 slots would score higher today" in choice.words


@pytest.mark.parametrize(
    ("prefer", "weight_set", "best"),
    [("fastest", "default", {"best", "dear"}), ("cheapest", "default", {"best", "slow", "shaky"})],
)
async def test_the_wish_of_the_job_decides_the_order(
    grid, person, owner, operator, prefer: str, weight_set: str, best: set[str]
):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(person, need=GPU_WORK, prefer=prefer, weight_set=weight_set)
    await grid.add_attempt(job, nodes[0], "gpu:0")
    story = await ask(grid, operator, job)
    assert set(names_of(story)[: len(best)]) == best


async def test_a_set_that_is_gone_from_the_file_is_told_by_the_first_of_the_split(grid, owner):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(owner, need=GPU_WORK, weight_set="retired")
    await grid.add_attempt(job, nodes[0], "gpu:0")
    assert (await ask(grid, owner, job)).story.choice.weight_set == "default"


async def test_slots_that_fail_a_gate_or_are_away_are_no_runners_up(grid, person, owner, operator):
    need = Requirements(
        gpu=True, vram_bytes=10 * GB, cores=2, regions=("IN",), ceiling_microcredits_per_hour=50 * CREDIT
    )
    card: dict[str, Any] = {"gpus": (RTX_4090,), "cpu_slots": 0, "region": "IN"}
    chosen = await grid.enrol(owner, **card)
    await grid.enrol(owner, **card, online=False)
    await grid.enrol(owner, **card, floor=60 * CREDIT)
    await grid.enrol(owner, **{**card, "region": "DE"})
    await grid.enrol(owner, **{**card, "gpus": (Gpu(name="GTX 1080", vram_bytes=8 * GB),)})
    await grid.enrol(owner, **card, cores=1)
    paused = await grid.enrol(owner, **card)
    await grid.execute("UPDATE nodes SET state = 'paused' WHERE id = $1", paused)
    job = await grid.add_job(person, need=need)
    await grid.add_attempt(job, chosen, "gpu:0")
    choice = (await ask(grid, operator, job)).story.choice
    assert (choice.fit_count, len(choice.ranked)) == (1, 1)
    assert choice.words == "No other slot of the nodes that are online fits it."


async def test_the_rough_order_of_the_database_leaves_no_better_slot_out(grid, owner, monkeypatch):
    """Only two rows are scored exactly besides the chosen one: they must be the two best, in whatever order."""
    monkeypatch.setattr(service, "SCORED_MAX", 3)
    nodes = await add_cards(grid, owner)
    await rely(grid, nodes[1], 0.0, 30.0)
    await rely(grid, nodes[2], 40.0, 0.0)
    job = await grid.add_job(owner, need=GPU_WORK)
    await grid.add_attempt(job, nodes[4], "gpu:0")
    assert names_of(await ask(grid, owner, job))[:2] == ["slow", "best"]


async def test_cpu_work_on_a_gpu_shows_the_rule_that_spares_it(grid, owner):
    card = await grid.enrol(owner, gpus=(RTX_4090,), cpu_slots=0)
    await grid.enrol(owner, cpu_slots=1)
    job = await grid.add_job(owner)
    await grid.add_attempt(job, card, "gpu:0")
    choice = (await ask(grid, owner, job)).story.choice
    assert [each.candidate.slot.kind.value for each in choice.ranked] == ["cpu", "gpu"]
    assert choice.ranked[1].total < -900


async def test_strangers_learn_tiers_and_prices_but_no_names(grid, person, owner):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(person, need=GPU_WORK)
    await grid.add_attempt(job, nodes[1], "gpu:0")
    shown = _to_job_why(await ask(grid, person, job))
    assert [each.node_name for each in shown.slice.choice.candidates] == [None] * 4
    others = [node for node in nodes if node != nodes[1]]
    assert not [node for node in others if str(node) in repr(shown)]
    operator = await grid.sign_up(roles=frozenset(Role))
    assert "best" in names_of(await ask(grid, operator, job))


async def test_a_dead_attempt_is_not_told_with_scores(grid, owner):
    [node, *_] = await add_cards(grid, owner)
    job = await grid.add_job(owner, need=GPU_WORK)
    ended = {"state": "lost", "cause": "node_vanished", "finished_at": clock.now()}
    await grid.add_attempt(job, node, "gpu:0", **ended)
    await grid.execute("UPDATE slices SET attempt_count = 1 WHERE job_id = $1", job)
    story = (await ask(grid, owner, job)).story
    assert story.choice is None
    assert story.attempts[0].end is not None
