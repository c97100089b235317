"""The live stream, as server-sent events: one for everybody, one for accounts."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import msgspec

from computepool.core.accounts.roles import Role
from computepool.core.errors import Forbidden, InvalidRequest
from computepool.core.ids import RunId
from computepool.hub.http.routing import Access, Call, Routes, Sent, read_credential
from computepool.hub.live.viewers import Topic, Viewer, say_bye
from computepool.hub.services import runs
from computepool.wire import live as wire

routes = Routes()

# Whoever signs out everywhere is out by then, whatever else fails; browsers connect again by themselves.
STREAM_SECONDS_MAX = 3_600
# A viewer whose socket takes nothing for so long is gone.
SEND_SECONDS_MAX = 15.0
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # Proxies in front must not wait for more.
    (b"x-accel-buffering", b"no"),
]


class PublicQuery(msgspec.Struct, frozen=True, kw_only=True):
    # How long the stream lasts; 0: the first message and no more.
    seconds: float = STREAM_SECONDS_MAX
    # Where an earlier stream ended, for those who cannot set the header Last-Event-ID.
    last_event_id: str = ""


class LiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    # What strangers see, too.
    mesh: bool = False
    # For operators: everybody's events instead of one's own.
    everyone: bool = False
    # Also what happens to this run.
    run: UUID | None = None
    seconds: float = STREAM_SECONDS_MAX
    last_event_id: str = ""


@routes.add(
    "GET",
    "/v1/public/live",
    Access.PUBLIC,
    query=PublicQuery,
    answer=wire.LiveMessage,
    media_type="text/event-stream",
    parks=True,
    public_per_minute=600,
)
async def watch_public(call: Call) -> Sent:
    """What strangers see of the grid, as it happens."""
    client = call.scope.get("client")
    return await _stream(call, Viewer(Topic(mesh=True), origin=client[0] if client else "?"))


@routes.add(
    "GET",
    "/v1/live",
    Access.ACCOUNT,
    query=LiveQuery,
    answer=wire.LiveMessage,
    media_type="text/event-stream",
    parks=True,
)
async def watch(call: Call) -> Sent:
    """What happens to the caller's jobs, nodes and credits, as it happens."""
    query: LiveQuery = call.query
    account = call.account
    if query.everyone and Role.OPERATOR not in account.roles:
        raise Forbidden("Only an operator watches everyone. Leave `everyone` out to watch your own.")
    if query.run is not None:
        await runs.get_run(call.hub.pool, account, RunId(query.run))
    topic = Topic(
        account_id=None if query.everyone else account.account_id,
        everyone=query.everyone,
        mesh=query.mesh,
        run_id=RunId(query.run) if query.run is not None else None,
    )
    credential = read_credential(call.hub, call.scope)
    return await _stream(call, Viewer(topic, origin=account.account_id, credential=credential))


async def _stream(call: Call, viewer: Viewer) -> Sent:
    seconds: float = call.query.seconds
    if not 0 <= seconds <= STREAM_SECONDS_MAX:
        raise InvalidRequest(f"A stream lasts 0 to {STREAM_SECONDS_MAX} seconds.")
    live = call.hub.live
    await live.join(viewer, cursor=call.find_header(b"last-event-id") or call.query.last_event_id)
    watching = asyncio.ensure_future(_end_when_gone(call, viewer))
    ending = asyncio.get_running_loop().call_later(seconds, viewer.end, wire.ByeCode.OVER)
    try:
        await call.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        with contextlib.suppress(TimeoutError):
            await _send_all(call, viewer)
    finally:
        if viewer.bye is wire.ByeCode.SLOW:
            call.hub.metrics.viewers_cut.inc()
        live.leave(viewer)
        ending.cancel()
        watching.cancel()
    return Sent()


async def _send_all(call: Call, viewer: Viewer) -> None:
    while True:
        frames = await viewer.take()
        if viewer.bye is not None:
            frames += say_bye(viewer.bye)
        async with asyncio.timeout(SEND_SECONDS_MAX):
            await call.send({"type": "http.response.body", "body": frames, "more_body": viewer.bye is None})
        if viewer.bye is not None:
            return


async def _end_when_gone(call: Call, viewer: Viewer) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass
    viewer.end(wire.ByeCode.OVER)
