"""Answers of networks, for people: one at a time, or a stream of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from computepool.core.errors import ComputePoolError, InvalidRequest
from computepool.core.ids import NetworkId, RunId
from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.hosting import from_tensor, to_tensor
from computepool.hub.rpc.networks import read_id
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

rpcs = Rpcs("NetworkService")

# For one answer, recoveries of the run included.
ANSWER_SECONDS = 60.0
# Beyond that, for the words that say why there was none.
SLACK_SECONDS = 5.0
# Requests of one stream that are under way; the next is read when one of them is answered.
WINDOW = 8
# A stream that asks nothing for so long is ended.
IDLE_SECONDS = 600.0


@rpcs.add("Infer", Access.SUBMITTER, seconds_max=ANSWER_SECONDS + SLACK_SECONDS)
async def infer(call: Call, request: pb.InferRequest) -> pb.InferResponse:
    run_id = await _find_run(call, request)
    step = await call.rpc.hosting.inference.find_step(run_id, request.checkpoint_step)
    return await _answer(call, run_id, step, request)


@rpcs.add("InferStream", Access.SUBMITTER)
async def infer_stream(call: Call, requests: AsyncIterator[pb.InferRequest]) -> AsyncIterator[pb.InferResponse]:
    """Answers in the order of requests, all of one run and one checkpoint. The first that fails ends it."""
    first = await _next(requests)
    if first is None:
        return
    desk = call.rpc.hosting.inference
    run_id = await _find_run(call, first)
    step = await desk.find_step(run_id, first.checkpoint_step)
    # Also while nothing is asked: the checkpoint is there until the stream ends.
    with desk.pin(run_id, step):
        stream = _Stream(call, run_id, step, first)
        reading = asyncio.create_task(stream.read(requests))
        try:
            async for answer in stream.list_answers():
                yield answer
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.close()


class _Stream:
    """Requests that are under way, a window of them at a time."""

    def __init__(self, call: Call, run_id: RunId, step: int, first: pb.InferRequest) -> None:
        self._call, self._run_id, self._step, self._first = call, run_id, step, first
        self._room = asyncio.Semaphore(WINDOW)
        self._asked: asyncio.Queue[asyncio.Task[pb.InferResponse] | None] = asyncio.Queue()
        self._under_way: set[asyncio.Task[pb.InferResponse]] = set()

    async def read(self, requests: AsyncIterator[pb.InferRequest]) -> None:
        """Until there are no more, or one makes no sense."""
        request: pb.InferRequest | None = self._first
        try:
            while request is not None:
                self._check(request)
                await self._room.acquire()
                asking = asyncio.create_task(_answer(self._call, self._run_id, self._step, request))
                self._under_way.add(asking)
                self._asked.put_nowait(asking)
                request = await _next(requests)
        finally:
            self._asked.put_nowait(None)

    async def list_answers(self) -> AsyncIterator[pb.InferResponse]:
        number = 0
        while (asking := await self._asked.get()) is not None:
            try:
                answer = await asking
            except ComputePoolError as error:
                error.details.setdefault("request", number)
                raise
            self._under_way.discard(asking)
            self._room.release()
            number += 1
            yield answer

    async def close(self) -> None:
        for asking in self._under_way:
            asking.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _check(self, request: pb.InferRequest) -> None:
        named = (request.run_id, request.network_id)
        if named not in ((self._first.run_id, self._first.network_id), ("", "")):
            raise InvalidRequest("A stream asks one run. Open another stream for another.")
        if request.checkpoint_step not in (0, self._step):
            raise InvalidRequest(f"This stream asks checkpoint {self._step}. Open another stream for another.")


async def _next(requests: AsyncIterator[pb.InferRequest]) -> pb.InferRequest | None:
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        return None


async def _find_run(call: Call, request: pb.InferRequest) -> RunId:
    return await call.rpc.hosting.inference.find_run(
        call.account,
        run_id=RunId(read_id(request.run_id, "run")) if request.run_id else None,
        network_id=NetworkId(read_id(request.network_id, "network")) if request.network_id else None,
    )


async def _answer(call: Call, run_id: RunId, step: int, request: pb.InferRequest) -> pb.InferResponse:
    left = call.seconds_left
    answer = await call.rpc.hosting.inference.answer(
        run_id,
        step,
        {name: from_tensor(tensor) for name, tensor in request.inputs.items()},
        seconds=ANSWER_SECONDS if left is None else min(left, ANSWER_SECONDS),
    )
    return pb.InferResponse(output=to_tensor(answer.output), checkpoint_step=answer.checkpoint_step)
