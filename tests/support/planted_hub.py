"""Runs a hub with a guard taken out, to show that the tests would notice. Never part of the product.

Usage: python -m tests.support.planted_hub BUG; the SQL is changed in a copy, before the hub loads it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from computepool.hub.store import queries

# bug -> edits, each (file, text, replacement)
BUGS = {
    "none": [],
    # The pause between two locks gives hubs the time to meet: without it the fault shows in a minute or never.
    "unordered_locks": [
        (
            "attempts.sql",
            "charged_microcredits, run_id\n      FROM jobs",
            "charged_microcredits, run_id, pg_sleep(0.005)\n      FROM jobs",
        ),
        (
            "attempts.sql",
            "     ORDER BY id FOR UPDATE)\nSELECT c.id",
            "     ORDER BY random() FOR UPDATE)\nSELECT c.id",
        ),
        (
            "deliveries.sql",
            "charged_microcredits, verify\n      FROM jobs",
            "charged_microcredits, verify, pg_sleep(0.005)\n      FROM jobs",
        ),
        ("deliveries.sql", " ORDER BY id FOR UPDATE)\nSELECT held", " ORDER BY random() FOR UPDATE)\nSELECT held"),
    ],
    # Neither are heads locked while they are paired, nor is it asked whether they are still queued when their leases
    # are written.
    "no_row_locks": [
        ("slices.sql", " FOR UPDATE SKIP LOCKED", ""),
        (
            "attempts.sql",
            " AND p.number = s.attempt_count + 1\n     WHERE s.state::text = 'queued' FOR UPDATE OF s SKIP LOCKED",
            "",
        ),
    ],
}


def answer_before_commit() -> None:
    """Acknowledges submits before they are written, as a hub would that queues its writes in memory."""
    import asyncio

    from computepool import entropy
    from computepool.hub.dispatch.rounds import Rounds
    from computepool.hub.services.submissions import Submissions

    really_submit, really_make = Rounds.submit, Submissions._to_new_job
    # By submission; the pending task keeps it alive.
    promised = {}
    pending = set()

    def make_as_promised(self, submission):
        return really_make(self, submission)._replace(id=promised.pop(id(submission)))

    async def later(rounds, submissions):
        await asyncio.sleep(0.3)
        await really_submit(rounds, submissions)

    async def at_once(self, submissions):
        jobs = [promise_job(submission, entropy.new_id()) for submission in submissions]
        promised.update({id(submission): job.id for submission, job in zip(submissions, jobs, strict=True)})
        task = asyncio.create_task(later(self, submissions))
        pending.add(task)
        task.add_done_callback(pending.discard)
        return jobs

    Submissions._to_new_job = make_as_promised
    Rounds.submit = at_once


def promise_job(submission, job_id):
    from computepool import clock
    from computepool.core.jobs.state import JobState
    from computepool.hub.store.jobs import Job

    spec = submission.spec
    return Job(
        id=job_id,
        account_id=submission.account_id,
        name=spec.name,
        spec={"requirements": submission.request.requirements},
        shape_id=0,
        priority=spec.priority,
        slice_count=spec.slice_count,
        retries=spec.retries,
        wall_seconds=spec.wall_seconds,
        state=JobState.QUEUED,
        succeeded_count=0,
        failed_count=0,
        cancelled_count=0,
        created_at=clock.now(),
        started_at=None,
        finished_at=None,
        expires_at=spec.expires_at,
        priority_class=spec.priority_class,
        prefer=spec.prefer,
        weight_set="default",
        deadline_at=spec.deadline_at,
        run_seconds_sum=0.0,
        held_remaining=0,
        reserve_microcredits=0,
        charged_microcredits=0,
        slice_base_microcredits=None,
        leased_count=0,
        running_count=0,
    )


def no_tenant_check() -> None:
    """Shows any job to any account."""
    from computepool.hub.services import jobs as service
    from computepool.hub.store import jobs as job_store

    async def get_any(conn, caller, job_id):
        return await job_store.find_job(conn, job_id)

    service._get_visible = get_any


def post_later() -> None:
    """Moves the money in a transaction of its own, after the one it belongs to: a kill between the two loses it."""
    from computepool.hub.services import attempts, billing

    really_finish, really_post = attempts.finish_attempts, billing.post
    late = []

    async def keep(conn, postings, **options):
        late.append(postings)

    async def finish(pool, reports, **options):
        answers = await really_finish(pool, reports, **options)
        due = [late.pop() for _ in range(len(late))]
        for postings in due:
            async with pool.acquire() as conn, conn.transaction():
                # As slow as a queue between two services would be.
                await conn.execute("SELECT pg_sleep(0.05)")
                await really_post(conn, postings)
        return answers

    from computepool.hub.dispatch import rounds

    billing.post = keep
    attempts.finish_attempts = rounds.finish_attempts = finish


def spot_without_force() -> None:
    """Slots ask their floor whoever waits."""
    from computepool.core.placement.price import Asked
    from computepool.hub.services.prices import PriceBook

    PriceBook.ask = lambda self, slot, speed_tflops, floor: Asked(floor, floor, 0)


def index_of_everything() -> None:
    """Whatever was paid is taken for a price that strangers pay."""
    from computepool.core.market import index

    index.is_evidence = lambda deals: True


def leave_out(gate: str):
    """The fleet index passes one gate of owners whatever is asked."""

    def plant() -> None:
        from computepool.core.placement import fleet, leaves

        really_mask, left_out = fleet.FleetIndex._mask, getattr(leaves, gate)
        fleet.FleetIndex._mask = lambda self, gate, wish: -1 if gate == left_out else really_mask(self, gate, wish)

    return plant


def pools_for_all() -> None:
    """Slots of private pools stand among the public ones."""
    from dataclasses import replace

    from computepool.hub.store import nodes

    really_read = nodes.to_slot
    nodes.to_slot = lambda row, **names: replace(really_read(row, **names), welcome=None)


def never_closed() -> None:
    from computepool.hub.dispatch.registry import Registry

    Registry.is_closed = lambda self, node_id, now: False


def one_line() -> None:
    """Looks at the run that it heard of first, and at nothing behind it."""
    from computepool.hub.dispatch import backlog

    backlog.RUNS_MAX = 1


def modest_first() -> None:
    """A slot serves the shape that asks least of it."""
    from computepool.core.placement import rounds

    really_group = rounds._group_by_demand
    rounds._group_by_demand = lambda runs, shapes: really_group(runs, shapes)[::-1]


def remembers_keys() -> None:
    """Whoever was let in once is let in for ten minutes, whatever is heard of other hubs."""
    from computepool.hub.services import callers

    callers.MEMORY_SECONDS = 600.0
    callers.Callers.forget_all = lambda self: None
    callers.Callers.forget_account = lambda self, account_id: None


def blocks_unheard() -> None:
    """Nobody asks whether what a job names is blocked."""
    from computepool.hub.services.blocked_inputs import BlockedInputs

    BlockedInputs.check = lambda self, spec: None


def suspended_run_on() -> None:
    """A suspension refuses calls, and stops nothing."""
    from computepool.hub.store import blocked_inputs

    async def nothing(conn, **options):
        return []

    blocked_inputs.list_jobs_of_suspended = nothing


def plant_rpc(bug: str) -> None:
    """The guard is missing in the process that serves gRPC."""
    from computepool.hub.rpc import process

    process.PROGRAM = ("-m", "tests.support.planted_rpc", bug)


PLANTED_IN_PYTHON = {
    "rpc_no_tenant_check": lambda: plant_rpc("no_tenant_check"),
    "rpc_no_lease_check": lambda: plant_rpc("no_lease_check"),
    "blocks_unheard": blocks_unheard,
    "suspended_run_on": suspended_run_on,
    "index_of_everything": index_of_everything,
    "any_kind": leave_out("JOB_KIND"),
    "any_length": leave_out("SLICE_SECONDS"),
    "pools_for_all": pools_for_all,
    "never_closed": never_closed,
    "one_line": one_line,
    "modest_first": modest_first,
    "remembers_keys": remembers_keys,
    "spot_without_force": spot_without_force,
    "no_tenant_check": no_tenant_check,
    "answer_before_commit": answer_before_commit,
    "post_later": post_later,
}


def plant(bug: str) -> None:
    if bug in PLANTED_IN_PYTHON:
        PLANTED_IN_PYTHON[bug]()
        return
    copy = Path(tempfile.mkdtemp(prefix="planted-sql-"))
    shutil.copytree(queries.SQL_DIR, copy, dirs_exist_ok=True)
    for file, text, replacement in BUGS[bug]:
        original = (copy / file).read_text()
        assert text in original, f"the guard to take out is not there any more: {text!r}"
        (copy / file).write_text(original.replace(text, replacement))
    queries.SQL_DIR = copy


if __name__ == "__main__":
    plant(sys.argv[1])
    from computepool.hub.main import main

    sys.exit(main())
