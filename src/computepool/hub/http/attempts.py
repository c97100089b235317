"""The node protocol: next, heartbeat, complete, and an attempt's files and logs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from computepool.core.errors import ComputePoolError, HubUnavailable, InvalidRequest
from computepool.core.ids import AttemptId
from computepool.hub.context import Hub
from computepool.hub.dispatch.door import Claim
from computepool.hub.dispatch.parked import CALLS_MAX, ParkedCall
from computepool.hub.dispatch.rounds import Ending
from computepool.hub.http.errors import to_error_body
from computepool.hub.http.replies import Later, Reply
from computepool.hub.http.routing import Access, Call, PlainCall, Routes, read_bytes
from computepool.hub.http.streaming import stream_blob
from computepool.hub.services import attempts as service
from computepool.hub.services import job_checkpoints, reports
from computepool.hub.services.reports import Report
from computepool.hub.store.attempts import HeldAttempt
from computepool.wire import attempts as wire
from computepool.wire.artifacts import Artifact, Upload
from computepool.wire.jobs import OutputFile

routes = Routes()

# A call that does not want to wait still needs one round; with the database away it gets an empty answer.
HURRIED_SECONDS = 5.0
LISTED_MAX = 1_000
COMPLETE_BYTES_MAX = 8_000_000
COMPLETE_BATCH_MAX = 256
# Of all nodes that are free; an empty set is as large as any.
NOTHING_RUNS: frozenset[AttemptId] = frozenset()


class LogsQuery(msgspec.Struct, frozen=True, kw_only=True):
    offset: int


@routes.add("POST", "/v1/jobs/next", Access.NODE, body=wire.NextRequest, answer=wire.NextAnswer, parks=True, hot=True)
def next_work(call: PlainCall) -> ParkedCall | Coroutine[Any, Any, ParkedCall]:
    """Ask for work; held open until there is some. Also a heartbeat."""
    hub, body, node = call.hub, call.body, call.node
    _refuse_if_full(hub)
    running = _check_lists(body.running, body.free_slots)
    hurried = body.wait_seconds <= 0
    # A hub keeps thousands of these calls: what nobody reads again need not wait with them.
    reply = partial(_reply, hub, call.answer)
    parked = hub.door.open(node, body.free_slots, running, reply, hurried=hurried)
    # Never longer than a beat: the next call is the next beat.
    seconds = HURRIED_SECONDS if hurried else min(body.wait_seconds, hub.beat_seconds)
    if hub.beats.hear_at_once(node.node_id, body.boot_id, running) and hub.door.park_at_once(parked, seconds):
        return parked
    return _park_newcomer(hub, parked, body.boot_id, seconds)


async def _park_newcomer(hub: Hub, parked: ParkedCall, boot_id: UUID, seconds: float) -> ParkedCall:
    await hub.beats.hear(parked.node_id, boot_id, parked.running)
    await hub.door.park(parked, seconds)
    if hub.closing:
        # It came too late to be sent home with the others.
        parked.dismiss()
    return parked


def _refuse_if_full(hub: Hub) -> None:
    if hub.closing or len(hub.parked) >= CALLS_MAX:
        raise HubUnavailable("This hub takes no more waiting nodes now. Call again; another may answer.")


def _reply(hub: Hub, send: Callable[[Reply], None], parked: ParkedCall, answer: wire.NextAnswer | None) -> None:
    """An agent that does not wait here is told when to come again, unless it got something to do."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if answer is not None and answer.assignments:
        hub.pace.note_work(parked.node_id)
    elif parked.hurried:
        headers = ((b"poll-seconds", b"%.2f" % hub.pace.plan_wait(parked.node_id)),)
    if answer is None:
        send(Reply(status=204, headers=headers))
    else:
        send(Reply(msgspec.json.encode(answer), headers=headers))


@routes.add(
    "POST", "/v1/nodes/heartbeat", Access.NODE, body=wire.HeartbeatRequest, answer=wire.HeartbeatAnswer, hot=True
)
def heartbeat(call: PlainCall) -> wire.HeartbeatAnswer | Coroutine[Any, Any, wire.HeartbeatAnswer]:
    """Say that the node is alive, without asking for work."""
    body, running = call.body, _check_lists(call.body.running, ())
    if call.hub.beats.hear_at_once(call.node.node_id, body.boot_id, running):
        return _answer_beat(call.hub)
    return _hear_newcomer(call, running)


async def _hear_newcomer(call: PlainCall, running: frozenset[AttemptId]) -> wire.HeartbeatAnswer:
    await call.hub.beats.hear(call.node.node_id, call.body.boot_id, running)
    return _answer_beat(call.hub)


