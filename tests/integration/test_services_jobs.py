"""Looking at jobs, cancelling and expiring them on a real database, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import NotFound
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import JobState, SliceState
from computepool.hub.services import jobs as job_service
from computepool.hub.services import stops as stop_service
from computepool.hub.services.callers import AccountCaller
from tests.support.spine import Spine, open_spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


# Looking


async def test_a_job_of_another_account_is_like_one_that_is_not_there(spine):
    job = await spine.submit()
    stranger = await spine.sign_up()
    for look in (
        job_service.get_job(spine.pool, stranger, job.id),
        job_service.cancel_job(spine.pool, stranger, job.id),
        job_service.list_slices(spine.pool, stranger, job.id, after=-1, limit=10, state=None),
        job_service.list_events(spine.pool, stranger, job.id, after=0, limit=10),
        job_service.get_job(spine.pool, stranger, UUID(int=1)),
    ):
        with pytest.raises(NotFound):
            await look
    assert await spine.slice_state(job) == "queued"


async def test_an_operator_sees_every_job(spine):
    job = await spine.submit()
    stranger = await spine.sign_up()
    operator = AccountCaller(stranger.account_id, stranger.key_id, frozenset({Role.OPERATOR}), 1)
    assert (await job_service.get_job(spine.pool, operator, job.id)).id == job.id
    found = await job_service.list_jobs(spine.pool, operator, before=None, state=None, limit=10)
    assert [each.id for each in found] == [job.id]


async def test_jobs_are_listed_newest_first_and_page_by_page(spine):
    caller = await spine.sign_up()
    jobs = [await spine.submit(by=caller) for _ in range(3)]
    listed = await job_service.list_jobs(spine.pool, caller, before=None, state=None, limit=2)
    rest = await job_service.list_jobs(spine.pool, caller, before=listed[-1].id, state=None, limit=2)
    assert [job.id for job in [*listed, *rest]] == sorted((job.id for job in jobs), reverse=True)


async def test_slices_are_listed_by_state(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=3)
    await spine.grant(await spine.enrol())
    leased = await job_service.list_slices(spine.pool, caller, job.id, after=-1, limit=10, state=SliceState.LEASED)
    assert [(detail.slice.slice_index, len(detail.attempts)) for detail in leased] == [(0, 1)]


async def test_a_slice_that_the_job_does_not_have_is_not_found(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    with pytest.raises(NotFound):
        await job_service.get_slice(spine.pool, caller, job.id, 1)


# Stopping


async def test_a_cancelled_job_ends_with_all_its_slices_and_attempts(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=3)
    grant = await spine.grant_one(await spine.enrol())
    cancelled = await job_service.cancel_job(spine.pool, caller, job.id)
    assert (cancelled.state, cancelled.cancelled_count, cancelled.leased_count) == (JobState.CANCELLED, 3, 0)
    attempt = await spine.attempt(grant)
    assert (attempt["state"], attempt["cause"]) == ("cancelled", "cancelled")
    assert await spine.list_event_kinds(job) == [
        "job_submitted",
        "slices_leased",
        "slices_cancelled",
        "job_cancelled",
    ]


async def test_cancelling_twice_changes_nothing_more(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    first = await job_service.cancel_job(spine.pool, caller, job.id)
    assert await job_service.cancel_job(spine.pool, caller, job.id) == first
    assert (await spine.list_event_kinds(job)).count("job_cancelled") == 1


async def test_what_has_succeeded_stays_so_when_the_rest_is_cancelled(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=2)
    node = await spine.enrol()
    await spine.succeed(node, await spine.grant_one(node))
    cancelled = await job_service.cancel_job(spine.pool, caller, job.id)
    assert (cancelled.succeeded_count, cancelled.cancelled_count) == (1, 1)
    assert cancelled.state is JobState.CANCELLED
    assert await spine.slice_state(job, 0) == "succeeded"


async def test_a_job_larger_than_one_step_is_cancelled_whole(spine, monkeypatch):
    monkeypatch.setattr(stop_service, "STOP_BATCH", 4)
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=12)
    assert (await job_service.cancel_job(spine.pool, caller, job.id)).cancelled_count == 12
    ranges = await spine.fetch(
        "SELECT body FROM events WHERE job_id = $1 AND kind = 'slices_cancelled' ORDER BY id", job.id
    )
    assert [row["body"]["slices"] for row in ranges] == [[[0, 3]], [[4, 7]], [[8, 11]]]


async def test_only_jobs_whose_time_is_over_expire(spine):
    soon, caller = datetime.now(UTC) + timedelta(hours=1), await spine.sign_up()
    expiring, later, never = [
        await spine.submit(by=caller, expires_at=soon),
        await spine.submit(by=caller, expires_at=soon),
        await spine.submit(by=caller),
    ]
    grant = await spine.grant_one(await spine.enrol())
    assert grant.job_id == expiring.id
    await spine.fetch(
        "UPDATE jobs SET expires_at = clock_timestamp() - interval '1 second' WHERE id = $1", expiring.id
    )
    assert await job_service.expire_jobs(spine.pool, limit=10) == 1
    assert [await spine.slice_state(job) for job in (expiring, later, never)] == ["failed", "queued", "queued"]
    assert (await spine.attempt(grant))["cause"] == "expired"
    assert await job_service.expire_jobs(spine.pool, limit=10) == 0


async def test_what_is_stopped_is_told_of_once_and_only_if_it_held_a_slot(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=3)
    grant = await spine.grant_one(await spine.enrol())
    for _ in range(2):
        await job_service.cancel_job(spine.pool, caller, job.id, on_end=spine.ended.extend)
    assert [(ended.attempt_id, ended.cause) for ended in spine.ended] == [(grant.id, Cause.CANCELLED)]
