"""Jobs: submit, look, cancel, expire."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from computepool import clock, entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import IdempotencyMismatch, InvalidRequest, InvalidSpec, LimitExceeded, NotFound
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, decide_stop
from computepool.core.jobs.log_text import whole_characters
from computepool.core.jobs.spec import SCRIPT_FILE_NAME, InputFile, JobSpec, Requirements, list_faults
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState, JobState, SliceEvent, SliceState
from computepool.core.placement.shape import to_shape
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.transitions import lock_open_snapshot
from computepool.hub.store import accounts as account_store
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import logs as log_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import AttemptRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import EventRow, NewEvent
from computepool.hub.store.jobs import Job
from computepool.hub.store.slices import SliceRow
from computepool.wire import jobs as wire

IDEMPOTENCY_KEY_LENGTH_MAX = 200
# A job is cancelled in steps of this many slices, so that no transaction grows with the job.
STOP_BATCH = 2_000
LOG_PIECES_PER_PAGE = 16


@dataclass(frozen=True, slots=True)
class SliceDetail:
    slice: SliceRow
    attempts: list[AttemptRow]


@dataclass(frozen=True, slots=True)
class LogPiece:
    attempt_id: AttemptId | None
    attempt_number: int
    content: bytes
    next_offset: int
    complete: bool


async def submit_job(pool: Pool, caller: AccountCaller, request: wire.JobSpec, *, idempotency_key: str | None) -> Job:
    spec = _to_spec(request)
    faults = list_faults(spec, now=clock.now())
    if faults:
        raise InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults)
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= IDEMPOTENCY_KEY_LENGTH_MAX:
        raise InvalidRequest(f"An idempotency key has 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} characters.")
    async with pool.acquire() as conn, conn.transaction():
        job_id = JobId(entropy.new_id())
        if idempotency_key is not None:
            earlier = await _find_earlier(conn, caller.account_id, idempotency_key, request, job_id)
            if earlier is not None:
                return earlier
        await _check_limits(conn, caller.account_id, spec)
        await _check_files(conn, caller.account_id, spec)
        await job_store.insert_job(
            conn,
            id=job_id,
            account_id=caller.account_id,
            name=spec.name,
            spec=msgspec.to_builtins(request),
            shape_id=await shape_store.get_or_insert_shape(conn, to_shape(spec.requirements)),
            priority=spec.priority,
            slice_count=spec.slice_count,
            retries=spec.retries,
            wall_seconds=spec.wall_seconds,
            expires_at=spec.expires_at,
        )
        submitted = NewEvent(
            kind="job_submitted", account_id=caller.account_id, job_id=job_id, body={"slices": spec.slice_count}
        )
        await event_store.record_events(conn, [submitted])
        await hub_store.notify(conn, "queue")
        job = await job_store.find_job(conn, job_id)
    assert job is not None
    return job


async def get_job(pool: Pool, caller: AccountCaller, job_id: JobId) -> Job:
    async with pool.acquire() as conn:
        return await _get_visible(conn, caller, job_id)


async def list_jobs(
    pool: Pool, caller: AccountCaller, *, before: UUID | None, state: JobState | None, limit: int
) -> list[Job]:
    account_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        return await job_store.list_jobs(conn, account_id=account_id, before=before, state=state, limit=limit)


async def list_slices(
    pool: Pool, caller: AccountCaller, job_id: JobId, *, after: int, limit: int, state: SliceState | None
) -> list[SliceDetail]:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, job_id)
        rows = await slice_store.list_slices(conn, job_id=job_id, after=after, limit=limit, state=state)
        attempts = await attempt_store.list_attempts(
            conn, job_id=job_id, slice_indexes=[row.slice_index for row in rows]
        )
    by_slice: dict[int, list[AttemptRow]] = {row.slice_index: [] for row in rows}
    for attempt in attempts:
        by_slice[attempt.slice_index].append(attempt)
    return [SliceDetail(row, by_slice[row.slice_index]) for row in rows]


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


async def cancel_job(pool: Pool, caller: AccountCaller, job_id: JobId) -> Job:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, job_id)
    await _stop_job(pool, job_id, SliceEvent.CANCELLED, Cause.CANCELLED)
    return await get_job(pool, caller, job_id)


async def expire_jobs(pool: Pool, *, limit: int) -> int:
    """Fails what is unfinished of jobs whose time is over. Returns how many jobs."""
    async with pool.acquire() as conn:
        job_ids = await job_store.list_expired(conn, limit=limit)
    for job_id in job_ids:
        await _stop_job(pool, job_id, SliceEvent.EXPIRED, Cause.EXPIRED)
    return len(job_ids)


async def _stop_job(pool: Pool, job_id: JobId, event: SliceEvent, cause: Cause) -> None:
    while True:
        async with pool.acquire() as conn, conn.transaction():
            snapshot = await lock_open_snapshot(conn, job_id, limit=STOP_BATCH)
            for key, slice_ in list(snapshot.slices.items()):
                decision = decide_stop(slice_, snapshot.list_live(key), event, cause)
                if isinstance(decision, Decision):
                    snapshot.take(decision)
            await snapshot.write(conn)
            await hub_store.notify(conn, "controls")
        if len(snapshot.slices) < STOP_BATCH:
            return


async def _find_earlier(
    conn: Connection, account_id: AccountId, key: str, request: wire.JobSpec, job_id: JobId
) -> Job | None:
    """The job that this key made before, or None after reserving the key for `job_id`."""
    digest = hashlib.sha256(msgspec.json.encode(request, order="deterministic")).digest()
    if await job_store.insert_idempotent(conn, account_id=account_id, key=key, request_sha256=digest, job_id=job_id):
        return None
    earlier = await job_store.find_idempotent(conn, account_id=account_id, key=key)
    assert earlier is not None
    if earlier[0] != digest:
        raise IdempotencyMismatch(
            "This idempotency key was used for another job. Use a new key for a new job.", job_id=str(earlier[1])
        )
    return await job_store.find_job(conn, earlier[1])


async def _check_limits(conn: Connection, account_id: AccountId, spec: JobSpec) -> None:
    account = await account_store.find_account(conn, account_id)
    assert account is not None
    open_count = await job_store.count_open_slices(conn, account_id)
    if open_count + spec.slice_count > account.queued_slices_max:
        raise LimitExceeded(
            f"You have {open_count:,} unfinished slices; with {spec.slice_count:,} more you would pass your limit of "
            f"{account.queued_slices_max:,}. Wait for some to finish, cancel some, or ask the operator for more.",
            retry_after_seconds=30,
        )
    if account.stored_bytes > account.stored_bytes_max:
        raise LimitExceeded(
            f"Your files take {account.stored_bytes / 1e9:.1f} GB of the {account.stored_bytes_max / 1e9:.1f} GB "
            "that you may store. Ask the operator for more.",
            retry_after_seconds=300,
        )


async def _check_files(conn: Connection, account_id: AccountId, spec: JobSpec) -> None:
    # One content may stand under several names, each with a size of its own to be checked.
    wanted = [(bytes.fromhex(file.sha256), file) for file in spec.files]
    present = await artifact_store.list_present(conn, account_id=account_id, sha256s=[sha256 for sha256, _ in wanted])
    faults = []
    for sha256, file in wanted:
        if sha256 not in present:
            faults.append(f"{file.path} was not uploaded: PUT /v1/artifacts/{file.sha256} first")
        elif present[sha256] != file.size_bytes:
            faults.append(f"{file.path} has {present[sha256]} bytes, not {file.size_bytes}")
    if faults:
        raise InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults)


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


def _to_spec(request: wire.JobSpec) -> JobSpec:
    command = request.command
    if request.script is not None and not command:
        command = ("python3", SCRIPT_FILE_NAME)
    need = request.requirements
    return JobSpec(
        name=request.name,
        command=command,
        script=request.script,
        files=tuple(InputFile(f.path, f.sha256, f.size_bytes, f.executable) for f in request.files),
        env=request.env,
        requirements=Requirements(**_fields(need)),
        slice_count=request.slice_count,
        retries=request.retries,
        wall_seconds=request.wall_seconds,
        priority=request.priority,
        expires_at=request.expires_at,
    )


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
