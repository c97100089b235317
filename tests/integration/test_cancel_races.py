"""A result and a cancellation at the same moment, at two hubs on one database: one of them counts, and is paid once.

Both wait for the same slice while a third holds it, so that who came first goes first: no timer decides. What must
never be is shown by a planted bug at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from computepool import entropy
from computepool.core.errors import ComputePoolError, StaleLease
from computepool.core.ledger.refusal import PostingMismatch
from computepool.core.ledger.transfer import Posting
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import billing
from computepool.hub.services import jobs as job_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import deliveries as delivery_store
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import CompleteAnswer
from computepool.wire.jobs import Requirements
from tests.support.paid_jobs import CREDIT, HOUR, WALL_SECONDS, acknowledge, lease, open_paid_spine, own, ran, submit
from tests.support.spine import EnrolledNode, Spine

CLAIMED = 10
HELD = 49.5


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn) as spine:
        yield spine


@dataclass
class Scene:
    """A job of one slice that runs on somebody's node, and another job of the same account that only holds money."""

    spine: Spine
    submitter: AccountCaller
    node: EnrolledNode
    job: Job
    grant: Grant

    async def cancel(self) -> Job | ComputePoolError:
        hub = self.spine.open_second_hub()
        return await job_service.cancel_job(hub.pool, self.submitter, self.job.id)

    async def deliver(self) -> CompleteAnswer | ComputePoolError:
        return await self.spine.succeed(self.node, self.grant, **ran(CLAIMED))

    async def list_faults(self) -> list[str]:
        """Whatever is not exact, in words."""
        faults = []
        async with self.spine.pool.acquire() as conn:
            faults += [drift.name for drift in await ledger.list_drifts(conn)]
        [row] = await self.spine.fetch("SELECT * FROM jobs WHERE id = $1", self.job.id)
        attempt = await self.spine.attempt(self.grant)
        moved = dict(
            await self.spine.fetch(
                "SELECT kind::text, sum(amount)::bigint FROM ledger_transfers WHERE job_id = $1 GROUP BY kind",
                self.job.id,
            )
        )
        charged = attempt["charged_microcredits"] or 0
        if row["finished_at"] is None or row["held_remaining"]:
            faults.append("the job is over and holds nothing")
        if not charged == row["charged_microcredits"] == moved.get("settle", 0):
            faults.append("attempt, job and ledger say the same price")
        if moved["hold"] != charged + moved.get("refund", 0):
            faults.append("what was held was paid or came back")
        if (attempt["state"], row["state"]) not in [("succeeded", "succeeded"), ("cancelled", "cancelled")]:
            faults.append("attempt and job have one end")
        if await own(self.spine, self.node.caller.account_id, "owner_pending") != charged - (
            attempt["fee_microcredits"] or 0
        ):
            faults.append("the owner has the owner's part")
        return faults


async def set_scene(spine: Spine) -> Scene:
    submitter, node = await spine.sign_up(credits=1_000), await spine.enrol()
    job = await submit(spine, submitter)
    grant = await lease(spine, node, held_seconds=HELD)
    await acknowledge(spine, node, grant)
    unplaceable = Requirements(ceiling_microcredits_per_hour=HOUR, cores=64)
    await spine.submit(by=submitter, requirements=unplaceable, wall_seconds=WALL_SECONDS)
    return Scene(spine, submitter, node, job, grant)


@asynccontextmanager
async def holding_slice(spine: Spine, job: Job) -> AsyncIterator[None]:
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM slices WHERE job_id = $1 FOR UPDATE", job.id)
        yield