def _answer_beat(hub: Hub) -> wire.HeartbeatAnswer:
    return wire.HeartbeatAnswer(beat_seconds=hub.beat_seconds, lease_seconds=hub.settings.lease_seconds)


@routes.add(
    "POST",
    "/v1/jobs/complete",
    Access.NODE,
    body=wire.CompleteRequest,
    answer=wire.CompleteAnswer,
    body_bytes_max=COMPLETE_BYTES_MAX,
    hot=True,
)
def complete(call: PlainCall) -> Later | Coroutine[Any, Any, Later]:
    """Report the end of an attempt. The same report again gets the same answer. May carry the next claim."""
    body: wire.CompleteRequest = call.body
    [report] = reports.check_completions(call.hub.keyring, call.node, (body,), body.receipt)
    if isinstance(report, ComputePoolError):
        raise report
    if body.claim is None or call.hub.closing:
        return _finish_one(call.hub, report, None)
    running = _check_lists(body.claim.running, body.claim.free_slots)
    if call.hub.door.knows(call.node) and call.hub.beats.hear_at_once(call.node.node_id, body.boot_id, running):
        claim = call.hub.door.open_claim(call.node, body.claim.free_slots, running)
        return _finish_one(call.hub, report, claim)
    return _finish_newcomer(call, report)


async def _finish_newcomer(call: PlainCall, report: Report) -> Later:
    return _finish_one(call.hub, report, await _prepare_claim(call, call.body.boot_id, call.body.claim))


def _finish_one(hub: Hub, report: Report, claim: Claim | None) -> Later:
    ending = Ending(report, claim.call if claim else None)
    return Later(hub.completions.send((ending,)), partial(_to_completed, claim))


def _to_completed(
    claim: Claim | None, outcomes: Sequence[wire.CompleteOutcome | ComputePoolError]
) -> wire.CompleteAnswer | Later:
    [outcome] = outcomes
    if isinstance(outcome, ComputePoolError):
        raise outcome
    if claim is None:
        return wire.CompleteAnswer(accepted=outcome.accepted, repeated=outcome.repeated)
    if claim.found.done():
        return _add_found(outcome, claim.found.result())
    return Later(claim.found, partial(_add_found, outcome))


def _add_found(outcome: wire.CompleteOutcome, found: wire.NextAnswer | None) -> wire.CompleteAnswer:
    return wire.CompleteAnswer(accepted=outcome.accepted, repeated=outcome.repeated, next=found)


@routes.add(
    "POST",
    "/v1/jobs/complete/batch",
    Access.NODE,
    body=wire.CompleteBatch,
    answer=wire.CompleteBatchAnswer,
    body_bytes_max=COMPLETE_BYTES_MAX,
    hot=True,
)
async def complete_batch(call: PlainCall) -> wire.CompleteBatchAnswer:
    """Report the ends of many attempts, under one receipt. Each counts or is refused on its own."""
    body: wire.CompleteBatch = call.body
    if not 1 <= len(body.completions) <= COMPLETE_BATCH_MAX:
        raise InvalidRequest(f"A batch has 1 to {COMPLETE_BATCH_MAX} completions.")
    checked = reports.check_completions(call.hub.keyring, call.node, body.completions, body.receipt)
    claim = await _prepare_claim(call, body.boot_id, body.claim)
    outcomes, found = await _finish(call.hub, checked, claim)
    answers = [
        wire.CompleteOutcome(error=to_error_body(o)) if isinstance(o, ComputePoolError) else o for o in outcomes
    ]
    return wire.CompleteBatchAnswer(answers=answers, next=found)


async def _finish(
    hub: Hub, checked: Sequence[Report | ComputePoolError], claim: Claim | None
) -> tuple[list[wire.CompleteOutcome | ComputePoolError], wire.NextAnswer | None]:
    sound = [item for item in checked if isinstance(item, Report)]
    if not sound:
        refusals = [item for item in checked if isinstance(item, ComputePoolError)]
        return list(refusals), await hub.door.claim(claim) if claim else None
    *others, last = sound
    endings = [*(Ending(report) for report in others), Ending(last, claim.call if claim else None)]
    judged = iter(await hub.completions.put_all(endings))
    outcomes = [next(judged) if isinstance(item, Report) else item for item in checked]
    return outcomes, await hub.door.hear(claim) if claim else None


