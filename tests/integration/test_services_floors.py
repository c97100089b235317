"""What owners ask and nodes declare, and what operators grant, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.ids import NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.hub.services import accounts as account_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller, hash_secret
from computepool.hub.services.keyring import to_base64
from computepool.hub.services.nodes import NodeWithSlots
from computepool.hub.store import keys as key_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.nodes import OfferedSlot
from computepool.wire.nodes import EnrolNode, Gpu, Hardware
from tests.support.builders import GB
from tests.support.stored_grid import StoredGrid, open_grid

CREDIT = 1_000_000
KEY = to_base64(b"\1" * 32)
CARD = Gpu(name="NVIDIA GeForce RTX 3090", vram_bytes=24 * GB, tflops=36.5)


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[StoredGrid]:
    async with open_grid(dsn) as grid:
        yield grid


@pytest.fixture
async def owner(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


async def enrol(grid: StoredGrid, owner: AccountCaller, *, floor: int = 0, **hardware: Any) -> NodeId:
    values = {"cores": 8, "ram_bytes": 64 * GB, "disk_bytes": 500 * GB, "cpu_slots": 1, **hardware}
    request = EnrolNode(
        name="node",
        public_key=KEY,
        hardware=Hardware(**values),
        isolation=IsolationLevel.SANDBOXED,
        floor_microcredits_per_hour=floor,
    )
    return await node_service.enrol_node(grid.pool, grid.settings, owner, request)


async def list_offered(grid: StoredGrid, *nodes: NodeId) -> list[OfferedSlot]:
    async with grid.pool.acquire() as conn:
        return await node_store.list_candidates(conn, nodes)


async def set_floor(grid: StoredGrid, caller: AccountCaller, node: NodeId, floor: int) -> NodeWithSlots:
    return await grid.set_offer(caller, node, floor_microcredits_per_hour=floor)


async def floor_of(grid: StoredGrid, node: NodeId) -> int:
    return await grid.fetch_value("SELECT floor_microcredits_per_hour FROM nodes WHERE id = $1", node)


async def test_a_node_is_stored_with_its_floor_and_what_each_slot_declares(grid, owner):
    node = await enrol(grid, owner, floor=12 * CREDIT, gpus=(CARD,), cpu_slots=1, cpu_tflops=0.8)
    gpu, cpu = sorted(await list_offered(grid, node), key=lambda each: each.slot.name, reverse=True)
    assert (gpu.slot.name, gpu.declared_tflops, gpu.floor_microcredits_per_hour) == ("gpu:0", 36.5, 12 * CREDIT)
    assert (cpu.slot.name, cpu.declared_tflops, cpu.busy) == ("cpu:0", pytest.approx(0.4), False)
    job = await grid.add_job(owner)
    await grid.add_attempt(job, node, "gpu:0")
    assert {each.slot.name: each.busy for each in await list_offered(grid, node)} == {"gpu:0": True, "cpu:0": False}


async def test_a_node_that_declares_nothing_has_no_floor_and_no_speed(grid, owner):
    [offered] = await list_offered(grid, await enrol(grid, owner))
    assert (offered.floor_microcredits_per_hour, offered.declared_tflops) == (0, None)


@pytest.mark.parametrize("floor", [-1, PRICE_MICROCREDITS_MAX + 1])
async def test_a_floor_out_of_bounds_is_refused_at_enrolment_and_later(grid, owner, floor: int):
    with pytest.raises(InvalidRequest, match="floor_microcredits_per_hour is"):
        await enrol(grid, owner, floor=floor)
    node = await enrol(grid, owner, floor=5)
    with pytest.raises(InvalidRequest, match="floor_microcredits_per_hour must be between 0 and"):
        await set_floor(grid, owner, node, floor)
    assert await floor_of(grid, node) == 5


async def test_a_speed_that_cannot_be_is_refused_at_enrolment(grid, owner):
    with pytest.raises(InvalidRequest, match="TFLOPS"):
        await enrol(grid, owner, gpus=(Gpu(name="x", vram_bytes=GB, tflops=-1.0),))


async def test_an_agent_that_names_no_floor_leaves_the_one_its_owner_has_set(grid, owner):
    node = await enrol(grid, owner)
    await set_floor(grid, owner, node, 12 * CREDIT)
    assert await enrol(grid, owner) == node
    assert await floor_of(grid, node) == 12 * CREDIT
    await enrol(grid, owner, floor=20 * CREDIT)
    assert await floor_of(grid, node) == 20 * CREDIT


async def test_an_owner_changes_the_floor_and_every_hub_is_told(grid, owner):
    node = await enrol(grid, owner)
    told = f"SELECT count(*) FROM hub_changes WHERE kind = 'node' AND subject_id = '{node}'"
    before = await grid.fetch_value(told)
    changed = await set_floor(grid, owner, node, 12 * CREDIT)
    assert changed.node.floor_microcredits_per_hour == 12 * CREDIT
    assert await grid.fetch_value(told) == before + 1
    body = await grid.fetch_value("SELECT body FROM events WHERE kind = 'node_offer_set'")
    assert (body["floor_microcredits_per_hour"], body["before"]["floor_microcredits_per_hour"]) == (12 * CREDIT, 0)
    await set_floor(grid, owner, node, 12 * CREDIT)
    assert await grid.fetch_value("SELECT count(*) FROM events WHERE kind = 'node_offer_set'") == 1
    assert await grid.fetch_value(told) == before + 1


async def test_only_the_owner_and_the_operator_may_change_it_and_not_of_a_removed_node(grid, owner):
    node, stranger = await enrol(grid, owner), await grid.sign_up()
    with pytest.raises(NotFound):
        await set_floor(grid, stranger, node, CREDIT)
    operator = await grid.sign_up(roles=frozenset(Role))
    await set_floor(grid, operator, node, 3 * CREDIT)
    assert await floor_of(grid, node) == 3 * CREDIT
    await node_service.change_node_state(grid.pool, owner, node, "remove")
    with pytest.raises(Conflict):
        await set_floor(grid, owner, node, CREDIT)


# Grants


async def grant(grid: StoredGrid, operator: AccountCaller, account: AccountCaller, **changes: Any) -> Any:
    unchanged = dict.fromkeys(("roles", "queued_slices_max", "stored_bytes_max", "calls_per_minute_max"))
    return await account_service.change_account(grid.pool, operator, account.account_id, **{**unchanged, **changes})


async def test_an_account_begins_with_weight_one_and_class_normal_and_is_granted_more(grid, owner):
    operator = await grid.sign_up(roles=frozenset(Role))
    before = await account_service.get_account(grid.pool, owner.account_id)
    assert (before.fair_weight, before.priority_class_max) == (1.0, PriorityClass.NORMAL)
    after = await grant(grid, operator, owner, fair_weight=2.5, priority_class_max=PriorityClass.HIGH)
    assert (after.fair_weight, after.priority_class_max) == (2.5, PriorityClass.HIGH)
    # What is not named stays.
    again = await grant(grid, operator, owner, fair_weight=0.01)
    assert (again.fair_weight, again.priority_class_max) == (0.01, PriorityClass.HIGH)
    assert again.queued_slices_max == before.queued_slices_max


@pytest.mark.parametrize("weight", [0.0, 0.009, 100.1, -1.0, float("nan"), float("inf")])
async def test_a_weight_out_of_bounds_is_refused(grid, owner, weight: float):
    operator = await grid.sign_up(roles=frozenset(Role))
    with pytest.raises(InvalidRequest, match="fair_weight is a number from 0"):
        await grant(grid, operator, owner, fair_weight=weight)


async def test_whoever_is_named_by_a_key_brings_the_accounts_grant(grid, owner):
    key = await account_service.create_key(grid.pool, owner, name="", roles=(), expires_seconds=None)
    await grid.execute("UPDATE accounts SET priority_class_max = 'low' WHERE id = $1", owner.account_id)
    async with grid.pool.acquire() as conn:
        row = await key_store.find_caller(conn, secret_sha256=hash_secret(key.secret))
    assert row is not None
    assert row.priority_class_max is PriorityClass.LOW
