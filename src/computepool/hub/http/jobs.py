"""Jobs, as submitters see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.errors import ComputePoolError, InvalidRequest
from computepool.core.jobs.checkpoint import find_risk_seconds
from computepool.core.jobs.state import JobState, SliceState
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.placement.price import SlicePrice
from computepool.hub.context import Hub, Lane
from computepool.hub.http.errors import to_error_body
from computepool.hub.http.replies import Later
from computepool.hub.http.routing import Access, Call, PlainCall, Routes
from computepool.hub.services import jobs as service
from computepool.hub.services import submissions
from computepool.hub.services.jobs import SliceDetail
from computepool.hub.services.submissions import Submission
from computepool.hub.store.attempts import AttemptRow
from computepool.hub.store.jobs import Job
from computepool.hub.store.why import AttemptFacts
from computepool.wire import jobs as wire

routes = Routes()

PAGE_MAX = 500
# Room for a script of the largest size even when every character of it is escaped.
SUBMIT_BYTES_MAX = 8_000_000
SUBMIT_BATCH_MAX = 256
# A job with more slices than this does not share its transaction with others.
GROUPED_SLICES_MAX = 256


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 50
    cursor: UUID | None = None
    state: JobState | None = None
    # A part of it.
    name: str | None = None


class SlicesQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: int = -1
    limit: int = 100
    state: SliceState | None = None


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    offset: int = 0
    attempt: int | None = None


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: int = 0
    limit: int = 200


@routes.add(
    "POST",
    "/v1/jobs",
    Access.SUBMITTER,
    body=wire.JobSpec,
    answer=wire.Job,
    status=201,
    body_bytes_max=SUBMIT_BYTES_MAX,
    hot=True,
)
def submit_job(call: PlainCall) -> Later:
    """Submit a job. With an Idempotency-Key header it is safe to repeat."""
    key = call.find_header(b"idempotency-key")
    batch = (_check(call, call.body, key),)
    return Later(_lane(call.hub, batch).send(batch), _to_submitted)


def _to_submitted(answers: Sequence[Job | ComputePoolError]) -> wire.Job:
    [answer] = answers
    if isinstance(answer, ComputePoolError):
        raise answer
    return to_job(answer)


@routes.add(
    "POST",
    "/v1/jobs/batch",
    Access.SUBMITTER,
    body=wire.SubmitBatch,
    answer=wire.SubmitBatchAnswer,
    body_bytes_max=SUBMIT_BYTES_MAX,
    hot=True,
)
async def submit_jobs(call: PlainCall) -> wire.SubmitBatchAnswer:
    """Submit many jobs, each taken or refused on its own. With an Idempotency-Key header it is safe to repeat."""
    key = call.find_header(b"idempotency-key")
    specs = call.body.jobs
    if not 1 <= len(specs) <= SUBMIT_BATCH_MAX:
        raise InvalidRequest(f"A batch has 1 to {SUBMIT_BATCH_MAX} jobs.")
    checked: list[Any] = []
    for number, spec in enumerate(specs):
        own_key = None if key is None else f"{key}#{number}"
        try:
            checked.append(_check(call, spec, own_key))
        except ComputePoolError as refusal:
            checked.append(refusal)
    sound = [item for item in checked if isinstance(item, Submission)]
    answered = iter(await _lane(call.hub, sound).put_all(sound) if sound else ())
    outcomes = [next(answered) if isinstance(item, Submission) else item for item in checked]
    return wire.SubmitBatchAnswer(answers=[_to_outcome(outcome) for outcome in outcomes])


def _check(call: PlainCall, spec: wire.JobSpec, key: str | None) -> Submission:
    hub = call.hub
    hub.blocked_inputs.check(spec)
    return submissions.check_submission(
        call.account, spec, hub.prices, idempotency_key=key, secrets_isolation=hub.settings.secrets_isolation
    )


def _lane(hub: Hub, batch: Sequence[Submission]) -> Lane[Submission, Job]:
    """Large jobs are written on a connection of their own, so that they hold up nobody."""
    large = any(submission.spec.slice_count > GROUPED_SLICES_MAX for submission in batch)
    return hub.large_submits if large else hub.submits


def _to_outcome(outcome: Job | ComputePoolError) -> wire.SubmitAnswer:
    if isinstance(outcome, ComputePoolError):
        return wire.SubmitAnswer(error=to_error_body(outcome))
    return wire.SubmitAnswer(job=to_job(outcome))


@routes.add("GET", "/v1/jobs", Access.ACCOUNT, query=JobsQuery, answer=wire.JobPage)
async def list_jobs(call: Call) -> wire.JobPage:
    """The caller's jobs, newest first; an operator sees everyone's."""
    query: JobsQuery = call.query
    limit = _page(query.limit)
    jobs = await service.list_jobs(
        call.hub.pool, call.account, before=query.cursor, state=query.state, limit=limit, name=query.name
    )
    cursor = str(jobs[-1].id) if len(jobs) == limit else None
    return wire.JobPage(jobs=[to_job(job) for job in jobs], cursor=cursor)


@routes.add("GET", "/v1/jobs/{job_id}", Access.ACCOUNT, answer=wire.Job)
async def get_job(call: Call) -> wire.Job:
    """One job with the counts of its slices."""
    return to_job(await service.get_job(call.hub.pool, call.account, call.path["job_id"]))


@routes.add("POST", "/v1/jobs/{job_id}/cancel", Access.SUBMITTER, answer=wire.Job)
async def cancel_job(call: Call) -> wire.Job:
    """Cancel what is unfinished. Asking twice is no mistake."""
    hub = call.hub
    job = await service.cancel_job(hub.pool, call.account, call.path["job_id"], on_end=hub.on_end)
    hub.rounds.hear("controls")
    return to_job(job)


@routes.add("GET", "/v1/jobs/{job_id}/slices", Access.ACCOUNT, query=SlicesQuery, answer=wire.SlicePage)
async def list_slices(call: Call) -> wire.SlicePage:
    """A job's slices with their attempts and output files."""
    query: SlicesQuery = call.query
    limit = _page(query.limit)
    slices = await service.list_slices(
        call.hub.pool,
        call.account,
        call.path["job_id"],
        after=max(-1, min(query.after, 1_000_000)),
        limit=limit,
        state=query.state,
    )
    next_after = slices[-1].slice.slice_index if len(slices) == limit else None
    return wire.SlicePage(slices=[to_slice(detail) for detail in slices], next_after=next_after)


