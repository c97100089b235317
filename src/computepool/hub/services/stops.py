"""Stopping what is unfinished of a job: cancelled, expired, or because it takes machines down."""

from __future__ import annotations

from collections.abc import Iterable

from computepool.core.ids import JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, decide_stop
from computepool.core.jobs.state import SliceEvent
from computepool.hub.services.transitions import OnEnd, lock_open_snapshot
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.hub import ChangeKind

# A job is stopped in steps of this many slices, so that no transaction grows with the job.
STOP_BATCH = 2_000


async def stop_job(pool: Pool, job_id: JobId, event: SliceEvent, cause: Cause, *, on_end: OnEnd) -> None:
    while True:
        async with pool.acquire() as conn, conn.transaction():
            snapshot = await lock_open_snapshot(conn, job_id, limit=STOP_BATCH)
            for key, slice_ in list(snapshot.slices.items()):
                decision = decide_stop(slice_, snapshot.list_live(key), event, cause)
                if isinstance(decision, Decision):
                    snapshot.take(decision)
            await snapshot.write(conn)
            await hub_store.record_change(conn, ChangeKind.CONTROLS)
        on_end(snapshot.list_ended())
        if len(snapshot.slices) < STOP_BATCH:
            return


async def stop_poisonous(pool: Pool, job_ids: Iterable[JobId], *, on_end: OnEnd) -> None:
    """A slice of these jobs has taken down as many machines as one may, and none of their slices ever succeeded.

    Without this a job of a thousand such slices would take down thousands. Should the hub die before this is done,
    the next of its slices to do so brings it here again.
    """
    for job_id in job_ids:
        await stop_job(pool, job_id, SliceEvent.POISONED, Cause.POISONOUS, on_end=on_end)
