"""Secrets of jobs on a real database: sealed at rest, told with a lease, shown to nobody, gone with the job."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import jwt
import msgspec
import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.isolation import IsolationLevel
from computepool.hub.services import jobs as job_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.job_secrets import delete_ended, open_secrets, seal_secrets
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.submissions import Submission, check_submission
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import RunOrder
from computepool.wire.jobs import JobSpec, Requirements
from tests.support.spine import Spine, open_spine

VALUE = "correct horse battery staple"
SECRETS = {"API_TOKEN": VALUE, "OTHER": "another one of them"}


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


def make_submission(spine: Spine, by: AccountCaller, key: str | None = None, **spec: Any) -> Submission:
    """At a hub that gives secrets to plain sandboxes, as these nodes have no other."""
    request = JobSpec(**{"command": ("true",), "secrets": SECRETS, **spec})
    least = IsolationLevel.SANDBOXED
    return check_submission(by, request, spine.leases.prices, idempotency_key=key, secrets_isolation=least)


async def submit(spine: Spine, by: AccountCaller, key: str | None = None, **spec: Any) -> Job:
    [job] = (await spine.submit_all(make_submission(spine, by, key, **spec))).answers
    assert isinstance(job, Job), job
    return job


async def count_sealed(spine: Spine) -> int:
    return await spine.fetch_value("SELECT count(*) FROM job_secrets")


async def dump(spine: Spine) -> str:
    """Everything that the database holds, as text."""
    tables = await spine.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return "\n".join([str(await spine.fetch(f"SELECT t::text FROM {row['tablename']} t")) for row in tables])


async def test_the_database_holds_no_value_of_a_secret(spine):
    by = await spine.sign_up()
    job = await submit(spine, by, "a key", env={"PLAIN": "to be found"})
    everything = await dump(spine)
    assert "to be found" in everything
    for value in SECRETS.values():
        assert value not in everything
        assert value.encode().hex() not in everything
    assert await count_sealed(spine) == 1
    # Nor does the job as it is shown; the names tell what it was given.
    shown = (await job_service.get_job(spine.pool, by, job.id)).spec
    assert shown["secrets"] == {"API_TOKEN": "", "OTHER": ""}


async def test_a_node_with_a_lease_is_told_and_the_token_covers_it(spine):
    node = await spine.enrol()
    await submit(spine, await spine.sign_up())
    grant = await spine.grant_one(node)
    # Whichever hub words it, and however often.
    for hub in (spine, spine.open_second_hub(), spine):
        answer = await hub.leases.answer([grant])
        [assignment] = answer.assignments
        assert msgspec.json.decode(assignment.order, type=RunOrder).secrets == SECRETS
        orders = jwt.decode(answer.token, options={"verify_signature": False})["orders"]
        assert orders == {str(grant.id): hashlib.sha256(assignment.order.encode()).hexdigest()}


async def test_a_job_that_is_born_leased_is_told_its_secrets(spine):
    node = await spine.enrol()
    spine.bench.put(await spine.list_candidates(node))
    submitted = await spine.submit_all(make_submission(spine, await spine.sign_up()))
    [assignment] = (await spine.leases.answer(submitted.grants)).assignments
    assert msgspec.json.decode(assignment.order, type=RunOrder).secrets == SECRETS


async def test_a_job_without_secrets_has_no_word_of_them(spine):
    node = await spine.enrol()
    await submit(spine, await spine.sign_up(), secrets={})
    [assignment] = (await spine.leases.answer([await spine.grant_one(node)])).assignments
    assert "secrets" not in assignment.order
    assert await count_sealed(spine) == 0


async def test_secrets_are_deleted_when_the_job_has_ended_and_not_before(spine):
    node, by = await spine.enrol(), await spine.sign_up()
    first, second = await submit(spine, by, slice_count=2), await submit(spine, by)
    await spine.succeed(node, await spine.grant_one(node))
    assert await delete_ended(spine.pool, limit=10) == 0
    await spine.succeed(node, await spine.grant_one(node))
    await job_service.cancel_job(spine.pool, by, second.id)
    assert await count_sealed(spine) == 2
    assert [await delete_ended(spine.pool, limit=1) for _ in range(3)] == [1, 1, 0]
    assert await count_sealed(spine) == 0
    assert (await job_service.get_job(spine.pool, by, first.id)).finished_at is not None


async def test_a_repeated_submit_is_the_same_job_with_its_first_secrets(spine):
    by = await spine.sign_up()
    first = await submit(spine, by, "a key")
    again = await submit(spine, by, "a key", secrets=dict.fromkeys(SECRETS, "changed meanwhile"))
    assert again.id == first.id
    assert await count_sealed(spine) == 1
    sealed = await spine.fetch_value("SELECT sealed FROM job_secrets")
    assert open_secrets(spine.keyring, first.id, sealed) == SECRETS


async def test_a_job_that_cannot_be_paid_leaves_no_secret_behind(spine):
    poor = await spine.sign_up(credits=0)
    [refusal] = (await spine.submit_all(make_submission(spine, poor))).answers
    assert not isinstance(refusal, Job)
    assert await count_sealed(spine) == 0


async def test_a_sealed_secret_opens_for_its_own_job_alone(spine):
    by = await spine.sign_up()
    job, other = await submit(spine, by), await submit(spine, by)
    sealed = seal_secrets(spine.keyring, job.id, SECRETS)
    assert sealed is not None
    assert open_secrets(spine.keyring, job.id, sealed) == SECRETS
    assert open_secrets(spine.keyring, other.id, sealed) == {}
    for broken in (sealed[:-1], sealed[:5], bytes(len(sealed)), b""):
        assert open_secrets(spine.keyring, job.id, broken) == {}
    # The same ones look different each time.
    assert seal_secrets(spine.keyring, job.id, SECRETS) != sealed
    assert seal_secrets(spine.keyring, job.id, {}) is None


async def test_with_a_key_of_the_operators_the_database_alone_opens_nothing(spine):
    job = await submit(spine, await spine.sign_up())
    keyrings = [
        Keyring(spine.keyring.hub_id, pepper=pepper) for pepper in ("the operator's", "the operator's", "", "x")
    ]
    for keyring in keyrings:
        await keyring.refresh(spine.pool)
    one_hub, other_hub, *thieves = keyrings
    sealed = seal_secrets(one_hub, job.id, SECRETS)
    assert sealed is not None
    assert open_secrets(other_hub, job.id, sealed) == SECRETS
    assert [open_secrets(thief, job.id, sealed) for thief in thieves] == [{}, {}]


async def test_a_job_with_secrets_must_ask_for_the_isolation_that_the_hub_demands(spine):
    by = await spine.sign_up()

    def check(isolation: IsolationLevel, **rule: Any) -> Submission:
        request = JobSpec(command=("true",), secrets=SECRETS, requirements=Requirements(isolation=isolation))
        return check_submission(by, request, spine.leases.prices, idempotency_key=None, **rule)

    with pytest.raises(InvalidSpec, match=r"needs requirements.isolation container or stronger") as refused:
        check(IsolationLevel.SANDBOXED)
    assert VALUE not in str(refused.value)
    assert check(IsolationLevel.CONTAINER).spec.secrets == SECRETS
    assert check(IsolationLevel.GVISOR)
    assert check(IsolationLevel.SANDBOXED, secrets_isolation=IsolationLevel.SANDBOXED)
    with pytest.raises(InvalidSpec, match="gvisor"):
        check(IsolationLevel.CONTAINER, secrets_isolation=IsolationLevel.GVISOR)
