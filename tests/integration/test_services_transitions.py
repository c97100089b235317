"""The snapshot: decisions see the ones before them, and are written together with counts and events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, decide_loss, decide_stop
from computepool.core.jobs.state import SliceEvent, SliceState
from computepool.hub.services.transitions import lock_open_snapshot, lock_snapshot
from computepool.hub.store.jobs import Job
from tests.support.spine import Spine, open_spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def cancel(spine: Spine, *keys: tuple) -> None:
    async with spine.pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, keys)
        for key in keys:
            decision = decide_stop(
                snapshot.slices[key], snapshot.list_live(key), SliceEvent.CANCELLED, Cause.CANCELLED
            )
            assert isinstance(decision, Decision)
            snapshot.take(decision)
        await snapshot.write(conn)


async def events_of(spine: Spine, job: Job) -> list[tuple[str, dict]]:
    rows = await spine.fetch("SELECT kind, body, account_id FROM events WHERE job_id = $1 ORDER BY id", job.id)
    assert {row["account_id"] for row in rows} == {job.account_id}
    return [(row["kind"], row["body"]) for row in rows]


async def counts_of(spine: Spine, job: Job) -> dict[str, int]:
    [row] = await spine.fetch("SELECT * FROM jobs WHERE id = $1", job.id)
    return {name: row[f"{name}_count"] for name in ("succeeded", "failed", "cancelled")}


async def test_one_event_tells_of_all_slices_that_made_the_same_step(spine):
    job = await spine.submit(slice_count=10)
    await cancel(spine, *((job.id, index) for index in (0, 1, 2, 5, 7, 8)))
    assert await events_of(spine, job) == [
        ("job_submitted", {"slices": 10}),
        ("slices_cancelled", {"slices": [[0, 2], [5, 5], [7, 8]], "causes": ["cancelled"]}),
    ]
    assert await counts_of(spine, job) == {"succeeded": 0, "failed": 0, "cancelled": 6}


async def test_every_job_has_events_of_its_own(spine):
    one, other = await spine.submit(slice_count=2), await spine.submit(slice_count=2)
    await cancel(spine, (one.id, 0), (other.id, 1))
    assert (await events_of(spine, one))[1:] == [("slices_cancelled", {"slices": [[0, 0]], "causes": ["cancelled"]})]
    assert (await events_of(spine, other))[1:] == [
        ("slices_cancelled", {"slices": [[1, 1]], "causes": ["cancelled"]})
    ]


async def test_the_last_slice_ends_the_job_and_says_so_last(spine):
    job = await spine.submit(slice_count=2)
    await cancel(spine, (job.id, 0))
    assert await spine.fetch_value("SELECT finished_at FROM jobs WHERE id = $1", job.id) is None
    await cancel(spine, (job.id, 1))
    assert await spine.fetch_value("SELECT finished_at FROM jobs WHERE id = $1", job.id) is not None
    assert await spine.list_event_kinds(job) == [
        "job_submitted",
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
        snapshot = await lock_snapshot(conn, [key], attempt_ids=[grant.id])
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
        assert set((await lock_snapshot(conn, [key])).attempts) == {second.id}
        named = await lock_snapshot(conn, [key], attempt_ids=[first.id])
        assert set(named.attempts) == {first.id, second.id}
        assert [attempt.id for attempt in named.list_live(key)] == [second.id]
        assert named.list_live(key, but=second.id) == []


async def test_a_snapshot_of_a_job_holds_what_is_unfinished_up_to_its_limit(spine):
    job = await spine.submit(slice_count=5)
    await cancel(spine, (job.id, 1))
    async with spine.pool.acquire() as conn, conn.transaction():
        assert [key[1] for key in (await lock_open_snapshot(conn, job.id, limit=10)).slices] == [0, 2, 3, 4]
        assert [key[1] for key in (await lock_open_snapshot(conn, job.id, limit=2)).slices] == [0, 2]


async def test_a_snapshot_that_decided_nothing_writes_nothing(spine):
    job = await spine.submit()
    before = await spine.fetch("SELECT xmin::text FROM slices UNION ALL SELECT xmin::text FROM jobs")
    async with spine.pool.acquire() as conn, conn.transaction():
        await (await lock_snapshot(conn, [(job.id, 0)])).write(conn)
    assert await spine.fetch("SELECT xmin::text FROM slices UNION ALL SELECT xmin::text FROM jobs") == before
    assert await spine.list_event_kinds(job) == ["job_submitted"]


async def test_a_locked_slice_cannot_be_taken_by_another_hub_meanwhile(spine):
    job = await spine.submit()
    node = await spine.enrol()
    async with spine.pool.acquire() as conn, conn.transaction():
        await lock_snapshot(conn, [(job.id, 0)])
        assert await spine.grant(node) == []
    assert len(await spine.grant(node)) == 1


async def test_the_database_refuses_what_core_would_never_decide(spine):
    """The CHECKs stand behind core: a success without its attempt is not stored, whoever asks for it."""
    job = await spine.submit()
    key = (job.id, 0)

    async def write_impossible() -> None:
        async with spine.pool.acquire() as conn, conn.transaction():
            snapshot = await lock_snapshot(conn, [key])
            snapshot.take(Decision(replace(snapshot.slices[key], state=SliceState.SUCCEEDED)))
            await snapshot.write(conn)

    with pytest.raises(asyncpg.CheckViolationError):
        await write_impossible()
    assert await spine.slice_state(job) == "queued"
    assert await counts_of(spine, job) == {"succeeded": 0, "failed": 0, "cancelled": 0}
