"""The calls that are made all day, read from the wire and answered without ASGI.

Nodes and submitters make few kinds of calls, in plain HTTP/1.1, again and again. What looks exactly like one of them
is read here, takes the steps of `routing`, and is answered by one write; a parked call keeps nothing but itself and
its timer. Whatever looks different in any way (another path, chunks, cookies, HTTP/1.0, a long body) is uvicorn's: it
gets the bytes as they came. So this room need not know all of HTTP, only what it is sure of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from computepool import clock
from computepool.core.errors import HubUnavailable
from computepool.hub.context import Hub
from computepool.hub.dispatch.parked import ParkedCall
from computepool.hub.http.replies import Later, Reply
from computepool.hub.http.routing import (
    GONE,
    PlainCall,
    Route,
    check_caller,
    explain,
    load_caller,
    parse_body,
    read_bearer,
    recall_caller,
    to_reply,
)
from computepool.hub.services.callers import AccountCaller, NodeCaller

# What is kept of a call before it is known whose it is; uvicorn would keep as much. Longer ones are its own.
HEAD_BYTES_MAX = 16_384
BODY_BYTES_MAX = 65_536
# What is kept of the calls behind one that is not answered yet.
WAITING_BYTES_MAX = 65_536
# More bytes than there will ever be: of a call that waits for its turn to be looked at again.
IN_LINE = 1 << 60
# Heads that are remembered as they were read: callers say the same again and again, up to the length of a body. Long
# ones are not: nobody has looked yet who it is that sends them.
HEADS_MAX = 2_048
REMEMBERED_HEAD_BYTES_MAX = 2_048
# Callers that are looked up at once. After a hub's start a whole fleet comes: the others wait as the bytes they sent.
LOADS_MAX = 64

_START = b"POST /v1/"
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_CONTROLS = bytes({*range(32), 127} - {ord("\t")})
# What these say of a call is not understood here.
_STRANGE = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))


class Head(NamedTuple):
    """All of a request but its body."""

    route: Route
    credential: str
    headers: dict[bytes, bytes]
    body_size: int
    keeps_alive: bool


class Request(NamedTuple):
    head: Head
    body: bytes


class HotRoutes:
    """Recognises requests. Pure: bytes in, a request out."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {f"{r.method} {r.path} HTTP/1.1".encode(): r for r in routes if r.hot}
        self._heads: dict[bytes, Head] = {}

    def read(self, received: bytes) -> tuple[Request, int] | int | None:
        """A request and how long it was; or how many bytes there must be to look again; or None: it is not for us."""
        end = received.find(b"\r\n\r\n")
        if end < 0:
            may_be = received.startswith(_START) if len(received) >= len(_START) else _START.startswith(received)
            return len(received) + 1 if may_be and len(received) < HEAD_BYTES_MAX else None
        raw = received[:end]
        head = self._heads.get(raw)
        if head is None:
            head = self._read_head(raw)
            if head is None:
                return None
            self._remember(raw, head)
        body_at, length = end + 4, end + 4 + head.body_size
        if len(received) < length:
            return length
        return Request(head, received[body_at:length]), length

    def _remember(self, raw: bytes, head: Head) -> None:
        if len(raw) <= REMEMBERED_HEAD_BYTES_MAX:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[raw] = head

    def _read_head(self, raw: bytes) -> Head | None:
        start = raw.find(b"\r\n")
        route = self._routes.get(raw[:start]) if start >= 0 else None
        if route is None or len(raw) > HEAD_BYTES_MAX:
            return None
        headers = _read_headers(raw[start + 2 :])
        if headers is None:
            return None
        size = headers.get(b"content-length", b"")
        credential = read_bearer(headers.get(b"authorization", b"").decode("latin-1"))
        connection = headers.get(b"connection", b"keep-alive").lower()
        if not size.isdigit() or len(size) > 5 or int(size) > BODY_BYTES_MAX or not credential:
            return None
        if connection not in (b"keep-alive", b"close"):
            return None
        return Head(route, credential, headers, int(size), connection == b"keep-alive")


def _read_headers(block: bytes) -> dict[bytes, bytes] | None:
    """None where there is room for doubt: whoever stands before us might have read it otherwise."""
    lines = block.split(b"\r\n")
    # Between two lines there is one CR and one LF; any other is as forbidden as other controls are.
    if len(block.translate(None, _CONTROLS)) != len(block) - 2 * (len(lines) - 1):
        return None
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not name or not colon:
            return None
        headers[name.lower()] = value.strip(b" \t")
    if len(headers) != len(lines) or not _STRANGE.isdisjoint(headers) or b"".join(headers).translate(None, _TOKEN):
        return None
    return headers


