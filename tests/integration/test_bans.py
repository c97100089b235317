"""What the operator's word stops of what is open, on a real database, and what it leaves alone."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from computepool.hub.services import blocked_inputs as service
from tests.support.spine import Spine, open_spine

SCRIPT = "print('mine')\n"
SHA256 = hashlib.sha256(SCRIPT.encode())


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def test_every_open_job_that_names_a_blocked_script_is_stopped_and_its_submitter_can_read_why(spine):
    mine = [await spine.submit(command=(), script=SCRIPT) for _ in range(3)]
    harmless = await spine.submit(command=(), script=SCRIPT + "#")
    assert await service.stop_jobs_using(spine.pool, SHA256.digest()) == 3
    assert [await spine.slice_state(job) for job in mine] == ["cancelled"] * 3
    assert await spine.slice_state(harmless) == "queued"
    assert "job_blocked" in await spine.list_event_kinds(mine[0])
    # There is nothing left to do.
    assert await service.stop_jobs_using(spine.pool, SHA256.digest()) == 0


async def test_a_batch_that_is_full_is_followed_by_the_next(spine, monkeypatch):
    monkeypatch.setattr(service, "JOBS_BATCH", 2)
    for _ in range(5):
        await spine.submit(command=(), script=SCRIPT)
    assert await service.stop_jobs_using(spine.pool, SHA256.digest()) == 5


async def test_jobs_of_suspended_accounts_are_stopped_and_found_once(spine):
    bad, good = await spine.sign_up(), await spine.sign_up()
    job, other = await spine.submit(by=bad, slice_count=3), await spine.submit(by=good)
    assert await service.stop_jobs_of_suspended(spine.pool) == 0
    await spine.fetch("UPDATE accounts SET suspended_at = now() WHERE id = $1", bad.account_id)
    assert await service.stop_jobs_of_suspended(spine.pool) == 1
    assert await service.stop_jobs_of_suspended(spine.pool) == 0
    assert await spine.slice_state(job, 2) == "cancelled"
    assert await spine.slice_state(other) == "queued"


async def test_what_waits_to_be_verified_is_left_to_those_who_verify_it(spine):
    bad = await spine.sign_up()
    job, run_again = await spine.submit(by=bad), await spine.submit(by=bad)
    await spine.fetch("UPDATE accounts SET suspended_at = now() WHERE id = $1", bad.account_id)
    await spine.fetch("UPDATE jobs SET checks_attempt_id = $1 WHERE id = $1", run_again.id)
    await spine.fetch("UPDATE slices SET state = 'verifying', accepted_attempt_id = NULL WHERE job_id = $1", job.id)
    assert await service.stop_jobs_of_suspended(spine.pool) == 0
