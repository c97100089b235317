"""Routes as data: path, who may call, what goes in and out. The app, OpenAPI and the authorisation test read them.

Every request passes the same steps: name the caller, check the role, spend from the rate limit, parse, call,
encode. A route adds only the call. Here they are taken for whatever comes over ASGI; `hot` takes the same steps for
the calls that are made all day.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import CoroutineType
from typing import Any
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import (
    ComputePoolError,
    Forbidden,
    HubUnavailable,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
)
from computepool.core.jobs.spec import is_sha256
from computepool.hub.context import Hub
from computepool.hub.dispatch.parked import ParkedCall
from computepool.hub.http.errors import AWAY, to_refusal
from computepool.hub.http.replies import Later, Reply
from computepool.hub.services.callers import AccountCaller, NodeCaller

log = logging.getLogger("computepool.http")

BODY_BYTES_MAX = 1_000_000
NODE_CALLS_PER_MINUTE = 60_000
COOKIE = "computepool_key"
# What is counted for a caller that has hung up; nobody reads it.
GONE = 499


class Access(str, Enum):
    """Who may call a route."""

    PUBLIC = "public"
    ACCOUNT = "account"
    SUBMITTER = "submitter"
    OWNER = "owner"
    OPERATOR = "operator"
    NODE = "node"


@dataclass(slots=True)
class PlainCall:
    """What every call brings, by whichever way it came."""

    hub: Hub
    caller: AccountCaller | NodeCaller | None
    body: Any
    # By name, in lower case. Of those that came twice, the first.
    headers: Mapping[bytes, bytes]
    # For a call that parks: to be called once, when there is something to say.
    answer: Callable[[Reply], None]

    @property
    def account(self) -> AccountCaller:
        assert isinstance(self.caller, AccountCaller)
        return self.caller

    @property
    def node(self) -> NodeCaller:
        assert isinstance(self.caller, NodeCaller)
        return self.caller

    def find_header(self, name: bytes) -> str | None:
        """`name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class Call(PlainCall):
    scope: Scope
    receive: Receive
    send: Send
    query: Any
    path: dict[str, Any]

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def address(self) -> str | None:
        """Where the call comes from; for public routes and those that need it."""
        client = self.scope.get("client")
        return str(client[0]) if client else None

    def stream(self) -> AsyncIterator[bytes]:
        return read_stream(self.receive)


class Sent:
    """What an endpoint returns that has answered by itself."""


# Gives a message, a Reply, a Response, `Sent`, `Later` or, if the route parks, a ParkedCall. Or a coroutine that
# does: an endpoint that can mostly answer at once is a plain function, and returns one only when it must wait.
Endpoint = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    access: Access
    endpoint: Endpoint
    body: type | None = None
    query: type | None = None
    answer: type | None = None
    status: int = 200
    body_bytes_max: int = BODY_BYTES_MAX
    # The call is held open on purpose: its time says nothing of the hub's speed.
    parks: bool = False
    # Made all day: `hot` takes it, and its endpoint needs no more than a PlainCall.
    hot: bool = False
    # For public routes: calls per minute and address.
    public_per_minute: int = 6_000
    # It asks where the call comes from, as public routes do: a proxy in front must be asked for that.
    needs_address: bool = False
    # Of the answer.
    media_type: str = "application/json"

    name: str = field(init=False, default="")
    decode: Callable[[bytes], Any] = field(init=False, repr=False)
    # The one that an account needs for it.
    role: Role | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.method} {self.path}")
        object.__setattr__(self, "decode", msgspec.json.Decoder(self.body or Any).decode)
        if self.access in (Access.SUBMITTER, Access.OWNER, Access.OPERATOR):
            object.__setattr__(self, "role", Role(self.access.value))


@dataclass(slots=True)
class Routes:
    routes: list[Route] = field(default_factory=list)

    def add(self, method: str, path: str, access: Access, **options: Any) -> Callable[[Endpoint], Endpoint]:
        def register(endpoint: Endpoint) -> Endpoint:
            self.routes.append(Route(method, path, access, endpoint, **options))
            return endpoint

        return register


async def answer(hub: Hub, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
    started = clock.seconds()
    try:
        reply = await _serve(hub, route, scope, receive, send)
    except Exception as error:
        reply = explain(route, error)
    seconds = None if route.parks else clock.seconds() - started
    if type(reply) is Reply:
        hub.metrics.count_call(route.name, reply.status, seconds)
        await reply(send)
    elif isinstance(reply, Response):
        hub.metrics.count_call(route.name, reply.status_code, seconds)
        await reply(scope, receive, send)
    else:
        hub.metrics.count_call(route.name, 200, seconds)


async def _serve(hub: Hub, route: Route, scope: Scope, receive: Receive, send: Send) -> Any:
    caller = await _name_caller(hub, route, scope)
    path = scope.get("path_params")
    told = asyncio.get_running_loop().create_future() if route.parks else None
    call = Call(
        hub,
        caller,
        await _read_body(route, scope, receive) if route.body else None,
        dict(reversed(scope["headers"])),
        told.set_result if told else _answer_nobody,
        scope,
        receive,
        send,
        _parse_query(route, scope) if route.query else None,
        {name: _parse_path(name, value) for name, value in path.items()} if path else {},
    )
    result = route.endpoint(call)
    if type(result) is CoroutineType:
        result = await result
    while type(result) is Later:
        result = result.then(await result.written)
    if told is not None and type(result) is ParkedCall:
        return await _hold(hub, result, told, receive)
    return to_reply(route, result)


def _answer_nobody(_: Reply) -> None:
    raise RuntimeError("Only routes that park are answered later.")


async def _hold(hub: Hub, parked: ParkedCall, told: asyncio.Future[Reply], receive: Receive) -> Reply:
    """Until the call is answered, or the node has hung up."""
    listening = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((told, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        hub.reception.leave(parked)
    if not told.done():
        raise ClientDisconnect
    return told.result()


def to_reply(route: Route, result: Any) -> Any:
    """What an endpoint has returned, as it is sent."""
    if isinstance(result, msgspec.Struct):
        return Reply(msgspec.json.encode(result), route.status)
    return Reply(status=204) if result is None else result


def explain(route: Route, error: Exception) -> Reply:
    """What a caller is told whose call has failed."""
    if isinstance(error, ComputePoolError):
        return to_refusal(error)
    if isinstance(error, ClientDisconnect):
        return Reply(status=GONE)
    if isinstance(error, AWAY):
        log.warning("hub_unavailable route=%r error=%r", route.name, error)
        return to_refusal(HubUnavailable("The hub cannot reach its database at the moment. Try again."))
    log.error("call_failed route=%r", route.name, exc_info=error)
    return to_refusal(ComputePoolError("The hub made a mistake; its log has the details."))


async def _name_caller(hub: Hub, route: Route, scope: Scope) -> AccountCaller | NodeCaller | None:
    if route.access is Access.PUBLIC:
        client = scope.get("client")
        hub.rate_limits.spend((route.name, client[0] if client else "?"), per_minute=route.public_per_minute)
        return None
    credential = read_credential(hub, scope)
    caller = recall_caller(hub, route, credential) or await load_caller(hub, route, credential)
    check_caller(hub, route, caller)
    return caller


def recall_caller(hub: Hub, route: Route, credential: str) -> AccountCaller | NodeCaller | None:
    """Who it is, if that is known without asking the database."""
    if route.access is Access.NODE:
        return hub.callers.recall_node(credential)
    return hub.callers.recall_account(credential)


async def load_caller(hub: Hub, route: Route, credential: str) -> AccountCaller | NodeCaller:
    if route.access is Access.NODE:
        return await hub.callers.get_node(credential)
    return await hub.callers.get_account(credential)


def check_caller(hub: Hub, route: Route, caller: AccountCaller | NodeCaller) -> None:
    """May it call this, now?"""
    if isinstance(caller, NodeCaller):
        hub.plugs.check(caller.node_id)
        hub.rate_limits.spend(caller.node_id, per_minute=NODE_CALLS_PER_MINUTE)
        return
    hub.rate_limits.spend(caller.account_id, per_minute=caller.calls_per_minute_max)
    if route.role is not None and route.role not in caller.roles:
        raise Forbidden(f"This needs the role {route.access.value}, which this key does not have.")


def find_header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def read_credential(hub: Hub, scope: Scope) -> str:
    bearer = read_bearer(find_header(scope, b"authorization") or "")
    if bearer:
        return bearer
    cookie = Request(scope).cookies.get(COOKIE)
    if cookie is None:
        raise Unauthenticated("Give a credential: Authorization: Bearer <API key or node token>.")
    check_origin(hub, scope)
    return cookie


def read_bearer(authorization: str) -> str:
    """Empty if it is none."""
    kind, _, value = authorization.partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


_HARMLESS = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = ("same-origin", "none")


def check_origin(hub: Hub, scope: Scope) -> None:
    """A browser sends cookies by itself, so that a page from elsewhere must not be able to use them.

    What changes something must say where it comes from: every browser does, by one of two headers, and no page can
    forge either. A proxy in front passes on the `Host` that the browser has used, or PUBLIC_URL names it.
    """
    origin, site = find_header(scope, b"origin"), find_header(scope, b"sec-fetch-site")
    own = (find_header(scope, b"host"), hub.settings.public_host)
    if origin is not None and origin.split("://")[-1] not in own:
        raise Forbidden("This request comes from another site.")
    if scope["method"] in _HARMLESS:
        return
    if site is not None and site not in _OWN_SITES:
        raise Forbidden("This request comes from another site.")
    if origin is None and site is None:
        raise Forbidden(
            "With a cookie, say where the call comes from (Origin). Programs use Authorization: Bearer <API key>."
        )


async def read_stream(receive: Receive, message: Message | None = None) -> AsyncIterator[bytes]:
    """`message` is one that was received already."""
    while True:
        message = message or await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return
        message = None


async def read_bytes(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The whole body, refused as soon as it is too large rather than when it has arrived."""
    declared = find_header(scope, b"content-length") or ""
    if declared.isdigit() and int(declared) > bytes_max:
        raise PayloadTooLarge(
            f"This call takes {bytes_max:,} bytes at most. Large files go to PUT /v1/artifacts/{{sha256}}."
        )
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        # Nearly every body arrives in one piece.
        whole = message.get("body", b"")
        if len(whole) > bytes_max:
            raise PayloadTooLarge(f"This call takes {bytes_max:,} bytes at most.")
        return bytes(whole)
    parts, size = [], 0
    async for part in read_stream(receive, message):
        size += len(part)
        if size > bytes_max:
            raise PayloadTooLarge(f"This call takes {bytes_max:,} bytes at most.")
        parts.append(part)
    return b"".join(parts)


async def _read_body(route: Route, scope: Scope, receive: Receive) -> Any:
    return parse_body(route, await read_bytes(scope, receive, route.body_bytes_max))


def parse_body(route: Route, raw: bytes) -> Any:
    try:
        return route.decode(raw or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not as expected: {error}.") from None


def _parse_query(route: Route, scope: Scope) -> Any:
    try:
        return msgspec.convert(dict(QueryParams(scope["query_string"])), route.query, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The query is not as expected: {error}.") from None


_PATH_INT = re.compile(r"[0-9]{1,6}\Z")


def _parse_path(name: str, value: str) -> Any:
    """An id that cannot exist is answered like one that does not."""
    if name.endswith("_id"):
        try:
            return UUID(value)
        except ValueError:
            raise NotFound("There is no such thing here: ids are UUIDs.") from None
    if name == "sha256":
        if not is_sha256(value):
            raise NotFound("A file is named by its sha256: 64 lower-case hex digits.")
        return value
    if name == "index":
        if not _PATH_INT.match(value):
            raise NotFound("Slices are numbered from 0.")
        return int(value)
    return value
