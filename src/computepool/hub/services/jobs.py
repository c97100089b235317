"""Jobs: submit, look, cancel, expire."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from computepool import clock, entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import (
    ComputePoolError,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidSpec,
    LimitExceeded,
    NotFound,
)
from computepool.core.ids import AccountId, AttemptId, JobId, ShapeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, decide_stop
from computepool.core.jobs.log_text import whole_characters
from computepool.core.jobs.spec import SCRIPT_FILE_NAME, InputFile, JobSpec, Requirements, list_faults
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState, JobState, SliceEvent, SliceState
from computepool.core.placement.shape import Shape, to_shape
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
from computepool.hub.store.accounts import Usage
from computepool.hub.store.attempts import AttemptRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import EventRow, NewEvent
from computepool.hub.store.jobs import IdempotencyRow, Job, NewJob
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


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request to run something, on its way into the database."""

    account_id: AccountId
    request: wire.JobSpec
    spec: JobSpec
    idempotency_key: str | None


def check_submission(caller: AccountCaller, request: wire.JobSpec, *, idempotency_key: str | None) -> Submission:
    """Everything that can be said about a request without looking anything up."""
    spec = _to_spec(request)
    faults = list_faults(spec, now=clock.now())
    if faults:
        raise InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults)
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= IDEMPOTENCY_KEY_LENGTH_MAX:
        raise InvalidRequest(f"An idempotency key has 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} characters.")
    return Submission(caller.account_id, request, spec, idempotency_key)


async def submit_jobs(pool: Pool, submissions: Sequence[Submission]) -> list[Job | ComputePoolError]:
    """Many submits in one transaction, judged in the order of their arrival."""
    async with pool.acquire() as conn, conn.transaction():
        batch = _Batch(submissions)
        await batch.reserve_keys(conn)
        await batch.refuse_over_limit(conn)
        await batch.refuse_missing_files(conn)
        await batch.write(conn)
    return batch.answers()


