"""The registry: which slots of which nodes are free, as far as their calls and the record say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.ids import NodeId, SlotName
from computepool.core.market.offers import Schedule
from computepool.core.placement.price import Asked
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference
from computepool.hub.dispatch import registry as registry_module
from computepool.hub.dispatch.registry import Registry
from computepool.hub.store.nodes import OfferedSlot
from tests.support.builders import GB, account_number, make_shape, make_slot, node_number
from tests.support.head_queue import SETS

NODE, OTHER = node_number(1), node_number(2)


class Record:
    """The tables of nodes and of evidence, in memory."""

    def __init__(self) -> None:
        self.offered: dict[NodeId, list[OfferedSlot]] = {}
        self.bounds: dict[NodeId, float] = {}
        self.reads: list[set[NodeId]] = []
        self.on_change: Callable[[Collection[NodeId]], None] | None = None

    def enrol(
        self,
        node_id: NodeId,
        *names: str,
        floor: int = 0,
        tflops: float | None = None,
        schedule: Schedule | None = None,
        serving_since: datetime | None = None,
        **slot: Any,
    ) -> None:
        slots = [make_slot(node_id=node_id, name=SlotName(name), **slot) for name in names]
        self.offered[node_id] = [
            OfferedSlot(each, floor, tflops, busy=False, schedule=schedule, serving_since=serving_since)
            for each in slots
        ]

    async def list_candidates(self, conn: Any, node_ids: Iterable[NodeId]) -> list[OfferedSlot]:
        wanted = set(node_ids)
        self.reads.append(wanted)
        return [offered for node_id in sorted(wanted) for offered in self.offered.get(node_id, [])]

    # Evidence

    async def load(self, conn: Any, node_ids: Iterable[NodeId]) -> None:
        return

    def bound(self, node_id: NodeId, kind: SlotKind) -> float:
        return self.bounds.get(node_id, 0.5)

    def change(self, node_id: NodeId, bound: float) -> None:
        self.bounds[node_id] = bound
        assert self.on_change is not None
        self.on_change([node_id])


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    record = Record()
    monkeypatch.setattr(registry_module.node_store, "list_candidates", record.list_candidates)
    return record


@pytest.fixture
def registry(record: Record) -> Registry:
    return Registry(SETS, record)


async def load(registry: Registry, *node_ids: NodeId) -> None:
    await registry.load(None, node_ids)


def list_free(registry: Registry) -> set[tuple[NodeId, str]]:
    return {(each.slot.node_id, each.slot.name) for each in registry.fleet}


def find_best(registry: Registry) -> Slot | None:
    best = registry.fleet.best(make_shape(), Preference.VALUE)
    return best.slot if best is not None else None


async def test_a_node_is_known_once_it_was_read_and_its_slots_are_not_free_before_they_are_offered(registry, record):
    record.enrol(NODE, "cpu:0")
    assert NODE not in registry
    registry.offer(NODE, ["cpu:0"])
    assert list_free(registry) == set()
    await load(registry, NODE)
    assert NODE in registry
    assert list_free(registry) == set()
    registry.offer(NODE, ["cpu:0"])
    assert list_free(registry) == {(NODE, "cpu:0")}


async def test_a_slot_keeps_since_when_its_node_serves_until_it_is_read_again(registry, record):
    since = datetime(2026, 1, 1, tzinfo=UTC)
    record.enrol(NODE, "cpu:0", serving_since=since)
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0"])
    record.change(NODE, 0.9)
    await registry.reprice()
    assert [each.serving_since for each in registry.fleet] == [since]
    record.enrol(NODE, "cpu:0", serving_since=None)
    await load(registry, NODE)
    assert [each.serving_since for each in registry.fleet] == [None]


async def test_many_nodes_are_read_by_one_query(registry, record):
    record.enrol(NODE, "cpu:0")
    record.enrol(OTHER, "cpu:0")
    await load(registry, NODE, OTHER, node_number(3))
    assert record.reads == [{NODE, OTHER, node_number(3)}]
    assert node_number(3) in registry, "a node without slots is known too, and not asked for again"


async def test_a_node_can_only_offer_slots_that_it_has(registry, record):
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0", "gpu:7", "", "cpu:0"])
    assert list_free(registry) == {(NODE, "cpu:0")}


async def test_offering_twice_and_withdrawing_twice_is_no_mistake(registry, record):
    record.enrol(NODE, "cpu:0", "cpu:1")
    await load(registry, NODE)
    for _ in range(2):
        registry.offer(NODE, ["cpu:0", "cpu:1"])
    assert len(registry.fleet) == 2
    for _ in range(2):
        registry.withdraw(NODE, ["cpu:0"])
    assert list_free(registry) == {(NODE, "cpu:1")}
    registry.withdraw(NODE, ["gpu:7"])
    registry.withdraw(OTHER)
    registry.withdraw(NODE)
    registry.withdraw(NODE)
    assert list_free(registry) == set()


async def test_what_is_free_stays_free_when_the_node_is_read_again_and_what_is_busy_busy(registry, record):
    record.enrol(NODE, "cpu:0", "cpu:1")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0", "cpu:1"])
    registry.withdraw(NODE, ["cpu:1"])
    record.enrol(NODE, "cpu:0", "cpu:1", floor=7)
    await load(registry, NODE)
    assert list_free(registry) == {(NODE, "cpu:0")}
    assert [each.price_microcredits_per_hour for each in registry.fleet] == [7]
    registry.offer(NODE, ["cpu:1"])
    assert {each.price_microcredits_per_hour for each in registry.fleet} == {7}


async def test_a_slot_that_the_node_does_not_have_any_more_is_gone(registry, record):
    record.enrol(NODE, "cpu:0", "cpu:1")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0", "cpu:1"])
    record.enrol(NODE, "cpu:1")
    await load(registry, NODE)
    assert list_free(registry) == {(NODE, "cpu:1")}
    registry.offer(NODE, ["cpu:0"])
    assert list_free(registry) == {(NODE, "cpu:1")}


async def test_a_slot_that_the_node_has_since_got_can_be_offered(registry, record):
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    record.enrol(NODE, "cpu:0", "gpu:0", vram_bytes=8 * GB)
    await load(registry, NODE)
    registry.offer(NODE, ["gpu:0"])
    assert list_free(registry) == {(NODE, "gpu:0")}


async def test_a_floor_and_a_declared_speed_move_a_slot_in_the_order(registry, record):
    record.enrol(NODE, "cpu:0", floor=10)
    record.enrol(OTHER, "cpu:0", floor=20)
    await load(registry, NODE, OTHER)
    for node_id in (NODE, OTHER):
        registry.offer(node_id, ["cpu:0"])
    assert find_best(registry).node_id == NODE
    record.enrol(NODE, "cpu:0", floor=30)
    await load(registry, NODE)
    assert find_best(registry).node_id == OTHER
    record.enrol(OTHER, "cpu:0", floor=20, tflops=0.001)
    await load(registry, OTHER)
    assert find_best(registry).node_id == NODE


async def test_new_evidence_moves_the_slots_of_a_node_at_once(registry, record):
    for node_id in (NODE, OTHER):
        record.enrol(node_id, "cpu:0")
        await load(registry, node_id)
        registry.offer(node_id, ["cpu:0"])
    record.change(OTHER, 0.9)
    assert find_best(registry).node_id == OTHER
    record.change(OTHER, 0.1)
    assert find_best(registry).node_id == NODE
    record.change(node_number(9), 0.9)


async def test_evidence_about_a_busy_slot_does_not_free_it_and_is_not_forgotten(registry, record):
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0"])
    registry.withdraw(NODE)
    record.change(NODE, 0.9)
    assert list_free(registry) == set()
    registry.offer(NODE, ["cpu:0"])
    assert [each.reliability for each in registry.fleet] == [0.9]


async def test_a_node_that_is_forgotten_has_no_slots(registry, record):
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0"])
    registry.forget(NODE)
    registry.forget(NODE)
    assert (NODE in registry, list_free(registry)) == (False, set())


async def test_what_is_known_grows_old_and_at_once_when_something_has_changed(registry, record, monkeypatch):
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    assert not registry.is_old(NODE)
    registry.forget_all_soon()
    assert registry.is_old(NODE)
    await load(registry, NODE)
    assert not registry.is_old(NODE)
    later = registry_module.clock.seconds() + registry_module.MEMORY_SECONDS + 1
    monkeypatch.setattr(registry_module.clock, "seconds", lambda: later)
    assert registry.is_old(NODE)


async def test_no_more_nodes_are_remembered_than_should_be_and_those_that_call_longest(registry, record, monkeypatch):
    monkeypatch.setattr(registry_module, "REMEMBERED_MAX", 3)
    for number in range(1, 6):
        record.enrol(node_number(number), "cpu:0")
        await load(registry, node_number(number))
        registry.offer(node_number(number), ["cpu:0"])
        registry.offer(NODE, ["cpu:0"])
    assert {node_id for node_id, _ in list_free(registry)} == {NODE, node_number(4), node_number(5)}


# Turns


async def test_a_call_that_ends_and_comes_again_costs_no_turn_but_work_does(registry, record):
    for node_id in (NODE, OTHER):
        record.enrol(node_id, "cpu:0")
    await load(registry, NODE, OTHER)

    def find_next() -> NodeId:
        best = registry.fleet.best(make_shape(), Preference.VALUE)
        assert best is not None
        return best.slot.node_id

    for node_id in (NODE, OTHER):
        registry.offer(node_id, ["cpu:0"])
    first = find_next()
    second = OTHER if first == NODE else NODE
    registry.withdraw(first)
    registry.offer(first, ["cpu:0"])
    assert find_next() == first
    registry.fleet.take(first, SlotName("cpu:0"))
    registry.offer(first, ["cpu:0"])
    assert find_next() == second
    for node_id in (NODE, OTHER):
        record.change(node_id, 0.9)
    assert find_next() == second, "what is known of both has changed, and their turns have not"


# Conditions


async def test_the_hours_of_a_node_are_known_as_long_as_the_node_is(registry, record):
    monday = datetime(2030, 1, 7, tzinfo=UTC)
    record.enrol(NODE, "cpu:0", schedule=Schedule(1, UTC))
    record.enrol(OTHER, "cpu:0")
    await load(registry, NODE, OTHER)
    assert registry.list_scheduled() == [NODE]
    closed = [registry.is_closed(NODE, monday + timedelta(minutes=minutes)) for minutes in (0, 59, 60)]
    assert closed == [False, False, True]
    assert not registry.is_closed(OTHER, monday)
    assert not registry.is_closed(node_number(9), monday)
    record.enrol(NODE, "cpu:0")
    await load(registry, NODE)
    assert registry.list_scheduled() == []
    record.enrol(NODE, "cpu:0", schedule=Schedule(1, UTC))
    await load(registry, NODE)
    registry.forget(NODE)
    assert registry.list_scheduled() == []


async def test_a_node_that_becomes_private_or_choosy_is_so_at_once_and_what_is_busy_stays_busy(registry, record):
    record.enrol(NODE, "cpu:0", "cpu:1")
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0", "cpu:1"])
    registry.withdraw(NODE, ["cpu:1"])
    assert find_best(registry) is not None
    pool, kinds = frozenset({account_number(1)}), frozenset({"ml"})
    for conditions in ({"welcome": pool}, {"slice_seconds_min": 60}, {"job_kinds": kinds}):
        record.enrol(NODE, "cpu:0", "cpu:1", **conditions)
        await load(registry, NODE)
        assert find_best(registry) is None
        assert list_free(registry) == {(NODE, "cpu:0")}
    record.enrol(NODE, "cpu:0", "cpu:1")
    await load(registry, NODE)
    assert find_best(registry).name == "cpu:0"


# What slots ask


class Market:
    """Where spot has force, nothing is lent for less."""

    def __init__(self) -> None:
        self.spot = 0
        self.on_ask: Callable[[Slot], None] = lambda slot: None

    def ask(self, slot: Slot, speed_tflops: float, floor: int) -> Asked:
        self.on_ask(slot)
        return Asked(max(floor, self.spot), 2 * max(floor, self.spot), self.spot)


def list_prices(registry: Registry) -> dict[NodeId, int]:
    return {each.slot.node_id: each.price_microcredits_per_hour for each in registry.fleet}


async def test_where_spot_has_force_a_lower_ceiling_waits_and_starts_when_it_has_none_any_more(record):
    market = Market()
    registry = Registry(SETS, record, market.ask)
    record.enrol(NODE, "cpu:0", floor=10)
    record.enrol(OTHER, "cpu:0", floor=70)
    await load(registry, NODE, OTHER)
    for node_id in (NODE, OTHER):
        registry.offer(node_id, ["cpu:0"])

    def find_for(ceiling: int) -> NodeId | None:
        best = registry.fleet.best(make_shape(), Preference.VALUE, ceiling=ceiling)
        return best.slot.node_id if best is not None else None

    assert find_for(ceiling=20) == NODE
    market.spot = 50
    assert find_for(ceiling=20) == NODE, "what slots ask changes when the registry is told"
    await registry.reprice()
    assert list_prices(registry) == {NODE: 50, OTHER: 70}
    assert {each.base_price_microcredits_per_hour for each in registry.fleet} == {100, 140}
    assert (find_for(ceiling=20), find_for(ceiling=50)) == (None, NODE)
    market.spot = 0
    await registry.reprice()
    assert list_prices(registry) == {NODE: 10, OTHER: 70}, "the owner's own floor was not forgotten"
    assert find_for(ceiling=20) == NODE


async def test_another_price_frees_no_slot_and_holds_for_what_is_offered_read_or_rated_later(record):
    market = Market()
    registry = Registry(SETS, record, market.ask)
    record.enrol(NODE, "cpu:0", floor=10)
    await load(registry, NODE)
    registry.offer(NODE, ["cpu:0"])
    registry.withdraw(NODE)
    market.spot = 50
    await registry.reprice()
    assert list_free(registry) == set()
    record.change(NODE, 0.9)
    registry.offer(NODE, ["cpu:0"])
    assert list_prices(registry) == {NODE: 50}
    record.enrol(NODE, "cpu:0", floor=60)
    await load(registry, NODE)
    assert list_prices(registry) == {NODE: 60}
    record.enrol(NODE, "cpu:0", floor=20)
    await load(registry, NODE)
    assert list_prices(registry) == {NODE: 50}


async def test_busy_slots_follow_a_price_when_they_are_offered_and_not_before(record):
    market = Market()
    registry = Registry(SETS, record, market.ask)
    record.enrol(NODE, "cpu:0", floor=10)
    record.enrol(OTHER, "cpu:0", floor=10)
    await load(registry, NODE, OTHER)
    for node_id in (NODE, OTHER):
        registry.offer(node_id, ["cpu:0"])
    registry.fleet.take(NODE, SlotName("cpu:0"))
    asked: list[NodeId] = []
    market.spot = 50
    market.on_ask = lambda slot: asked.append(slot.node_id)
    await registry.reprice()
    assert asked == [OTHER]
    for _ in range(2):
        registry.offer(NODE, ["cpu:0"])
    assert asked == [OTHER, NODE], "once is enough"
    assert list_prices(registry) == {NODE: 50, OTHER: 50}


async def test_a_node_that_is_forgotten_while_prices_change_is_no_mistake(record, monkeypatch):
    monkeypatch.setattr(registry_module, "REPRICED_AT_ONCE", 1)
    market = Market()
    registry = Registry(SETS, record, market.ask)
    for node_id in (NODE, OTHER):
        record.enrol(node_id, "cpu:0")
        await load(registry, node_id)
        registry.offer(node_id, ["cpu:0"])
    market.spot = 50
    repricing = asyncio.create_task(registry.reprice())
    await asyncio.sleep(0)
    registry.forget(OTHER)
    await repricing
    assert list_prices(registry) == {NODE: 50}


NAMES = ["cpu:0", "cpu:1", "gpu:0"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enrol", "load", "offer", "withdraw", "forget", "evidence"]),
        st.sampled_from([NODE, OTHER]),
        st.sets(st.sampled_from(NAMES)),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(STEPS)
def test_whatever_happens_only_what_is_offered_and_known_is_free(steps):
    """Beside it, two dicts: what was read of each node, and which of its slots are offered."""
    record = Record()
    registry = Registry(SETS, record)
    known: dict[NodeId, dict[str, int]] = {}
    free: set[tuple[NodeId, str]] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry_module.node_store, "list_candidates", record.list_candidates)
        for kind, node_id, names, number in steps:
            if kind == "enrol":
                record.enrol(node_id, *sorted(names), floor=number)
            elif kind == "load":
                asyncio.run(load(registry, node_id))
                known[node_id] = {
                    each.slot.name: each.floor_microcredits_per_hour for each in record.offered.get(node_id, [])
                }
                free = {(id, name) for id, name in free if id != node_id or name in known[node_id]}
            elif kind == "offer":
                registry.offer(node_id, names)
                free |= {(node_id, name) for name in names if name in known.get(node_id, ())}
            elif kind == "withdraw":
                registry.withdraw(node_id, names or None)
                free -= {(node_id, name) for name in names or NAMES}
            elif kind == "forget":
                registry.forget(node_id)
                known.pop(node_id, None)
                free = {(id, name) for id, name in free if id != node_id}
            else:
                record.change(node_id, number / 4)
            assert list_free(registry) == free
            prices = {(c.slot.node_id, c.slot.name): c.price_microcredits_per_hour for c in registry.fleet}
            assert prices == {(id, name): known[id][name] for id, name in free}
