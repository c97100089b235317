"""Submitting on a real database, without HTTP: keys, limits, files, batches, and leases that jobs are born with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from computepool import clock
from computepool.core.errors import (
    ComputePoolError,
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidSpec,
    LimitExceeded,
)
from computepool.core.ids import ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import JobState
from computepool.core.placement.weights import Preference
from computepool.hub.http.errors import STATUS
from computepool.hub.http.jobs import to_job
from computepool.hub.services import jobs as job_service
from computepool.hub.services import submissions as submission_service
from computepool.hub.services.allowances import ALLOWANCE_SECONDS
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.keyring import JOB_TOKEN_TYPE
from computepool.hub.services.submissions import SHAPES_PER_ACCOUNT_MAX
from computepool.hub.store import accounts as account_store
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import CompleteAnswer
from computepool.wire.jobs import InputFile, Requirements
from tests.support.builders import GB, SHA256, indexes_of
from tests.support.spine import EXPECTED_SECONDS, EnrolledNode, Spine, open_spine


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


TRACES = ("jobs", "slices", "attempts", "events", "idempotency")


async def count_traces(spine: Spine) -> dict[str, int]:
    return {table: await spine.fetch_value(f"SELECT count(*) FROM {table}") for table in TRACES}


async def submit_one(spine: Spine, *args: object, **spec: object) -> Job | ComputePoolError:
    [answer] = (await spine.submit_all(spine.submission(*args, **spec))).answers
    return answer


async def test_a_submitted_job_is_queued_with_all_its_slices_and_an_event(spine):
    job = await spine.submit(slice_count=5, priority=3, retries=1, wall_seconds=60, name="five")
    assert (job.state, job.slice_count, job.name, job.started_at) == (JobState.QUEUED, 5, "five", None)
    rows = await spine.fetch("SELECT * FROM slices WHERE job_id = $1 ORDER BY slice_index", job.id)
    assert [row["slice_index"] for row in rows] == [0, 1, 2, 3, 4]
    assert {(row["state"], row["priority"], row["attempt_count"]) for row in rows} == {("queued", 3, 0)}
    assert {(row["account_id"], row["priority_class"]) for row in rows} == {(job.account_id, "normal")}
    assert [row["queued_at"] for row in rows] == sorted(row["queued_at"] for row in rows)
    assert await spine.list_event_kinds(job) == ["job_submitted"]


async def test_whoever_submits_is_told_where_slices_wait_now(spine):
    caller, other = await spine.sign_up(), await spine.sign_up()
    batch = [
        spine.submission(caller, slice_count=2),
        spine.submission(caller),
        spine.submission(caller, priority_class=PriorityClass.LOW),
        spine.submission(other),
        spine.submission(caller, requirements=Requirements(gpu=True)),
    ]
    submitted = await spine.submit_all(*batch)
    found = {(run.account_id, run.priority_class, shape) for run, shape in submitted.runs.items()}
    assert found == {(s.account_id, s.spec.priority_class, s.shape) for s in batch}
    assert len(submitted.runs) == 4
    stored = await spine.fetch("SELECT DISTINCT shape_id, priority_class, account_id FROM slices")
    assert {tuple(row) for row in stored} == {tuple(run) for run in submitted.runs}


async def test_jobs_with_the_same_needs_share_one_shape(spine):
    first = await spine.submit(requirements=Requirements(ram_bytes=GB - 1))
    second = await spine.submit(requirements=Requirements(ram_bytes=GB))
    third = await spine.submit(requirements=Requirements(ram_bytes=GB + 1))
    assert first.shape_id == second.shape_id != third.shape_id


async def test_two_hubs_give_the_same_needs_the_same_shape(spine):
    need = Requirements(ram_bytes=3 * GB, regions=("DE", "IN"), ceiling_microcredits_per_hour=7)
    first = await spine.submit(requirements=need)
    assert (await spine.open_second_hub().submit(requirements=need)).shape_id == first.shape_id


async def test_a_hub_that_has_forgotten_its_shapes_finds_them_again(spine, monkeypatch):
    monkeypatch.setattr(submission_service, "SHAPES_REMEMBERED_MAX", 1)
    caller = await spine.sign_up()
    needs = [Requirements(cores=cores) for cores in (1, 2, 3)]
    first, again = [
        (await spine.submit_all(*(spine.submission(caller, requirements=need) for need in needs))).answers
        for _ in range(2)
    ]
    assert [job.shape_id for job in first] == [job.shape_id for job in again]
    assert await spine.fetch_value("SELECT count(*) FROM shapes") == 3


async def test_a_job_that_breaks_a_rule_is_refused_and_leaves_nothing(spine):
    with pytest.raises(InvalidSpec) as refusal:
        await spine.submit(slice_count=0, priority=99)
    assert len(refusal.value.details["faults"]) == 2
    assert await count_jobs(spine) == 0


async def test_a_class_above_the_accounts_own_is_refused(spine):
    caller = await spine.sign_up()
    with pytest.raises(Forbidden):
        await spine.submit(by=caller, priority_class=PriorityClass.HIGH)
    granted = replace(caller, priority_class_max=PriorityClass.HIGH)
    job = await spine.submit(by=granted, priority_class=PriorityClass.HIGH)
    assert await spine.fetch_value("SELECT priority_class::text FROM slices WHERE job_id = $1", job.id) == "high"


async def test_a_script_alone_is_something_to_run(spine):
    job = await spine.submit(command=(), script="print(1)")
    assert await spine.fetch_value("SELECT spec ->> 'script' FROM jobs WHERE id = $1", job.id) == "print(1)"


async def test_what_a_submit_answers_is_what_stands_in_the_database(spine):
    caller = await spine.sign_up()
    soon = datetime.now(UTC) + timedelta(hours=1)
    answer = await spine.submit(
        by=caller,
        slice_count=3,
        priority=-2,
        env={"A": "ä"},
        expires_at=soon,
        deadline_at=soon - timedelta(minutes=1),
        prefer=Preference.CHEAPEST,
        priority_class=PriorityClass.LOW,
        requirements=Requirements(cores=3, regions=("IN",), ceiling_microcredits_per_hour=5_000_000),
    )
    assert to_job(await job_service.get_job(spine.pool, caller, answer.id)) == to_job(answer)


# Idempotency


async def test_the_same_key_and_body_give_the_same_job(spine):
    caller = await spine.sign_up()
    first = await spine.submit(by=caller, key="k")
    assert (await spine.submit(by=caller, key="k")).id == first.id
    assert await count_jobs(spine) == 1


async def test_the_same_key_at_another_hub_gives_the_same_job(spine):
    caller = await spine.sign_up()
    first = await spine.submit(by=caller, key="k", slice_count=2)
    assert (await spine.open_second_hub().submit(by=caller, key="k", slice_count=2)).id == first.id
    assert await count_jobs(spine) == 1


async def test_a_key_answers_with_the_job_as_it_stands_now(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, key="k")
    node = await spine.enrol()
    await spine.succeed(node, await spine.grant_one(node))
    again = await spine.submit(by=caller, key="k")
    assert (again.id, again.state, again.succeeded_count) == (job.id, JobState.SUCCEEDED, 1)


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
    hubs = [spine.open_second_hub() for _ in range(3)]
    jobs = await asyncio.gather(*(hub.submit(by=caller, key="k") for hub in hubs for _ in range(2)))
    assert len({job.id for job in jobs}) == 1
    assert await count_jobs(spine) == 1


async def test_hubs_that_write_the_same_keys_in_another_order_do_not_wait_for_each_other_in_a_circle(spine):
    caller = await spine.sign_up()
    keys = [f"k{number}" for number in range(40)]
    hubs = [spine.open_second_hub() for _ in range(3)]
    orders = [keys, keys[::-1], keys[20:] + keys[:20]]
    submitted = await asyncio.gather(
        *(
            hub.submit_all(*(hub.submission(caller, key) for key in order))
            for hub, order in zip(hubs, orders, strict=True)
        )
    )
    by_key = [
        {key: job.id for key, job in zip(order, one.answers, strict=True)}
        for order, one in zip(orders, submitted, strict=True)
    ]
    assert by_key[0] == by_key[1] == by_key[2]
    assert await count_jobs(spine) == 40


async def test_a_key_of_a_refused_job_can_be_used_again(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    with pytest.raises(LimitExceeded):
        await spine.submit(by=caller, key="k", slice_count=2)
    assert (await spine.submit(by=caller, key="k")).slice_count == 1


async def test_a_key_that_is_known_is_answered_although_the_limit_would_refuse_its_job_now(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    first = await spine.submit(by=caller, key="k")
    with pytest.raises(LimitExceeded):
        await spine.submit(by=caller)
    assert (await spine.submit(by=caller, key="k")).id == first.id
    with pytest.raises(IdempotencyMismatch):
        await spine.submit(by=caller, key="k", name="another")


@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_a_key_has_1_to_200_characters(spine, key):
    with pytest.raises(InvalidRequest):
        await spine.submit(key=key)


async def test_twins_in_one_batch_are_one_job(spine):
    caller = await spine.sign_up()
    answers = (await spine.submit_all(*(spine.submission(caller, "k") for _ in range(3)))).answers
    assert len({answer.id for answer in answers}) == 1
    assert await count_jobs(spine) == 1


async def test_of_two_jobs_with_one_key_in_one_batch_one_is_taken_and_the_other_told_of_it(spine):
    caller = await spine.sign_up()
    answers = (
        await spine.submit_all(spine.submission(caller, "k"), spine.submission(caller, "k", name="another"))
    ).answers
    [taken] = [answer for answer in answers if isinstance(answer, Job)]
    [refused] = [answer for answer in answers if isinstance(answer, IdempotencyMismatch)]
    assert refused.details == {"job_id": str(taken.id)}
    assert await count_jobs(spine) == 1


async def test_twins_of_a_refused_submit_are_refused_alike(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    batch = [spine.submission(caller, "k", slice_count=2) for _ in range(2)]
    assert [type(answer) for answer in (await spine.submit_all(*batch)).answers] == [LimitExceeded, LimitExceeded]
    assert await count_jobs(spine) == 0


# Limits


async def test_unfinished_slices_are_limited_to_the_very_last_one(spine):
    caller = await spine.sign_up(queued_slices_max=3)
    await spine.submit(by=caller, slice_count=2)
    with pytest.raises(LimitExceeded, match="2 unfinished slices; with 2 more"):
        await spine.submit(by=caller, slice_count=2)
    await spine.submit(by=caller, slice_count=1)
    with pytest.raises(LimitExceeded, match="3 unfinished slices; with 1 more"):
        await spine.submit(by=caller, slice_count=1)


async def test_slices_that_have_ended_do_not_count_against_the_limit(spine):
    """What a hub remembers of an account's use is read again before anybody is refused by it."""
    caller = await spine.sign_up(queued_slices_max=1)
    for _ in range(3):
        job = await spine.submit(by=caller)
        with pytest.raises(LimitExceeded):
            await spine.submit(by=caller)
        await job_service.cancel_job(spine.pool, caller, job.id)


