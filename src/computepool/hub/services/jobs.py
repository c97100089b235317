"""Jobs: look, cancel, expire. Submitting them has a file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from computepool.core.accounts.roles import Role
from computepool.core.errors import (
    NotFound,
)
from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.log_text import whole_characters
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState, JobState, SliceEvent, SliceState
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.stops import stop_job
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import events as event_store
from computepool.hub.store import job_checkpoints as checkpoint_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import logs as log_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import AttemptRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import EventRow
from computepool.hub.store.jobs import Job
from computepool.hub.store.slices import SliceRow

LOG_PIECES_PER_PAGE = 16


@dataclass(frozen=True, slots=True)
class SliceDetail:
    slice: SliceRow
    attempts: list[AttemptRow]
    # The job's own word on how far it is, with its last checkpoint.
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class LogPiece:
    attempt_id: AttemptId | None
    attempt_number: int
    content: bytes
    next_offset: int
    complete: bool


async def get_job(pool: Pool, caller: AccountCaller, job_id: JobId) -> Job:
    async with pool.acquire() as conn:
        return await _get_visible(conn, caller, job_id)


async def list_jobs(
    pool: Pool,
    caller: AccountCaller,
    *,
    before: UUID | None,
    state: JobState | None,
    limit: int,
    name: str | None = None,
) -> list[Job]:
    account_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        return await job_store.list_jobs(
            conn, account_id=account_id, before=before, state=state, limit=limit, name=name
        )


async def list_slices(
    pool: Pool, caller: AccountCaller, job_id: JobId, *, after: int, limit: int, state: SliceState | None
) -> list[SliceDetail]:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, job_id)
        rows = await slice_store.list_slices(conn, job_id=job_id, after=after, limit=limit, state=state)
        attempts = await attempt_store.list_attempts(
            conn, job_id=job_id, slice_indexes=[row.slice_index for row in rows]
        )
        tried = [row.slice_index for row in rows if row.attempt_count]
        progress = await checkpoint_store.list_progress(conn, job_id=job_id, slice_indexes=tried) if tried else {}
    by_slice: dict[int, list[AttemptRow]] = {row.slice_index: [] for row in rows}
    for attempt in attempts:
        by_slice[attempt.slice_index].append(attempt)
    return [SliceDetail(row, by_slice[row.slice_index], progress.get(row.slice_index)) for row in rows]


async def get_slice(pool: Pool, caller: AccountCaller, job_id: JobId, index: int) -> SliceDetail:
    found = await list_slices(pool, caller, job_id, after=index - 1, limit=1, state=None)
    if not found or found[0].slice.slice_index != index:
        raise NotFound("The job has no such slice.")
    return found[0]


async def list_events(pool: Pool, caller: AccountCaller, job_id: JobId, *, after: int, limit: int) -> list[EventRow]:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, job_id)
        return await event_store.list_job_events(conn, job_id=job_id, after=after, limit=limit)


async def read_log(
    pool: Pool, caller: AccountCaller, job_id: JobId, index: int, *, attempt_number: int | None, offset: int
) -> LogPiece:
    detail = await get_slice(pool, caller, job_id, index)
    attempt = _choose_attempt(detail, attempt_number)
    if attempt is None:
        return LogPiece(None, 0, b"", 0, complete=False)
    async with pool.acquire() as conn:
        pieces = await log_store.list_chunks(
            conn, attempt_id=attempt.id, from_offset=offset, limit=LOG_PIECES_PER_PAGE
        )
    content = b"".join(piece[max(0, offset - start) :] for start, piece in pieces)
    over = attempt.state in ATTEMPT_TERMINAL or attempt.state is AttemptState.LOST
    complete = over and len(pieces) < LOG_PIECES_PER_PAGE
    if not complete:
        content = content[: whole_characters(content)]
    return LogPiece(attempt.id, attempt.number, content, offset + len(content), complete)


async def cancel_job(pool: Pool, caller: AccountCaller, job_id: JobId, *, on_end: OnEnd = ignore_end) -> Job:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, job_id)
    await stop_job(pool, job_id, SliceEvent.CANCELLED, Cause.CANCELLED, on_end=on_end)
    return await get_job(pool, caller, job_id)


async def expire_jobs(pool: Pool, *, limit: int, on_end: OnEnd = ignore_end) -> int:
    """Fails what is unfinished of jobs whose time is over. Returns how many jobs."""
    async with pool.acquire() as conn:
        job_ids = await job_store.list_expired(conn, limit=limit)
    for job_id in job_ids:
        await stop_job(pool, job_id, SliceEvent.EXPIRED, Cause.EXPIRED, on_end=on_end)
    return len(job_ids)


async def _get_visible(conn: Connection, caller: AccountCaller, job_id: JobId) -> Job:
    job = await job_store.find_job(conn, job_id)
    if job is None or (job.account_id != caller.account_id and Role.OPERATOR not in caller.roles):
        raise NotFound("There is no such job.")
    return job


def _choose_attempt(detail: SliceDetail, number: int | None) -> AttemptRow | None:
    if number is not None:
        chosen = [a for a in detail.attempts if a.number == number]
        if not chosen:
            raise NotFound("The slice has no such attempt.")
        return chosen[0]
    accepted = [a for a in detail.attempts if a.id == detail.slice.accepted_attempt_id]
    candidates = accepted or detail.attempts
    return candidates[-1] if candidates else None