async def wait_until_waiting(spine: Spine, count: int) -> None:
    waiting = """SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    async with asyncio.timeout(60):
        while await spine.fetch_value(waiting) < count:
            await asyncio.sleep(0.01)


async def one_after_the_other(scene: Scene, first: Awaitable[Any], second: Awaitable[Any]) -> list[Any]:
    """Both are under way before either can go on; they get the slice in their order."""
    async with asyncio.timeout(60):
        async with holding_slice(scene.spine, scene.job):
            acts = [asyncio.ensure_future(first)]
            await wait_until_waiting(scene.spine, 1)
            acts.append(asyncio.ensure_future(second))
            await wait_until_waiting(scene.spine, 2)
        return await asyncio.gather(*acts)


async def test_a_result_that_comes_first_counts_and_the_cancellation_finds_nothing_to_stop(spine):
    scene = await set_scene(spine)
    answer, job = await one_after_the_other(scene, scene.deliver(), scene.cancel())
    assert isinstance(answer, CompleteAnswer)
    assert answer.accepted
    assert job.state.value == "succeeded"
    assert (await spine.attempt(scene.grant))["charged_microcredits"] == CLAIMED * CREDIT
    assert await scene.list_faults() == []


async def test_a_cancellation_that_comes_first_is_paid_by_the_clock_and_the_result_is_told_that_it_is_late(spine):
    scene = await set_scene(spine)
    job, answer = await one_after_the_other(scene, scene.cancel(), scene.deliver())
    assert isinstance(answer, StaleLease)
    assert job.state.value == "cancelled"
    # By the database's clock, and not what the node would have claimed.
    charged = (await spine.attempt(scene.grant))["charged_microcredits"]
    assert HELD * CREDIT < charged <= WALL_SECONDS * CREDIT
    assert await scene.list_faults() == []


async def test_however_they_meet_the_books_are_exact_and_repeats_change_nothing(spine):
    chance = random.Random(4)
    for _ in range(12):
        scene = await set_scene(spine)
        acts = [scene.deliver(), scene.cancel(), scene.deliver(), scene.cancel()]
        chance.shuffle(acts)
        async with asyncio.timeout(60):
            await asyncio.gather(*acts)
        assert await scene.list_faults() == []


async def deliver_by_what_was_read_before(scene: Scene, room: Any, lock_name: str) -> None:
    """A planted bug: the locks end with a transaction of their own, and the decision comes after the cancellation."""
    has_read, is_cancelled = asyncio.Event(), asyncio.Event()
    lock = getattr(room, lock_name)

    async def read_and_let_go(conn: Any, wanted: Any) -> Any:
        async with scene.spine.pool.acquire() as other, other.transaction():
            found = await lock(other, wanted)
        has_read.set()
        await is_cancelled.wait()
        return found

    with patch.object(room, lock_name, read_and_let_go):
        async with asyncio.timeout(60):
            delivering = asyncio.create_task(scene.deliver())
            await has_read.wait()
            await scene.cancel()
            is_cancelled.set()
            await delivering


async def deliver_the_long_way_by_what_was_read_before(scene: Scene) -> None:
    with patch.object(attempt_service, "list_plain", lambda reports: {}):
        await deliver_by_what_was_read_before(scene, attempt_service, "lock_snapshot")


async def test_a_hub_that_delivers_by_what_it_read_before_is_stopped_by_the_counts_of_the_job(spine):
    scene = await set_scene(spine)
    with pytest.raises(asyncpg.CheckViolationError, match="jobs_counts_check"):
        await deliver_by_what_was_read_before(scene, delivery_store, "lock_held")
    assert await scene.list_faults() == []


async def test_a_hub_that_judges_by_what_it_read_before_is_stopped_by_the_keys_of_the_ledger(spine):
    scene = await set_scene(spine)
    with pytest.raises(PostingMismatch):
        await deliver_the_long_way_by_what_was_read_before(scene)
    assert await scene.list_faults() == []


async def test_control_with_keys_of_its_own_it_pays_out_of_another_jobs_hold(spine):
    scene = await set_scene(spine)
    post = billing.post

    async def post_under_new_keys(conn: Any, postings: list[Posting]) -> None:
        await post(conn, [replace(each, key=f"{each.key}/{entropy.new_id()}") for each in postings])

    with patch.object(billing, "post", post_under_new_keys):
        await deliver_the_long_way_by_what_was_read_before(scene)
    assert await scene.list_faults() != []