async def test_a_limit_that_was_raised_counts_at_once(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    await spine.submit(by=caller)
    await spine.fetch("UPDATE accounts SET queued_slices_max = 2 WHERE id = $1", caller.account_id)
    await spine.submit(by=caller)


async def test_a_repeated_submit_does_not_use_up_the_limit(spine):
    caller = await spine.sign_up(queued_slices_max=2)
    for _ in range(5):
        await spine.submit(by=caller, key="k")
    await spine.submit(by=caller, key="another")


async def test_what_other_hubs_have_let_in_is_counted_when_the_memory_is_old(spine, monkeypatch):
    """Between hubs the limit is soft for a few seconds: no lock is worth it."""
    caller = await spine.sign_up(queued_slices_max=3)
    await spine.submit(by=caller)
    await spine.open_second_hub().submit(by=caller, slice_count=2)
    monkeypatch.setattr(clock, "seconds", lambda: ALLOWANCE_SECONDS + 1e9)
    with pytest.raises(LimitExceeded, match="3 unfinished slices"):
        await spine.submit(by=caller)


async def test_within_the_limit_an_accounts_use_is_not_read_for_every_submit(spine, monkeypatch):
    caller, looks = await spine.sign_up(), []
    really = account_store.list_usage

    async def look(conn, ids):
        looks.append(ids)
        return await really(conn, ids)

    monkeypatch.setattr(account_store, "list_usage", look)
    for _ in range(5):
        await spine.submit(by=caller)
    assert len(looks) == 1


async def test_submits_of_one_batch_do_not_pass_the_limit_together(spine):
    caller = await spine.sign_up(queued_slices_max=1)
    submitted = await spine.submit_all(*[spine.submission(caller)] * 6)
    assert len([answer for answer in submitted.answers if not isinstance(answer, LimitExceeded)]) == 1


async def test_a_batch_counts_its_own_slices_against_the_limit(spine):
    caller = await spine.sign_up(queued_slices_max=5)
    await spine.submit(by=caller)
    batch = [spine.submission(caller, slice_count=count) for count in (2, 3, 2, 1)]
    answers = (await spine.submit_all(*batch)).answers
    assert [type(answer) for answer in answers] == [Job, LimitExceeded, Job, LimitExceeded]
    assert await spine.fetch_value("SELECT count(*) FROM slices") == 5


async def test_whoever_stores_more_than_allowed_cannot_submit(spine):
    caller = await spine.sign_up(stored_bytes_max=2)
    await upload(spine, caller, size_bytes=3)
    with pytest.raises(LimitExceeded, match="that you may store"):
        await spine.submit(by=caller)


async def test_work_may_wait_for_64_kinds_of_slots_and_for_no_65th(spine):
    caller = await spine.sign_up()
    needs = [Requirements(cores=cores) for cores in range(1, SHAPES_PER_ACCOUNT_MAX + 2)]
    for need in needs[:-1]:
        submitted = await spine.submit_all(spine.submission(caller, requirements=need))
        spine.bench.waiting |= {(run.account_id, run.shape_id) for run in submitted.runs}
    refusal = await submit_one(spine, caller, requirements=needs[-1])
    assert isinstance(refusal, LimitExceeded)
    assert (STATUS[type(refusal)], refusal.details) == (429, {"retry_after_seconds": 30})
    assert "64 different kinds of slots" in refusal.message
    assert isinstance(await submit_one(spine, caller, requirements=needs[0]), Job), "one that waits already may"
    assert isinstance(await submit_one(spine, await spine.sign_up(), requirements=needs[-1]), Job), "others may"
    spine.bench.waiting.discard(next(iter(spine.bench.waiting)))
    assert isinstance(await submit_one(spine, caller, requirements=needs[-1]), Job), "once one has started, it may"


async def test_a_refused_submit_leaves_no_trace(spine):
    modest, many = await spine.sign_up(queued_slices_max=1), await spine.sign_up()
    node = await spine.enrol(cpu_slots=4)
    spine.bench.put(await spine.list_candidates(node))
    spine.bench.waiting = {(many.account_id, ShapeId(-number)) for number in range(1, SHAPES_PER_ACCOUNT_MAX + 1)}
    before = await count_traces(spine)
    absent = (InputFile(path="a", sha256=SHA256, size_bytes=3),)
    submitted = await spine.submit_all(
        spine.submission(modest, "k", slice_count=2),
        spine.submission(many, "k"),
        spine.submission(modest, files=absent),
    )
    assert [type(answer) for answer in submitted.answers] == [LimitExceeded, LimitExceeded, InvalidSpec]
    assert (submitted.grants, submitted.runs, spine.bench.taken) == ([], {}, [])
    assert await count_traces(spine) == before


# Files


async def test_a_file_that_was_uploaded_can_be_used(spine):
    caller = await spine.sign_up()
    await upload(spine, caller)
    job = await spine.submit(by=caller, files=(InputFile(path="a", sha256=SHA256, size_bytes=3),))
    stored = await job_service.get_job(spine.pool, caller, job.id)
    assert [file["path"] for file in stored.spec["files"]] == ["a"]


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


async def test_a_refused_submit_does_not_spoil_the_others_of_its_batch(spine):
    caller, modest = await spine.sign_up(), await spine.sign_up(queued_slices_max=1)
    absent = (InputFile(path="a", sha256=SHA256, size_bytes=3),)
    answers = (
        await spine.submit_all(
            spine.submission(caller, slice_count=2, requirements=Requirements(cores=3)),
            spine.submission(modest, "k", slice_count=2),
            spine.submission(caller, files=absent),
            spine.submission(modest, "k2"),
            spine.submission(caller),
        )
    ).answers
    assert [type(answer) for answer in answers] == [Job, LimitExceeded, InvalidSpec, Job, Job]
    assert [answer.account_id for answer in answers[3:]] == [modest.account_id, caller.account_id]
    assert await spine.fetch_value("SELECT count(*) FROM slices") == 4
    assert await spine.fetch_value("SELECT count(*) FROM idempotency") == 1, "a refused submit leaves its key unused"


async def test_a_batch_of_256_is_answered_in_its_order(spine):
    caller = await spine.sign_up()
    keys = [f"k{number}" if number % 3 else None for number in range(256)]
    batch = [spine.submission(caller, key, name=f"job {n}", slice_count=1 + n % 4) for n, key in enumerate(keys)]
    answers = (await spine.submit_all(*batch)).answers
    assert [(job.name, job.slice_count) for job in answers] == [(f"job {n}", 1 + n % 4) for n in range(256)]
    rows = await spine.fetch(
        "SELECT j.id, j.name, count(*) AS slices FROM jobs j JOIN slices s ON s.job_id = j.id GROUP BY j.id"
    )
    assert {row["id"]: (row["name"], row["slices"]) for row in rows} == {
        job.id: (job.name, job.slice_count) for job in answers
    }
    assert await spine.fetch_value("SELECT count(*) FROM idempotency") == sum(key is not None for key in keys)


async def test_a_job_of_100_000_slices_is_one_submit(spine):
    job = await spine.submit(slice_count=100_000)
    [row] = await spine.fetch(
        "SELECT count(*), min(slice_index), max(slice_index) FROM slices WHERE job_id = $1", job.id
    )
    assert tuple(row) == (100_000, 0, 99_999)
    assert await spine.list_event_kinds(job) == ["job_submitted"]
    grants = await spine.grant(await spine.enrol(cpu_slots=4))
    assert [grant.slice_index for grant in grants] == [0, 1, 2, 3]


async def test_an_empty_batch_is_answered_with_nothing(spine):
    assert (await spine.submit_all()).answers == []


# Born leased


async def put_on_bench(spine: Spine, *nodes: EnrolledNode) -> None:
    spine.bench.put(await spine.list_candidates(*nodes))


async def test_a_slice_that_meets_a_free_slot_is_born_leased_in_the_same_transaction(spine):
    caller, node = await spine.sign_up(), await spine.enrol()
    await put_on_bench(spine, node)
    submitted = await spine.submit_all(spine.submission(caller, "k", wall_seconds=9))
    [job], [grant] = submitted.answers, submitted.grants
    assert (job.state, job.leased_count, submitted.runs) == (JobState.RUNNING, 1, {})
    assert (grant.job_id, grant.slice_index, grant.number) == (job.id, 0, 1)
    assert (grant.node_id, grant.slot, grant.account_id) == (node.id, "cpu:0", caller.account_id)
    assert grant.expected_seconds == 9
    attempt = await spine.attempt(grant)
    assert (attempt["state"], attempt["number"], attempt["node_id"]) == ("leased", 1, node.id)
    assert attempt["expected_seconds"] == 9
    lasting = (attempt["expires_at"] - attempt["leased_at"]).total_seconds()
    assert lasting == pytest.approx(spine.settings.lease_seconds, abs=1.0)
    [slice_] = await spine.fetch("SELECT * FROM slices")
    assert (slice_["state"], slice_["attempt_count"]) == ("leased", 1)
    assert await spine.list_event_kinds(job) == ["job_submitted", "slices_leased"]
    writers = await spine.fetch(
        "SELECT xmin::text FROM jobs UNION SELECT xmin::text FROM slices UNION SELECT xmin::text FROM attempts "
        "UNION SELECT xmin::text FROM idempotency UNION SELECT xmin::text FROM events WHERE job_id IS NOT NULL"
    )
    assert len(writers) == 1, "one transaction wrote them all"
    assert (spine.bench.given_back, len(spine.bench.fleet)) == ([], 0)


async def test_what_is_answered_of_a_job_that_was_born_leased_is_what_stands_in_the_database(spine):
    caller = await spine.sign_up()
    await put_on_bench(spine, await spine.enrol(cpu_slots=2))
    [answer] = (await spine.submit_all(spine.submission(caller, slice_count=3))).answers
    stored = to_job(await job_service.get_job(spine.pool, caller, answer.id))
    # But for the work at risk, of which there is none yet.
    assert to_job(answer) == msgspec.structs.replace(stored, at_risk_since=None)


async def test_a_slice_that_was_born_leased_is_told_to_its_node_with_a_token_and_can_be_delivered(spine):
    node = await spine.enrol()
    await put_on_bench(spine, node)
    submitted = await spine.submit_all(spine.submission(await spine.sign_up()))
    [grant] = submitted.grants
    answer = await spine.leases.answer([grant])
    [assignment] = answer.assignments
    claims = spine.keyring.verify(answer.token, typ=JOB_TOKEN_TYPE, audience=str(node.id))
    assert list(claims["orders"]) == [str(assignment.attempt_id)] == [str(grant.id)]
    assert await spine.succeed(node, grant) == CompleteAnswer(accepted=True)
    assert await spine.slice_state(grant) == "succeeded"


async def test_of_a_job_larger_than_the_free_slots_the_first_slices_are_born_leased_and_the_rest_waits(spine):
    caller = await spine.sign_up()
    await put_on_bench(spine, await spine.enrol(cpu_slots=2))
    submitted = await spine.submit_all(spine.submission(caller, slice_count=4))
    [job] = submitted.answers
    assert [grant.slice_index for grant in submitted.grants] == [0, 1]
    assert len({grant.slot for grant in submitted.grants}) == 2
    assert [await spine.slice_state(job, index) for index in range(4)] == ["leased", "leased", "queued", "queued"]
    assert [(run.account_id, run.shape_id) for run in submitted.runs] == [(caller.account_id, job.shape_id)]
    assert (job.state, job.leased_count) == (JobState.RUNNING, 2)


async def test_one_event_tells_of_all_slices_of_a_job_that_were_born_leased(spine):
    await put_on_bench(spine, await spine.enrol(cpu_slots=3))
    [job] = (await spine.submit_all(spine.submission(await spine.sign_up(), slice_count=3))).answers
    [event] = await spine.fetch("SELECT * FROM events WHERE kind = 'slices_leased'")
    assert (event["job_id"], event["account_id"]) == (job.id, job.account_id)
    assert indexes_of(event["body"]["slices"]) == [0, 1, 2]


async def test_jobs_of_one_batch_share_the_free_slots_in_the_order_of_arrival(spine):
    callers = [await spine.sign_up() for _ in range(3)]
    await put_on_bench(spine, await spine.enrol(cpu_slots=2))
    submitted = await spine.submit_all(*(spine.submission(caller) for caller in callers))
    assert [job.state for job in submitted.answers] == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED]
    assert [run.account_id for run in submitted.runs] == [callers[2].account_id]