@routes.add("GET", "/v1/jobs/{job_id}/slices/{index}", Access.ACCOUNT, answer=wire.Slice)
async def get_slice(call: Call) -> wire.Slice:
    """One slice."""
    return to_slice(await service.get_slice(call.hub.pool, call.account, call.path["job_id"], call.path["index"]))


@routes.add("GET", "/v1/jobs/{job_id}/slices/{index}/logs", Access.ACCOUNT, query=LogQuery, answer=wire.LogPage)
async def read_log(call: Call) -> wire.LogPage:
    """A piece of a slice's log: of its newest attempt, or of the attempt asked for."""
    query: LogQuery = call.query
    piece = await service.read_log(
        call.hub.pool,
        call.account,
        call.path["job_id"],
        call.path["index"],
        attempt_number=query.attempt,
        offset=max(0, min(query.offset, 1 << 60)),
    )
    return wire.LogPage(
        attempt_id=piece.attempt_id,
        attempt_number=piece.attempt_number,
        text=piece.content.decode(errors="replace"),
        next_offset=piece.next_offset,
        complete=piece.complete,
    )


@routes.add("GET", "/v1/jobs/{job_id}/events", Access.ACCOUNT, query=EventsQuery, answer=wire.EventPage)
async def list_events(call: Call) -> wire.EventPage:
    """What happened to a job, in order."""
    query: EventsQuery = call.query
    rows = await service.list_events(
        call.hub.pool,
        call.account,
        call.path["job_id"],
        after=max(0, min(query.after, 1 << 60)),
        limit=_page(query.limit),
    )
    return wire.EventPage(
        events=[
            wire.Event(id=e.id, at=e.at, kind=e.kind, job_id=e.job_id, node_id=e.node_id, body=e.body) for e in rows
        ]
    )


