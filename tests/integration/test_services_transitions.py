"""The snapshot: decisions see the ones before them, and are written together with counts and events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, decide_loss, decide_stop
from computepool.core.jobs.state import SliceEvent, SliceState
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.transitions import lock_open_snapshot, lock_snapshot
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from tests.support.spine import Spine, open_spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def cancel(spine: Spine, *grants: Grant) -> None:
    """The slices of these attempts, in one transaction."""
    async with spine.pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, [grant.id for grant in grants])
        for grant in grants:
            key = (grant.job_id, grant.slice_index)
            decision = decide_stop(
                snapshot.slices[key], snapshot.list_live(key), SliceEvent.CANCELLED, Cause.CANCELLED
            )
            assert isinstance(decision, Decision)
            snapshot.take(decision)
        await snapshot.write(conn)


async def lease_all(spine: Spine, *jobs: Job) -> dict[tuple[JobId, int], Grant]:
    node = await spine.enrol(cpu_slots=sum(job.slice_count for job in jobs))
    grants = {(grant.job_id, grant.slice_index): grant for grant in await spine.grant(node)}
    assert {job_id for job_id, _ in grants} == {job.id for job in jobs}
    return grants


async def events_of(spine: Spine, job: Job) -> list[tuple[str, dict]]:
    rows = await spine.fetch("SELECT kind, body, account_id FROM events WHERE job_id = $1 ORDER BY id", job.id)
    assert {row["account_id"] for row in rows} == {job.account_id}
    return [(row["kind"], row["body"]) for row in rows]


async def counts_of(spine: Spine, job: Job) -> dict[str, int]:
    [row] = await spine.fetch("SELECT * FROM jobs WHERE id = $1", job.id)
    return {name: row[f"{name}_count"] for name in ("succeeded", "failed", "cancelled")}


async def test_one_event_tells_of_all_slices_that_made_the_same_step(spine):
    job = await spine.submit(slice_count=8)
    grants = await lease_all(spine, job)
    await cancel(spine, *(grants[job.id, index] for index in (0, 1, 2, 4, 6, 7)))
    assert (await events_of(spine, job))[2:] == [
        ("slices_cancelled", {"slices": [[0, 2], [4, 4], [6, 7]], "causes": ["cancelled"]}),
    ]
    assert await counts_of(spine, job) == {"succeeded": 0, "failed": 0, "cancelled": 6}


async def test_every_job_has_events_of_its_own(spine):
    caller = await spine.sign_up()
    one, other = await spine.submit(by=caller, slice_count=2), await spine.submit(by=caller, slice_count=2)
    grants = await lease_all(spine, one, other)
    await cancel(spine, grants[one.id, 0], grants[other.id, 1])
    assert (await events_of(spine, one))[2:] == [("slices_cancelled", {"slices": [[0, 0]], "causes": ["cancelled"]})]
    assert (await events_of(spine, other))[2:] == [
        ("slices_cancelled", {"slices": [[1, 1]], "causes": ["cancelled"]})
    ]


async def test_the_last_slice_ends_the_job_and_says_so_last(spine):
    job = await spine.submit(slice_count=2)
    grants = await lease_all(spine, job)
    await cancel(spine, grants[job.id, 0])
    assert await spine.fetch_value("SELECT finished_at FROM jobs WHERE id = $1", job.id) is None
    await cancel(spine, grants[job.id, 1])
    assert await spine.fetch_value("SELECT finished_at FROM jobs WHERE id = $1", job.id) is not None
    assert await spine.list_event_kinds(job) == [
        "job_submitted",
        "slices_leased",
        "slices_cancelled",
        "slices_cancelled",
        "job_cancelled",
    ]


async def test_different_ends_in_one_transaction_are_counted_and_told_apart(spine):
    job = await spine.submit(slice_count=3, retries=0)
    node = await spine.enrol(cpu_slots=3)
    grants = await spine.grant(node)
    await spine.finish(
        (node, spine.completion(node, grants[0])),
        (node, spine.completion(node, grants[1], exit_code=1, cause=Cause.EXIT_CODE)),
        (node, spine.completion(node, grants[2], exit_code=None, cause=Cause.OUT_OF_MEMORY)),
    )
    assert await counts_of(spine, job) == {"succeeded": 1, "failed": 2, "cancelled": 0}
    events = await events_of(spine, job)
    assert sorted(events[2:4]) == [
        ("slices_failed", {"slices": [[1, 2]], "causes": ["exit_code", "out_of_memory"]}),
        ("slices_succeeded", {"slices": [[0, 0]]}),
    ]
    assert events[4:] == [("job_failed", {})]


async def test_a_slice_that_goes_back_to_the_queue_goes_to_its_end(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    async with spine.pool.acquire() as conn, conn.transaction():
        key = (job.id, grant.slice_index)
        snapshot = await lock_snapshot(conn, [grant.id])
        decision = decide_loss(snapshot.slices[key], snapshot.attempts[grant.id], Cause.NODE_VANISHED)
        assert isinstance(decision, Decision)
        snapshot.take(decision)
        assert snapshot.list_live(key) == []
        await snapshot.write(conn)
    rows = await spine.fetch("SELECT slice_index FROM slices WHERE state = 'queued' ORDER BY queued_at")
    assert [row["slice_index"] for row in rows] == [1, 0]
    assert (await events_of(spine, job))[-1] == ("slices_queued", {"slices": [[0, 0]]})


async def test_a_snapshot_holds_the_named_and_the_live_attempts_and_no_others(spine):
    job = await spine.submit(retries=5)
    node = await spine.enrol()
    first = await spine.grant_one(node)
    await spine.finish((node, spine.completion(node, first, exit_code=None, cause=Cause.OWNER_RETURNED)))
    await spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    second = await spine.grant_one(node)
    key = (job.id, 0)
    async with spine.pool.acquire() as conn, conn.transaction():
        assert set((await lock_snapshot(conn, [second.id])).attempts) == {second.id}
        named = await lock_snapshot(conn, [first.id])
        assert set(named.attempts) == {first.id, second.id}
        assert [attempt.id for attempt in named.list_live(key)] == [second.id]
        assert named.list_live(key, but=second.id) == []


async def test_a_snapshot_of_attempts_that_are_not_there_is_empty(spine):
    async with spine.pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, [AttemptId(UUID(int=1))])
        assert (snapshot.slices, snapshot.attempts, snapshot.list_ended()) == ({}, {}, [])
        await snapshot.write(conn)


async def test_a_snapshot_of_a_job_holds_what_is_unfinished_up_to_its_limit(spine):
    job = await spine.submit(slice_count=5)
    grants = await lease_all(spine, job)
    await cancel(spine, grants[job.id, 1])
    async with spine.pool.acquire() as conn, conn.transaction():
        assert [key[1] for key in (await lock_open_snapshot(conn, job.id, limit=10)).slices] == [0, 2, 3, 4]
        assert [key[1] for key in (await lock_open_snapshot(conn, job.id, limit=2)).slices] == [0, 2]


async def test_a_snapshot_that_decided_nothing_writes_nothing(spine):
    job = await spine.submit()
    grant = (await lease_all(spine, job))[job.id, 0]
    rows = " UNION ALL ".join(
        f"SELECT xmin::text FROM {table}" for table in ("slices", "jobs", "attempts", "receipts")
    )
    before = await spine.fetch(rows), await spine.list_event_kinds(job)
    async with spine.pool.acquire() as conn, conn.transaction():
        await (await lock_snapshot(conn, [grant.id])).write(conn)
    assert (await spine.fetch(rows), await spine.list_event_kinds(job)) == before


async def test_a_locked_slice_cannot_be_taken_by_another_hub_meanwhile(spine):
    job = await spine.submit()
    node = await spine.enrol()
    async with spine.pool.acquire() as conn, conn.transaction():
        await lock_open_snapshot(conn, job.id, limit=10)
        assert await spine.grant(node) == []
    assert len(await spine.grant(node)) == 1


async def test_decisions_of_one_transaction_see_the_ones_before_them(spine):
    job = await spine.submit(retries=5)
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    await spine.let_lease_pass(first)
    await reap_leases(spine.pool, grace_seconds=1, limit=10)
    second = await spine.grant_one(quick)
    key = (job.id, 0)
    async with spine.pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, [first.id, second.id])
        assert [attempt.id for attempt in snapshot.list_live(key)] == [second.id]
        decision = decide_loss(snapshot.slices[key], snapshot.attempts[second.id], Cause.NODE_VANISHED)
        assert isinstance(decision, Decision)
        snapshot.take(decision)
        assert snapshot.list_live(key) == []
        assert snapshot.slices[key].state is SliceState.QUEUED
        assert [ended.attempt_id for ended in snapshot.list_ended()] == [second.id]


async def test_the_database_refuses_what_core_would_never_decide(spine):
    """The CHECKs stand behind core: a success without its attempt is not stored, whoever asks for it."""
    job = await spine.submit()
    key = (job.id, 0)

    async def write_impossible() -> None:
        async with spine.pool.acquire() as conn, conn.transaction():
            snapshot = await lock_open_snapshot(conn, job.id, limit=1)
            snapshot.take(Decision(replace(snapshot.slices[key], state=SliceState.SUCCEEDED)))
            await snapshot.write(conn)

    with pytest.raises(asyncpg.CheckViolationError):
        await write_impossible()
    assert await spine.slice_state(job) == "queued"
    assert await counts_of(spine, job) == {"succeeded": 0, "failed": 0, "cancelled": 0}
