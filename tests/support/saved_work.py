"""Slices whose work is saved on the way, on a real database, as nodes do it; one credit a second."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from computepool import clock
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED
from computepool.core.ledger.explain import DIFFERS
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import job_checkpoints, pay
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store.attempts import Grant, HeldAttempt
from computepool.wire.attempts import Checkpoint, CheckpointAnswer
from computepool.wire.jobs import OutputFile
from tests.support.paid_jobs import acknowledge, lease
from tests.support.spine import EnrolledNode, Spine

LEFT: dict[str, Any] = {"cause": Cause.OWNER_RETURNED, "exit_code": EXIT_CODE_CHECKPOINTED}


async def start(spine: Spine, node: EnrolledNode, *, held_seconds: float = 60.0) -> Grant:
    """The next slice, which has run there for so long."""
    grant = await lease(spine, node, held_seconds=held_seconds)
    await acknowledge(spine, node, grant)
    return grant


async def hold(spine: Spine, node: EnrolledNode, grant: Grant) -> HeldAttempt:
    secret = spine.keyring.lease_secret(grant.id)
    return await attempt_service.get_held(spine.pool, spine.keyring, node.caller, grant.id, secret)


def make(content: int, *, number: int = 1, seconds: float = 40.0, **more: Any) -> Checkpoint:
    """A checkpoint of one file, whose content is a number."""
    file = OutputFile(path="state", sha256=f"{content:064x}", size_bytes=content)
    return Checkpoint(**{"number": number, "run_seconds": seconds, "files": (file,), **more})


async def send(spine: Spine, node: EnrolledNode, grant: Grant, checkpoint: Checkpoint) -> CheckpointAnswer:
    return await job_checkpoints.save_checkpoint(spine.pool, await hold(spine, node, grant), checkpoint)


async def upload(spine: Spine, node: EnrolledNode, grant: Grant, checkpoint: Checkpoint) -> None:
    held = await hold(spine, node, grant)
    for file in checkpoint.files:
        await attempt_service.record_output(spine.pool, held, sha256=file.sha256, size_bytes=file.size_bytes)


async def save(spine: Spine, node: EnrolledNode, grant: Grant, content: int, **claim: Any) -> int:
    """As an honest node does it. Returns the seconds that it is paid for at least."""
    checkpoint = make(content, **claim)
    await upload(spine, node, grant, checkpoint)
    answer = await send(spine, node, grant, checkpoint)
    assert answer.accepted
    return answer.saved_seconds


async def vanish(spine: Spine, *grants: Grant) -> None:
    await spine.let_lease_pass(*grants)
    assert await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=10) == len(grants)


async def check_pay(spine: Spine, node: EnrolledNode) -> None:
    """The books, the row and the rules say the same of everything that this node was paid."""
    caller = AccountCaller(node.caller.account_id, UUID(int=1), frozenset(), 60_000)  # type: ignore[arg-type]
    today = clock.now().date()
    # A test may run at midnight.
    for day in (today - timedelta(days=1), today):
        story = await pay.explain_day(spine.pool, caller, node.id, day=day, cursor=None, limit=500)
        assert [told for _, told in story.attempts if told.mark in DIFFERS] == []