def _page(limit: int) -> int:
    return max(1, min(limit, PAGE_MAX))


def to_job(job: Job) -> wire.Job:
    ended = job.succeeded_count + job.failed_count + job.cancelled_count
    return wire.Job(
        id=job.id,
        name=job.name,
        state=job.state,
        slice_count=job.slice_count,
        counts=wire.SliceCounts(
            queued=max(0, job.slice_count - ended - job.leased_count - job.running_count - job.verifying_count),
            leased=job.leased_count,
            running=job.running_count,
            verifying=job.verifying_count,
            succeeded=job.succeeded_count,
            failed=job.failed_count,
            cancelled=job.cancelled_count,
        ),
        priority=job.priority,
        priority_class=job.priority_class,
        prefer=job.prefer,
        retries=job.retries,
        wall_seconds=job.wall_seconds,
        requirements=msgspec.convert(job.spec.get("requirements", {}), wire.Requirements),
        kind=job.spec.get("kind", DEFAULT_KIND),
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        deadline_at=job.deadline_at,
        expires_at=job.expires_at,
        charged_microcredits=job.charged_microcredits,
        held_microcredits=job.held_remaining,
        price=None if (fixed := job.slice_price) is None else to_price(fixed),
        at_risk_since=job.at_risk_since,
        verify=job.verify,
    )


def to_price(fixed: SlicePrice) -> wire.JobPrice:
    return wire.JobPrice(
        mode=PriceMode.PER_SLICE,
        microcredits_per_slice=fixed.base_microcredits,
        ceiling_microcredits_per_slice=fixed.ceiling_microcredits,
    )


def to_slice(detail: SliceDetail) -> wire.Slice:
    attempts = detail.attempts
    accepted = [a for a in attempts if a.id == detail.slice.accepted_attempt_id]
    outputs = [msgspec.convert(o, wire.OutputFile) for a in accepted for o in a.outputs]
    return wire.Slice(
        index=detail.slice.slice_index,
        state=detail.slice.state,
        attempt_count=detail.slice.attempt_count,
        cause=detail.slice.cause,
        message=attempts[-1].message or None if attempts else None,
        outputs=outputs,
        attempts=[to_attempt(attempt) for attempt in attempts],
        progress=detail.progress,
    )


def to_attempt(attempt: AttemptRow) -> wire.Attempt:
    return wire.Attempt(
        id=attempt.id,
        number=attempt.number,
        node_id=attempt.node_id,
        slot=attempt.slot,
        state=attempt.state,
        leased_at=attempt.leased_at,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        run_seconds=attempt.run_seconds,
        exit_code=attempt.exit_code,
        cause=attempt.cause,
        message=attempt.message or None,
        rate_microcredits_per_hour=attempt.rate_microcredits_per_hour,
        slice_price_microcredits=attempt.slice_price_microcredits,
        charged_microcredits=attempt.charged_microcredits,
        fee_microcredits=attempt.fee_microcredits,
        saved_seconds=attempt.saved_seconds,
        saved_at=attempt.saved_at,
        at_risk_seconds=to_risk_seconds(attempt),
    )


def to_risk_seconds(attempt: AttemptRow | AttemptFacts) -> float | None:
    return find_risk_seconds(
        attempt.state,
        leased_at=attempt.leased_at,
        started_at=attempt.started_at,
        saved_at=attempt.saved_at,
        now=clock.now(),
    )
