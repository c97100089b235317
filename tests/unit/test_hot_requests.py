"""What is taken for a hot call is read as uvicorn's parser reads it; what leaves room for doubt is left to that."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.hub.http import hot as hot_module
from computepool.hub.http.app import all_routes
from computepool.hub.http.hot import BODY_BYTES_MAX, HEAD_BYTES_MAX, HotRoutes, Request

ROUTES = all_routes()
HOT = HotRoutes(ROUTES)
PATHS = sorted(route.path for route in ROUTES if route.hot)


def make(
    path: str = "/v1/nodes/heartbeat",
    body: bytes = b"{}",
    *more: str,
    method: str = "POST",
    version: str = "1.1",
    bearer: str = "Authorization: Bearer token",
    length: str | None = None,
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: hub", bearer, f"Content-Length: {length or len(body)}", *more]
    return "\r\n".join(line for line in lines if line).encode("latin-1") + b"\r\n\r\n" + body


def read(received: bytes) -> Request:
    found = HOT.read(received)
    assert isinstance(found, tuple)
    assert found[1] == len(received)
    return found[0]


class Whole:
    """What uvicorn's parser makes of a request."""

    def __init__(self, received: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = self.body = b""
        self.complete = 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(received)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def test_the_calls_that_are_made_all_day_are_hot():
    assert PATHS == [
        "/v1/jobs",
        "/v1/jobs/batch",
        "/v1/jobs/complete",
        "/v1/jobs/complete/batch",
        "/v1/jobs/next",
        "/v1/nodes/heartbeat",
    ]


@pytest.mark.parametrize("path", PATHS)
def test_a_hot_call_is_recognised(path):
    request = read(make(path, b'{"a": 1}', "Idempotency-Key:  k 1 "))
    head = request.head
    assert (head.route.path, head.credential, request.body) == (path, "token", b'{"a": 1}')
    assert head.headers[b"idempotency-key"] == b"k 1"
    assert head.keeps_alive


def test_every_prefix_of_a_hot_call_waits_for_more():
    whole = make(body=b"x" * 50)
    for end in range(len(whole)):
        wanted = HOT.read(whole[:end])
        assert isinstance(wanted, int)
        assert end < wanted <= len(whole)


def test_what_comes_behind_a_call_is_left():
    found = HOT.read(make(body=b"one") + make(body=b"other"))
    assert isinstance(found, tuple)
    assert (found[0].body, found[1]) == (b"one", len(make(body=b"one")))


def test_a_caller_may_ask_for_the_connection_to_be_closed():
    assert not read(make("/v1/jobs", b"{}", "Connection: Close")).head.keeps_alive


@pytest.mark.parametrize(
    "received",
    [
        make(method="GET"),
        make(method="PUT"),
        make("/v1/jobs/1234"),
        make("/v1/jobs?limit=1"),
        make("/v1/jobs/"),
        make("/v1/accounts"),
        make("http://hub/v1/jobs"),
        make(version="1.0"),
        make(version="2.0"),
        make(bearer=""),
        make(bearer="Authorization: Basic abc"),
        make(bearer="Authorization: Bearer "),
        make(bearer="Cookie: computepool_key=abc"),
        make(body=b"", length="+5"),
        make(body=b"", length="-5"),
        make(body=b"", length="0x5"),
        make(body=b"", length="1, 1"),
        make(body=b"", length=" "),
        make(body=b"", length=str(BODY_BYTES_MAX + 1)),
        make(body=b"", length="9" * 30),
        make("/v1/jobs", b"{}", "Content-Length: 3"),
        make("/v1/jobs", b"{}", "content-length: 2"),
        make("/v1/jobs", b"{}", "Authorization: Bearer other"),
        make("/v1/jobs", b"{}", "Transfer-Encoding: chunked"),
        make("/v1/jobs", b"{}", "Transfer-Encoding : chunked"),
        make("/v1/jobs", b"{}", "Expect: 100-continue"),
        make("/v1/jobs", b"{}", "Upgrade: websocket"),
        make("/v1/jobs", b"{}", "Connection: upgrade"),
        make("/v1/jobs", b"{}", "Connection: keep-alive, close"),
        make("/v1/jobs", b"{}", "X: a\r\n b"),
        make("/v1/jobs", b"{}", "X: a\nTransfer-Encoding: chunked"),
        make("/v1/jobs", b"{}", "X: a\rb"),
        make("/v1/jobs", b"{}", "X: a\0b"),
        make("/v1/jobs", b"{}", "X Y: a"),
        make("/v1/jobs", b"{}", "X\u00fc: a"),
        make("/v1/jobs", b"{}", ": a"),
        make("/v1/jobs", b"{}", "X"),
        make("/v1/jobs", b"{}", "X: " + "a" * HEAD_BYTES_MAX),
        b"POST /v1/jobs HTTP/1.1\r\n\r\n",
        b"POST /v1/" + b"a" * HEAD_BYTES_MAX,
        b"GET ",
        b"\r\nPOST /v1/jobs",
        b"\x16\x03\x01",
    ],
    ids=lambda received: repr(received[:120]),
)
def test_what_looks_different_is_left_to_uvicorn(received):
    assert HOT.read(received) is None


names = st.text(st.characters(min_codepoint=0, max_codepoint=255), min_size=1, max_size=12)
tempting = st.sampled_from(
    ["Content-Length", "Transfer-Encoding", "Connection", "Authorization", "X-Any", " X", "X "]
)
values = st.one_of(
    st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=20),
    st.sampled_from(["chunked", "identity", "0", "2", "02", "close", "keep-alive", "Bearer b", "a\r\n b", "a\nB: c"]),
)
lines = st.lists(st.tuples(st.one_of(names, tempting), st.sampled_from([":", ": ", " : ", ""]), values), max_size=3)


