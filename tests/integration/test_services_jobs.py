"""Submitting, cancelling and expiring jobs on a real database, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from uuid import UUID

import msgspec
import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import IdempotencyMismatch, InvalidRequest, InvalidSpec, LimitExceeded, NotFound
from computepool.core.jobs.state import JobState, SliceState
from computepool.hub.services import jobs as job_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store.jobs import Job
from computepool.wire import jobs as wire
from computepool.wire.jobs import InputFile, Requirements
from tests.support.builders import GB, SHA256
from tests.support.spine import Spine, open_spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def upload(spine: Spine, owner: AccountCaller, *, sha256: str = SHA256, size_bytes: int = 3) -> None:
    async with spine.pool.acquire() as conn, conn.transaction():
        await artifact_store.record_artifact(
            conn, account_id=owner.account_id, sha256=bytes.fromhex(sha256), size_bytes=size_bytes
        )


async def count_jobs(spine: Spine) -> int:
    return await spine.fetch_value("SELECT count(*) FROM jobs")


async def test_a_submitted_job_is_queued_with_all_its_slices_and_an_event(spine):
    job = await spine.submit(slice_count=5, priority=3, retries=1, wall_seconds=60, name="five")
    assert (job.state, job.slice_count, job.name, job.started_at) == (JobState.QUEUED, 5, "five", None)
    rows = await spine.fetch("SELECT * FROM slices WHERE job_id = $1 ORDER BY slice_index", job.id)
    assert [row["slice_index"] for row in rows] == [0, 1, 2, 3, 4]
    assert {(row["state"], row["priority"], row["attempt_count"]) for row in rows} == {("queued", 3, 0)}
    assert await spine.list_event_kinds(job) == ["job_submitted"]


async def test_jobs_with_the_same_needs_share_one_shape(spine):
    first = await spine.submit(requirements=Requirements(ram_bytes=GB - 1))
    second = await spine.submit(requirements=Requirements(ram_bytes=GB))
    third = await spine.submit(requirements=Requirements(ram_bytes=GB + 1))
    assert first.shape_id == second.shape_id != third.shape_id


async def test_a_job_that_breaks_a_rule_is_refused_and_leaves_nothing(spine):
    with pytest.raises(InvalidSpec) as refusal:
        await spine.submit(slice_count=0, priority=99)
    assert len(refusal.value.details["faults"]) == 2
    assert await count_jobs(spine) == 0


async def test_a_script_alone_is_something_to_run(spine):
    job = await spine.submit(command=(), script="print(1)")
    assert job.spec["script"] == "print(1)"


# Idempotency


async def test_the_same_key_and_body_give_the_same_job(spine):
    caller = await spine.sign_up()
    first = await spine.submit(by=caller, key="k")
    assert (await spine.submit(by=caller, key="k")).id == first.id
    assert await count_jobs(spine) == 1


async def test_the_same_key_with_another_body_is_refused_and_names_the_job(spine):
    caller = await spine.sign_up()
    first = await spine.submit(by=caller, key="k")
    with pytest.raises(IdempotencyMismatch) as refusal:
        await spine.submit(by=caller, key="k", slice_count=2)
    assert refusal.value.details == {"job_id": str(first.id)}
    assert await count_jobs(spine) == 1


async def test_the_order_of_env_names_does_not_make_another_body(spine):
    caller = await spine.sign_up()
    first = await spine.submit(by=caller, key="k", env={"A": "1", "B": "2"})
    assert (await spine.submit(by=caller, key="k", env={"B": "2", "A": "1"})).id == first.id


async def test_two_accounts_may_use_the_same_key(spine):
    assert (await spine.submit(key="k")).id != (await spine.submit(key="k")).id


async def test_a_key_used_many_times_at_once_makes_one_job(spine):
    caller = await spine.sign_up()
    jobs = await asyncio.gather(*(spine.submit(by=caller, key="k") for _ in range(6)))
    assert len({job.id for job in jobs}) == 1
    assert await count_jobs(spine) == 1


async def test_a_key_of_a_refused_job_can_be_used_again(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    with pytest.raises(LimitExceeded):
        await spine.submit(by=caller, key="k", slice_count=2)
    assert (await spine.submit(by=caller, key="k")).slice_count == 1


@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_a_key_has_1_to_200_characters(spine, key):
    with pytest.raises(InvalidRequest):
        await spine.submit(key=key)


# Limits and files


async def test_unfinished_slices_are_limited_to_the_very_last_one(spine):
    caller = await spine.sign_up(queued_slices_max=3)
    await spine.submit(by=caller, slice_count=2)
    with pytest.raises(LimitExceeded, match="2 unfinished slices; with 2 more"):
        await spine.submit(by=caller, slice_count=2)
    await spine.submit(by=caller, slice_count=1)


async def test_slices_that_have_ended_do_not_count_against_the_limit(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    job = await spine.submit(by=caller)
    await job_service.cancel_job(spine.pool, caller, job.id)
    await spine.submit(by=caller)


async def test_submits_of_one_batch_do_not_pass_the_limit_together(spine):
    """A hub writes one batch at a time. Between hubs the limit is soft: no lock is worth it."""
    caller = await spine.sign_up(queued_slices_max=1)
    submission = job_service.check_submission(caller, wire.JobSpec(command=("true",)), idempotency_key=None)
    answers = await job_service.submit_jobs(spine.pool, [submission] * 6)
    assert len([answer for answer in answers if not isinstance(answer, LimitExceeded)]) == 1


async def test_whoever_stores_more_than_allowed_cannot_submit(spine):
    caller = await spine.sign_up(stored_bytes_max=2)
    await upload(spine, caller, size_bytes=3)
    with pytest.raises(LimitExceeded, match="that you may store"):
        await spine.submit(by=caller)


async def test_a_file_that_was_uploaded_can_be_used(spine):
    caller = await spine.sign_up()
    await upload(spine, caller)
    job = await spine.submit(by=caller, files=(InputFile(path="a", sha256=SHA256, size_bytes=3),))
    assert [file["path"] for file in job.spec["files"]] == ["a"]


async def test_a_file_that_was_not_uploaded_is_named(spine):
    with pytest.raises(InvalidSpec, match="a was not uploaded"):
        await spine.submit(files=(InputFile(path="a", sha256=SHA256, size_bytes=3),))


async def test_a_file_of_another_account_is_like_one_that_was_not_uploaded(spine):
    await upload(spine, await spine.sign_up())
    with pytest.raises(InvalidSpec, match="a was not uploaded"):
        await spine.submit(files=(InputFile(path="a", sha256=SHA256, size_bytes=3),))


async def test_a_file_with_another_size_is_named(spine):
    caller = await spine.sign_up()
    await upload(spine, caller)
    with pytest.raises(InvalidSpec, match="a has 3 bytes, not 4"):
        await spine.submit(by=caller, files=(InputFile(path="a", sha256=SHA256, size_bytes=4),))


@pytest.mark.parametrize("sizes", [(4, 3), (3, 4)])
async def test_a_wrong_size_is_found_even_when_the_same_content_stands_under_another_name_too(spine, sizes):
    caller = await spine.sign_up()
    await upload(spine, caller)
    files = tuple(InputFile(path=f"f{n}", sha256=SHA256, size_bytes=size) for n, size in enumerate(sizes))
    with pytest.raises(InvalidSpec, match="has 3 bytes, not 4"):
        await spine.submit(by=caller, files=files)


async def test_bytes_count_against_an_account_once_however_often_they_are_uploaded(spine):
    caller = await spine.sign_up()
    await upload(spine, caller)
    await upload(spine, caller)
    assert await spine.fetch_value("SELECT stored_bytes FROM accounts WHERE id = $1", caller.account_id) == 3


# Many at once


def check(caller: AccountCaller, key: str | None = None, **spec: object) -> job_service.Submission:
    request = wire.JobSpec(**{"command": ("true",), **spec})
    return job_service.check_submission(caller, request, idempotency_key=key)


async def test_a_refused_submit_does_not_spoil_the_others_of_its_batch(spine):
    caller, modest = await spine.sign_up(), await spine.sign_up(queued_slices_max=1)
    absent = (wire.InputFile(path="a", sha256=SHA256, size_bytes=3),)
    answers = await job_service.submit_jobs(
        spine.pool,
        [
            check(caller, slice_count=2, requirements=Requirements(cores=3)),
            check(modest, slice_count=2, key="k"),
            check(caller, files=absent),
            check(modest, key="k2"),
            check(caller),
        ],
    )
    assert [type(answer) for answer in answers] == [job_service.Job, LimitExceeded, InvalidSpec] + [
        job_service.Job
    ] * 2
    assert [answer.account_id for answer in answers[3:]] == [modest.account_id, caller.account_id]
    assert await spine.fetch_value("SELECT count(*) FROM slices") == 4
    assert await spine.fetch_value("SELECT count(*) FROM idempotency") == 1, "a refused submit leaves its key unused"


async def test_a_batch_counts_its_own_slices_against_the_limit(spine):
    caller = await spine.sign_up(queued_slices_max=3)
    answers = await job_service.submit_jobs(spine.pool, [check(caller, slice_count=2) for _ in range(2)])
    assert [type(answer) for answer in answers] == [Job, LimitExceeded]


async def test_twins_in_one_batch_are_one_job(spine):
    caller = await spine.sign_up()
    answers = await job_service.submit_jobs(spine.pool, [check(caller, "k") for _ in range(3)])
    assert len({answer.id for answer in answers}) == 1
    assert await count_jobs(spine) == 1


async def test_twins_of_a_refused_submit_are_refused_alike(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    answers = await job_service.submit_jobs(spine.pool, [check(caller, "k", slice_count=2) for _ in range(2)])
    assert [type(answer) for answer in answers] == [LimitExceeded, LimitExceeded]
    assert await count_jobs(spine) == 0


async def test_what_a_submit_answers_is_what_stands_in_the_database(spine):
    caller = await spine.sign_up()
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    answer = await spine.submit(by=caller, slice_count=3, priority=-2, env={"A": "ä"}, expires_at=soon)
    stored = await job_service.get_job(spine.pool, caller, answer.id)
    assert msgspec.json.encode(stored, order="sorted") == msgspec.json.encode(answer, order="sorted")


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
    monkeypatch.setattr(job_service, "STOP_BATCH", 4)
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=12)
    assert (await job_service.cancel_job(spine.pool, caller, job.id)).cancelled_count == 12
    ranges = await spine.fetch(
        "SELECT body FROM events WHERE job_id = $1 AND kind = 'slices_cancelled' ORDER BY id", job.id
    )
    assert [row["body"]["slices"] for row in ranges] == [[[0, 3]], [[4, 7]], [[8, 11]]]


async def test_only_jobs_whose_time_is_over_expire(spine):
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    expiring, later, never = [
        await spine.submit(expires_at=soon),
        await spine.submit(expires_at=soon),
        await spine.submit(),
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
