"""The node protocol over gRPC: every call is passed on to the hub's own HTTP, with its token, and its answer back.

One liveness and one truth: whichever of the two a node uses, the same code hears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import httpx
import msgspec

from computepool.core.errors import ComputePoolError, HubUnavailable, InvalidRequest, leaves
from computepool.hub.rpc.auth import Access, read_credential
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.wire import attempts as wire
from computepool.wire.errors import ErrorBody
from computepool.wire.pb.computepool.v1 import jobs_pb2 as pb

rpcs = Rpcs("JobService")

Answer = TypeVar("Answer")

# A held call lasts as long as was asked for, and a little more for a busy hub.
HELD_SLACK_SECONDS = 10.0
CALL_SECONDS = 30.0
NEXT_SECONDS_MAX = 120.0


@rpcs.add("Next", Access.NODE, seconds_max=NEXT_SECONDS_MAX)
async def next_work(call: Call, request: pb.NextRequest) -> pb.NextResponse:
    body = {
        "boot_id": request.boot_id,
        "free_slots": list(request.free_slots),
        "running": list(request.running),
        "wait_seconds": request.wait_seconds,
    }
    # A call that would be held for longer than anyone waits is held as long as that.
    seconds = min(max(0.0, request.wait_seconds) + HELD_SLACK_SECONDS, NEXT_SECONDS_MAX)
    response = await _pass_on(call, "/v1/jobs/next", body, seconds=seconds)
    answer = wire.NextAnswer() if response.status_code == 204 else _read(response, wire.NextAnswer)
    told = _to_next(answer)
    if "poll-seconds" in response.headers:
        told.poll_seconds = float(response.headers["poll-seconds"])
    return told


@rpcs.add("Heartbeat", Access.NODE)
async def heartbeat(call: Call, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    body = {"boot_id": request.boot_id, "running": list(request.running)}
    answer = _read(await _pass_on(call, "/v1/nodes/heartbeat", body), wire.HeartbeatAnswer)
    return pb.HeartbeatResponse(
        beat_seconds=answer.beat_seconds,
        lease_seconds=answer.lease_seconds,
        controls=_to_controls(answer.controls),
    )


@rpcs.add("Complete", Access.NODE)
async def complete(call: Call, request: pb.CompleteRequest) -> pb.CompleteResponse:
    body = {**_from_completion(request.completion), **_from_envelope(request)}
    answer = _read(await _pass_on(call, "/v1/jobs/complete", body), wire.CompleteAnswer)
    return pb.CompleteResponse(
        accepted=answer.accepted,
        repeated=answer.repeated,
        next=_to_next(answer.next) if answer.next is not None else None,
    )


@rpcs.add("CompleteBatch", Access.NODE)
async def complete_batch(call: Call, request: pb.CompleteBatchRequest) -> pb.CompleteBatchResponse:
    body = {"completions": [_from_completion(each) for each in request.completions], **_from_envelope(request)}
    answer = _read(await _pass_on(call, "/v1/jobs/complete/batch", body), wire.CompleteBatchAnswer)
    return pb.CompleteBatchResponse(
        outcomes=[_to_outcome(each) for each in answer.answers],
        next=_to_next(answer.next) if answer.next is not None else None,
    )


async def _pass_on(call: Call, path: str, body: dict[str, Any], *, seconds: float = CALL_SECONDS) -> httpx.Response:
    headers = {"Authorization": f"Bearer {read_credential(call.metadata)}", "Content-Type": "application/json"}
    try:
        response = await call.rpc.http.post(path, content=msgspec.json.encode(body), headers=headers, timeout=seconds)
    except httpx.HTTPError as error:
        raise HubUnavailable(f"The hub behind gRPC does not answer: {type(error).__name__}. Try again.") from None
    if response.is_success:
        return response
    raise _to_error(response)


def _to_error(response: httpx.Response) -> ComputePoolError:
    try:
        body = msgspec.json.decode(response.content, type=ErrorBody)
    except msgspec.DecodeError:
        return HubUnavailable(f"The hub behind gRPC answered with status {response.status_code}. Try again.")
    details = dict(body.details)
    if "retry-after" in response.headers:
        details.setdefault("retry_after_seconds", response.headers["retry-after"])
    known = leaves().get(body.code, HubUnavailable if body.retryable else InvalidRequest)
    return known(body.message, **details)


def _read(response: httpx.Response, kind: type[Answer]) -> Answer:
    return msgspec.json.decode(response.content, type=kind)


def _from_envelope(request: pb.CompleteRequest | pb.CompleteBatchRequest) -> dict[str, Any]:
    """What a call says besides how attempts ended."""
    claim = request.claim
    claimed = {"free_slots": list(claim.free_slots), "running": list(claim.running)}
    return {
        "boot_id": request.boot_id,
        "receipt": request.receipt,
        "claim": claimed if request.HasField("claim") else None,
    }


def _from_completion(told: pb.Completion) -> dict[str, Any]:
    usage = told.usage
    return {
        "attempt_id": told.attempt_id,
        "lease_secret": told.lease_secret,
        "exit_code": told.exit_code if told.HasField("exit_code") else None,
        "cause": told.cause or None,
        "message": told.message,
        "usage": {
            "run_seconds": usage.run_seconds,
            "cpu_seconds": usage.cpu_seconds,
            "memory_bytes_peak": usage.memory_bytes_peak,
        },
        "outputs": [{"path": o.path, "sha256": o.sha256, "size_bytes": o.size_bytes} for o in told.outputs],
        "result_sha256": told.result_sha256,
    }


def _to_next(answer: wire.NextAnswer) -> pb.NextResponse:
    return pb.NextResponse(
        assignments=_to_assignments(answer.assignments),
        token=answer.token,
        controls=_to_controls(answer.controls),
    )


def _to_assignments(given: Sequence[wire.Assignment]) -> list[pb.Assignment]:
    return [
        pb.Assignment(
            attempt_id=str(each.attempt_id),
            slot=each.slot,
            lease_secret=each.lease_secret,
            lease_seconds=each.lease_seconds,
            order=each.order,
        )
        for each in given
    ]


def _to_controls(controls: wire.Controls) -> pb.Controls:
    stop = {str(attempt_id): cause.value for attempt_id, cause in controls.stop.items()}
    return pb.Controls(stop=stop, drain=controls.drain, pause=controls.pause, prove=controls.prove)


def _to_outcome(outcome: wire.CompleteOutcome) -> pb.CompleteOutcome:
    error = outcome.error
    if error is None:
        return pb.CompleteOutcome(accepted=outcome.accepted, repeated=outcome.repeated)
    refusal = pb.Refusal(
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        details=msgspec.json.encode(error.details).decode(),
    )
    return pb.CompleteOutcome(refusal=refusal)