async def _prepare_claim(call: PlainCall, boot_id: UUID, claim: wire.Claim | None) -> Claim | None:
    """What can be had at once. The node keeps its parked call, or makes one after this, for everything else."""
    hub, node = call.hub, call.node
    if claim is None or hub.closing:
        return None
    running = _check_lists(claim.running, claim.free_slots)
    await hub.beats.hear(node.node_id, boot_id, running)
    return await hub.door.prepare_claim(node, claim.free_slots, running)


@routes.add("GET", "/v1/attempts/{attempt_id}/inputs/{sha256}", Access.NODE)
async def read_input(call: Call) -> Response:
    """The bytes of one of the job's input files, or of the checkpoint that the attempt goes on from."""
    held = await _get_held(call)
    size_bytes = await job_checkpoints.get_input_size(call.hub.pool, held, call.path["sha256"])
    return stream_blob(call, call.path["sha256"], size_bytes)


@routes.add("PUT", "/v1/attempts/{attempt_id}/outputs/{sha256}", Access.NODE, answer=Artifact)
async def write_output(call: Call) -> Artifact:
    """Upload one output file, or the rest of it from `Upload-Offset` on."""
    held = await _get_held(call)
    sha256 = call.path["sha256"]
    size_bytes = await call.hub.blobs.write_rest(
        str(held.id),
        sha256,
        call.stream(),
        offset=_read_offset(call),
        size_bytes_max=call.hub.settings.upload_bytes_max,
    )
    await service.record_output(call.hub.pool, held, sha256=sha256, size_bytes=size_bytes)
    return Artifact(sha256=sha256, size_bytes=size_bytes)


@routes.add("GET", "/v1/attempts/{attempt_id}/outputs/{sha256}", Access.NODE, answer=Upload)
async def look_at_output(call: Call) -> Upload:
    """How much of an upload that was cut has arrived."""
    held = await _get_held(call)
    return Upload(arrived_bytes=call.hub.blobs.count_arrived(str(held.id), call.path["sha256"]))


@routes.add(
    "PUT",
    "/v1/attempts/{attempt_id}/checkpoint",
    Access.NODE,
    body=wire.Checkpoint,
    answer=wire.CheckpointAnswer,
)
async def save_checkpoint(call: Call) -> wire.CheckpointAnswer:
    """Save what the job has done so far, once its files are uploaded. Repeating it is harmless."""
    held = await _get_held(call)
    return await job_checkpoints.save_checkpoint(call.hub.pool, held, call.body)


@routes.add("GET", "/v1/attempts/{attempt_id}/checkpoint", Access.NODE, answer=wire.KeptCheckpoint)
async def read_checkpoint(call: Call) -> wire.KeptCheckpoint:
    """The last accepted checkpoint of the attempt's slice, for the job to go on from."""
    kept = await job_checkpoints.find_kept(call.hub.pool, await _get_held(call))
    if kept is None:
        return wire.KeptCheckpoint()
    files = [OutputFile(path=f.path, sha256=f.sha256, size_bytes=f.size_bytes) for f in kept.files]
    return wire.KeptCheckpoint(files=files, attempt_number=kept.attempt_number)


@routes.add("POST", "/v1/attempts/{attempt_id}/logs", Access.NODE, query=LogsQuery, answer=wire.LogAnswer)
async def append_log(call: Call) -> wire.LogAnswer:
    """Append to the attempt's log. Repeating a piece is harmless."""
    held = await _get_held(call)
    content = await read_bytes(call.scope, call.receive, service.LOG_PIECE_BYTES_MAX)
    next_offset = await service.append_log(
        call.hub.pool, call.hub.settings, held, offset=call.query.offset, content=content
    )
    return wire.LogAnswer(next_offset=next_offset)


def _read_offset(call: Call) -> int:
    told = call.find_header(b"upload-offset") or "0"
    if not told.isdecimal() or len(told) > 18:
        raise InvalidRequest("Upload-Offset is how many bytes have arrived before.")
    return int(told)


async def _get_held(call: Call) -> HeldAttempt:
    secret = call.find_header(b"lease-secret") or ""
    return await service.get_held(call.hub.pool, call.hub.keyring, call.node, call.path["attempt_id"], secret)


def _check_lists(running: tuple[object, ...], free_slots: tuple[str, ...]) -> frozenset[AttemptId]:
    if len(running) > LISTED_MAX or len(free_slots) > LISTED_MAX:
        raise InvalidRequest(f"At most {LISTED_MAX:,} attempts and slots can be listed.")
    return frozenset(running) if running else NOTHING_RUNS  # type: ignore[arg-type]
