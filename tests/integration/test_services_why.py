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
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.explain import Gate
from computepool.core.placement.idleness import IdleReason
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.core.placement.shape import to_shape
from computepool.core.placement.weights import Split, WeightBook, Weights
from computepool.core.trust.reputation import to_job_class
from computepool.hub.http.why import _to_job_why, _to_node_why
from computepool.hub.services import why as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.why import JobStory, NodeStory
from computepool.hub.store import nodes as node_store
from computepool.wire.nodes import Gpu
from tests.support.builders import GB
from tests.support.stored_grid import StoredGrid, open_grid

CREDIT = 1_000_000
BOOK = WeightBook(
    {"default": Weights(1.0, 1.0, 1.0), "classic": Weights(vram_fit=10.0, cores_fit=5.0)},
    Split("default", "classic", 0.5),
)
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


async def ask(grid: StoredGrid, caller: AccountCaller, job_id: JobId) -> JobStory:
    story = await service.explain_job(grid.pool, grid.settings, BOOK, caller, job_id, slice_index=None)
    # The wire takes it as it is, whatever the story.
    _to_job_why(story)
    return story


async def ask_node(grid: StoredGrid, caller: AccountCaller, node_id: NodeId) -> NodeStory:
    story = await service.explain_node(grid.pool, grid.settings, caller, node_id)
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


async def test_a_placed_slice_is_shown_with_the_best_slots_and_their_scores(grid, owner):
    nodes = await add_cards(grid, owner)
    await rely(grid, nodes[3], 0.0, 20.0)
    job = await grid.add_job(owner, need=GPU_WORK)
    await grid.add_attempt(job, nodes[0], "gpu:0")
    await grid.add_attempt(await grid.add_job(owner, need=GPU_WORK), nodes[2], "gpu:0")
    story = await ask(grid, owner, job)
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
async def test_the_wish_of_the_job_decides_the_order(grid, owner, prefer: str, weight_set: str, best: set[str]):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(owner, need=GPU_WORK, prefer=prefer, weight_set=weight_set)
    await grid.add_attempt(job, nodes[0], "gpu:0")
    story = await ask(grid, owner, job)
    assert set(names_of(story)[: len(best)]) == best


async def test_a_set_that_is_gone_from_the_file_is_told_by_the_first_of_the_split(grid, owner):
    nodes = await add_cards(grid, owner)
    job = await grid.add_job(owner, need=GPU_WORK, weight_set="retired")
    await grid.add_attempt(job, nodes[0], "gpu:0")
    assert (await ask(grid, owner, job)).story.choice.weight_set == "default"


async def test_slots_that_fail_a_gate_or_are_away_are_no_runners_up(grid, owner):
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
    job = await grid.add_job(owner, need=need)
    await grid.add_attempt(job, chosen, "gpu:0")
    choice = (await ask(grid, owner, job)).story.choice
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
