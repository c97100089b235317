"""Routes as data: path, who may call, what goes in and out. The app, OpenAPI and the authorisation test read them.

Every request passes the same steps: name the caller, check the role, spend from the rate limit, parse, call,
encode. A route adds only the call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
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
from computepool.hub.http.errors import AWAY, to_response
from computepool.hub.services.callers import AccountCaller, NodeCaller

log = logging.getLogger("computepool.http")

BODY_BYTES_MAX = 1_000_000
NODE_CALLS_PER_MINUTE = 60_000
COOKIE = "computepool_key"


class Access(str, Enum):
    """Who may call a route."""

    PUBLIC = "public"
    ACCOUNT = "account"
    SUBMITTER = "submitter"
    OWNER = "owner"
    OPERATOR = "operator"
    NODE = "node"


@dataclass(slots=True)
class Call:
    hub: Hub
    scope: Scope
    receive: Receive
    send: Send
    caller: AccountCaller | NodeCaller | None
    body: Any
    query: Any
    path: dict[str, Any]

    @property
    def account(self) -> AccountCaller:
        assert isinstance(self.caller, AccountCaller)
        return self.caller

    @property
    def node(self) -> NodeCaller:
        assert isinstance(self.caller, NodeCaller)
        return self.caller

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    def find_header(self, name: bytes) -> str | None:
        """`name` in lower case."""
        return find_header(self.scope, name)

    def stream(self) -> AsyncIterator[bytes]:
        return read_stream(self.receive)


@dataclass(frozen=True, slots=True)
class Reply:
    """A JSON answer, encoded. Most calls are answered so: it costs a third of Starlette's Response."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def __call__(self, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(self.body)), *self.headers]
        if self.body:
            headers.append((b"content-type", b"application/json"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Sent:
    """What an endpoint returns that has answered by itself."""


Endpoint = Callable[[Call], Awaitable[Any]]


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
    # For public routes: calls per minute and address.
    public_per_minute: int = 6_000
    # Of the answer.
    media_type: str = "application/json"

    name: str = field(init=False, default="")
    decode: Callable[[bytes], Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.method} {self.path}")
        object.__setattr__(self, "decode", msgspec.json.Decoder(self.body or Any).decode)


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
    reply: Any
    try:
        reply = await _serve(hub, route, scope, receive, send)
    except ComputePoolError as error:
        reply = to_response(error)
    except ClientDisconnect:
        reply = Response(status_code=499)
    except AWAY as error:
        log.warning("hub_unavailable route=%r error=%r", route.name, error)
        reply = to_response(HubUnavailable("The hub cannot reach its database at the moment. Try again."))
    except Exception:
        log.exception("call_failed route=%r", route.name)
        reply = to_response(ComputePoolError("The hub made a mistake; its log has the details."))
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
    call = Call(
        hub,
        scope,
        receive,
        send,
        caller,
        await _parse_body(route, scope, receive) if route.body else None,
        _parse_query(route, scope) if route.query else None,
        {name: _parse_path(name, value) for name, value in path.items()} if path else {},
    )
    result = await route.endpoint(call)
    if isinstance(result, msgspec.Struct):
        return Reply(msgspec.json.encode(result), route.status)
    return Reply(status=204) if result is None else result


async def _name_caller(hub: Hub, route: Route, scope: Scope) -> AccountCaller | NodeCaller | None:
    if route.access is Access.PUBLIC:
        client = scope.get("client")
        hub.rate_limits.spend((route.name, client[0] if client else "?"), per_minute=route.public_per_minute)
        return None
    credential = read_credential(hub, scope)
    if route.access is Access.NODE:
        node = await hub.callers.get_node(credential)
        hub.plugs.check(node.node_id)
        hub.rate_limits.spend(node.node_id, per_minute=NODE_CALLS_PER_MINUTE)
        return node
    account = await hub.callers.get_account(credential)
    hub.rate_limits.spend(account.account_id, per_minute=account.calls_per_minute_max)
    if route.access is not Access.ACCOUNT and Role(route.access.value) not in account.roles:
        raise Forbidden(f"This needs the role {route.access.value}, which this key does not have.")
    return account


def find_header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def read_credential(hub: Hub, scope: Scope) -> str:
    kind, _, value = (find_header(scope, b"authorization") or "").partition(" ")
    if kind.lower() == "bearer" and value:
        return value.strip()
    cookie = Request(scope).cookies.get(COOKIE)
    if cookie is None:
        raise Unauthenticated("Give a credential: Authorization: Bearer <API key or node token>.")
    check_origin(hub, scope)
    return cookie


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


async def _parse_body(route: Route, scope: Scope, receive: Receive) -> Any:
    raw = await read_bytes(scope, receive, route.body_bytes_max)
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
