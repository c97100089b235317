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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

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
    request: Request
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

    def stream(self) -> AsyncIterator[bytes]:
        return self.request.stream()


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

    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.method} {self.path}")


@dataclass(slots=True)
class Routes:
    routes: list[Route] = field(default_factory=list)

    def add(self, method: str, path: str, access: Access, **options: Any) -> Callable[[Endpoint], Endpoint]:
        def register(endpoint: Endpoint) -> Endpoint:
            self.routes.append(Route(method, path, access, endpoint, **options))
            return endpoint

        return register


async def answer(hub: Hub, route: Route, request: Request) -> Response:
    started = clock.seconds()
    try:
        response = await _serve(hub, route, request)
    except ComputePoolError as error:
        response = to_response(error)
    except ClientDisconnect:
        response = Response(status_code=499)
    except AWAY as error:
        log.warning("hub_unavailable route=%r error=%r", route.name, error)
        response = to_response(HubUnavailable("The hub cannot reach its database at the moment. Try again."))
    except Exception:
        log.exception("call_failed route=%r", route.name)
        response = to_response(ComputePoolError("The hub made a mistake; its log has the details."))
    seconds = None if route.parks else clock.seconds() - started
    hub.metrics.count_call(route.name, response.status_code, seconds)
    return response


async def _serve(hub: Hub, route: Route, request: Request) -> Response:
    caller = await _name_caller(hub, route, request)
    call = Call(
        hub=hub,
        request=request,
        caller=caller,
        body=await _parse_body(route, request) if route.body else None,
        query=_parse_query(route, request) if route.query else None,
        path={name: _parse_path(name, value) for name, value in request.path_params.items()},
    )
    result = await route.endpoint(call)
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=204)
    return Response(msgspec.json.encode(result), status_code=route.status, media_type="application/json")


async def _name_caller(hub: Hub, route: Route, request: Request) -> AccountCaller | NodeCaller | None:
    if route.access is Access.PUBLIC:
        address = request.client.host if request.client else "?"
        hub.rate_limits.spend((route.name, address), per_minute=route.public_per_minute)
        return None
    credential = _read_credential(request)
    if route.access is Access.NODE:
        node = await hub.callers.get_node(credential)
        hub.rate_limits.spend(node.node_id, per_minute=NODE_CALLS_PER_MINUTE)
        return node
    account = await hub.callers.get_account(credential)
    hub.rate_limits.spend(account.account_id, per_minute=account.calls_per_minute_max)
    if route.access is not Access.ACCOUNT and Role(route.access.value) not in account.roles:
        raise Forbidden(f"This needs the role {route.access.value}, which this key does not have.")
    return account


def _read_credential(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value:
        return value.strip()
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        raise Unauthenticated("Give a credential: Authorization: Bearer <API key or node token>.")
    # A browser sends cookies by itself, so a page from elsewhere must not be able to use them.
    origin = request.headers.get("origin")
    if origin is not None and origin.split("://")[-1] != request.headers.get("host"):
        raise Forbidden("This request comes from another site.")
    return cookie


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """The whole body, refused as soon as it is too large rather than when it has arrived."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise PayloadTooLarge(
            f"This call takes {bytes_max:,} bytes at most. Large files go to PUT /v1/artifacts/{{sha256}}."
        )
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise PayloadTooLarge(f"This call takes {bytes_max:,} bytes at most.")
        parts.append(part)
    return b"".join(parts)


async def _parse_body(route: Route, request: Request) -> Any:
    raw = await read_bytes(request, route.body_bytes_max)
    try:
        return msgspec.json.decode(raw or b"{}", type=route.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not as expected: {error}.") from None


def _parse_query(route: Route, request: Request) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), route.query, strict=False)
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
