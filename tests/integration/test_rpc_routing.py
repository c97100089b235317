"""The steps that every RPC passes, on a real gRPC server with endpoints that misbehave in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from computepool.core.errors import ComputePoolError, HubUnavailable, InvalidSpec, NotFound, RateLimited
from computepool.hub.rpc.auth import PUBLIC_CALLS_PER_MINUTE, Access
from computepool.hub.rpc.routing import Call, Rpcs, build_handlers
from computepool.hub.services.rate_limits import RateLimits
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from tests.support.rpc_client import to_error

rpcs = Rpcs("NetworkService")


@rpcs.add("GetNetwork", Access.PUBLIC, seconds_max=0.3)
async def get_network(call: Call, request: pb.GetNetworkRequest) -> pb.Network:
    if request.id == "hang":
        await asyncio.sleep(30)
    if request.id == "unfit":
        raise InvalidSpec("It does not fit.", faults=["a", "b"])
    if request.id == "bug":
        raise RuntimeError("a secret of the hub's inside")
    if request.id == "database":
        raise ConnectionRefusedError("5432")
    return pb.Network(id=call.peer)


@rpcs.add("WatchTrain", Access.PUBLIC)
async def watch_train(call: Call, request: pb.WatchTrainRequest) -> AsyncIterator[pb.TrainEvent]:
    yield pb.TrainEvent(step=1)
    if request.run_id == "gone":
        raise NotFound("There is no such run.")


@rpcs.add("InferStream", Access.PUBLIC)
async def infer_stream(call: Call, _: Any) -> None:
    while (request := await call.stream.read()) is not grpc.aio.EOF:
        if not request.network_id:
            raise NotFound("There is no such network.")
        await call.stream.write(pb.InferResponse(checkpoint_step=request.checkpoint_step))


@dataclass
class Context:
    """As much of the hub as these endpoints need."""

    rate_limits: RateLimits = field(default_factory=RateLimits)
    closing: bool = False


@pytest.fixture
async def world() -> AsyncIterator[tuple[Any, Context]]:
    context = Context()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(build_handlers(context, rpcs.rpcs)))  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield stubs.NetworkServiceStub(channel), context
    await server.stop(0.1)


async def refusal(call: Any) -> tuple[str, ComputePoolError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, to_error(caught.value)


async def test_an_answer_and_where_its_caller_is(world):
    stub, _ = world
    assert (await stub.GetNetwork(pb.GetNetworkRequest(), timeout=5)).id == "127.0.0.1"


async def test_an_error_crosses_the_wire_with_class_words_and_details(world):
    code, error = await refusal(world[0].GetNetwork(pb.GetNetworkRequest(id="unfit"), timeout=5))
    assert (code, type(error), error.message) == ("INVALID_ARGUMENT", InvalidSpec, "It does not fit.")
    assert error.details == {"faults": ["a", "b"]}


async def test_a_call_that_hangs_has_an_end_though_its_caller_would_wait(world):
    code, error = await refusal(world[0].GetNetwork(pb.GetNetworkRequest(id="hang"), timeout=20))
    assert (code, type(error)) == ("UNAVAILABLE", HubUnavailable)
    assert "too long" in error.message


async def test_a_callers_own_deadline_counts_when_it_is_shorter(world):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world[0].GetNetwork(pb.GetNetworkRequest(id="hang"), timeout=0.1)
    assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


async def test_a_mistake_of_the_hubs_is_logged_and_not_told(world, caplog):
    code, error = await refusal(world[0].GetNetwork(pb.GetNetworkRequest(id="bug"), timeout=5))
    assert (code, error.code) == ("INTERNAL", "error")
    assert "secret" not in error.message
    assert "a secret of the hub's inside" in caplog.text


async def test_a_database_that_is_away_is_told_as_something_that_passes(world):
    code, error = await refusal(world[0].GetNetwork(pb.GetNetworkRequest(id="database"), timeout=5))
    assert (code, error.retryable) == ("UNAVAILABLE", True)


async def test_a_stream_ends_with_its_error_after_what_was_said(world):
    call = world[0].WatchTrain(pb.WatchTrainRequest(run_id="gone"), timeout=5)
    assert (await call.read()).step == 1
    code, error = await refusal(call.read())
    assert (code, type(error)) == ("NOT_FOUND", NotFound)
    whole = [event.step async for event in world[0].WatchTrain(pb.WatchTrainRequest(), timeout=5)]
    assert whole == [1]


async def test_an_endpoint_may_read_and_write_as_it_likes(world):
    call = world[0].InferStream(timeout=5)
    for step in (1, 2):
        await call.write(pb.InferRequest(network_id="n", checkpoint_step=step))
        assert (await call.read()).checkpoint_step == step
    await call.write(pb.InferRequest())
    code, _ = await refusal(call.read())
    assert code == "NOT_FOUND"


async def test_a_hub_that_is_ending_takes_no_more_calls(world):
    stub, context = world
    context.closing = True
    code, error = await refusal(stub.GetNetwork(pb.GetNetworkRequest(), timeout=5))
    assert (code, "another may answer" in error.message) == ("UNAVAILABLE", True)


async def test_calls_without_end_are_slowed_down(world):
    stub, context = world
    for _ in range(PUBLIC_CALLS_PER_MINUTE // 6):
        context.rate_limits.spend(("public", "127.0.0.1"), per_minute=PUBLIC_CALLS_PER_MINUTE)
    code, error = await refusal(stub.GetNetwork(pb.GetNetworkRequest(), timeout=5))
    assert (code, type(error)) == ("RESOURCE_EXHAUSTED", RateLimited)
    assert error.details["retry_after_seconds"] >= 1


async def test_what_is_declared_and_not_served_is_told_so(world):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world[0].ListRuns(pb.ListRunsRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
