"""A host that speaks the real protocol to real hubs and computes nothing: it says what it is told to say."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc

from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from tests.support.protocol_node import Held
from tests.support.rpc_client import to_error

WAIT_SECONDS = 60.0


class PlayedHost:
    """Prepares when it is told to, and keeps every order. A beat every half second, unless it is silenced."""

    def __init__(self, held: Held, *, numeric_class: str = "played") -> None:
        self.attempt_id = held.attempt_id
        self.run_id = held.order["host"]["run_id"]
        self.seat = held.order["host"]["seat"]
        self.address = held.order["host"]["rpc_address"]
        self.metadata = (("attempt-id", held.attempt_id), ("lease-secret", held.secret))
        self.numeric_class = numeric_class
        self.secret = held.secret
        self.orders: list[pb.HubMessage] = []
        self.watermark = 0
        self.silent = False
        self.ended: Exception | None = None
        self._heard = asyncio.Condition()
        # A stream takes one message at a time, and beats come in between.
        self._saying = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: Any = None
        self._call: Any = None

    async def register(self) -> pb.RegisterResponse:
        request = pb.RegisterRequest(version=pb.ApiVersion(major=1), numeric_class=self.numeric_class)
        return await self.ask(stubs.MembershipServiceStub, "Register", request)

    async def ask(self, stub: Any, name: str, request: Any, *, address: str = "") -> Any:
        async with grpc.aio.insecure_channel(address or self.address) as channel:
            try:
                return await getattr(stub(channel), name)(request, metadata=self.metadata, timeout=20)
            except grpc.aio.AioRpcError as error:
                raise to_error(error) from error

    async def resolve(self, *, address: str = "") -> pb.ResolveResponse:
        return await self.ask(
            stubs.ResolveServiceStub, "Resolve", pb.ResolveRequest(run_id=self.run_id), address=address
        )

    async def open(self, *, address: str = "") -> None:
        """A session, at the hub that the order named or at another."""
        self.address = address or self.address
        self._channel = grpc.aio.insecure_channel(self.address)
        self._call = stubs.MembershipServiceStub(self._channel).Session(metadata=self.metadata)
        self.ended = None
        await self._call.write(pb.HostMessage(hello=pb.Hello(attempt_id=self.attempt_id, lease_secret=self.secret)))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def _read(self) -> None:
        try:
            while (order := await self._call.read()) is not grpc.aio.EOF:
                if order.WhichOneof("kind") == "prepare":
                    await self.say(prepared=pb.Prepared(epoch=order.prepare.epoch))
                async with self._heard:
                    self.orders.append(order)
                    self._heard.notify_all()
        except grpc.aio.AioRpcError as error:
            async with self._heard:
                self.ended = to_error(error)
                self._heard.notify_all()

    async def _beat(self) -> None:
        while True:
            if not self.silent:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self.say(beat=pb.HostBeat(epoch=self.epoch, watermark=self.watermark))
            await asyncio.sleep(0.5)

    async def say(self, **kind: Any) -> None:
        async with self._saying:
            await self._call.write(pb.HostMessage(**kind))

    @property
    def epoch(self) -> int:
        told = [order.prepare.epoch for order in self.orders if order.WhichOneof("kind") == "prepare"]
        return max(told, default=0)

    async def until(self, kind: str, *, epoch: int = 0) -> Any:
        """The newest order of a kind, once there is one of this epoch or a later one."""
        async with self._heard, asyncio.timeout(WAIT_SECONDS):
            await self._heard.wait_for(lambda: self._list(kind, epoch) or self.ended is not None)
        found = self._list(kind, epoch)
        if not found:
            assert self.ended is not None
            raise self.ended
        return found[-1]

    async def until_ended(self) -> Exception:
        async with self._heard, asyncio.timeout(WAIT_SECONDS):
            await self._heard.wait_for(lambda: self.ended is not None)
        assert self.ended is not None
        return self.ended

    def _list(self, kind: str, epoch: int) -> list[Any]:
        orders = [getattr(order, kind) for order in self.orders if order.WhichOneof("kind") == kind]
        return [order for order in orders if getattr(order, "epoch", epoch) >= epoch]

    async def lose(self, step: int, loss: float) -> None:
        """Tells the loss of a step, counted from 0."""
        self.watermark += 1
        bits = struct.unpack("<Q", struct.pack("<d", loss))[0]
        await self.say(event=pb.HostEvent(epoch=self.epoch, step=step, loss_bits=bits, samples_per_second=9.0))

    async def store(self, step: int, vnode_id: str) -> bytes:
        content = f"{vnode_id} {step}".encode()
        sha256 = hashlib.sha256(content).hexdigest()

        async def pieces() -> AsyncIterator[pb.BlobPiece]:
            yield pb.BlobPiece(sha256=sha256, offset=0, content=content[:3])
            yield pb.BlobPiece(sha256=sha256, offset=3, content=content[3:])

        await self.ask(stubs.BlobServiceStub, "Put", pieces())
        stored = pb.CheckpointStored(
            epoch=self.epoch,
            step=step,
            vnode_id=vnode_id,
            sha256=sha256,
            size_bytes=len(content),
            digest=b"d" * 32,
        )
        await self.say(checkpoint=stored)
        return content

    async def read_blob(self, sha256: str) -> bytes:
        async with grpc.aio.insecure_channel(self.address) as channel:
            request = pb.GetBlobRequest(sha256=sha256)
            try:
                pieces = stubs.BlobServiceStub(channel).Get(request, metadata=self.metadata, timeout=20)
                return b"".join([piece.content async for piece in pieces])
            except grpc.aio.AioRpcError as error:
                raise to_error(error) from error
