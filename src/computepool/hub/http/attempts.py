"""The node protocol: next, heartbeat, complete, and an attempt's files and logs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from computepool.core.errors import HubUnavailable, InvalidRequest
from computepool.core.ids import AttemptId
from computepool.hub.dispatch.parked import CALLS_MAX, ParkedCall
from computepool.hub.http.routing import Access, Call, Routes, read_bytes
from computepool.hub.http.streaming import stream_blob
from computepool.hub.services import attempts as service
from computepool.hub.store.attempts import HeldAttempt
from computepool.wire import attempts as wire
from computepool.wire.artifacts import Artifact

routes = Routes()

# A call that does not want to wait still needs one round; with the database away it gets an empty answer.
HURRIED_SECONDS = 5.0
LISTED_MAX = 1_000


class LogsQuery(msgspec.Struct, frozen=True, kw_only=True):
    offset: int


@routes.add("POST", "/v1/jobs/next", Access.NODE, body=wire.NextRequest, answer=wire.NextAnswer, parks=True)
async def next_work(call: Call) -> Response:
    """Ask for work; held open until there is some. Also a heartbeat."""
    hub, body = call.hub, call.body
    if hub.closing or len(hub.parked) >= CALLS_MAX:
        raise HubUnavailable("This hub takes no more waiting nodes now. Call again; another may answer.")
    running = _check_lists(body.running, body.free_slots)
    await hub.beats.hear(call.node.node_id, body.boot_id, running)
    parked = ParkedCall(
        node_id=call.node.node_id,
        free_slots=frozenset(body.free_slots),
        running=running,
        hurried=body.wait_seconds <= 0,
    )
    hub.parked.park(parked)
    hub.rounds.wake()
    # Never longer than a beat: the next call is the next beat.
    seconds = HURRIED_SECONDS if parked.hurried else min(body.wait_seconds, hub.beat_seconds)
    try:
        answer = await _wait(call.request, parked, seconds)
    finally:
        hub.parked.leave(parked)
    return _shape_answer(call, answer, hurried=parked.hurried)


def _shape_answer(call: Call, answer: wire.NextAnswer | None, *, hurried: bool) -> Response:
    """An agent that does not wait here is told when to come again, unless it got something to do."""
    headers = {}
    if answer is not None and answer.assignments:
        call.hub.pace.note_work(call.node.node_id)
    elif hurried:
        headers["Poll-Seconds"] = f"{call.hub.pace.plan_wait(call.node.node_id):.2f}"
    if answer is None:
        return Response(status_code=204, headers=headers)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)


async def _wait(request: Request, parked: ParkedCall, seconds: float) -> wire.NextAnswer | None:
    """The answer; or nothing, when time is up or the node has hung up."""
    hung_up = asyncio.ensure_future(request.receive())
    waiting: set[asyncio.Future[Any]] = {parked.answer, hung_up}
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return parked.answer.result() if parked.answer.done() else None
    finally:
        hung_up.cancel()


@routes.add("POST", "/v1/nodes/heartbeat", Access.NODE, body=wire.HeartbeatRequest, answer=wire.HeartbeatAnswer)
async def heartbeat(call: Call) -> wire.HeartbeatAnswer:
    """Say that the node is alive, without asking for work."""
    hub, body = call.hub, call.body
    await hub.beats.hear(call.node.node_id, body.boot_id, _check_lists(body.running, ()))
    return wire.HeartbeatAnswer(beat_seconds=hub.beat_seconds, lease_seconds=hub.settings.lease_seconds)


@routes.add(
    "POST",
    "/v1/jobs/complete",
    Access.NODE,
    body=wire.CompleteRequest,
    answer=wire.CompleteAnswer,
    body_bytes_max=8_000_000,
)
async def complete(call: Call) -> wire.CompleteAnswer:
    """Report the end of an attempt. The same report again gets the same answer."""
    completion = service.check_completion(call.hub.keyring, call.node, call.body)
    answer = await call.hub.completions.put(completion)
    call.hub.rounds.wake()
    return answer


@routes.add("GET", "/v1/attempts/{attempt_id}/inputs/{sha256}", Access.NODE)
async def read_input(call: Call) -> Response:
    """The bytes of one of the job's input files."""
    held = await _get_held(call)
    size_bytes = service.get_input_size(held, call.path["sha256"])
    return stream_blob(call, call.path["sha256"], size_bytes)


@routes.add("PUT", "/v1/attempts/{attempt_id}/outputs/{sha256}", Access.NODE, answer=Artifact)
async def write_output(call: Call) -> Artifact:
    """Upload one output file."""
    held = await _get_held(call)
    sha256 = call.path["sha256"]
    size_bytes = await call.hub.blobs.write(sha256, call.stream(), size_bytes_max=call.hub.settings.upload_bytes_max)
    await service.record_output(call.hub.pool, held, sha256=sha256, size_bytes=size_bytes)
    return Artifact(sha256=sha256, size_bytes=size_bytes)


@routes.add("POST", "/v1/attempts/{attempt_id}/logs", Access.NODE, query=LogsQuery, answer=wire.LogAnswer)
async def append_log(call: Call) -> wire.LogAnswer:
    """Append to the attempt's log. Repeating a piece is harmless."""
    held = await _get_held(call)
    content = await read_bytes(call.request, service.LOG_PIECE_BYTES_MAX)
    next_offset = await service.append_log(
        call.hub.pool, call.hub.settings, held, offset=call.query.offset, content=content
    )
    return wire.LogAnswer(next_offset=next_offset)


async def _get_held(call: Call) -> HeldAttempt:
    secret = call.request.headers.get("lease-secret", "")
    return await service.get_held(call.hub.pool, call.hub.keyring, call.node, call.path["attempt_id"], secret)


def _check_lists(running: tuple[object, ...], free_slots: tuple[str, ...]) -> frozenset[AttemptId]:
    if len(running) > LISTED_MAX or len(free_slots) > LISTED_MAX:
        raise InvalidRequest(f"At most {LISTED_MAX:,} attempts and slots can be listed.")
    return frozenset(running)  # type: ignore[arg-type]