@given(lines, st.binary(max_size=20))
def test_uvicorns_parser_reads_the_same_out_of_it(more: list[tuple[str, str, str]], body: bytes):
    """Or whoever stands before the hub could be made to see other calls than the hub does."""
    received = make("/v1/jobs", body, *["".join(line) for line in more])
    found: Any = HOT.read(received)
    if not isinstance(found, tuple):
        return
    request, length = found
    whole = Whole(received[:length])
    assert whole.complete == 1
    assert (whole.url, whole.body) == (b"/v1/jobs", request.body)
    assert {name: value.strip(b" \t") for name, value in whole.headers} == request.head.headers
    assert whole.parser.should_keep_alive() == request.head.keeps_alive


# Heads that are remembered


@given(lines, st.binary(max_size=20))
def test_a_head_that_is_remembered_is_read_as_one_that_is_not(more: list[tuple[str, str, str]], body: bytes):
    """`HOT` has seen much by now; the other one nothing."""
    received = make("/v1/jobs", body, *["".join(line) for line in more])
    fresh = HotRoutes(ROUTES)
    first = fresh.read(received)
    assert first == fresh.read(received) == HOT.read(received)
    assert len(fresh._heads) == isinstance(first, tuple)


def test_a_request_that_comes_again_is_not_parsed_again(monkeypatch):
    hot, parsed = HotRoutes(ROUTES), []
    really = hot._read_head
    monkeypatch.setattr(hot, "_read_head", lambda raw: parsed.append(raw) or really(raw))
    whole = make(body=b"one")
    assert hot.read(whole) == hot.read(whole) == hot.read(whole)
    assert len(parsed) == 1


@pytest.mark.parametrize(
    "received",
    [
        make(bearer=""),
        make(version="1.0"),
        make("/v1/accounts"),
        make("/v1/jobs", b"{}", "Transfer-Encoding: chunked"),
        make("/v1/jobs", b"{}", "X: " + "a" * HEAD_BYTES_MAX),
        make(body=b"", length=str(BODY_BYTES_MAX + 1)),
        make()[:-10],
    ],
    ids=lambda received: repr(received[:60]),
)
def test_only_a_head_that_was_understood_is_remembered(received):
    hot = HotRoutes(ROUTES)
    answers = [hot.read(received) for _ in range(2)]
    assert not isinstance(answers[0], tuple)
    assert answers[0] == answers[1]
    assert hot._heads == {}