async def test_no_more_slices_are_born_leased_than_one_transaction_should_hold(spine, monkeypatch):
    monkeypatch.setattr(submission_service, "GRANTS_MAX", 3)
    caller = await spine.sign_up()
    await put_on_bench(spine, await spine.enrol(cpu_slots=6))
    submitted = await spine.submit_all(*(spine.submission(caller, slice_count=2) for _ in range(3)))
    assert len(submitted.grants) == 3
    assert len(spine.bench.fleet) == 3


async def test_a_slot_that_another_hub_has_filled_is_given_back_and_the_slice_waits(spine):
    caller, node = await spine.sign_up(), await spine.enrol()
    await put_on_bench(spine, node)
    await spine.open_second_hub().submit()
    taken = await spine.grant_one(node)
    submitted = await spine.submit_all(spine.submission(caller))
    [job] = submitted.answers
    assert (job.state, job.started_at, job.leased_count) == (JobState.QUEUED, None, 0)
    assert submitted.grants == []
    assert [run.account_id for run in submitted.runs] == [caller.account_id]
    assert [candidate.slot.node_id for candidate in spine.bench.given_back] == [node.id]
    assert await spine.slice_state(job) == "queued"
    assert await spine.fetch_value("SELECT attempt_count FROM slices WHERE job_id = $1", job.id) == 0
    assert await spine.list_event_kinds(job) == ["job_submitted"]
    await spine.succeed(node, taken)
    assert (await spine.grant_one(node)).job_id == job.id


