"""Locks slices and attempts, lets core decide item by item, and writes the outcome with its events at once.

The order of locks is the same everywhere (slices, then attempts, then jobs, each sorted), so that hubs never
wait for each other in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.lease import Attempt, Decision, Slice
from computepool.core.jobs.ranges import to_ranges
from computepool.core.jobs.state import ATTEMPT_LIVE, JOB_TERMINAL, AttemptState, SliceState, derive_job_state
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import events as event_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import LockedAttempt
from computepool.hub.store.connect import Connection
from computepool.hub.store.events import NewEvent
from computepool.hub.store.slices import SliceKey

_COUNTER = {
    SliceState.SUCCEEDED: "succeeded_count",
    SliceState.FAILED: "failed_count",
    SliceState.CANCELLED: "cancelled_count",
}


class Snapshot:
    """Locked rows and what has been decided about them so far. Decisions see the ones before them."""

    def __init__(self, slices: dict[SliceKey, Slice], attempts: dict[AttemptId, LockedAttempt]) -> None:
        self._before = dict(slices)
        self.slices = slices
        self.attempts = {id: locked.attempt for id, locked in attempts.items()}
        self.expires_at = {id: locked.expires_at for id, locked in attempts.items()}
        self._changed_attempts: dict[AttemptId, Attempt] = {}
        self._accepted: dict[SliceKey, AttemptId] = {}

    def list_live(self, key: SliceKey, *, but: AttemptId | None = None) -> list[Attempt]:
        return [
            a
            for a in self.attempts.values()
            if (a.job_id, a.slice_index) == key and a.state in ATTEMPT_LIVE and a.id != but
        ]

    @property
    def has_stopped(self) -> bool:
        """Whether some node has to be told to let go of an attempt."""
        return any(a.state is AttemptState.CANCELLED for a in self._changed_attempts.values())

    def take(self, decision: Decision) -> None:
        key = (decision.slice.job_id, decision.slice.index)
        self.slices[key] = decision.slice
        for attempt in decision.attempts:
            self.attempts[attempt.id] = attempt
            self._changed_attempts[attempt.id] = attempt
            if attempt.state is AttemptState.SUCCEEDED:
                self._accepted[key] = attempt.id

    async def write(self, conn: Connection) -> None:
        changed = [s for key, s in sorted(self.slices.items()) if s != self._before[key]]
        if self._changed_attempts:
            # Attempts first: a slice may only be queued again once its old attempt has left the unique index.
            await attempt_store.apply_attempts(conn, sorted(self._changed_attempts.values(), key=lambda a: a.id))
        if changed:
            await slice_store.apply_slices(conn, [(s, self._accepted.get((s.job_id, s.index))) for s in changed])
        events = await self._count_jobs(conn, changed)
        await event_store.record_events(conn, events)

    async def _count_jobs(self, conn: Connection, changed: Sequence[Slice]) -> list[NewEvent]:
        ended = [s for s in changed if s.state in _COUNTER]
        jobs = await job_store.lock_jobs(conn, {s.job_id for s in changed}) if changed else {}
        events = [_to_event(jobs[job_id], state, group) for (job_id, state), group in _group(changed).items()]
        counted = dict(jobs)
        for slice_ in ended:
            job = counted[slice_.job_id]
            counter = _COUNTER[slice_.state]
            counted[slice_.job_id] = replace(job, **{counter: getattr(job, counter) + 1})
        updated = [_settle(job) for id, job in counted.items() if job != jobs[id]]
        if updated:
            await job_store.set_counts(conn, updated)
        finished = [job for job in updated if job.state in JOB_TERMINAL]
        return events + [
            NewEvent(kind=f"job_{job.state.value}", account_id=job.account_id, job_id=job.id) for job in finished
        ]


async def lock_snapshot(
    conn: Connection, keys: Iterable[SliceKey], *, attempt_ids: Iterable[AttemptId] = ()
) -> Snapshot:
    keys = set(keys)
    slices = await slice_store.lock_slices(conn, keys)
    attempts = await attempt_store.lock_attempts(conn, keys=keys, ids=attempt_ids)
    return Snapshot(slices, attempts)


async def lock_open_snapshot(conn: Connection, job_id: JobId, *, limit: int) -> Snapshot:
    """All that is unfinished of one job, up to a limit."""
    slices = await slice_store.lock_open_slices(conn, job_id=job_id, limit=limit)
    attempts = await attempt_store.lock_attempts(conn, keys=slices.keys())
    return Snapshot(slices, attempts)


def _settle(job: job_store.JobCounts) -> job_store.JobCounts:
    state = derive_job_state(
        slice_count=job.slice_count,
        succeeded_count=job.succeeded_count,
        failed_count=job.failed_count,
        cancelled_count=job.cancelled_count,
        started=job.started_at is not None,
    )
    return replace(job, state=state)


def _group(changed: Sequence[Slice]) -> dict[tuple[JobId, SliceState], list[Slice]]:
    groups: dict[tuple[JobId, SliceState], list[Slice]] = defaultdict(list)
    for slice_ in changed:
        groups[(slice_.job_id, slice_.state)].append(slice_)
    return groups


def _to_event(job: job_store.JobCounts, state: SliceState, group: Sequence[Slice]) -> NewEvent:
    body: dict[str, object] = {"slices": to_ranges([s.index for s in group])}
    causes = sorted({s.cause.value for s in group if s.cause})
    if causes:
        body["causes"] = causes
    return NewEvent(kind=f"slices_{state.value}", account_id=job.account_id, job_id=job.id, body=body)
