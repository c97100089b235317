"""Nodes on a real database: enrolment, new starts of an agent, and what owners do with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest

from computepool.core.errors import Conflict, InvalidRequest, NodeRemoved, NotFound, StaleBoot, SyntheticRefused
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.nodes.state import NodeState
from computepool.hub.services import nodes as node_service
from computepool.hub.services.keyring import to_base64
from computepool.hub.services.nodes import record_boot
from computepool.wire.attempts import CompleteAnswer
from computepool.wire.nodes import EnrolNode, Gpu, Hardware
from tests.support.builders import GB
from tests.support.spine import EnrolledNode, Spine, open_spine

BOOT, NEWER, NEWEST = UUID(int=1), UUID(int=2), UUID(int=3)
NOTHING: frozenset = frozenset()
KEY = to_base64(b"\1" * 32)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def boots_of(spine: Spine, node: EnrolledNode) -> tuple[UUID | None, list[UUID]]:
    [row] = await spine.fetch("SELECT boot_id, past_boot_ids FROM nodes WHERE id = $1", node.id)
    return row["boot_id"], row["past_boot_ids"]


# Boots


async def test_the_first_call_of_an_agent_is_a_new_start(spine):
    node = await spine.enrol()
    assert await record_boot(spine.pool, node.id, BOOT, NOTHING) is True
    assert await boots_of(spine, node) == (BOOT, [])


async def test_the_same_start_again_changes_nothing(spine):
    await spine.submit()
    node = await spine.enrol()
    await record_boot(spine.pool, node.id, BOOT, NOTHING)
    grant = await spine.grant_one(node)
    assert await record_boot(spine.pool, node.id, BOOT, NOTHING) is False
    assert (await spine.attempt(grant))["state"] == "leased"
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'node_booted'") == 1


async def test_a_new_start_loses_at_once_what_it_does_not_list_and_keeps_what_it_does(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol(cpu_slots=2)
    await record_boot(spine.pool, node.id, BOOT, NOTHING)
    kept, forgotten = await spine.grant(node)
    assert await record_boot(spine.pool, node.id, NEWER, frozenset({kept.id})) is True
    assert (await spine.attempt(kept))["state"] == "leased"
    lost = await spine.attempt(forgotten)
    assert (lost["state"], lost["cause"]) == ("lost", "node_vanished")
    assert await spine.slice_state(job, forgotten.slice_index) == "queued"
    assert await boots_of(spine, node) == (NEWER, [BOOT])
    [event] = await spine.fetch("SELECT body FROM events WHERE kind = 'slices_queued'")
    assert event["body"] == {"slices": [[forgotten.slice_index, forgotten.slice_index]]}


async def test_a_new_start_does_not_touch_what_other_nodes_hold(spine):
    await spine.submit(slice_count=2)
    node, other = await spine.enrol(), await spine.enrol()
    grants = await spine.grant(node, other)
    await record_boot(spine.pool, node.id, BOOT, NOTHING)
    states = {grant.node_id: (await spine.attempt(grant))["state"] for grant in grants}
    assert states == {node.id: "lost", other.id: "leased"}


async def test_an_agent_that_was_replaced_is_refused_and_loses_nothing_for_the_new_one(spine):
    await spine.submit()
    node = await spine.enrol()
    await record_boot(spine.pool, node.id, BOOT, NOTHING)
    await record_boot(spine.pool, node.id, NEWER, NOTHING)
    grant = await spine.grant_one(node)
    with pytest.raises(StaleBoot):
        await record_boot(spine.pool, node.id, BOOT, NOTHING)
    assert (await spine.attempt(grant))["state"] == "leased"
    assert await boots_of(spine, node) == (NEWER, [BOOT])


async def test_many_calls_of_one_new_start_lose_its_work_once(spine):
    job = await spine.submit()
    node = await spine.enrol()
    await record_boot(spine.pool, node.id, BOOT, NOTHING)
    await spine.grant_one(node)
    booted = await asyncio.gather(*(record_boot(spine.pool, node.id, NEWER, NOTHING) for _ in range(4)))
    assert sorted(booted) == [False, False, False, True]
    assert (await spine.list_event_kinds(job)).count("slices_queued") == 1


async def test_a_new_start_can_still_deliver_what_it_lost(spine):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await record_boot(spine.pool, node.id, NEWEST, NOTHING)
    assert await spine.succeed(node, grant, boot_id=NEWEST) == CompleteAnswer(accepted=True)


async def test_a_removed_or_unknown_node_cannot_boot(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner)
    await node_service.change_node_state(spine.pool, owner, node.id, "remove")
    for node_id in (node.id, UUID(int=9)):
        with pytest.raises(NodeRemoved):
            await record_boot(spine.pool, node_id, BOOT, NOTHING)


# Enrolment


def make_enrolment(**overrides: object) -> EnrolNode:
    values = {
        "name": "box",
        "public_key": KEY,
        "hardware": Hardware(cores=8, ram_bytes=32 * GB, disk_bytes=100 * GB, cpu_slots=2),
        "isolation": IsolationLevel.SANDBOXED,
        "region": "IN",
    }
    return EnrolNode(**{**values, **overrides})


async def test_an_enrolled_node_has_its_slots(spine):
    owner = await spine.sign_up()
    hardware = Hardware(
        gpus=(Gpu(name="RTX 3090", vram_bytes=24 * GB),), cores=9, ram_bytes=30 * GB, disk_bytes=90 * GB, cpu_slots=2
    )
    node_id = await node_service.enrol_node(spine.pool, spine.settings, owner, make_enrolment(hardware=hardware))
    found = await node_service.get_node(spine.pool, owner, node_id)
    assert [(stored.slot.name, stored.slot.tier, stored.busy) for stored in found.slots] == [
        ("cpu:0", "cpu", False),
        ("cpu:1", "cpu", False),
        ("gpu:0", "rtx-3090", False),
    ]
    assert {(s.slot.cores, s.slot.ram_bytes, s.slot.region) for s in found.slots} == {(3, 10 * GB, "IN")}


async def test_enrolling_again_with_the_same_key_is_the_same_node_with_new_slots(spine):
    owner = await spine.sign_up()
    first = await node_service.enrol_node(spine.pool, spine.settings, owner, make_enrolment())
    hardware = Hardware(cores=8, ram_bytes=GB, disk_bytes=GB, cpu_slots=4)
    again = await node_service.enrol_node(
        spine.pool, spine.settings, owner, make_enrolment(name="renamed", hardware=hardware)
    )
    found = await node_service.get_node(spine.pool, owner, again)
    assert again == first
    assert (found.node.name, len(found.slots)) == ("renamed", 4)


async def test_another_owner_cannot_take_over_a_node(spine):
    await node_service.enrol_node(spine.pool, spine.settings, await spine.sign_up(), make_enrolment())
    with pytest.raises(Conflict):
        await node_service.enrol_node(spine.pool, spine.settings, await spine.sign_up(), make_enrolment())


async def test_a_removed_node_does_not_come_back_with_its_old_key(spine):
    owner = await spine.sign_up()
    node_id = await node_service.enrol_node(spine.pool, spine.settings, owner, make_enrolment())
    await node_service.change_node_state(spine.pool, owner, node_id, "remove")
    with pytest.raises(Conflict):
        await node_service.enrol_node(spine.pool, spine.settings, owner, make_enrolment())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"public_key": "short"}, "public_key"),
        ({"region": "India"}, "ISO-2"),
        ({"name": ""}, "1 to 100 characters"),
        ({"name": "x" * 101}, "1 to 100 characters"),
        ({"name": "a\0b"}, "NUL"),
        ({"hardware": Hardware(cores=0, ram_bytes=GB, disk_bytes=GB)}, "positive"),
        ({"hardware": Hardware(cores=1, ram_bytes=GB, disk_bytes=GB, cpu_slots=0)}, "nothing to lend"),
        ({"allows": ("anything",)}, "image NAME, egress HOST:PORT or packages"),
        ({"allows": ("packages",) * 257}, "257 patterns; 256 are allowed"),
    ],
)
async def test_a_node_that_breaks_a_rule_is_not_enrolled(spine, change, words):
    with pytest.raises(InvalidRequest, match=words):
        await node_service.enrol_node(spine.pool, spine.settings, await spine.sign_up(), make_enrolment(**change))
    assert await spine.fetch_value("SELECT count(*) FROM nodes") == 0


async def test_synthetic_nodes_join_a_demo_only(spine):
    owner = await spine.sign_up()
    earnest = msgspec.structs.replace(spine.settings, demo=False)
    with pytest.raises(SyntheticRefused):
        await node_service.enrol_node(spine.pool, earnest, owner, make_enrolment(synthetic=True))
    await node_service.enrol_node(spine.pool, spine.settings, owner, make_enrolment(synthetic=True))


# What owners do


async def test_a_slot_is_busy_while_an_attempt_is_live_on_it(spine):
    await spine.submit()
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner)
    grant = await spine.grant_one(node)
    assert [s.busy for s in (await node_service.get_node(spine.pool, owner, node.id)).slots] == [True]
    await spine.succeed(node, grant)
    assert [s.busy for s in (await node_service.get_node(spine.pool, owner, node.id)).slots] == [False]


async def test_a_change_is_told_once_however_often_it_is_asked_for(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner)
    for _ in range(2):
        changed = await node_service.change_node_state(spine.pool, owner, node.id, "pause")
        assert changed.node.state is NodeState.PAUSED
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'node_paused'") == 1


async def test_what_cannot_be_done_with_a_node_is_a_conflict(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner)
    await node_service.change_node_state(spine.pool, owner, node.id, "remove")
    with pytest.raises(Conflict, match="removed cannot resume"):
        await node_service.change_node_state(spine.pool, owner, node.id, "resume")


async def test_a_node_of_another_owner_is_like_one_that_is_not_there(spine):
    node = await spine.enrol()
    stranger = await spine.sign_up()
    with pytest.raises(NotFound):
        await node_service.get_node(spine.pool, stranger, node.id)
    with pytest.raises(NotFound):
        await node_service.change_node_state(spine.pool, stranger, node.id, "remove")
    assert await node_service.list_nodes(spine.pool, stranger, after=UUID(int=0), limit=10) == []