async def test_of_two_slots_only_the_one_that_is_taken_is_given_back(spine):
    node, other = await spine.enrol(), await spine.enrol()
    await put_on_bench(spine, node, other)
    await spine.open_second_hub().submit()
    await spine.grant_one(node)
    submitted = await spine.submit_all(spine.submission(await spine.sign_up(), slice_count=2))
    [grant], [job] = submitted.grants, submitted.answers
    assert grant.node_id == other.id
    assert [candidate.slot.node_id for candidate in spine.bench.given_back] == [node.id]
    states = sorted([await spine.slice_state(job, 0), await spine.slice_state(job, 1)])
    assert (states, job.leased_count, len(submitted.runs)) == (["leased", "queued"], 1, 1)


async def test_hubs_that_believe_the_same_slot_to_be_free_lease_it_once(spine):
    node = await spine.enrol()
    hubs = [spine.open_second_hub() for _ in range(4)]
    for hub in hubs:
        hub.bench.put(await spine.list_candidates(node))
    callers = [await spine.sign_up() for _ in hubs]
    submitted = await asyncio.gather(
        *(hub.submit_all(hub.submission(caller)) for hub, caller in zip(hubs, callers, strict=True))
    )
    assert sum(len(one.grants) for one in submitted) == 1
    assert sum(len(hub.bench.given_back) for hub in hubs) == 3
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 1
    assert await spine.fetch_value("SELECT count(*) FROM slices WHERE state = 'queued'") == 3