def read_all(hot: HotRoutes) -> list[tuple[str, str, bytes, bytes | None, bool]]:
    """Requests that differ in little from each other."""
    found = []
    for received in (
        make("/v1/jobs", b"{}", "Idempotency-Key: a"),
        make("/v1/jobs", b"{ }", "Idempotency-Key: a"),
        make("/v1/jobs", b"{}", "Idempotency-Key: b"),
        make("/v1/jobs", b"{}", "Idempotency-Key: a", bearer="Authorization: Bearer other"),
        make("/v1/jobs", b"{}", "Idempotency-Key: a", "Connection: close"),
        make("/v1/jobs/batch", b"{}", "Idempotency-Key: a"),
        make("/v1/jobs", b"[]", "Idempotency-Key: a"),
    ):
        answer = hot.read(received)
        assert isinstance(answer, tuple)
        head, body = answer[0]
        found.append((head.route.path, head.credential, body, head.headers.get(b"idempotency-key"), head.keeps_alive))
    return found


EXPECTED = [
    ("/v1/jobs", "token", b"{}", b"a", True),
    ("/v1/jobs", "token", b"{ }", b"a", True),
    ("/v1/jobs", "token", b"{}", b"b", True),
    ("/v1/jobs", "other", b"{}", b"a", True),
    ("/v1/jobs", "token", b"{}", b"a", False),
    ("/v1/jobs/batch", "token", b"{}", b"a", True),
    ("/v1/jobs", "token", b"[]", b"a", True),
]


def test_another_length_or_token_is_another_head_and_another_body_is_not():
    hot = HotRoutes(ROUTES)
    assert read_all(hot) == read_all(hot) == EXPECTED
    assert len(hot._heads) == 6


@pytest.mark.parametrize("forgets", [b"authorization", b"content-length", b"idempotency-key", b"connection", b"post"])
def test_control_a_memory_that_does_not_look_at_all_of_a_head_is_caught(forgets):
    class Careless(dict):
        def get(self, raw, default=None):
            return super().get(self._shorten(raw), default)

        def __setitem__(self, raw, head):
            super().__setitem__(self._shorten(raw), head)

        def _shorten(self, raw):
            return b"\n".join(line for line in raw.split(b"\r\n") if not line.lower().startswith(forgets))

    hot = HotRoutes(ROUTES)
    hot._heads = Careless()
    with pytest.raises(AssertionError):
        assert read_all(hot) == EXPECTED


def test_no_more_heads_are_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(hot_module, "HEADS_MAX", 3)
    hot = HotRoutes(ROUTES)
    for number in range(20):
        whole = make(bearer=f"Authorization: Bearer {number}")
        found = hot.read(whole)
        assert isinstance(found, tuple)
        assert found[0].head.credential == f"{number}"
        assert hot.read(whole) == found
        assert 1 <= len(hot._heads) <= 3


def test_long_heads_of_nobody_knows_whom_are_not_remembered():
    hot = HotRoutes(ROUTES)
    assert isinstance(
        hot.read(make(bearer="Authorization: Bearer " + "x" * hot_module.REMEMBERED_HEAD_BYTES_MAX)), tuple
    )
    assert not hot._heads


def test_a_head_that_is_remembered_waits_for_its_body_as_at_first():
    hot, whole = HotRoutes(ROUTES), make(body=b"x" * 50)
    hot.read(whole)
    for end in range(len(whole)):
        wanted = hot.read(whole[:end])
        assert isinstance(wanted, int)
        assert end < wanted <= len(whole)
    assert hot.read(whole[:-1]) == len(whole)
    assert hot.read(whole + b"behind") == hot.read(whole)
