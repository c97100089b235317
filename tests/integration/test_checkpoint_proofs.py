"""A checkpoint earns what somebody else could go on from: nonsense of a plausible age is found out.

A credit a second, so that sums can be followed by eye; owners get 80 %. Forty seconds are saved each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from computepool import clock
from computepool.core.jobs import checkpoint_proofs as rules
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED
from computepool.core.ledger.dispute import DisputeState
from computepool.core.ledger.explain import PayMark
from computepool.core.trust.standing import NodeTrust, Standing
from computepool.hub.services import checkpoint_proofs as service
from computepool.hub.services import disputes, job_checkpoints, jobs, pay, releases
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import ledger
from computepool.hub.store import validation as trust_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from tests.support.paid_jobs import CREDIT, FAILED, open_paid_spine, own, ran, submit
from tests.support.payment_lab import to_caller
from tests.support.rows import insert_account
from tests.support.saved_work import LEFT, check_pay, hold, save, start, vanish
from tests.support.spine import EnrolledNode, Spine

PAY = 32 * CREDIT


@dataclass
class Grid:
    """A submitter's slice, and machines of different people."""

    spine: Spine
    submitter: AccountCaller
    saver: EnrolledNode
    anna: EnrolledNode
    bo: EnrolledNode
    chen: EnrolledNode

    async def leave(self, node: EnrolledNode, content: int, **end: Any) -> Grant:
        """Forty seconds are saved, honestly or not: only those who begin with it can tell. Then the owner is back."""
        grant = await start(self.spine, node)
        await save(self.spine, node, grant, content)
        await self.spine.succeed(node, grant, **{**LEFT, **ran(55.0), **end})
        return grant

    async def fail(self, node: EnrolledNode) -> Grant:
        """The program reads what it began with, and ends with an error."""
        grant = await start(self.spine, node)
        await self.spine.succeed(node, grant, **FAILED, **ran(2.0))
        return grant

    async def deliver(self, node: EnrolledNode) -> Grant:
        grant = await start(self.spine, node)
        answer = await self.spine.succeed(node, grant, **ran(50.0))
        assert not isinstance(answer, Exception), answer
        return grant

    async def forge(self) -> Grant:
        """Nonsense, on which two others fail."""
        forged = await self.leave(self.saver, 7)
        await self.fail(self.anna)
        await self.fail(self.bo)
        return forged

    async def find_base(self, node: EnrolledNode, grant: Grant) -> int | None:
        """Whose checkpoint an attempt begins with, by its number."""
        kept = await job_checkpoints.find_kept(self.spine.pool, await hold(self.spine, node, grant))
        return kept.attempt_number if kept else None

    async def settle(self) -> releases.Released:
        """What the settler does when every holdback is over."""
        await service.judge_due(self.spine.pool, limit=100)
        await self.spine.fetch(
            "UPDATE attempts SET release_at = now() - interval '1 second', pay_waits_since = NULL"
            " WHERE earning_state = 'pending'"
        )
        await self.spine.fetch("UPDATE receipts SET state = 'verified'")
        return await releases.release_due(self.spine.pool, limit=100)

    async def find_pay(self, node: EnrolledNode) -> tuple[int, int]:
        """What its owner has earned: pending, and free."""
        account_id = node.caller.account_id
        return await own(self.spine, account_id, "owner_pending"), await own(
            self.spine, account_id, "owner_available"
        )

    async def find_standing(self, node: EnrolledNode) -> Standing:
        async with self.spine.pool.acquire() as conn:
            return (await trust_store.list_trust(conn, [node.id])).get(node.id, NodeTrust()).standing

    async def list_states(self) -> list[tuple[int, str | None]]:
        rows = await self.spine.fetch(
            "SELECT attempt_number, verdict::text FROM attempt_checkpoints ORDER BY attempt_number"
        )
        return [tuple(row) for row in rows]

    async def explain(self, node: EnrolledNode) -> pay.PayStory:
        caller = AccountCaller(node.caller.account_id, UUID(int=1), frozenset(), 60_000)  # type: ignore[arg-type]
        day = clock.now().date()
        return await pay.explain_day(self.spine.pool, caller, node.id, day=day, cursor=None, limit=100)


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[Grid]:
    async with open_paid_spine(dsn) as spine:
        nodes = [await spine.enrol(owner=await spine.sign_up(credits=0)) for _ in range(4)]
        grid = Grid(spine, await spine.sign_up(credits=1_000), *nodes)
        yield grid
        async with spine.pool.acquire() as conn:
            assert await ledger.list_drifts(conn) == []
        for node in nodes:
            await check_pay(spine, node)