class HotCalls:
    """What the connections of one hub process share. Given to uvicorn in the place of a protocol's class."""

    def __init__(self, hub: Hub, routes: Iterable[Route]) -> None:
        self.hub = hub
        self.routes = HotRoutes(routes)
        self.state = ServerState()
        self.keep_alive_seconds = 0.0
        self._loads = 0
        self._line: deque[HotProtocol] = deque()
        self._config: Config | None = None
        self._app_state: dict[str, Any] = {}
        self._told: list[tuple[bytes, bytes]] | None = None
        self._head = b""

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> HotProtocol:
        self._config, self.state, self._app_state = config, server_state, app_state
        self.keep_alive_seconds = config.timeout_keep_alive
        return HotProtocol(self)

    def open_whole(self, transport: asyncio.Transport) -> WholeProtocol:
        assert self._config is not None
        whole = WholeProtocol(self._config, self.state, self._app_state)
        whole.connection_made(transport)
        return whole

    def begin_load(self, connection: HotProtocol) -> bool:
        """Whether the caller of its call can be looked up now. If not, the connection is told when it is its turn."""
        if self._loads >= LOADS_MAX:
            self._line.append(connection)
            return False
        self._loads += 1
        return True

    def end_load(self) -> None:
        self._loads -= 1
        while self._line and self._loads < LOADS_MAX:
            self._line.popleft().take_turn()

    def hang_up_idle(self) -> None:
        """On connections that were not used for long. A timer for each would cost every call more than this."""
        latest = clock.seconds() - self.keep_alive_seconds
        for connection in [c for c in self.state.connections if type(c) is HotProtocol]:
            connection.hang_up_if_idle(latest)

    def word(self, reply: Reply, *, keeps_alive: bool) -> bytes:
        headers = self.state.default_headers
        if headers is not self._told:
            # uvicorn makes them anew once a second, because of the date.
            self._told, self._head = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
        more = b"".join([b"%b: %b\r\n" % header for header in reply.headers]) if reply.headers else b""
        if not keeps_alive:
            more += b"connection: close\r\n"
        if not reply.body:
            return b"%b%bcontent-length: 0\r\n%b\r\n" % (STATUS_LINE[reply.status], self._head, more)
        return b"%b%bcontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n%b" % (
            STATUS_LINE[reply.status],
            self._head,
            len(reply.body),
            more,
            reply.body,
        )


class WholeProtocol(HttpToolsProtocol):
    """uvicorn's own way, which takes everything. It is told apart when a connection is between two calls on it."""

    _between = True

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._between = True

    @property
    def is_idle(self) -> bool:
        return self._between and not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def leave(self) -> None:
        """The connection goes on without it."""
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        # They know each other, and would wait for the garbage collector.
        self.parser = None  # type: ignore[assignment]


