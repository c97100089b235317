"""Calls whose answer is being written by others: both ways give it when it is there, and a caller that has hung up
meanwhile is no harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import Conflict, HubUnavailable, InvalidRequest
from computepool.core.ids import AccountId, KeyId
from computepool.hub.http.hot import HotCalls, HotProtocol
from computepool.hub.http.replies import Later
from computepool.hub.http.routing import Access, Route, answer
from computepool.hub.services.callers import AccountCaller

CALLER = AccountCaller(AccountId(UUID(int=1)), KeyId(UUID(int=2)), frozenset({Role.SUBMITTER}), 100)
PATH = "/v1/things"


class Thing(msgspec.Struct):
    name: str


# What a hub does for a caller, in these tests.
Endpoint = Callable[["Caller"], Any]


def answer_later(caller: Caller) -> Later:
    return Later(caller.written, Thing)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def resume_reading(self) -> None:
        pass


class Caller:
    """One caller of an endpoint that answers later, and the little of a hub that it takes."""

    def __init__(self, endpoint: Endpoint | None = None, *, is_known: bool = True) -> None:
        self.written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.counted: list[int] = []
        endpoint = endpoint or answer_later
        self.route = Route("POST", PATH, Access.SUBMITTER, lambda _: endpoint(self), body=Thing, status=201, hot=True)
        self.hub: Any = SimpleNamespace(
            callers=SimpleNamespace(
                recall_account=lambda _: CALLER if is_known else None,
                get_account=self.load,
            ),
            rate_limits=SimpleNamespace(spend=lambda *_, **__: None),
            metrics=SimpleNamespace(count_call=lambda _, status, __: self.counted.append(status)),
            closing=False,
        )

    async def load(self, _: str) -> AccountCaller:
        await asyncio.sleep(0)
        return CALLER

    def call(self) -> None:
        raise NotImplementedError

    def list_answers(self) -> list[tuple[int, Any]]:
        raise NotImplementedError


class HotCaller(Caller):
    def __init__(self, *args: Any, protocol: type[HotProtocol] = HotProtocol, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls = HotCalls(self.hub, [self.route])
        self.transport, self.protocol = Transport(), protocol(self.calls)
        self.protocol.connection_made(self.transport)

    def call(self) -> None:
        body = b'{"name": "asked"}'
        head = f"POST {PATH} HTTP/1.1\r\nAuthorization: Bearer key\r\nContent-Length: {len(body)}\r\n\r\n"
        self.protocol.data_received(head.encode() + body)

    def list_answers(self) -> list[tuple[int, Any]]:
        answers, left = [], self.transport.written
        while left:
            head, _, left = left.partition(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answers.append((int(head.split()[1]), json.loads(left[:length])))
            left = left[length:]
        return answers


class AsgiCaller(Caller):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tasks: list[asyncio.Task[None]] = []
        self.sent: list[Any] = []

    def call(self) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b'{"name": "asked"}'}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {"type": "http", "method": "POST", "headers": [(b"authorization", b"Bearer key")]}
        self.tasks.append(asyncio.create_task(answer(self.hub, self.route, scope, receive, send)))

    def list_answers(self) -> list[tuple[int, Any]]:
        pairs = zip(self.sent[::2], self.sent[1::2], strict=True)
        return [(start["status"], json.loads(body["body"])) for start, body in pairs]


WAYS = pytest.mark.parametrize("way", [HotCaller, AsgiCaller], ids=["hot", "asgi"])


async def turn() -> None:
    """Whatever can happen now has happened after this."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