@pytest.fixture
async def job(grid: Grid) -> Job:
    """It allows no retry: a forger must not be able to spend one."""
    return await submit(grid.spine, grid.submitter, retries=0)


# Proof


async def test_pay_for_a_checkpoint_is_not_released_before_somebody_else_has_gone_on_from_it(grid, job):
    await grid.leave(grid.saver, 7)
    assert (await grid.settle()).put_off_count == 1
    assert await grid.find_pay(grid.saver) == (PAY, 0)
    grant = await start(grid.spine, grid.anna)
    assert (await grid.settle()).put_off_count == 1, "to begin with it proves nothing"
    await save(grid.spine, grid.anna, grant, 8)
    assert (await grid.settle()).microcredits == PAY
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.find_standing(grid.saver) is Standing.CLEAR


async def test_control_a_hub_that_asks_for_no_proof_would_pay_for_nonsense(grid, job, monkeypatch):
    monkeypatch.setattr(releases, "find_proof_wait", lambda *_, **__: None)
    await grid.forge()
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)


async def test_a_result_proves_what_it_began_with_whoever_delivers_it(grid, job):
    await grid.leave(grid.saver, 7)
    # Nobody else is there.
    await grid.spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    await grid.deliver(grid.saver)
    await grid.settle()
    assert (await grid.find_pay(grid.saver))[0] == 0
    assert await grid.list_states() == [(1, None)]


async def test_nobody_proves_their_own_checkpoint_by_saving_more(grid, job):
    await grid.leave(grid.saver, 7)
    owner = AccountCaller(grid.saver.caller.account_id, UUID(int=1), frozenset(), 60_000)
    await grid.leave(await grid.spine.enrol(owner=owner), 8)
    assert (await grid.settle()).put_off_count == 2
    assert await grid.find_pay(grid.saver) == (2 * PAY, 0)


async def test_a_program_that_asks_to_be_queued_again_is_paid_when_somebody_went_on(grid, job):
    """Else that would be the way to be paid for nonsense: in full, and without a retry spent."""
    await grid.leave(grid.saver, 7, cause=Cause.EXIT_CODE, exit_code=EXIT_CODE_CHECKPOINTED)
    assert (await grid.settle()).put_off_count == 1
    await grid.leave(grid.anna, 8)
    assert (await grid.settle()).microcredits == 55 * CREDIT * 80 // 100


async def test_a_machine_that_vanished_with_a_checkpoint_waits_for_proof_too(grid, job):
    grant = await start(grid.spine, grid.saver)
    await save(grid.spine, grid.saver, grant, 7)
    await vanish(grid.spine, grant)
    assert (await grid.settle()).put_off_count == 1
    await grid.deliver(grid.anna)
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)


async def test_a_submitter_who_cancels_takes_nobodys_pay_away(grid, job):
    await grid.leave(grid.saver, 7)
    await grid.fail(grid.anna)
    await jobs.cancel_job(grid.spine.pool, grid.submitter, job.id)
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.find_standing(grid.saver) is Standing.CLEAR


async def test_one_who_cancels_after_two_have_failed_blames_nobody_either(grid, job):
    await grid.forge()
    await jobs.cancel_job(grid.spine.pool, grid.submitter, job.id)
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.list_states() == [(1, "cleared")]


async def test_a_slice_that_nobody_takes_keeps_the_pay_for_a_month_and_no_longer(grid, job):
    await grid.leave(grid.saver, 7)
    await grid.spine.fetch(
        "UPDATE attempts SET leased_at = leased_at - interval '30 days',"
        " finished_at = finished_at - interval '30 days'"
    )
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)


async def test_an_owner_is_told_what_the_pay_waits_for(grid, job):
    await grid.leave(grid.saver, 7)
    [words] = (await grid.explain(grid.saver)).waits.values()
    assert "gone on from its checkpoint" in words
    await grid.fail(grid.anna)
    await grid.fail(grid.bo)
    [words] = (await grid.explain(grid.saver)).waits.values()
    assert "could not go on" in words


# Doubt


