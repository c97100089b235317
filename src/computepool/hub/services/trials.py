"""Slices whose results are known, given to a node that cannot tell them from any other.

On its way back a node that was bugged runs them for nothing until enough were right, and gets no other work
meanwhile, so that nobody's job depends on it. A node that runs a job whose runs differ by themselves is watched by
them: nobody could check what it delivers there, so now and then it gets a slice of another job of the same submitter,
who pays for it as for any check.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ids import AttemptId, JobId, NodeId
from computepool.core.jobs.state import JOB_TERMINAL, AttemptState
from computepool.core.trust.inspection import BACKGROUND_WAIT
from computepool.core.trust.standing import NodeTrust, Standing, is_paid
from computepool.core.trust.validation import Verify
from computepool.hub.services.comparisons import agree
from computepool.hub.services.further_runs import (
    NotLeased,
    NotPaid,
    can_be_judged,
    lease_once_more,
    lease_paid,
    list_fitting,
    stop_run,
)
from computepool.hub.services.inspections import LATER_SECONDS, TURN_SECONDS
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.standings import count_validated
from computepool.hub.store import hub as hub_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import validation as store
from computepool.hub.store.validation import EndedTrial, NewCheck, StoredCheck, StoredRun, Watch

log = logging.getLogger("computepool.trust")

BATCH = 100
SUBJECTS_LOOKED_AT_MAX = 20
# Where subjects are looked for: in so many checks, or in so many jobs of one submitter.
SOURCES_MAX = 200
SLOTS_MAX = 64


async def run_trials(inspector: Inspector) -> None:
    async with inspector.pool.acquire() as conn:
        ended = await store.list_ended_trials(conn, limit=BATCH)
    for trial in ended:
        await _judge(inspector, trial)
    async with inspector.pool.acquire() as conn:
        returning = await store.list_returning(conn, silence_seconds=inspector.settings.lease_seconds, limit=BATCH)
        watches = await store.take_watches(conn, seconds=TURN_SECONDS, limit=BATCH)
    for node_id in returning:
        await _bring_back(inspector, node_id)
    # One of a node at a time: the others have their turn later.
    for watch in {each.node_id: each for each in watches}.values():
        try:
            await _serve(inspector, watch)
        except Exception:
            log.exception("watch_failed attempt_id=%s", watch.attempt_id)


# What came of it


async def _judge(inspector: Inspector, trial: EndedTrial) -> None:
    """Right counts at once. Whoever is watched and got something else is not blamed for it yet: what was known may
    hold no longer, so that others run it, too, as they would any result that is checked."""
    run = trial.run
    async with inspector.pool.acquire() as conn:
        subject = await store.find_check(conn, trial.subject_id)
    assert subject is not None
    was_right = await _compare(inspector, subject, run) if run.state is AttemptState.SUCCEEDED else None
    if run.state is not AttemptState.SUCCEEDED and run.job_state not in JOB_TERMINAL:
        await stop_run(inspector, run.job_id)
    async with inspector.pool.acquire() as conn, conn.transaction():
        if not await store.close_trial(conn, run.job_id, was_right=was_right) or was_right is None:
            return
        if not was_right and trial.watched_job_id is not None:
            doubted = NewCheck(
                run.attempt_id, subject.job_id, subject.slice_index, run.node_id, Verify.AUDIT, withheld=False
            )
            await store.insert_checks(conn, [doubted])
            return
        await count_validated(conn, [(run.node_id, was_right, False)], now=await hub_store.get_now(conn))


async def _compare(inspector: Inspector, subject: StoredCheck, run: StoredRun) -> bool | None:
    """None: nobody can tell any more."""
    try:
        return await agree(inspector.blobs, subject.spec, subject.runs[0], run)
    except (NotFound, OSError) as error:
        log.warning("trial_not_compared job_id=%s reason=%s", run.job_id, error)
        return None


# The way back


async def _bring_back(inspector: Inspector, node_id: NodeId) -> None:
    async with inspector.pool.acquire() as conn:
        subject_ids = await store.list_subjects(
            conn, node_id, submitter_id=None, looked_at_max=SOURCES_MAX, limit=SUBJECTS_LOOKED_AT_MAX
        )
    await _lease_one(inspector, node_id, subject_ids, standings=[Standing.RETURNING])


# Watching


async def _serve(inspector: Inspector, watch: Watch) -> None:
    """Leases a slice whose answer is known; without one, without credits or without a free slot for too long the
    watch is over, and nothing is said of anybody."""
    async with inspector.pool.acquire() as conn:
        trust = (await store.list_trust(conn, [watch.node_id])).get(watch.node_id, NodeTrust())
        subject_ids = await store.list_subjects(
            conn,
            watch.node_id,
            submitter_id=watch.submitter_id,
            looked_at_max=SOURCES_MAX,
            limit=SUBJECTS_LOOKED_AT_MAX,
        )
    is_over = watch.now - watch.opened_at >= BACKGROUND_WAIT or not is_paid(trust) or not subject_ids
    try:
        if not is_over and await _lease_one(
            inspector, watch.node_id, subject_ids, standings=[Standing.CLEAR, Standing.SUSPECT], watch=watch
        ):
            return
    except NotPaid:
        is_over = True
    async with inspector.pool.acquire() as conn:
        if is_over:
            await store.delete_watch(conn, watch.attempt_id)
        else:
            await store.watch_again(conn, watch.attempt_id, seconds=LATER_SECONDS)


# Both


async def _lease_one(
    inspector: Inspector,
    node_id: NodeId,
    subject_ids: Sequence[AttemptId],
    *,
    standings: Collection[Standing],
    watch: Watch | None = None,
) -> bool:
    """One of them, on a free slot of the node. Raises NotPaid."""
    for subject_id in subject_ids:
        async with inspector.pool.acquire() as conn:
            subject = await store.find_check(conn, subject_id)
        assert subject is not None
        try:
            if await _lease(inspector, node_id, subject, standings=standings, watch=watch):
                return True
        except NotPaid:
            raise
        except NotLeased as error:
            log.info("trial_not_leased node_id=%s reason=%s", node_id, error)
    return False


async def _lease(
    inspector: Inspector,
    node_id: NodeId,
    subject: StoredCheck,
    *,
    standings: Collection[Standing],
    watch: Watch | None,
) -> bool:
    """On a slot of the node that passes every gate of the job: at its rate if it is watched, else for nothing."""
    async with inspector.pool.acquire() as conn, conn.transaction():
        free = await store.list_free_slots(
            conn,
            submitter_id=subject.submitter_id,
            standings=standings,
            node_id=node_id,
            trusted=False,
            validated_min=0,
            silence_seconds=inspector.settings.lease_seconds,
            limit=SLOTS_MAX,
        )
        shape = (await shape_store.list_shapes(conn, [subject.shape_id]))[subject.shape_id]
        fitting = list_fitting(inspector.prices, subject, shape, free)
        if node_id not in fitting:
            return False
        candidate, slot = fitting[node_id]
        if not can_be_judged(subject, slot):
            return False
        job_id, watched_job_id = JobId(entropy.new_id()), None
        if watch is not None:
            watched_job_id = watch.job_id
            await lease_paid(conn, inspector, subject, shape, candidate, job_id=job_id)
            await store.delete_watch(conn, watch.attempt_id)
        else:
            await lease_once_more(
                conn, inspector, subject, candidate, job_id=job_id, rate=0, slice_price=None, reserve_microcredits=0
            )
        if not await store.insert_trial(
            conn,
            job_id=job_id,
            node_id=node_id,
            attempt_id=subject.attempt_id,
            watched_job_id=watched_job_id,
        ):
            raise NotLeased("another hub tries the node")
    return True
