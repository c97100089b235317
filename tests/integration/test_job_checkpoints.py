"""Checkpoints of slices on a real database: who may save, what the next attempt gets, and who is paid what for it.

A credit a second, so that sums can be followed by eye; owners get 80 %.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from computepool.core.errors import InvalidRequest, NotFound, StaleLease
from computepool.core.jobs import checkpoint as rules
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import job_checkpoints
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import ledger
from computepool.wire.attempts import CheckpointAnswer
from computepool.wire.jobs import OutputFile
from tests.support.paid_jobs import CREDIT, WALL_SECONDS, open_paid_spine, own, ran, submit
from tests.support.saved_work import LEFT, check_pay, hold, make, save, send, start, upload, vanish
from tests.support.spine import EnrolledNode, Spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn) as spine:
        yield spine
        async with spine.pool.acquire() as conn:
            assert await ledger.list_drifts(conn) == []
        uncovered = "finished_at IS NULL AND held_remaining < reserve_microcredits * " + (
            "(slice_count - succeeded_count - failed_count - cancelled_count)"
        )
        assert await spine.fetch(f"SELECT id FROM jobs WHERE {uncovered}") == []


@pytest.fixture
async def submitter(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=1_000)


@pytest.fixture
async def node(spine: Spine) -> EnrolledNode:
    return await spine.enrol(owner=await spine.sign_up(credits=0))


# Who may save


async def test_a_checkpoint_counts_once_all_its_files_are_there(spine, submitter, node):
    await submit(spine, submitter)
    grant = await start(spine, node)
    checkpoint = make(7)
    answer = await send(spine, node, grant, checkpoint)
    assert (answer.accepted, answer.missing) == (False, [checkpoint.files[0].sha256])
    assert (await spine.attempt(grant))["saved_seconds"] == 0
    await upload(spine, node, grant, checkpoint)
    assert await send(spine, node, grant, checkpoint) == CheckpointAnswer(accepted=True, saved_seconds=40)
    # The answer was lost on its way.
    assert await send(spine, node, grant, checkpoint) == CheckpointAnswer(accepted=True, saved_seconds=40)
    assert (await spine.attempt(grant))["saved_seconds"] == 40


async def test_a_file_with_another_size_than_was_uploaded_is_refused(spine, submitter, node):
    await submit(spine, submitter)
    grant = await start(spine, node)
    await upload(spine, node, grant, make(7))
    file = OutputFile(path="state", sha256=f"{7:064x}", size_bytes=8)
    with pytest.raises(InvalidRequest, match="another size"):
        await send(spine, node, grant, make(7, files=(file,)))


async def test_an_empty_checkpoint_and_one_of_more_time_than_there_was_earn_nothing(spine, submitter, node):
    await submit(spine, submitter)
    grant = await start(spine, node, held_seconds=60.0)
    with pytest.raises(InvalidRequest, match="empty"):
        await send(spine, node, grant, make(1, files=()))
    await upload(spine, node, grant, make(7))
    with pytest.raises(InvalidRequest, match="the lease has lasted"):
        await send(spine, node, grant, make(7, seconds=5_000.0))
    await spine.succeed(node, grant, **LEFT, **ran(55.0))
    assert await own(spine, node.caller.account_id, "owner_pending") == 0
    assert await own(spine, submitter.account_id, "submitter_available") == 900 * CREDIT


async def test_a_stranger_and_a_guessed_secret_save_nothing(spine, submitter, node):
    await submit(spine, submitter)
    grant, stranger = await start(spine, node), await spine.enrol()
    with pytest.raises(StaleLease):
        await send(spine, stranger, grant, make(7))
    with pytest.raises(StaleLease):
        await attempt_service.get_held(spine.pool, spine.keyring, node.caller, grant.id, "guessed")


async def test_another_accounts_file_is_not_there_for_a_checkpoint(spine, submitter, node):
    """Its hash may be known; that nobody else has it is not to be found out here."""
    await submit(spine, submitter)
    grant = await start(spine, node)
    await upload(spine, node, grant, make(7))
    await spine.succeed(node, grant, **ran(10.0))
    await submit(spine, await spine.sign_up(credits=1_000))
    other = await start(spine, node)
    answer = await send(spine, node, other, make(7))
    assert (answer.accepted, answer.missing) == (False, [f"{7:064x}"])


@pytest.mark.parametrize("is_saved", [False, True], ids=["lost", "left behind"])
async def test_a_checkpoint_that_comes_after_the_lease_is_too_late(spine, submitter, node, is_saved):
    await submit(spine, submitter)
    grant = await start(spine, node)
    await upload(spine, node, grant, make(7))
    await upload(spine, node, grant, make(8))
    if is_saved:
        await save(spine, node, grant, 7)
    await vanish(spine, grant)
    with pytest.raises(StaleLease):
        await send(spine, node, grant, make(8, number=2))
    assert (await spine.attempt(grant))["saved_seconds"] == (40 if is_saved else 0)


# What the next attempt gets


async def test_the_next_attempt_gets_the_last_accepted_files_and_no_others(spine, submitter, node):
    job = await submit(spine, submitter, slice_count=2)
    grant = await start(spine, node)
    assert await job_checkpoints.find_kept(spine.pool, await hold(spine, node, grant)) is None
    await save(spine, node, grant, 7, seconds=20.0)
    await save(spine, node, grant, 8, seconds=40.0, number=2)
    # Sent, but never accepted.
    await upload(spine, node, grant, make(9))
    await spine.succeed(node, grant, **LEFT, **ran(55.0))
    second = await spine.enrol(cpu_slots=2)
    held = {g.slice_index: await hold(spine, second, g) for g in await spine.grant(second)}
    kept = await job_checkpoints.find_kept(spine.pool, held[grant.slice_index])
    assert kept is not None
    assert [(f.path, f.sha256, f.size_bytes) for f in kept.files] == [("state", f"{8:064x}", 8)]
    assert kept.attempt_number == 1
    assert await job_checkpoints.get_input_size(spine.pool, held[grant.slice_index], f"{8:064x}") == 8
    with pytest.raises(NotFound):
        await job_checkpoints.get_input_size(spine.pool, held[grant.slice_index], f"{9:064x}")
    # The other slice of the same job has none, and cannot read this one's.
    other = held[1 - grant.slice_index]
    assert await job_checkpoints.find_kept(spine.pool, other) is None
    with pytest.raises(NotFound):
        await job_checkpoints.get_input_size(spine.pool, other, f"{8:064x}")
    assert await spine.fetch_value("SELECT count(*) FROM job_checkpoints WHERE job_id = $1", job.id) == 1


async def test_exit_code_85_queues_the_slice_again_and_spends_no_retry(spine, submitter, node):
    job = await submit(spine, submitter, retries=0)
    other = await spine.enrol()
    for number, holder in enumerate((node, other, node), start=1):
        grant = await start(spine, holder)
        assert grant.number == number
        await save(spine, holder, grant, 10 + number)
        await spine.succeed(holder, grant, cause=Cause.EXIT_CODE, exit_code=EXIT_CODE_CHECKPOINTED, **ran(50.0))
        assert await spine.slice_state(job) == "queued"
    assert await spine.fetch_value("SELECT failure_count FROM slices WHERE job_id = $1", job.id) == 0


# Money


async def test_an_owner_who_leaves_is_paid_to_the_checkpoint_and_the_submitter_pays_no_later_second(
    spine, submitter, node
):
    job = await submit(spine, submitter)
    grant = await start(spine, node)
    assert await save(spine, node, grant, 7, seconds=41.9) == 41
    await spine.succeed(node, grant, **LEFT, **ran(58.0))
    assert await own(spine, node.caller.account_id, "owner_pending") == 41 * CREDIT * 80 // 100
    # The next try is covered anew: the hold is full again.
    assert await own(spine, submitter.account_id, "submitter_available") == (1_000 - 41 - WALL_SECONDS) * CREDIT
    assert await own(spine, submitter.account_id, "submitter_held") == WALL_SECONDS * CREDIT
    other = await spine.enrol(owner=await spine.sign_up(credits=0))
    again = await start(spine, other)
    # What it began with, sent back as its own work.
    await send(spine, other, again, make(7, seconds=30.0))
    await spine.succeed(other, again, **LEFT, **ran(30.0))
    assert await own(spine, other.caller.account_id, "owner_pending") == 0
    third = await start(spine, node)
    await spine.succeed(node, third, **ran(10.0))
    assert await spine.slice_state(job) == "succeeded"
    assert await own(spine, submitter.account_id, "submitter_available") == (1_000 - 51) * CREDIT
    assert await own(spine, submitter.account_id, "submitter_held") == 0
    for each in (node, other):
        await check_pay(spine, each)


async def test_a_node_that_vanishes_is_paid_to_its_checkpoint_at_once_and_is_over(spine, submitter, node):
    job = await submit(spine, submitter)
    grant = await start(spine, node)
    await save(spine, node, grant, 7)
    await vanish(spine, grant)
    row = await spine.attempt(grant)
    assert (row["state"], row["cause"], row["charged_microcredits"]) == ("failed", "node_vanished", 40 * CREDIT)
    assert await own(spine, node.caller.account_id, "owner_pending") == 32 * CREDIT
    assert await own(spine, submitter.account_id, "submitter_available") == (1_000 - 40 - WALL_SECONDS) * CREDIT
    # It wakes up and delivers: its slice has gone on from the checkpoint, without it.
    assert isinstance(await spine.succeed(node, grant, **ran(60.0)), StaleLease)
    assert await own(spine, node.caller.account_id, "owner_pending") == 32 * CREDIT
    assert await spine.slice_state(job) == "queued"
    await check_pay(spine, node)


async def test_control_a_node_that_vanishes_without_a_checkpoint_is_paid_nothing_and_may_deliver_late(
    spine, submitter, node
):
    job = await submit(spine, submitter)
    grant = await start(spine, node)
    await vanish(spine, grant)
    assert (await spine.attempt(grant))["state"] == "lost"
    assert await own(spine, node.caller.account_id, "owner_pending") == 0
    await spine.succeed(node, grant, **ran(50.0))
    assert await spine.slice_state(job) == "succeeded"
    assert await own(spine, node.caller.account_id, "owner_pending") == 40 * CREDIT


async def test_an_agent_that_starts_anew_without_its_job_is_paid_to_the_checkpoint_too(spine, submitter, node):
    await submit(spine, submitter)
    await node_service.record_boot(spine.pool, node.id, UUID(int=1), frozenset())
    grant = await start(spine, node)
    await save(spine, node, grant, 7)
    await node_service.record_boot(spine.pool, node.id, UUID(int=2), frozenset())
    assert (await spine.attempt(grant))["charged_microcredits"] == 40 * CREDIT


async def test_a_loss_that_leaves_no_money_for_another_try_ends_the_slice_and_pays_what_was_saved(spine, node):
    poor = await spine.sign_up(credits=WALL_SECONDS)
    job = await submit(spine, poor)
    grant = await start(spine, node)
    await save(spine, node, grant, 7)
    await vanish(spine, grant)
    assert await spine.slice_state(job) == "failed"
    assert await own(spine, node.caller.account_id, "owner_pending") == 32 * CREDIT
    assert await own(spine, poor.account_id, "submitter_available") == (WALL_SECONDS - 40) * CREDIT


async def test_ones_own_job_on_ones_own_node_costs_nothing_either_way(spine, node):
    job = await submit(spine, await spine.sign_up(credits=1_000))
    own_node = await spine.enrol(owner=AccountCaller(job.account_id, UUID(int=1), frozenset(), 60_000))
    grant = await start(spine, own_node)
    await save(spine, own_node, grant, 7)
    await vanish(spine, grant)
    assert await own(spine, job.account_id, "submitter_available") == (1_000 - WALL_SECONDS) * CREDIT
    assert (await spine.attempt(grant))["charged_microcredits"] is None


async def test_control_a_hub_that_believes_the_claimed_seconds_would_overpay(spine, submitter, node, monkeypatch):
    """What the sums above would notice."""

    def believe(standing: rules.Standing, claim: rules.Claim) -> rules.Saved:
        return rules.Saved(int(claim.run_seconds), is_news=True)

    monkeypatch.setattr(job_checkpoints, "decide_checkpoint", believe)
    await submit(spine, submitter)
    grant = await start(spine, node)
    await save(spine, node, grant, 7, seconds=5_000.0)
    await spine.succeed(node, grant, **LEFT, **ran(5_000.0))
    # Even so, never for longer than the lease has lasted.
    assert 40 * CREDIT < await own(spine, node.caller.account_id, "owner_pending") <= 80 * CREDIT


async def test_control_a_hub_without_the_fence_would_hand_on_what_came_too_late(spine, submitter, node, monkeypatch):
    """What the tests above of late and foreign words would notice."""
    monkeypatch.setattr(job_checkpoints, "decide_checkpoint", lambda standing, claim: rules.Saved(1, is_news=True))
    await submit(spine, submitter)
    grant = await start(spine, node)
    held = await hold(spine, node, grant)
    await upload(spine, node, grant, make(7))
    await vanish(spine, grant)
    other = await spine.enrol()
    again = await start(spine, other)
    await job_checkpoints.save_checkpoint(spine.pool, held, make(7))
    kept = await job_checkpoints.find_kept(spine.pool, await hold(spine, other, again))
    assert kept is not None
    assert kept.files[0].sha256 == f"{7:064x}"


# What is shown


async def test_a_job_tells_since_when_work_is_at_risk_and_its_slices_how_much(spine, submitter, node):
    job = await submit(spine, submitter)
    assert (await job_service.get_job(spine.pool, submitter, job.id)).at_risk_since is None
    grant = await start(spine, node)
    row = await spine.attempt(grant)
    assert (await job_service.get_job(spine.pool, submitter, job.id)).at_risk_since == row["started_at"]
    await save(spine, node, grant, 7, progress=0.25)
    row = await spine.attempt(grant)
    assert (await job_service.get_job(spine.pool, submitter, job.id)).at_risk_since == row["saved_at"]
    detail = await job_service.get_slice(spine.pool, submitter, job.id, 0)
    assert (detail.progress, detail.attempts[0].saved_seconds) == (0.25, 40)
    await spine.succeed(node, grant, **ran(50.0))
    assert (await job_service.get_job(spine.pool, submitter, job.id)).at_risk_since is None