async def test_two_who_fail_on_a_checkpoint_spend_no_retry_and_the_third_begins_without_it(grid, job):
    await grid.leave(grid.saver, 7)
    for node in (grid.anna, grid.bo):
        grant = await start(grid.spine, node)
        assert await grid.find_base(node, grant) == 1
        await grid.spine.succeed(node, grant, **FAILED, **ran(2.0))
        assert await grid.spine.slice_state(job) == "queued"
    assert await grid.spine.fetch_value("SELECT failure_count FROM slices") == 0
    third = await start(grid.spine, grid.chen)
    assert await grid.find_base(grid.chen, third) is None
    assert "checkpoint_left_out" in await grid.spine.list_event_kinds(job)
    # Without it, the program is as much to blame as ever.
    await grid.spine.succeed(grid.chen, third, **FAILED, **ran(2.0))
    assert await grid.spine.slice_state(job) == "failed"


async def test_it_goes_back_to_what_another_owner_has_saved(grid, job):
    await grid.leave(grid.chen, 5)
    await grid.leave(grid.saver, 7)
    await grid.fail(grid.anna)
    await grid.fail(grid.bo)
    grant = await start(grid.spine, grid.anna)
    assert await grid.find_base(grid.anna, grant) == 1
    held = await hold(grid.spine, grid.anna, grant)
    assert await job_checkpoints.get_input_size(grid.spine.pool, held, f"{5:064x}") == 5
    await save(grid.spine, grid.anna, grant, 9)
    await grid.spine.succeed(grid.anna, grant, **ran(50.0))
    await grid.settle()
    # Somebody has gone on from Chen's, and the program is one that can: the other was forged.
    assert await grid.find_pay(grid.chen) == (0, PAY)
    assert await grid.find_pay(grid.saver) == (0, 0)
    assert await grid.list_states() == [(1, None), (2, "forged"), (5, None)]


async def test_control_a_hub_that_forgives_nothing_lets_a_forger_end_the_slice(grid, job, monkeypatch):
    monkeypatch.setattr(service, "find_doubt", lambda *_: None)
    await grid.leave(grid.saver, 7)
    await grid.fail(grid.anna)
    assert await grid.spine.slice_state(job) == "failed"


# Verdicts


async def deliver_by_two(grid: Grid) -> None:
    """From nothing, with a change of machines on the way: so the program can go on from what others have saved."""
    await grid.leave(grid.chen, 11)
    await grid.deliver(grid.anna)


async def test_nonsense_of_a_plausible_age_earns_nothing_and_is_blamed(grid, job):
    forged = await grid.forge()
    assert await grid.find_pay(grid.saver) == (PAY, 0)
    await deliver_by_two(grid)
    before = await own(grid.spine, grid.submitter.account_id, "submitter_available")
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, 0)
    # All of it is back, the fee too.
    assert await own(grid.spine, grid.submitter.account_id, "submitter_available") == before + 40 * CREDIT
    assert await grid.find_standing(grid.saver) is Standing.SUSPECT
    assert await grid.find_pay(grid.chen) == (0, PAY)
    assert await grid.list_states() == [(1, "forged"), (4, None)]
    assert "checkpoint_forged" in await grid.spine.list_event_kinds(job)
    [(attempt, told)] = (await grid.explain(grid.saver)).attempts
    assert (attempt.id, told.mark) == (forged.id, PayMark.REVERSED)
    assert attempt.dispute is not None
    assert "could not go on from its checkpoint" in attempt.dispute.reason
    # What was judged stays so, however often it is looked at.
    assert await service.judge_due(grid.spine.pool, limit=100) == 0
    assert await grid.find_standing(grid.saver) is Standing.SUSPECT


async def test_hubs_that_judge_at_once_blame_once(grid, job):
    await grid.forge()
    await deliver_by_two(grid)
    counts = await asyncio.gather(*(service.judge_due(grid.spine.pool, limit=100) for _ in range(4)))
    assert sum(counts) == 1
    assert await grid.find_standing(grid.saver) is Standing.SUSPECT, "and not bugged, as two wrong results would be"
    assert await grid.find_pay(grid.saver) == (0, 0)


async def test_a_saver_whose_successors_meet_a_broken_program_is_paid_and_not_blamed(grid):
    await submit(grid.spine, grid.submitter, retries=1)
    await grid.forge()
    # Without the checkpoint it comes as far, saves on the way, and fails there, too.
    grant = await start(grid.spine, grid.chen)
    await save(grid.spine, grid.chen, grant, 11)
    await grid.spine.succeed(grid.chen, grant, **FAILED, **ran(50.0))
    await grid.deliver(grid.anna)
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.find_standing(grid.saver) is Standing.CLEAR
    assert (1, "cleared") in await grid.list_states()


