"""RPCs as data: name, who may call, what it does. The server and the authorisation test read them.

Every call passes the same steps: agree on a version, name the caller, check the role, spend from the rate limit, call
within a deadline, and turn an error into a status. An endpoint adds only the call:

    rpcs = Rpcs("NetworkService")

    @rpcs.add("GetNetwork", Access.ACCOUNT)
    async def get_network(call: Call, request: pb.GetNetworkRequest) -> pb.Network: ...

    @rpcs.add("WatchTrain", Access.ACCOUNT)
    async def watch_train(call: Call, request: pb.WatchTrainRequest) -> AsyncIterator[pb.TrainEvent]:
        yield ...

A stream of requests arrives as an async iterator. An endpoint of a bidirectional call that is no generator reads and
writes by itself, through `call.stream`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from computepool.core.errors import ComputePoolError, HubUnavailable
from computepool.hub.http.errors import AWAY, STATUS
from computepool.hub.rpc.auth import Access, Caller, name_caller
from computepool.hub.rpc.context import RpcContext
from computepool.hub.services.callers import AccountCaller, LeaseCaller
from computepool.wire import rpc as wire
from computepool.wire.pb.computepool.v1 import jobs_pb2, networks_pb2

log = logging.getLogger("computepool.rpc")

PACKAGE = "computepool.v1"
# What a unary call may take at most, whatever its caller is ready to wait.
CALL_SECONDS = 30.0

Endpoint = Callable[..., Any]

_SERVICES = {
    **networks_pb2.DESCRIPTOR.services_by_name,
    **jobs_pb2.DESCRIPTOR.services_by_name,
}
# REST's status stands in one table for every error; this says what gRPC calls it.
CODES: dict[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    402: grpc.StatusCode.FAILED_PRECONDITION,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class Call:
    rpc: RpcContext
    caller: Caller
    metadata: Mapping[str, str]
    # grpc.aio's context: `read()` and `write()` for endpoints that do both as they like.
    stream: Any

    @property
    def account(self) -> AccountCaller:
        assert isinstance(self.caller, AccountCaller)
        return self.caller

    @property
    def lease(self) -> LeaseCaller:
        assert isinstance(self.caller, LeaseCaller)
        return self.caller

    @property
    def peer(self) -> str:
        """The caller's IP address as this machine sees it; empty when it is none."""
        return read_peer(self.stream)

    @property
    def seconds_left(self) -> float | None:
        """How long the caller is ready to wait; None: for ever."""
        left: float | None = self.stream.time_remaining()
        return left


@dataclass(frozen=True)
class Rpc:
    service: str
    name: str
    access: Access
    endpoint: Endpoint
    # For a unary call: how long it may take.
    seconds_max: float = CALL_SECONDS
    # Frames go through as the bytes that they are.
    raw: bool = False

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{self.service}/{self.name}"

    @cached_property
    def descriptor(self) -> MethodDescriptor:
        return _SERVICES[self.service].methods_by_name[self.name]


@dataclass(slots=True)
class Rpcs:
    service: str
    rpcs: list[Rpc] = field(default_factory=list)

    def add(self, name: str, access: Access, **options: Any) -> Callable[[Endpoint], Endpoint]:
        def register(endpoint: Endpoint) -> Endpoint:
            self.rpcs.append(Rpc(self.service, name, access, endpoint, **options))
            return endpoint

        return register


def list_declared() -> list[str]:
    """Every RPC of the .proto files, served or not, as `Service/Name`."""
    return [f"{service}/{call.name}" for service, found in _SERVICES.items() for call in found.methods]


def service_names(rpcs: Iterable[Rpc]) -> list[str]:
    return sorted({f"{PACKAGE}.{each.service}" for each in rpcs})


def build_handlers(rpc: RpcContext, rpcs: Iterable[Rpc]) -> list[Any]:
    """What grpc.aio's server takes: one entry per service."""
    services: dict[str, dict[str, Any]] = {}
    for each in rpcs:
        services.setdefault(f"{PACKAGE}.{each.service}", {})[each.name] = _build_method(rpc, each)
    return [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]