class HotProtocol(asyncio.Protocol):
    """One connection. It has one call at a time; what comes behind it waits, so that answers leave in order."""

    __slots__ = (
        "_calls",
        "_choked",
        "_closing",
        "_going_on",
        "_needed",
        "_parked",
        "_received",
        "_route",
        "_since",
        "_transport",
        "_whole",
    )

    def __init__(self, calls: HotCalls) -> None:
        self._calls = calls
        self._transport: asyncio.Transport | None = None
        # Not read yet; it is of no use to look before there are so many bytes.
        self._received = b""
        self._needed = 0
        # The call that is being answered, since when, and whether it is parked.
        self._route: Route | None = None
        self._since = clock.seconds()
        self._parked: ParkedCall | None = None
        self._closing = False
        self._going_on = False
        # The other side does not read what it is sent.
        self._choked = False
        # While there is one, the connection is its own, except between two calls.
        self._whole: WholeProtocol | None = None

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio's without being of their class.
        self._transport = transport  # type: ignore[assignment]
        self._calls.state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, error: Exception | None) -> None:
        self._calls.state.connections.discard(self)
        self._received = b""
        self._transport = None
        if self._whole is not None:
            self._whole.connection_lost(error)
            self._whole = None
        parked, self._parked = self._parked, None
        if parked is not None:
            # Its slots are offered no more.
            self._calls.hub.reception.leave(parked)
            self._count(GONE)

    def data_received(self, data: bytes) -> None:
        if self._whole is not None:
            if not self._whole.is_idle:
                self._whole.data_received(data)
                return
            self._whole._unset_keepalive_if_required()
        self._received = self._received + data if self._received else data
        if self._route is None:
            self._since = clock.seconds()
            self._go_on()
        must_wait = self._route is not None or self._choked or self._needed == IN_LINE
        if must_wait and len(self._received) > WAITING_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._choked = True
        if self._whole is not None:
            self._whole.pause_writing()

    def resume_writing(self) -> None:
        self._choked = False
        if self._whole is not None:
            self._whole.resume_writing()
        self._resume()

    # What uvicorn's server says

    def shutdown(self) -> None:
        """The process ends: after the call that is being answered, if there is one."""
        if self._route is not None:
            self._closing = True
        elif self._whole is None and self._transport is not None:
            self._transport.close()

    def hang_up_if_idle(self, latest: float) -> None:
        if self._route is None and self._whole is None and self._since < latest and self._transport is not None:
            self._transport.close()

    # One call after the other

    def _resume(self) -> None:
        if self._received and not self._going_on and self._transport is not None:
            self._transport.resume_reading()
            self._go_on()

    def _go_on(self) -> None:
        """A loop, so that many calls that are answered at once do not nest in each other."""
        self._going_on = True
        try:
            self._read_calls()
        finally:
            self._going_on = False

    def _read_calls(self) -> None:
        while self._route is None and not self._choked and len(self._received) > self._needed:
            read = self._calls.routes.read(self._received)
            if type(read) is int:
                self._needed = read - 1
            elif type(read) is tuple:
                self._begin(*read)
            else:
                self._pass_on()
                return

    def _pass_on(self) -> None:
        received, self._received, self._needed = self._received, b"", 0
        if self._transport is not None and not self._transport.is_closing():
            if self._whole is None:
                self._whole = self._calls.open_whole(self._transport)
            self._whole.data_received(received)

    def take_turn(self) -> None:
        self._needed = 0
        self._resume()

    def _begin(self, request: Request, length: int) -> None:
        head, refusal, caller = request.head, None, None
        route = head.route
        try:
            caller = recall_caller(self._calls.hub, route, head.credential)
        except Exception as error:
            refusal = explain(route, error)
        if caller is None and refusal is None and not self._calls.begin_load(self):
            self._needed = IN_LINE
            return
        if self._whole is not None:
            self._whole.leave()
            self._whole = None
        self._received, self._needed, self._route = self._received[length:], 0, route
        self._closing = self._closing or not head.keeps_alive
        if refusal is not None:
            self.answer(refusal)
        elif caller is None:
            self._follow(self._load(request))
        else:
            self._serve(request, caller)

    def _serve(self, request: Request, caller: AccountCaller | NodeCaller) -> None:
        try:
            result = self._call(request, caller)
        except Exception as error:
            self.answer(explain(request.head.route, error))
            return
        if type(result) is CoroutineType:
            self._follow(result)
        else:
            self._take(result)

    def _call(self, request: Request, caller: AccountCaller | NodeCaller) -> Any:
        hub, head = self._calls.hub, request.head
        route = head.route
        check_caller(hub, route, caller)
        body = parse_body(route, request.body)
        # It takes no more than a PlainCall, or it would not be hot.
        return route.endpoint(PlainCall(hub, caller, body, head.headers, self.answer))  # type: ignore[arg-type]

    async def _load(self, request: Request) -> Any:
        try:
            caller = await load_caller(self._calls.hub, request.head.route, request.head.credential)
            result = self._call(request, caller)
            return await result if type(result) is CoroutineType else result
        finally:
            self._calls.end_load()

    def _follow(self, waiting: Coroutine[Any, Any, Any]) -> None:
        """What cannot be answered at once goes on in a task, which uvicorn waits for when it ends."""
        task = asyncio.create_task(self._wait(waiting))
        self._calls.state.tasks.add(task)
        task.add_done_callback(self._calls.state.tasks.discard)

    async def _wait(self, waiting: Coroutine[Any, Any, Any]) -> None:
        assert self._route is not None
        try:
            result = await waiting
        except Exception as error:
            self.answer(explain(self._route, error))
        else:
            self._take(result)

    def _take(self, result: Any) -> None:
        if type(result) is Later:
            result.written.add_done_callback(partial(self._take_written, result.then))
        elif type(result) is not ParkedCall:
            assert self._route is not None
            self.answer(to_reply(self._route, result))
        elif not result.open:
            # It was answered while it was being parked, or is being put into words.
            return
        elif self._transport is None:
            # The node has hung up meanwhile.
            self._calls.hub.reception.leave(result)
            self._count(GONE)
        else:
            self._parked = result

    def _take_written(self, then: Callable[[Any], Any], written: asyncio.Future[Any]) -> None:
        assert self._route is not None
        try:
            result = then(written.result())
        except asyncio.CancelledError:
            self.answer(explain(self._route, HubUnavailable("This hub has given the call up. Try again.")))
        except Exception as error:
            self.answer(explain(self._route, error))
        else:
            self._take(result)

    def answer(self, reply: Reply) -> None:
        self._parked = None
        self._count(reply.status)
        self._since = clock.seconds()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        keeps_alive = not self._closing and not self._calls.hub.closing
        transport.write(self._calls.word(reply, keeps_alive=keeps_alive))
        if keeps_alive:
            if self._received and not self._going_on:
                # Not now: whoever answers is in the middle of something, and the next call might meddle with it.
                asyncio.get_running_loop().call_soon(self._resume)
        else:
            self._received = b""
            transport.close()

    def _count(self, status: int) -> None:
        route, self._route = self._route, None
        if route is not None:
            seconds = None if route.parks else clock.seconds() - self._since
            self._calls.hub.metrics.count_call(route.name, status, seconds)