async def test_a_saver_is_paid_where_the_program_fails_with_and_without_its_checkpoint(grid, job):
    await grid.forge()
    await grid.fail(grid.chen)
    assert await grid.spine.slice_state(job) == "failed"
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.find_standing(grid.saver) is Standing.CLEAR


async def test_where_the_program_may_be_one_that_never_goes_on_the_operator_decides(grid, job):
    """Nobody has ever gone on from a checkpoint of this job: its own code for that may be what is broken."""
    await grid.forge()
    await grid.deliver(grid.chen)
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (PAY, 0)
    assert await grid.find_standing(grid.saver) is Standing.CLEAR
    assert await grid.list_states() == [(1, "undecided")]
    [found] = await disputes.list_disputes_in_state(
        grid.spine.pool, state=DisputeState.OPEN, after=UUID(int=0), limit=10
    )
    async with grid.spine.pool.acquire() as conn:
        operator = to_caller(await insert_account(conn))
    await disputes.decide_dispute(
        grid.spine.pool, operator, found.id, decision=DisputeState.DISMISSED, note="its script cannot load anything"
    )
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)


async def test_one_liar_has_nobody_blamed(grid, job):
    """Anna says twice that her program failed; what she began with was sound."""
    await grid.leave(grid.saver, 7)
    for _ in range(2):
        await grid.fail(grid.anna)
        await grid.spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    await deliver_by_two(grid)
    await grid.settle()
    assert await grid.find_standing(grid.saver) is Standing.CLEAR
    assert await grid.list_states() == [(1, "undecided"), (4, None)]


async def test_control_a_hub_without_a_second_opinion_would_blame_on_the_word_of_a_liar(grid, job, monkeypatch):
    monkeypatch.setattr(rules, "WITNESSES_MIN", 1)
    await grid.leave(grid.saver, 7)
    await grid.fail(grid.anna)
    await deliver_by_two(grid)
    await grid.settle()
    assert await grid.find_standing(grid.saver) is Standing.SUSPECT
    assert await grid.find_pay(grid.saver) == (0, 0)


async def test_accounts_that_are_paid_out_to_one_place_are_one_witness(grid, job):
    await grid.spine.fetch(
        """INSERT INTO payout_details (id, account_id, region, currency, destination)
           SELECT gen_random_uuid(), id, 'IN', 'INR', 'bank of one' FROM unnest($1::uuid[]) AS p (id)""",
        [grid.anna.caller.account_id, grid.bo.caller.account_id],
    )
    await grid.forge()
    await deliver_by_two(grid)
    await grid.settle()
    assert await grid.find_standing(grid.saver) is Standing.CLEAR
    assert (1, "undecided") in await grid.list_states()


async def test_a_lost_machine_that_delivers_late_from_a_doubted_checkpoint_proves_it(grid, job):
    await grid.leave(grid.saver, 7)
    late = await start(grid.spine, grid.chen)
    await vanish(grid.spine, late)
    await grid.fail(grid.anna)
    await grid.fail(grid.bo)
    await grid.spine.succeed(grid.chen, late, **ran(50.0))
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
    assert await grid.list_states() == [(1, "cleared")]


async def test_ones_own_job_on_ones_own_node_is_judged_without_money(grid):
    await submit(grid.spine, grid.submitter, retries=0)
    grid.saver = await grid.spine.enrol(owner=grid.submitter)
    await grid.forge()
    await deliver_by_two(grid)
    await grid.settle()
    assert await grid.list_states() == [(1, "forged"), (4, None)]
    assert await grid.find_pay(grid.saver) == (0, 0)


async def test_a_checkpoint_that_a_hub_of_yesterday_accepted_is_doubted_by_nobody(grid, job):
    """It leaves no story: what the slice goes on from is then not what the story says."""
    forged = await grid.leave(grid.saver, 7)
    await grid.spine.fetch("DELETE FROM attempt_checkpoints WHERE attempt_id = $1", forged.id)
    await grid.fail(grid.anna)
    assert await grid.spine.slice_state(job) == "failed"
    await grid.settle()
    assert await grid.find_pay(grid.saver) == (0, PAY)