def _build_method(context: RpcContext, rpc: Rpc) -> Any:
    call = rpc.descriptor
    coding: dict[str, Any] = {}
    if not rpc.raw:
        coding["request_deserializer"] = message_factory.GetMessageClass(call.input_type).FromString
        coding["response_serializer"] = message_factory.GetMessageClass(call.output_type).SerializeToString
    if call.server_streaming:
        build = (
            grpc.stream_stream_rpc_method_handler if call.client_streaming else grpc.unary_stream_rpc_method_handler
        )
        return build(_stream_answer(context, rpc), **coding)
    build = grpc.stream_unary_rpc_method_handler if call.client_streaming else grpc.unary_unary_rpc_method_handler
    return build(_single_answer(context, rpc), **coding)


def _single_answer(context: RpcContext, rpc: Rpc) -> Endpoint:
    async def answer(request: Any, stream: Any) -> Any:
        try:
            call = await _open_call(context, rpc, stream)
            left = stream.time_remaining()
            # An upload may take as long as its caller waits; everything else has an end of its own, too.
            limit = None if rpc.descriptor.client_streaming else rpc.seconds_max
            seconds = min((each for each in (left, limit) if each is not None), default=None)
            async with asyncio.timeout(seconds):
                return await rpc.endpoint(call, request)
        except TimeoutError:
            refusal: Exception = HubUnavailable(f"{rpc.name} took too long. Try again.")
        except Exception as error:
            refusal = error
        return await _refuse(rpc, stream, refusal)

    return answer


def _stream_answer(context: RpcContext, rpc: Rpc) -> Endpoint:
    if not inspect.isasyncgenfunction(rpc.endpoint):

        async def converse(request: Any, stream: Any) -> None:
            refusal: Exception | None = None
            try:
                await rpc.endpoint(await _open_call(context, rpc, stream), request)
            except Exception as error:
                refusal = error
            if refusal is not None:
                await _refuse(rpc, stream, refusal)

        return converse

    async def answer(request: Any, stream: Any) -> AsyncIterator[Any]:
        refusal: Exception | None = None
        try:
            async for message in rpc.endpoint(await _open_call(context, rpc, stream), request):
                yield message
        except Exception as error:
            refusal = error
        if refusal is not None:
            await _refuse(rpc, stream, refusal)

    return answer


async def _open_call(context: RpcContext, rpc: Rpc, stream: Any) -> Call:
    metadata = {key: value for key, value in stream.invocation_metadata() or () if isinstance(value, str)}
    if context.closing:
        raise HubUnavailable("This hub is shutting down. Call again; another may answer.")
    caller = await name_caller(context, rpc.access, metadata, peer=read_peer(stream))
    return Call(context, caller, metadata, stream)


async def _refuse(rpc: Rpc, stream: Any, error: Exception) -> None:
    """Ends the call with the error's status; raises, as grpc.aio wants it."""
    if isinstance(error, grpc.aio.BaseError):
        raise error
    told = to_told(rpc, error)
    await stream.abort(to_code(told), told.message, wire.to_error_metadata(told))


def to_told(rpc: Rpc, error: Exception) -> ComputePoolError:
    """The error as callers are told of it."""
    if isinstance(error, ComputePoolError):
        return error
    if isinstance(error, AWAY):
        log.warning("rpc_unavailable rpc=%s error=%r", rpc.path, error)
        return HubUnavailable("The hub cannot reach its database at the moment. Try again.")
    log.error("rpc_failed rpc=%s", rpc.path, exc_info=error)
    return ComputePoolError("The hub made a mistake; its log has the details.")


def to_code(error: ComputePoolError) -> grpc.StatusCode:
    return CODES[STATUS.get(type(error), 500)]


def read_peer(stream: Any) -> str:
    """`ipv4:1.2.3.4:5` and `ipv6:%5B::1%5D:5` are how gRPC words it."""
    kind, _, rest = str(stream.peer()).partition(":")
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return host if kind in ("ipv4", "ipv6") else ""
