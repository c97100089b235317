"""The end of attempts on a real database: completions, beats, silence, logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from computepool import entropy
from computepool.core.errors import ComputePoolError, InvalidRequest, NotFound, StaleLease
from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import JobState
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import job_checkpoints, reports
from computepool.hub.services import jobs as job_service
from computepool.hub.services.attempts import Beat
from computepool.hub.services.leases import Session
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store.attempts import Grant
from computepool.wire.attempts import CompleteAnswer, Usage
from computepool.wire.jobs import OutputFile
from tests.support.builders import SHA256
from tests.support.postings import wait_until_blocked
from tests.support.spine import EnrolledNode, Spine, open_spine

FAILED = {"exit_code": 1, "cause": Cause.EXIT_CODE}
ACCEPTED = CompleteAnswer(accepted=True)
OUTPUT = OutputFile(path="out.bin", sha256=SHA256, size_bytes=3)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def upload(spine: Spine, node: EnrolledNode, grant: Grant, output: OutputFile = OUTPUT) -> None:
    held = await attempt_service.get_held(
        spine.pool, spine.keyring, node.caller, grant.id, spine.keyring.lease_secret(grant.id)
    )
    await attempt_service.record_output(spine.pool, held, sha256=output.sha256, size_bytes=output.size_bytes)


async def lose(spine: Spine, *grants: Grant) -> None:
    await spine.let_lease_pass(*grants)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=100) == len(grants)


# Completions


async def test_a_result_ends_its_attempt_its_slice_and_its_job(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await upload(spine, node, grant)
    usage = Usage(run_seconds=1.5, cpu_seconds=1.0, memory_bytes_peak=7)
    assert await spine.succeed(node, grant, outputs=(OUTPUT,), usage=usage, message="done") == ACCEPTED
    attempt = await spine.attempt(grant)
    assert (attempt["state"], attempt["exit_code"], attempt["cause"], attempt["message"]) == (
        "succeeded",
        0,
        None,
        "done",
    )
    assert (attempt["run_seconds"], attempt["cpu_seconds"], attempt["memory_bytes_peak"]) == (1.5, 1.0, 7)
    assert attempt["outputs"] == [{"path": "out.bin", "sha256": SHA256, "size_bytes": 3}]
    [receipt] = await spine.fetch("SELECT * FROM receipts")
    assert (receipt["id"], receipt["node_id"], receipt["state"]) == (attempt["receipt_id"], node.id, "unverified")
    detail = await job_service.get_slice(spine.pool, caller, job.id, 0)
    assert (detail.slice.state.value, detail.slice.accepted_attempt_id) == ("succeeded", grant.id)
    assert (await job_service.get_job(spine.pool, caller, job.id)).state is JobState.SUCCEEDED
    assert await spine.list_event_kinds(job) == [
        "job_submitted",
        "slices_leased",
        "slices_succeeded",
        "job_succeeded",
    ]


async def test_a_failure_is_recorded_and_the_slice_is_queued_again_behind_the_others(spine):
    job = await spine.submit(retries=1)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    other = await spine.submit(retries=1)
    assert await spine.succeed(node, grant, **FAILED, message="boom") == CompleteAnswer(accepted=False)
    attempt = await spine.attempt(grant)
    assert (attempt["state"], attempt["cause"], attempt["exit_code"]) == ("failed", "exit_code", 1)
    assert await spine.slice_state(job) == "queued"
    queue = await spine.fetch("SELECT job_id, failure_count, avoid_node_id FROM slices ORDER BY queued_at")
    assert [row["job_id"] for row in queue] == [other.id, job.id]
    assert (queue[1]["failure_count"], queue[1]["avoid_node_id"]) == (1, node.id)


async def test_the_last_failure_fails_slice_and_job_with_the_cause(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, retries=0)
    node = await spine.enrol()
    await spine.succeed(node, await spine.grant_one(node), exit_code=None, cause=Cause.TIMED_OUT)
    assert await spine.slice_state(job) == "failed"
    ended = await job_service.get_job(spine.pool, caller, job.id)
    assert (ended.state, ended.failed_count) == (JobState.FAILED, 1)
    [event] = await spine.fetch("SELECT body FROM events WHERE kind = 'slices_failed'")
    assert event["body"] == {"slices": [[0, 0]], "causes": ["timed_out"]}


async def test_the_same_completion_again_gets_the_same_answer_and_writes_nothing(spine):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant)
    before = await spine.attempt(grant), await count_written(spine)
    # The agent may have restarted in between.
    answer = await spine.succeed(node, grant, boot_id=UUID(int=2), message="again")
    assert answer == CompleteAnswer(accepted=True, repeated=True)
    assert (await spine.attempt(grant), await count_written(spine)) == before


async def count_written(spine: Spine) -> tuple[int, int]:
    return (
        await spine.fetch_value("SELECT count(*) FROM events"),
        await spine.fetch_value("SELECT count(*) FROM receipts"),
    )


async def test_the_same_failure_again_is_repeated_and_spends_no_second_retry(spine):
    await spine.submit(retries=3)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant, **FAILED)
    assert await spine.succeed(node, grant, **FAILED) == CompleteAnswer(accepted=False, repeated=True)
    assert await spine.fetch_value("SELECT failure_count FROM slices") == 1


async def test_a_completion_sent_many_times_at_once_counts_once(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    answers = await asyncio.gather(*(spine.succeed(node, grant) for _ in range(5)))
    assert sorted(answer.repeated for answer in answers) == [False, True, True, True, True]
    assert all(answer.accepted for answer in answers)
    assert (await job_service.get_job(spine.pool, caller, job.id)).succeeded_count == 1


async def test_the_same_completion_twice_in_one_call_counts_once(spine):
    job = await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    request = spine.completion(node, grant)
    assert await spine.finish((node, request), (node, request)) == [
        ACCEPTED,
        CompleteAnswer(accepted=True, repeated=True),
    ]
    assert (await spine.list_event_kinds(job)).count("slices_succeeded") == 1


# Refusals


async def refused(spine: Spine, node: EnrolledNode, grant: Grant, **overrides: object) -> ComputePoolError:
    """The refusal; and nothing has changed."""
    before = await spine.attempt(grant), await spine.slice_state(grant)
    answer = await spine.succeed(node, grant, **overrides)
    assert isinstance(answer, ComputePoolError), answer
    assert (await spine.attempt(grant), await spine.slice_state(grant)) == before
    return answer


async def test_whoever_does_not_hold_the_lease_is_told_nothing_more(spine):
    await spine.submit()
    node, stranger = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    words = {
        str(await refused(spine, node, grant, lease_secret="guessed")),
        str(await refused(spine, node, grant, lease_secret="")),
        str(await refused(spine, node, grant, lease_secret="ä")),
        str(await refused(spine, node, grant, attempt_id=UUID(int=99))),
        str(await refused(spine, stranger, grant)),
    }
    assert words == {"This node holds no such lease. Forget the attempt."}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"result_sha256": "0" * 64}, "not the hash of the outputs' manifest"),
        ({"exit_code": 1}, "Success means exit_code 0"),
        ({"exit_code": None}, "Success means exit_code 0"),
        ({"exit_code": 1_001, "cause": Cause.EXIT_CODE}, "out of any range"),
        ({"cause": Cause.NODE_VANISHED}, "cannot report the cause node_vanished"),
        ({"cause": Cause.EXPIRED}, "cannot report the cause expired"),
        ({"usage": Usage(run_seconds=-1)}, "cannot be negative"),
        ({"usage": Usage(cpu_seconds=-1)}, "cannot be negative"),
        ({"usage": Usage(memory_bytes_peak=-1)}, "cannot be negative"),
        ({"usage": Usage(run_seconds=float("inf"))}, "more than any machine can have had"),
        ({"usage": Usage(run_seconds=1e308)}, "more than any machine can have had"),
        ({"usage": Usage(cpu_seconds=1e308)}, "more than any machine can have had"),
        ({"outputs": (OUTPUT,)}, "not uploaded"),
        ({"outputs": (OutputFile(path="../x", sha256=SHA256, size_bytes=3),)}, "must be relative"),
        ({"outputs": (OutputFile(path="a\nb", sha256=SHA256, size_bytes=3),)}, "must be relative"),
        ({"outputs": (OUTPUT, OUTPUT)}, "each once"),
        ({"outputs": (OutputFile(path="a", sha256="x", size_bytes=3),)}, "64 lower-case hex"),
        ({"outputs": (OutputFile(path="a", sha256=SHA256, size_bytes=-1),)}, "and its size"),
        ({"receipt": ""}, "needs a receipt"),
        ({"receipt": "no token"}, "needs a receipt"),
        ({"receipt": "a\0.b.c", "cause": Cause.EXIT_CODE, "exit_code": 1}, "none of them NUL"),
        ({"receipt": "a\0.b.c"}, "none of them NUL"),
        ({"receipt": "a.b." + "c" * 100_000}, "at most 100,000 characters"),
    ],
)
async def test_a_report_that_breaks_a_rule_is_refused_in_plain_words(spine, change, words):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    refusal = await refused(spine, node, grant, **change)
    assert isinstance(refusal, InvalidRequest)
    assert words in refusal.message
    assert await spine.succeed(node, grant) == ACCEPTED


@pytest.mark.parametrize("sizes", [(4, 3), (3, 4)])
async def test_a_wrong_size_of_an_output_is_found_even_when_the_same_content_has_another_name_too(spine, sizes):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await upload(spine, node, grant)
    outputs = tuple(OutputFile(path=f"f{n}", sha256=SHA256, size_bytes=size) for n, size in enumerate(sizes))
    assert "with another size" in (await refused(spine, node, grant, outputs=outputs)).message


async def test_a_result_of_a_cancelled_job_comes_too_late(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await job_service.cancel_job(spine.pool, caller, job.id)
    refusal = await refused(spine, node, grant)
    assert isinstance(refusal, StaleLease)
    assert "too late" in refusal.message


async def test_a_second_report_that_differs_from_the_first_is_refused(spine):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant, **FAILED)
    assert isinstance(await refused(spine, node, grant), StaleLease)


async def test_a_refused_item_does_not_spoil_the_others_of_its_call(spine):
    job = await spine.submit(slice_count=6, retries=3)
    node, stranger = await spine.enrol(cpu_slots=6), await spine.enrol()
    grants = await spine.grant(node)
    answers = await spine.finish(
        (node, spine.completion(node, grants[0])),
        (node, spine.completion(node, grants[1], lease_secret="guessed")),
        (stranger, spine.completion(stranger, grants[2])),
        (node, spine.completion(node, grants[3], result_sha256="0" * 64)),
        (node, spine.completion(node, grants[4], **FAILED, receipt="a\0.b.c")),
        (node, spine.completion(node, grants[5], outputs=(OUTPUT,))),
        (node, spine.completion(node, grants[0], **FAILED)),
        (node, spine.completion(node, grants[2], **FAILED)),
    )
    assert [type(answer) for answer in answers] == [
        CompleteAnswer,
        StaleLease,
        StaleLease,
        InvalidRequest,
        InvalidRequest,
        InvalidRequest,
        StaleLease,
        CompleteAnswer,
    ]
    assert [answer.accepted for answer in answers if isinstance(answer, CompleteAnswer)] == [True, False]
    states = [await spine.slice_state(job, grant.slice_index) for grant in grants]
    assert states == ["succeeded", "leased", "queued", "leased", "leased", "leased"]
    assert (await spine.attempt(grants[0]))["state"] == "succeeded"


async def test_an_empty_call_is_answered_with_nothing(spine):
    assert await spine.finish() == []


# A completion that carries the next claim


async def test_the_slot_of_an_attempt_that_ends_is_filled_anew_in_the_same_transaction(spine):
    caller = await spine.sign_up()
    await spine.submit(by=caller, slice_count=2)
    node = await spine.enrol()
    first = await spine.grant_one(node)
    [report] = reports.check_completions(
        spine.keyring, node.caller, [done := spine.completion(node, first)], done.receipt
    )
    granted: list[Grant] = []

    async def claim(conn: Any) -> None:
        round_ = await spine.open_round(await spine.list_candidates(node, busy=True))
        answer = await spine.leases.grant_on(Session(conn), round_, expected_seconds=lambda _: 30.0, fronts=None)
        granted.extend(answer.grants)

    [outcome] = await attempt_service.finish_attempts(spine.pool, [report], then=claim)
    assert outcome.accepted
    [second] = granted
    assert (second.node_id, second.slot, second.slice_index) == (node.id, first.slot, 1)
    rows = await spine.fetch("SELECT xmin::text FROM attempts")
    assert len({row["xmin"] for row in rows}) == 1, "one transaction wrote both"


async def test_a_claim_that_fails_takes_the_completion_with_it_and_both_can_be_repeated(spine):
    await spine.submit(slice_count=2)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    [report] = reports.check_completions(
        spine.keyring, node.caller, [done := spine.completion(node, grant)], done.receipt
    )

    async def fail(_: object) -> None:
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        await attempt_service.finish_attempts(spine.pool, [report], then=fail, on_end=spine.ended.extend)
    assert (await spine.attempt(grant))["state"] == "leased"
    assert spine.ended == []
    assert await spine.succeed(node, grant) == ACCEPTED


# What is told of the ends


async def test_every_attempt_that_leaves_its_slot_is_told_of_once_with_what_it_held_and_was_charged(spine):
    caller = await spine.sign_up()
    await spine.submit(by=caller, slice_count=3, retries=3)
    node = await spine.enrol(cpu_slots=3)
    delivered, failed, silent = await spine.grant(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '100 seconds'")
    await spine.succeed(node, delivered)
    await spine.succeed(node, delivered)
    await spine.succeed(node, failed, **FAILED)
    await spine.let_lease_pass(silent)
    await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=100, on_end=spine.ended.extend)
    told = {ended.attempt_id: ended for ended in spine.ended}
    assert len(spine.ended) == len(told) == 3
    assert [told[grant.id].cause for grant in (delivered, failed, silent)] == [
        None,
        Cause.EXIT_CODE,
        Cause.NODE_VANISHED,
    ]
    for grant in (delivered, failed, silent):
        ended = told[grant.id]
        assert (ended.account_id, ended.node_id, ended.slot) == (caller.account_id, node.id, grant.slot)
        assert ended.expected_seconds == grant.expected_seconds
        assert 100 <= ended.held_seconds < 700


async def test_a_late_result_frees_no_slot_but_that_of_whoever_took_over(spine):
    await spine.submit()
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    await lose(spine, first)
    second = await spine.grant_one(quick)
    await spine.succeed(slow, first)
    assert [(ended.attempt_id, ended.cause) for ended in spine.ended] == [(second.id, Cause.SUPERSEDED)]


async def test_what_succeeded_slices_took_is_added_up_for_their_job_but_never_more_than_they_held_the_slot(spine):
    job = await spine.submit(slice_count=4, retries=0)
    node = await spine.enrol(cpu_slots=4)
    grants = await spine.grant(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '100 seconds'")
    await spine.finish(
        (node, spine.completion(node, grants[0], usage=Usage(run_seconds=1.5))),
        (node, spine.completion(node, grants[1], usage=Usage(run_seconds=2.0))),
        (node, spine.completion(node, grants[2], usage=Usage(run_seconds=9.0), **FAILED)),
    )
    read = "SELECT run_seconds_sum FROM jobs WHERE id = $1"
    assert await spine.fetch_value(read, job.id) == 3.5
    await spine.succeed(node, grants[3], usage=Usage(run_seconds=5_000))
    assert 103.5 <= await spine.fetch_value(read, job.id) < 1_000


async def test_hubs_are_told_to_look_round_exactly_when_somebody_may_have_to_stop(spine):
    async def count() -> int:
        return await spine.fetch_value("SELECT count(*) FROM hub_changes WHERE kind = 'controls'")

    await spine.submit(slice_count=2)
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    ordinary = await spine.grant_one(quick)
    before = await count()
    await spine.succeed(quick, ordinary)
    assert await count() == before
    await lose(spine, first)
    second = await spine.grant_one(quick)
    await spine.succeed(quick, second)
    assert await count() == before + 1


# Late results


async def test_a_late_result_counts_and_stops_whoever_took_over(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    await lose(spine, first)
    second = await spine.grant_one(quick)
    assert await spine.succeed(slow, first) == ACCEPTED
    superseded = await spine.attempt(second)
    assert (superseded["state"], superseded["cause"]) == ("cancelled", "superseded")
    assert isinstance(await spine.succeed(quick, second), StaleLease)
    detail = await job_service.get_slice(spine.pool, caller, job.id, 0)
    assert detail.slice.accepted_attempt_id == first.id


async def test_of_two_results_in_one_call_the_first_wins(spine):
    await spine.submit()
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    await lose(spine, first)
    second = await spine.grant_one(quick)
    answers = await spine.finish((quick, spine.completion(quick, second)), (slow, spine.completion(slow, first)))
    assert answers[0] == ACCEPTED
    assert isinstance(answers[1], StaleLease)
    assert (await spine.attempt(first))["state"] == "lost"


async def test_a_late_failure_does_not_touch_the_attempt_that_took_over(spine):
    await spine.submit(retries=0)
    slow, quick = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(slow)
    await lose(spine, first)
    second = await spine.grant_one(quick)
    assert await spine.succeed(slow, first, **FAILED) == CompleteAnswer(accepted=False)
    assert (await spine.attempt(second))["state"] == "leased"
    assert await spine.succeed(quick, second) == ACCEPTED


# Beats


async def test_a_beat_acknowledges_extends_and_is_remembered(spine):
    job = await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    before = await spine.attempt(grant)
    await attempt_service.record_beats(spine.pool, [Beat(node.id, frozenset({grant.id}))], lease_seconds=1_000)
    after = await spine.attempt(grant)
    assert after["state"] == "running"
    assert after["started_at"] is not None
    assert (after["expires_at"] - before["expires_at"]).total_seconds() > 900
    assert await spine.slice_state(job) == "running"
    assert await spine.fetch_value("SELECT last_seen_at IS NOT NULL FROM nodes WHERE id = $1", node.id)
    assert (await spine.list_event_kinds(job))[-1] == "slices_running"


async def test_a_second_beat_extends_and_starts_nothing_anew(spine):
    job = await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    beat = Beat(node.id, frozenset({grant.id}))
    await attempt_service.record_beats(spine.pool, [beat], lease_seconds=10)
    first = await spine.attempt(grant)
    await attempt_service.record_beats(spine.pool, [beat], lease_seconds=10)
    second = await spine.attempt(grant)
    assert second["expires_at"] > first["expires_at"]
    assert second["started_at"] == first["started_at"]
    assert (await spine.list_event_kinds(job)).count("slices_running") == 1


async def test_only_the_node_that_holds_an_attempt_can_extend_it(spine):
    await spine.submit()
    node, stranger = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    before = await spine.attempt(grant)
    await attempt_service.record_beats(spine.pool, [Beat(stranger.id, frozenset({grant.id}))], lease_seconds=1_000)
    assert await spine.attempt(grant) == before


async def test_an_attempt_that_is_over_is_not_extended(spine):
    await spine.submit(slice_count=2)
    node = await spine.enrol(cpu_slots=2)
    ended, lost = await spine.grant(node)
    await spine.succeed(node, ended)
    await lose(spine, lost)
    before = [await spine.attempt(grant) for grant in (ended, lost)]
    beat = Beat(node.id, frozenset({ended.id, lost.id, AttemptId(UUID(int=5))}))
    await attempt_service.record_beats(spine.pool, [beat], lease_seconds=1_000)
    assert [await spine.attempt(grant) for grant in (ended, lost)] == before


async def test_beats_of_many_nodes_are_written_together(spine):
    job = await spine.submit(slice_count=3)
    nodes = [await spine.enrol() for _ in range(3)]
    grants = await spine.grant(*nodes)
    beats = [Beat(grant.node_id, frozenset({grant.id})) for grant in grants]
    await attempt_service.record_beats(spine.pool, beats, lease_seconds=10)
    assert {(await spine.attempt(grant))["state"] for grant in grants} == {"running"}
    [event] = await spine.fetch("SELECT body FROM events WHERE job_id = $1 AND kind = 'slices_running'", job.id)
    assert event["body"] == {"slices": [[0, 2]]}


async def test_a_beat_without_attempts_is_remembered_too(spine):
    node = await spine.enrol()
    await attempt_service.record_beats(spine.pool, [Beat(node.id, frozenset())], lease_seconds=10)
    assert await spine.fetch_value("SELECT last_seen_at IS NOT NULL FROM nodes WHERE id = $1", node.id)


async def test_beats_hold_nothing_while_they_wait_so_that_a_lease_for_a_busy_slot_is_refused_at_once(spine):
    """A completion has locked one attempt and plans a lease for the slot of another, whose lease a beat extends."""
    await spine.submit(slice_count=3)
    node = await spine.enrol(cpu_slots=2)
    first, second = sorted(await spine.grant(node), key=lambda grant: grant.id)
    planned = first._replace(id=AttemptId(entropy.new_id()), slice_index=2)
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT 1 FROM attempts WHERE id = $1 FOR UPDATE", second.id)
        beat = Beat(node.id, frozenset({first.id, second.id}))
        beating = asyncio.create_task(attempt_service.record_beats(spine.pool, [beat], lease_seconds=1_000))
        await wait_until_blocked(conn, 1)
        assert not await attempt_store.insert_leases(conn, [planned], rate_card_version="1", lease_seconds=10)
    await beating
    for grant in (first, second):
        row = await spine.attempt(grant)
        assert row["expires_at"] > row["leased_at"] + timedelta(seconds=500), "both were extended in the end"


# Silence


async def test_only_leases_that_are_overdue_beyond_the_grace_are_taken(spine):
    job = await spine.submit(slice_count=3)
    node = await spine.enrol(cpu_slots=3)
    fresh, graced, overdue = await spine.grant(node)
    await spine.let_lease_pass(graced, seconds=3)
    await spine.let_lease_pass(overdue, seconds=30)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=15, limit=10) == 1
    states = [(await spine.attempt(grant))["state"] for grant in (fresh, graced, overdue)]
    assert states == ["leased", "leased", "lost"]
    assert await spine.slice_state(job, overdue.slice_index) == "queued"
    assert (await spine.attempt(overdue))["cause"] == "node_vanished"


async def test_what_has_ended_is_never_reaped(spine):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant)
    await spine.let_lease_pass(grant)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=0, limit=10) == 0


async def test_the_reaper_takes_no_more_than_its_batch_and_the_longest_overdue_first(spine):
    await spine.submit(slice_count=3)
    node = await spine.enrol(cpu_slots=3)
    grants = await spine.grant(node)
    for seconds, grant in zip((100, 300, 200), grants, strict=True):
        await spine.let_lease_pass(grant, seconds=seconds)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=1, limit=2) == 2
    assert [(await spine.attempt(grant))["state"] for grant in grants] == ["leased", "lost", "lost"]


async def test_reapers_that_run_at_once_lose_an_attempt_once(spine):
    job = await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    await spine.let_lease_pass(grant)
    reaped = await asyncio.gather(
        *(attempt_service.reap_leases(spine.pool, grace_seconds=1, limit=10) for _ in range(4))
    )
    assert sum(reaped) == 1
    assert (await spine.list_event_kinds(job)).count("slices_queued") == 1


async def test_a_node_that_is_heard_between_the_look_and_the_lock_keeps_its_work(spine, monkeypatch):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.let_lease_pass(grant)
    really = attempt_service.lock_snapshot

    async def heard_first(conn, attempt_ids):
        beat = Beat(node.id, frozenset({grant.id}))
        await attempt_service.record_beats(spine.pool, [beat], lease_seconds=60)
        return await really(conn, attempt_ids)

    monkeypatch.setattr(attempt_service, "_acknowledge", lambda conn, keys: asyncio.sleep(0))
    monkeypatch.setattr(attempt_service, "lock_snapshot", heard_first)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=1, limit=10) == 0
    assert (await spine.attempt(grant))["state"] == "leased"


# Files and logs of a held attempt


async def held_by(spine: Spine, node: EnrolledNode, grant: Grant, secret: str | None = None):
    secret = spine.keyring.lease_secret(grant.id) if secret is None else secret
    return await attempt_service.get_held(spine.pool, spine.keyring, node.caller, grant.id, secret)


async def test_only_the_holder_of_a_lease_may_send_for_it(spine):
    await spine.submit()
    node, stranger = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    assert (await held_by(spine, node, grant)).id == grant.id
    with pytest.raises(StaleLease):
        await held_by(spine, node, grant, secret="guessed")
    with pytest.raises(StaleLease):
        await held_by(spine, stranger, grant)


async def test_a_lost_attempt_may_send_until_a_newer_one_exists(spine):
    await spine.submit()
    node, other = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    await lose(spine, grant)
    assert (await held_by(spine, node, grant)).state.value == "lost"
    await spine.grant_one(other)
    with pytest.raises(StaleLease):
        await held_by(spine, node, grant)


async def test_an_attempt_that_has_ended_may_send_nothing_more(spine):
    await spine.submit()
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant)
    with pytest.raises(StaleLease):
        await held_by(spine, node, grant)


async def test_only_the_jobs_own_inputs_can_be_read_through_a_lease(spine):
    await spine.submit()
    node = await spine.enrol()
    held = await held_by(spine, node, await spine.grant_one(node))
    with pytest.raises(NotFound):
        await job_checkpoints.get_input_size(spine.pool, held, SHA256)


async def test_a_log_grows_by_what_is_new_of_each_piece(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    node = await spine.enrol()
    held = await held_by(spine, node, await spine.grant_one(node))

    async def append(offset: int, content: bytes) -> int:
        return await attempt_service.append_log(spine.pool, spine.settings, held, offset=offset, content=content)

    assert await append(0, b"hello ") == 6
    assert await append(0, b"hello ") == 6, "a repeated piece is not stored twice"
    assert await append(3, b"lo world") == 11, "of an overlapping piece only the new part is stored"
    assert await append(99, b"gap") == 11, "a piece beyond the end is asked for again from the end"
    assert await append(-1, b"x") == 11
    piece = await job_service.read_log(spine.pool, caller, job.id, 0, attempt_number=None, offset=0)
    assert (piece.content, piece.next_offset, piece.complete) == (b"hello world", 11, False)
    piece = await job_service.read_log(spine.pool, caller, job.id, 0, attempt_number=1, offset=4)
    assert piece.content == b"o world"


async def test_a_log_stops_at_its_limit(dsn):
    async with open_spine(dsn, log_bytes_max=0) as spine:
        await spine.submit()
        node = await spine.enrol()
        held = await held_by(spine, node, await spine.grant_one(node))
        end = await attempt_service.append_log(spine.pool, spine.settings, held, offset=0, content=b"x" * 2_000)
        assert end == 1_024
        assert await attempt_service.append_log(spine.pool, spine.settings, held, offset=end, content=b"y") == end


async def test_a_piece_of_log_has_a_largest_size(spine):
    await spine.submit()
    node = await spine.enrol()
    held = await held_by(spine, node, await spine.grant_one(node))
    too_large = b"x" * (attempt_service.LOG_PIECE_BYTES_MAX + 1)
    with pytest.raises(InvalidRequest):
        await attempt_service.append_log(spine.pool, spine.settings, held, offset=0, content=too_large)
