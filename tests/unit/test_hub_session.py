"""A host's words with hubs that come and go: what is fetched goes on, and a refused stream is opened again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from computepool.core.networks.errors import RunElsewhere
from computepool.node.vnodes.hub_session import HubSession
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from computepool.wire.rpc import to_error_metadata

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class PlayedHub(stubs.BlobServiceServicer, stubs.MembershipServiceServicer, stubs.ResolveServiceServicer):
    """Gives one blob once it is let, and takes sessions unless another hub owns the run."""

    def __init__(self) -> None:
        self.address = ""
        self.owner_address = ""
        self.asked, self.let = asyncio.Event(), asyncio.Event()
        self.hellos = 0
        self.heard: asyncio.Queue[pb.HostMessage] = asyncio.Queue()

    async def Get(self, request: pb.GetBlobRequest, context: Any) -> AsyncIterator[pb.BlobPiece]:
        self.asked.set()
        await self.let.wait()
        yield pb.BlobPiece(sha256=SHA256, content=CONTENT)

    async def Session(self, messages: Any, context: Any) -> AsyncIterator[pb.HubMessage]:
        self.hellos += 1
        if self.owner_address != self.address:
            refusal = RunElsewhere("Another hub owns this run.", owner_address=self.owner_address)
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, str(refusal), trailing_metadata=to_error_metadata(refusal)
            )
        async for message in messages:
            await self.heard.put(message)
            yield pb.HubMessage(probe=pb.Probe())

    async def Resolve(self, request: pb.ResolveRequest, context: Any) -> pb.ResolveResponse:
        return pb.ResolveResponse(owner_address=self.owner_address)


@asynccontextmanager
async def open_hub() -> AsyncIterator[PlayedHub]:
    hub, server = PlayedHub(), grpc.aio.server()
    stubs.add_BlobServiceServicer_to_server(hub, server)
    stubs.add_MembershipServiceServicer_to_server(hub, server)
    stubs.add_ResolveServiceServicer_to_server(hub, server)
    hub.address = hub.owner_address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield hub
    finally:
        await server.stop(0)


def make_session(address: str) -> HubSession:
    return HubSession(address=address, attempt_id="t", lease_secret="s")


@pytest.mark.timeout(280)
async def test_what_is_being_fetched_comes_although_the_run_has_another_owner_by_then():
    async with open_hub() as old, open_hub() as new:
        session = make_session(old.address)
        fetching = asyncio.create_task(session.read_blob(SHA256))
        await old.asked.wait()
        old.owner_address = new.address
        await session._find_owner()
        assert session._address == new.address
        # Long enough for a channel to close.
        await asyncio.wait({fetching}, timeout=0.2)
        assert not fetching.done(), "whoever waits for it must not be cancelled"
        old.let.set()
        assert await fetching == CONTENT
        await session.close()


@pytest.mark.timeout(280)
async def test_a_hub_that_refuses_while_we_still_speak_is_asked_who_owns_the_run():
    """Many words wait to be said again: the refusal comes in the midst of them."""
    async with open_hub() as old, open_hub() as new:
        old.owner_address = new.address
        session = make_session(old.address)
        for step in range(2_000):
            session.say(pb.HostMessage(event=pb.HostEvent(step=step, samples_per_second=1.0)))

        async def obey(_: pb.HubMessage) -> None:
            return

        running = asyncio.create_task(session.run(pb.Hello(attempt_id="t"), obey))
        first = asyncio.create_task(new.heard.get())
        await asyncio.wait({running, first}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), "it goes on, at another hub"
        assert (await first).HasField("hello")
        assert old.hellos >= 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await session.close()