async def test_a_slot_taken_for_a_key_that_was_used_before_is_given_back(spine):
    caller = await spine.sign_up()
    await spine.submit(by=caller, key="k")
    await put_on_bench(spine, await spine.enrol())
    submitted = await spine.submit_all(spine.submission(caller, "k"))
    assert (submitted.grants, submitted.runs) == ([], {})
    assert len(spine.bench.given_back) == len(spine.bench.fleet) == 1
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 0


@pytest.mark.parametrize("moment", ["insert_jobs", "list_idempotent"])
async def test_when_the_database_goes_away_every_slot_is_given_back(spine, monkeypatch, moment):
    """After the commit too: nobody is told of those leases now, and the node hears of them when it is looked up."""
    caller = await spine.sign_up()
    await spine.submit(by=caller, key="k")
    await put_on_bench(spine, await spine.enrol(cpu_slots=2))

    async def go_away(*_: object, **__: object) -> None:
        raise OSError("connection lost")

    monkeypatch.setattr(submission_service.job_store, moment, go_away)
    with pytest.raises(OSError, match="connection lost"):
        await spine.submit_all(spine.submission(caller), spine.submission(caller, "k"))
    assert len(spine.bench.given_back) == len(spine.bench.taken) == len(spine.bench.fleet) == 2


async def test_what_a_born_lease_is_charged_is_what_the_account_usually_takes(spine):
    await put_on_bench(spine, await spine.enrol())
    [grant] = (await spine.submit_all(spine.submission(await spine.sign_up()))).grants
    assert grant.expected_seconds == EXPECTED_SECONDS
