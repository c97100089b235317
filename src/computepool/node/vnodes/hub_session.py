"""A host's calls to the hub: who it is, orders down, beats and events up, blobs both ways.

The stream is opened again whenever it ends, at whichever hub owns the run by then: a hub that is away for a while
costs the run nothing but its decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from computepool import entropy
from computepool.core.errors import ComputePoolError, HubUnavailable
from computepool.core.networks.errors import RunElsewhere
from computepool.node import journal
from computepool.node.vnodes.edges import Tls, open_channel
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from computepool.wire.rpc import (
    API_VERSION,
    ATTEMPT_ID,
    LEASE_SECRET,
    VERSION,
    from_error_metadata,
)

CALL_SECONDS = 10.0
RESOLVE_SECONDS = 3.0
KNOWN_MAX = 8
BLOB_SECONDS = 600.0
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 2.0
PIECE_BYTES = 256 * 1024
# Words to the hub that may wait while it is away; beats are not kept.
WAITING_MAX = 10_000
# Said again on every new stream: what was on its way when the last one ended may be lost, and to hear it twice does
# not hurt.
LASTING = frozenset({"event", "checkpoint", "fault", "digest"})

DIGESTS_KEPT_MAX = 64

OnOrder = Callable[[pb.HubMessage], Awaitable[None]]


class HubSession:
    def __init__(self, *, address: str, attempt_id: str, lease_secret: str, tls: Tls | None = None) -> None:
        self.run_id = ""
        self._address = address
        # Hubs that were heard of, the newest first: any of them can name the owner.
        self._known = [address]
        self._tls = tls
        self._attempt_id = attempt_id
        self._lease_secret = lease_secret
        self._metadata = (
            (ATTEMPT_ID, attempt_id),
            (LEASE_SECRET, lease_secret),
            (VERSION, f"{API_VERSION[0]}.{API_VERSION[1]}"),
        )
        self._waiting: asyncio.Queue[pb.HostMessage] = asyncio.Queue(WAITING_MAX)
        self._lasting: deque[pb.HostMessage] = deque(maxlen=WAITING_MAX)
        self._channel: Any = None
        # Of hubs that do not own the run any more; calls that are under way there may come to their end.
        self._retiring: set[asyncio.Task[None]] = set()
        # Of blobs: whoever waits for one sees by it that it comes.
        self.pieces_read = 0

    async def register(self, *, node_id: str, numeric_class: str, address: str, memory_bytes: int) -> Any:
        """Asked until there is an answer; a refusal is raised as what it is."""
        request = pb.RegisterRequest(
            version=pb.ApiVersion(major=API_VERSION[0], minor=API_VERSION[1]),
            node_id=node_id,
            attempt_id=self._attempt_id,
            lease_secret=self._lease_secret,
            numeric_class=numeric_class,
            address=address,
            memory_bytes_free=memory_bytes,
        )

        async def ask() -> Any:
            members = stubs.MembershipServiceStub(self._open())
            return await members.Register(request, metadata=self._metadata, timeout=CALL_SECONDS)

        answer = await self._insist(ask)
        self.run_id = answer.run_id
        return answer

    def say(self, message: pb.HostMessage) -> None:
        """On its way as soon as there is a stream. What cannot wait any longer is dropped, and said so."""
        if message.WhichOneof("kind") in LASTING:
            self._lasting.append(message)
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            journal.warning("word_dropped", kind=message.WhichOneof("kind"))

    def forget(self) -> None:
        """A new epoch: what was said of older ones need not be said again, but for what they are audited by."""
        kept = [message for message in self._lasting if message.HasField("digest")]
        self._lasting = deque(kept[-DIGESTS_KEPT_MAX:], maxlen=WAITING_MAX)

    async def run(self, hello: pb.Hello, on_order: OnOrder) -> None:
        """Until it is cancelled: one stream after the other."""
        pause_seconds = BACKOFF_SECONDS
        while True:
            try:
                if await self._converse(hello, on_order):
                    pause_seconds = BACKOFF_SECONDS
            except grpc.aio.AioRpcError as error:
                refusal = _to_error(error)
                journal.warning("session_lost", reason=str(refusal))
                if not refusal.retryable:
                    raise refusal from None
                if isinstance(refusal, RunElsewhere):
                    self._move(str(refusal.details.get("owner_address", "")))
            except asyncio.InvalidStateError:
                # It ended while we still spoke; why, the next one tells.
                journal.warning("session_lost", reason="the hub ended it")
            await asyncio.sleep(pause_seconds * (0.5 + entropy.jitter() / 2))
            pause_seconds = min(2 * pause_seconds, BACKOFF_SECONDS_MAX)
            await self._find_owner()

    async def _converse(self, hello: pb.Hello, on_order: OnOrder) -> bool:
        """One stream, to its end. Says whether the hub has said anything."""
        call = stubs.MembershipServiceStub(self._open()).Session(metadata=self._metadata)
        await call.write(pb.HostMessage(hello=hello))
        for message in list(self._lasting):
            await call.write(message)
        speaking = asyncio.create_task(self._speak(call))
        heard = False
        try:
            while (order := await call.read()) is not grpc.aio.EOF:
                heard = True
                await on_order(order)
            return heard
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            call.cancel()

    async def _speak(self, call: Any) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                if not message.HasField("beat"):
                    # The next stream begins with it. Order among such words does not matter: each says its step.
                    self.say(message)
                return

    async def resolve(self) -> Any:
        """Who owns the run, and a fresh token for its streams; None if no hub that was heard of answers."""
        request = pb.ResolveRequest(run_id=self.run_id)
        for address in list(self._known):
            try:
                async with open_channel(address, self._tls) as channel:
                    resolve = stubs.ResolveServiceStub(channel)
                    return await resolve.Resolve(request, metadata=self._metadata, timeout=RESOLVE_SECONDS)
            except grpc.aio.AioRpcError as error:
                journal.info("owner_unknown", address=address, reason=str(_to_error(error)))
        return None

    async def _find_owner(self) -> None:
        """Another hub may own the run by now."""
        found = await self.resolve()
        if found is not None:
            self._move(found.owner_address)

    async def leave(self, reason: str, *, seconds: float) -> None:
        """Best effort: a hub that does not hear it finds out by itself."""
        request = pb.LeaveRequest(attempt_id=self._attempt_id, lease_secret=self._lease_secret, reason=reason)
        members = stubs.MembershipServiceStub(self._open())
        with contextlib.suppress(grpc.aio.AioRpcError):
            await members.Leave(request, metadata=self._metadata, timeout=seconds)

    # Blobs

    async def read_blob(self, sha256: str) -> bytes:
        """Whole and as named, or not at all."""

        async def read() -> bytes:
            blobs = stubs.BlobServiceStub(self._open())
            request = pb.GetBlobRequest(sha256=sha256, run_id=self.run_id)
            parts = []
            async for piece in blobs.Get(request, metadata=self._metadata, timeout=BLOB_SECONDS):
                parts.append(piece.content)
                self.pieces_read += 1
            return b"".join(parts)

        content = await self._insist(read)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise HubUnavailable(f"The bytes that came for {sha256} are not those that it names.")
        return bytes(content)

    async def write_blob(self, sha256: str, content: bytes) -> None:
        async def write() -> None:
            blobs = stubs.BlobServiceStub(self._open())
            pieces = _cut(sha256, content, self.run_id)
            await blobs.Put(pieces, metadata=self._metadata, timeout=BLOB_SECONDS)

        await self._insist(write)

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    # Ways

    def _open(self) -> Any:
        if self._channel is None:
            self._channel = open_channel(self._address, self._tls)
        return self._channel

    def _move(self, address: str) -> None:
        if not address or address == self._address:
            return
        journal.info("owner_changed", address=address)
        self._known = [address, *(each for each in self._known if each != address)][:KNOWN_MAX]
        channel, self._channel = self._channel, None
        self._address = address
        if channel is not None:
            # Closed at once, it would cancel what is fetched through it, and with it whoever waits for that: an order
            # to prepare would end without a word.
            task = asyncio.create_task(channel.close(BLOB_SECONDS))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _insist(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Again and again as long as it may pass: whoever waits for it is cancelled by an order, not by us."""
        pause_seconds = BACKOFF_SECONDS
        while True:
            try:
                return await ask()
            except grpc.aio.AioRpcError as error:
                refusal = _to_error(error)
                if not refusal.retryable:
                    raise refusal from None
                journal.info("hub_call_failed", reason=str(refusal))
            await asyncio.sleep(pause_seconds * (0.5 + entropy.jitter() / 2))
            pause_seconds = min(2 * pause_seconds, BACKOFF_SECONDS_MAX)


def _to_error(error: grpc.aio.AioRpcError) -> ComputePoolError:
    return from_error_metadata(error.trailing_metadata(), f"{error.code().name}: {error.details()}")


async def _cut(sha256: str, content: bytes, run_id: str) -> AsyncIterator[pb.BlobPiece]:
    for offset in range(0, max(1, len(content)), PIECE_BYTES):
        piece = content[offset : offset + PIECE_BYTES]
        yield pb.BlobPiece(sha256=sha256, offset=offset, content=piece, run_id=run_id)