async def mishaps():
    """What went wrong where nobody could hear of it: nothing."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield
    assert found == []


@WAYS
@pytest.mark.parametrize("is_known", [True, False])
async def test_the_answer_is_made_of_what_was_written_once_it_is(way, is_known):
    caller = way(is_known=is_known)
    caller.call()
    await turn()
    assert (caller.list_answers(), caller.counted) == ([], [])
    caller.written.set_result("written")
    await turn()
    assert caller.list_answers() == [(201, {"name": "written"})]
    assert caller.counted == [201]


@WAYS
async def test_what_was_written_before_the_call_came_is_answered_too(way):
    caller = way()
    caller.written.set_result("early")
    caller.call()
    await turn()
    assert caller.list_answers() == [(201, {"name": "early"})]


@WAYS
async def test_what_is_to_be_done_then_may_be_to_wait_again(way):
    caller = way(
        lambda caller: Later(caller.written, lambda first: Later(more, lambda second: Thing(first + second)))
    )
    more: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    caller.call()
    caller.written.set_result("one")
    await turn()
    assert caller.list_answers() == []
    more.set_result(" two")
    await turn()
    assert caller.list_answers() == [(201, {"name": "one two"})]


@WAYS
async def test_an_endpoint_that_must_ask_first_may_answer_later_all_the_same(way):
    async def ask(caller: Caller) -> Later:
        await asyncio.sleep(0)
        return answer_later(caller)

    caller = way(ask)
    caller.call()
    await turn()
    caller.written.set_result("written")
    await turn()
    assert caller.list_answers() == [(201, {"name": "written"})]


def refuse(error: Exception) -> Any:
    raise error


@WAYS
@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (InvalidRequest, 400, "invalid_request"),
        (Conflict, 409, "conflict"),
        (HubUnavailable, 503, "hub_unavailable"),
        (ConnectionResetError, 503, "hub_unavailable"),
        (ZeroDivisionError, 500, "error"),
    ],
)
@pytest.mark.parametrize("when", ["at once", "then", "by the write"])
async def test_a_refusal_reaches_the_caller_whenever_it_comes(way, when, kind, status, code):
    error = kind("for a reason")
    endpoints: dict[str, Endpoint] = {
        "at once": lambda _: refuse(error),
        "then": lambda caller: Later(caller.written, lambda _: refuse(error)),
        "by the write": answer_later,
    }
    caller = way(endpoints[when])
    caller.call()
    await turn()
    if when == "by the write":
        caller.written.set_exception(error)
    else:
        caller.written.set_result("written")
    await turn()
    [(told, body)] = caller.list_answers()
    assert (told, body["code"]) == (status, code)
    assert caller.counted == [status]


# What only the hot way has to see to


async def test_a_hot_call_that_waits_is_no_task():
    caller, before = HotCaller(), asyncio.all_tasks()
    caller.call()
    await turn()
    assert asyncio.all_tasks() == before
    caller.written.set_result("written")
    await turn()
    assert len(caller.list_answers()) == 1


async def test_a_call_behind_one_that_waits_is_begun_when_that_is_answered():
    begun: list[asyncio.Future[str]] = []

    def begin(_: Caller) -> Later:
        begun.append(asyncio.get_running_loop().create_future())
        return Later(begun[-1], Thing)

    caller = HotCaller(begin)
    caller.call()
    caller.call()
    await turn()
    assert len(begun) == 1
    begun[0].set_result("first")
    await turn()
    assert (caller.list_answers(), len(begun)) == ([(201, {"name": "first"})], 2)
    begun[1].set_result("second")
    await turn()
    assert [body["name"] for _, body in caller.list_answers()] == ["first", "second"]


async def check_loss(caller: HotCaller, error: Exception | None = None) -> None:
    """What is being written is written, and counted as what it came to; nobody is told."""
    caller.call()
    await turn()
    caller.protocol.connection_lost(None)
    await turn()
    assert not caller.written.cancelled()
    if error is None:
        caller.written.set_result("written")
    else:
        caller.written.set_exception(error)
    await turn()
    assert caller.transport.written == b""
    assert caller.counted == [201 if error is None else 503]
    assert caller.calls.state.connections == set()
    assert (caller.calls._loads, len(caller.calls.state.tasks)) == (0, 0)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("error", [None, HubUnavailable("no"), ConnectionResetError("away")])
async def test_a_connection_that_is_lost_meanwhile_does_no_harm(error, is_known):
    await check_loss(HotCaller(is_known=is_known), error)


async def test_control_a_protocol_that_does_not_notice_the_loss_is_caught():
    class Oblivious(HotProtocol):
        def connection_lost(self, error: Exception | None) -> None:
            self._calls.state.connections.discard(self)

    with pytest.raises(AssertionError):
        await check_loss(HotCaller(protocol=Oblivious))


async def test_a_write_that_was_given_up_is_answered():
    caller = HotCaller()
    caller.call()
    caller.written.cancel()
    await turn()
    [(status, body)] = caller.list_answers()
    assert (status, body["code"]) == (503, "hub_unavailable")


async def test_a_connection_that_is_lost_before_its_caller_is_known_does_no_harm():
    caller = HotCaller(is_known=False)
    caller.call()
    caller.protocol.connection_lost(None)
    await turn()
    caller.written.set_result("written")
    await turn()
    assert (caller.transport.written, caller.counted, caller.calls._loads) == (b"", [201], 0)


async def test_whoever_waits_for_a_write_keeps_nobody_else_from_being_looked_up():
    caller = HotCaller(is_known=False)
    caller.call()
    await turn()
    assert (caller.list_answers(), caller.calls._loads) == ([], 0)
    caller.written.set_result("written")
    await turn()
    assert len(caller.list_answers()) == 1


async def test_a_call_that_waits_when_the_process_ends_is_answered_before_its_connection_is_closed():
    caller = HotCaller()
    caller.call()
    caller.protocol.shutdown()
    await turn()
    assert not caller.transport.closed
    caller.written.set_result("written")
    await turn()
    assert caller.list_answers() == [(201, {"name": "written"})]
    assert b"connection: close" in caller.transport.written
    assert caller.transport.closed


async def test_a_connection_whose_call_waits_for_long_is_not_taken_for_idle():
    caller = HotCaller()
    caller.call()
    caller.protocol.hang_up_if_idle(float("inf"))
    assert not caller.transport.closed
    caller.written.set_result("written")
    await turn()
    caller.protocol.hang_up_if_idle(float("inf"))
    assert caller.transport.closed
