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
    """Acknowledges submits before they are written, as a hub would that queues its writes in memory."""
    import asyncio
    import contextvars
    from types import SimpleNamespace

    from computepool import clock, entropy
    from computepool.hub import main
    from computepool.hub.services import jobs as service
    from computepool.hub.store.jobs import NewJob

    really = service.submit_jobs
    promised: contextvars.ContextVar = contextvars.ContextVar("promised", default=None)
    service.entropy = SimpleNamespace(new_id=lambda: promised.get().pop(0))
    pending = set()

    async def later(ids, pool, submissions):
        promised.set(ids)
        await asyncio.sleep(0.3)
        await really(pool, submissions)

    async def at_once(pool, submissions):
        ids = [entropy.new_id() for _ in submissions]
        task = asyncio.create_task(later(list(ids), pool, submissions))
        pending.add(task)
        task.add_done_callback(pending.discard)
        jobs = [
            NewJob(id, s.account_id, s.spec.name, {}, 0, 0, s.spec.slice_count, 0, 1, None)
            for id, s in zip(ids, submissions, strict=True)
        ]
        return [service._fresh_job(job, clock.now()) for job in jobs]

    main.submit_jobs = at_once


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
