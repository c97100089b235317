"""Speaks gRPC to a hub as nodes and people do, and says what came back in plain words."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from computepool.core.errors import ComputePoolError
from computepool.wire.pb.computepool.v1 import jobs_pb2 as pb
from computepool.wire.pb.computepool.v1 import jobs_pb2_grpc
from computepool.wire.rpc import from_error_metadata
from tests.support.protocol_node import Held, ProtocolNode

CALL_SECONDS = 20.0


def to_error(error: grpc.aio.AioRpcError) -> ComputePoolError:
    return from_error_metadata(error.trailing_metadata(), error.details() or "")


async def wait_for_rpc(address: str, credentials: Any = None, seconds: float = 100.0) -> None:
    channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)
    async with channel, asyncio.timeout(seconds):
        await channel.channel_ready()


class RpcNode:
    """A node that has enrolled over REST and does everything else over gRPC."""

    def __init__(self, node: ProtocolNode, address: str) -> None:
        self.node = node
        self.channel = grpc.aio.insecure_channel(address)
        self.jobs = jobs_pb2_grpc.JobServiceStub(self.channel)

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        """Raises the error that the hub told of, as its class."""
        metadata = options.pop("metadata", (("authorization", self.node.headers["Authorization"]),))
        options = {"timeout": CALL_SECONDS, "wait_for_ready": True, **options}
        try:
            return await getattr(self.jobs, name)(request, metadata=metadata, **options)
        except grpc.aio.AioRpcError as error:
            raise to_error(error) from error

    async def next(self, *, wait_seconds: float = 1.0) -> list[Held]:
        claim = self.node.claim()
        request = pb.NextRequest(boot_id=self.node.boot_id, wait_seconds=wait_seconds, **claim)
        return self.take(await self.call("Next", request))

    def take(self, answer: pb.NextResponse) -> list[Held]:
        given = [
            {name: getattr(each, name) for name in ("attempt_id", "slot", "lease_secret", "order")}
            for each in answer.assignments
        ]
        controls = {"stop": dict(answer.controls.stop)}
        return self.node.take({"assignments": given, "token": answer.token, "controls": controls})

    async def claim_one(self) -> Held:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if fresh := await self.next():
                return fresh[0]
        raise AssertionError("no assignment came")

    async def beat(self) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(boot_id=self.node.boot_id, running=list(self.node.held))
        return await self.call("Heartbeat", request)

    def completion(self, held: Held, **changes: Any) -> pb.Completion:
        return pb.Completion(**self.node.completion(held, **changes))

    async def complete(self, held: Held, *, claims: bool = False, **changes: Any) -> pb.CompleteResponse:
        request = pb.CompleteRequest(
            boot_id=self.node.boot_id,
            completion=self.completion(held, **changes),
            receipt="" if changes.get("cause") else self.node.receipt(held),
            claim=pb.Claim(**self.node.claim(held)) if claims else None,
        )
        return await self.call("Complete", request)

    async def close(self) -> None:
        await self.channel.close()