class _Batch:
    """Submits on their way through one transaction; each has an answer in the end, a job or a refusal."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._submissions = submissions
        self._ids = [JobId(entropy.new_id()) for _ in submissions]
        self._answers: dict[int, Job | ComputePoolError] = {}
        # Keys that turned out to be used before, by their place in the batch; answered with that job.
        self._earlier: dict[int, JobId] = {}

    def answers(self) -> list[Job | ComputePoolError]:
        return [self._answers[place] for place in range(len(self._submissions))]

    def _open(self) -> list[tuple[int, Submission]]:
        return [(i, s) for i, s in enumerate(self._submissions) if i not in self._answers and i not in self._earlier]

    async def reserve_keys(self, conn: Connection) -> None:
        keyed = {
            i: IdempotencyRow(s.account_id, s.idempotency_key, _digest(s.request), self._ids[i])
            for i, s in enumerate(self._submissions)
            if s.idempotency_key is not None
        }
        if not keyed:
            return
        fresh = await job_store.insert_idempotent(conn, list(keyed.values()))
        used = {i: row for i, row in keyed.items() if row.job_id not in fresh}
        if not used:
            return
        known = await job_store.list_idempotent(conn, [(row.account_id, row.key) for row in used.values()])
        for i, row in used.items():
            earlier = known[(row.account_id, row.key)]
            if earlier.request_sha256 == row.request_sha256:
                self._earlier[i] = earlier.job_id
            else:
                self._answers[i] = IdempotencyMismatch(
                    "This idempotency key was used for another job. Use a new key for a new job.",
                    job_id=str(earlier.job_id),
                )

    async def refuse_over_limit(self, conn: Connection) -> None:
        usage = await account_store.list_usage(conn, {s.account_id for _, s in self._open()})
        taken: Counter[AccountId] = Counter()
        for i, submission in self._open():
            account_id, count = submission.account_id, submission.spec.slice_count
            refusal = _find_over_limit(usage[account_id], taken=taken[account_id], slice_count=count)
            if refusal is not None:
                self._answers[i] = refusal
            else:
                taken[account_id] += count

    async def refuse_missing_files(self, conn: Connection) -> None:
        wanted = [(s.account_id, bytes.fromhex(file.sha256)) for _, s in self._open() for file in s.spec.files]
        present = await artifact_store.list_present(conn, wanted) if wanted else {}
        for i, submission in self._open():
            faults = _file_faults(submission, present)
            if faults:
                self._answers[i] = InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults)

    async def write(self, conn: Connection) -> None:
        refused_keys = [i for i in self._answers if self._submissions[i].idempotency_key is not None]
        if refused_keys:
            # A refused submit leaves no trace: the same key may be used again once its fault is mended.
            await job_store.delete_idempotent(conn, [self._ids[i] for i in refused_keys])
        fresh = self._open()
        shape_ids = await shape_store.get_or_insert_shapes(conn, {to_shape(s.spec.requirements) for _, s in fresh})
        new = [(i, _to_new_job(self._ids[i], s, shape_ids)) for i, s in fresh]
        if new:
            now = await hub_store.get_now(conn)
            await job_store.insert_jobs(conn, [job for _, job in new], created_at=now)
            await event_store.record_events(conn, [_submitted_event(job) for _, job in new])
            await hub_store.notify(conn, "queue")
            self._answers |= {i: _fresh_job(job, now) for i, job in new}
        if self._earlier:
            jobs = await job_store.find_jobs(conn, set(self._earlier.values()))
            # A twin in the same batch may have been refused, and its job with it.
            self._answers |= {
                i: jobs.get(id) or self._answers[self._ids.index(id)] for i, id in self._earlier.items()
            }


def _submitted_event(job: NewJob) -> NewEvent:
    return NewEvent(kind="job_submitted", account_id=job.account_id, job_id=job.id, body={"slices": job.slice_count})


def _to_new_job(job_id: JobId, submission: Submission, shape_ids: Mapping[Shape, ShapeId]) -> NewJob:
    spec = submission.spec
    return NewJob(
        id=job_id,
        account_id=submission.account_id,
        name=spec.name,
        spec=msgspec.to_builtins(submission.request),
        shape_id=shape_ids[to_shape(spec.requirements)],
        priority=spec.priority,
        slice_count=spec.slice_count,
        retries=spec.retries,
        wall_seconds=spec.wall_seconds,
        expires_at=spec.expires_at,
    )


def _fresh_job(job: NewJob, now: datetime) -> Job:
    """The row as it was just written; reading it back would cost a round trip and say the same."""
    return Job(
        id=job.id,
        account_id=job.account_id,
        name=job.name,
        spec=job.spec,
        shape_id=job.shape_id,
        priority=job.priority,
        slice_count=job.slice_count,
        retries=job.retries,
        wall_seconds=job.wall_seconds,
        state=JobState.QUEUED,
        succeeded_count=0,
        failed_count=0,
        cancelled_count=0,
        created_at=now,
        started_at=None,
        finished_at=None,
        expires_at=job.expires_at,
        leased_count=0,
        running_count=0,
    )


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


def _find_over_limit(usage: Usage, *, taken: int, slice_count: int) -> LimitExceeded | None:
    """`taken` are slices of the same account that are in front of this one in the batch."""
    open_count = usage.open_slices + taken
    if open_count + slice_count > usage.queued_slices_max:
        return LimitExceeded(
            f"You have {open_count:,} unfinished slices; with {slice_count:,} more you would pass your limit of "
            f"{usage.queued_slices_max:,}. Wait for some to finish, cancel some, or ask the operator for more.",
            retry_after_seconds=30,
        )
    if usage.stored_bytes > usage.stored_bytes_max:
        return LimitExceeded(
            f"Your files take {usage.stored_bytes / 1e9:.1f} GB of the {usage.stored_bytes_max / 1e9:.1f} GB that "
            "you may store. Ask the operator for more.",
            retry_after_seconds=300,
        )
    return None


def _file_faults(submission: Submission, present: Mapping[tuple[AccountId, bytes], int]) -> list[str]:
    # One content may stand under several names, each with a size of its own to be checked.
    faults = []
    for file in submission.spec.files:
        size_bytes = present.get((submission.account_id, bytes.fromhex(file.sha256)))
        if size_bytes is None:
            faults.append(f"{file.path} was not uploaded: PUT /v1/artifacts/{file.sha256} first")
        elif size_bytes != file.size_bytes:
            faults.append(f"{file.path} has {size_bytes} bytes, not {file.size_bytes}")
    return faults


def _digest(request: wire.JobSpec) -> bytes:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).digest()


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
