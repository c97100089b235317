"""Runs a hub with a guard taken out, to show that the tests would notice. Never part of the product.

Usage: python -m tests.support.planted_hub BUG; the SQL is changed in a copy, before the hub loads it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from computepool.hub.store import queries

# bug -> (file, text, replacement)
BUGS = {
    "none": ("slices.sql", "", ""),
    "no_row_locks": ("slices.sql", " FOR UPDATE SKIP LOCKED", ""),
}


def answer_before_commit() -> None:
    """Acknowledges a submit before it is written, as a hub would that queues its writes in memory."""
    import asyncio
    import contextvars
    from types import SimpleNamespace

    from computepool import clock, entropy
    from computepool.core.jobs.state import JobState
    from computepool.hub.services import jobs as service
    from computepool.hub.store.jobs import Job

    really = service.submit_job
    promised: contextvars.ContextVar = contextvars.ContextVar("promised", default=None)
    service.entropy = SimpleNamespace(new_id=lambda: promised.get() or entropy.new_id())
    pending = set()

    async def later(*args, **options):
        await asyncio.sleep(0.3)
        await really(*args, **options)

    async def at_once(pool, caller, request, *, idempotency_key):
        job_id = entropy.new_id()
        promised.set(job_id)
        task = asyncio.create_task(later(pool, caller, request, idempotency_key=idempotency_key))
        pending.add(task)
        task.add_done_callback(pending.discard)
        nothing = dict.fromkeys(["started_at", "finished_at", "expires_at"])
        counts = dict.fromkeys(
            ["succeeded_count", "failed_count", "cancelled_count", "leased_count", "running_count"], 0
        )
        return Job(
            id=job_id, account_id=caller.account_id, name=request.name, spec={}, shape_id=0, priority=0,
            slice_count=request.slice_count, retries=0, wall_seconds=1, state=JobState.QUEUED,
            created_at=clock.now(), **nothing, **counts,
        )  # fmt: skip

    service.submit_job = at_once


def no_tenant_check() -> None:
    """Shows any job to any account."""
    from computepool.hub.services import jobs as service
    from computepool.hub.store import jobs as job_store

    async def get_any(conn, caller, job_id):
        return await job_store.find_job(conn, job_id)

    service._get_visible = get_any


def plant(bug: str) -> None:
    if bug == "no_tenant_check":
        no_tenant_check()
        return
    if bug == "answer_before_commit":
        answer_before_commit()
        return
    file, text, replacement = BUGS[bug]
    copy = Path(tempfile.mkdtemp(prefix="planted-sql-"))
    shutil.copytree(queries.SQL_DIR, copy, dirs_exist_ok=True)
    original = (copy / file).read_text()
    assert text in original, f"the guard to take out is not there any more: {text!r}"
    (copy / file).write_text(original.replace(text, replacement))
    queries.SQL_DIR = copy


if __name__ == "__main__":
    plant(sys.argv[1])
    from computepool.hub.main import main

    sys.exit(main())
