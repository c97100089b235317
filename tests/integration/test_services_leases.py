"""Granting leases on a real database: nothing twice, numbers that grow, and what the node is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

import jwt
import msgspec
import pytest

from computepool.core.jobs.cause import Cause
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import jobs as job_service
from computepool.hub.services import leases as lease_module
from computepool.hub.services.keyring import JOB_TOKEN_TYPE
from computepool.hub.services.leases import Leases
from computepool.hub.store.attempts import Grant
from computepool.wire.attempts import RunOrder
from computepool.wire.jobs import Requirements
from computepool.wire.nodes import Gpu
from tests.support.builders import GB, indexes_of
from tests.support.spine import Spine, open_spine

CARD = Gpu(name="NVIDIA GeForce RTX 3090", vram_bytes=24 * GB)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def test_a_free_slot_gets_the_first_queued_slice(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    assert (grant.job_id, grant.slice_index, grant.number) == (job.id, 0, 1)
    assert (grant.node_id, grant.slot) == (node.id, "cpu:0")
    assert [await spine.slice_state(job, index) for index in (0, 1)] == ["leased", "queued"]


async def test_a_lease_lasts_as_long_as_the_settings_say_on_the_databases_clock(spine):
    await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    attempt = await spine.attempt(grant)
    lasting = (attempt["expires_at"] - attempt["leased_at"]).total_seconds()
    assert lasting == pytest.approx(spine.settings.lease_seconds, abs=1.0)


async def test_the_first_lease_starts_the_job_and_later_ones_do_not(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=2)
    node = await spine.enrol(cpu_slots=2)
    slots = await spine.list_slots(node)
    await spine.leases.grant(slots[:1])
    started = await job_service.get_job(spine.pool, caller, job.id)
    await spine.leases.grant(slots[1:])
    again = await job_service.get_job(spine.pool, caller, job.id)
    assert started.state.value == again.state.value == "running"
    assert started.started_at == again.started_at is not None
    assert (again.leased_count, again.running_count) == (2, 0)


async def test_one_event_tells_of_all_slices_of_a_job_that_were_leased_together(spine):
    job = await spine.submit(slice_count=4)
    other = await spine.submit(slice_count=1)
    node = await spine.enrol(cpu_slots=8)
    assert len(await spine.grant(node)) == 5
    rows = await spine.fetch("SELECT job_id, body FROM events WHERE kind = 'slices_leased'")
    assert {row["job_id"]: row["body"]["slices"] for row in rows} == {job.id: [[0, 3]], other.id: [[0, 0]]}


async def test_without_work_or_without_a_fitting_slot_nothing_is_granted(spine):
    node = await spine.enrol()
    assert await spine.grant(node) == []
    job = await spine.submit(requirements=Requirements(gpu=True))
    assert await spine.grant(node) == []
    assert await spine.slice_state(job) == "queued"


async def test_work_finds_the_one_node_that_can_do_it(spine):
    await spine.submit(requirements=Requirements(vram_bytes=20 * GB))
    plain, gamer = await spine.enrol(), await spine.enrol(gpus=(CARD,))
    [grant] = await spine.grant(plain, gamer)
    assert (grant.node_id, grant.slot) == (gamer.id, "gpu:0")


async def test_a_backlog_of_one_shape_does_not_hide_another(spine):
    await spine.submit(slice_count=50, requirements=Requirements(gpu=True), priority=10)
    small = await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    assert grant.job_id == small.id


async def test_a_higher_priority_goes_first_and_equals_go_by_age(spine):
    old, new, urgent = [await spine.submit(), await spine.submit(), await spine.submit(priority=1)]
    node = await spine.enrol()
    [slot] = await spine.list_slots(node)
    order = []
    for _ in range(3):
        [grant] = await spine.leases.grant([slot])
        await spine.succeed(node, grant)
        order.append(grant.job_id)
    assert order == [urgent.id, old.id, new.id]


async def test_a_slot_that_is_taken_is_passed_over_and_its_slice_stays_queued(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol()
    slots = await spine.list_slots(node)
    await spine.leases.grant(slots)
    assert await spine.leases.grant(slots) == []
    assert await spine.slice_state(job, 1) == "queued"
    assert await spine.fetch_value("SELECT attempt_count FROM slices WHERE slice_index = 1") == 0


async def test_hubs_that_grant_at_once_never_give_a_slice_or_a_slot_twice(spine):
    await spine.submit(slice_count=12)
    nodes = [await spine.enrol(cpu_slots=4) for _ in range(4)]
    hubs = [Leases(spine.pool, spine.keyring, spine.settings) for _ in range(4)]
    granted: list[Grant] = []
    while len(granted) < 12:
        free = await spine.list_free(*nodes)
        fresh = [grant for grants in await asyncio.gather(*(hub.grant(free) for hub in hubs)) for grant in grants]
        assert fresh
        granted += fresh
    assert len({(grant.job_id, grant.slice_index) for grant in granted}) == len(granted) == 12
    assert len({(grant.node_id, grant.slot) for grant in granted}) == 12
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 12


async def test_attempt_numbers_grow_with_every_lease_of_a_slice(spine):
    job = await spine.submit(retries=5)
    node, other = await spine.enrol(), await spine.enrol()
    numbers = []
    for holder in (node, other, node):
        grant = await spine.grant_one(holder)
        numbers.append(grant.number)
        await spine.finish((holder, spine.completion(holder, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    assert numbers == [1, 2, 3]
    assert await spine.fetch_value("SELECT attempt_count FROM slices WHERE job_id = $1", job.id) == 3


async def test_a_slice_keeps_away_for_ten_seconds_from_the_node_that_failed_it(spine):
    await spine.submit(retries=5)
    node, other = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.finish((node, spine.completion(node, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    assert await spine.grant(node) == []
    await spine.fetch("UPDATE slices SET queued_at = queued_at - interval '10 seconds'")
    assert len(await spine.grant(node)) == 1
    assert await spine.grant(other) == []


async def test_no_more_leases_are_granted_at_once_than_one_transaction_should_hold(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "GRANTS_MAX", 3)
    await spine.submit(slice_count=10)
    node = await spine.enrol(cpu_slots=8)
    assert len(await spine.grant(node)) == 3
    assert len(await spine.grant(node)) == 3


# What the node is told


async def test_an_assignment_carries_the_order_its_hash_and_the_proof_of_the_lease(spine):
    job = await spine.submit(
        slice_count=3, command=("python3", "x.py"), env={"A": "1"}, requirements=Requirements(cores=2), wall_seconds=9
    )
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    [assignment] = await spine.leases.make_assignments([grant])
    order = msgspec.json.decode(assignment.order, type=RunOrder)
    assert (order.attempt_id, order.job_id, order.slice_index) == (grant.id, job.id, 0)
    assert (order.slice_count, order.attempt_number, order.wall_seconds, order.cores) == (3, 1, 9, 2)
    assert (order.command, order.env) == (("python3", "x.py"), {"A": "1"})
    claims = spine.keyring.verify(assignment.token, typ=JOB_TOKEN_TYPE, audience=str(node.id))
    assert claims["jti"] == str(grant.id)
    assert claims["order_sha256"] == hashlib.sha256(assignment.order.encode()).hexdigest()
    assert assignment.lease_secret == spine.keyring.lease_secret(grant.id)


async def test_a_script_without_a_command_is_run_by_python(spine):
    await spine.submit(command=(), script="print(1)")
    [assignment] = await spine.leases.make_assignments([await spine.grant_one(await spine.enrol())])
    order = msgspec.json.decode(assignment.order, type=RunOrder)
    assert (order.command, order.script) == (("python3", "main.py"), "print(1)")


async def test_the_same_assignment_again_has_the_same_order_and_secret(spine):
    await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    [first] = await spine.leases.make_assignments([grant])
    other_hub = Leases(spine.pool, spine.keyring, spine.settings)
    [again] = await other_hub.make_assignments([grant])
    assert (again.order, again.lease_secret) == (first.order, first.lease_secret)


async def test_a_job_token_is_not_made_for_another_node(spine):
    await spine.submit()
    [assignment] = await spine.leases.make_assignments([await spine.grant_one(await spine.enrol())])
    claims = jwt.decode(assignment.token, options={"verify_signature": False})
    assert claims["aud"] != str(UUID(int=1))


# What a hub remembers of jobs


async def test_the_oldest_job_can_be_granted_together_with_one_that_the_hub_has_just_learnt_of(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "ORDERS_REMEMBERED_MAX", 0)
    node = await spine.enrol(cpu_slots=4)
    slots = await spine.list_slots(node)
    old = await spine.submit(slice_count=2)
    await spine.leases.grant(slots[:1])
    middle = await spine.submit()
    new = await spine.submit()
    grants = await spine.leases.grant(slots[1:])
    assert {grant.job_id for grant in grants} == {old.id, middle.id, new.id}
    assert len(await spine.leases.make_assignments(grants)) == 3


async def test_a_hub_remembers_no_more_jobs_than_it_should(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "ORDERS_REMEMBERED_MAX", 2)
    node = await spine.enrol(cpu_slots=8)
    for slot in await spine.list_slots(node):
        await spine.submit()
        await spine.leases.grant([slot])
    assert len(spine.leases._orders) <= 3


async def test_a_lost_slice_is_granted_again_with_the_next_number(spine):
    job = await spine.submit()
    node, other = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(node)
    await spine.let_lease_pass(first)
    await attempt_service.reap_leases(spine.pool, grace_seconds=1, limit=10)
    second = await spine.grant_one(other)
    assert (second.job_id, second.number) == (job.id, 2)
    rows = await spine.fetch("SELECT body FROM events WHERE kind = 'slices_leased' ORDER BY id")
    assert [indexes_of(row["body"]["slices"]) for row in rows] == [[0], [0]]


async def test_a_slice_that_keeps_away_from_the_only_free_node_does_not_hold_up_the_one_behind_it(spine):
    node = await spine.enrol()
    await spine.submit(retries=5)
    grant = await spine.grant_one(node)
    await spine.finish((node, spine.completion(node, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    behind = await spine.submit()
    assert [grant.job_id for grant in await spine.grant(node)] == [behind.id]
