"""What is taken for a hot call is read as uvicorn's parser reads it; what leaves room for doubt is left to that."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.hub.http.app import all_routes
from computepool.hub.http.hot import BODY_BYTES_MAX, HEAD_BYTES_MAX, HotRoutes, Request

HOT = HotRoutes(all_routes())
PATHS = sorted(route.path for route in all_routes() if route.hot)


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
    assert (request.route.path, request.credential, request.body) == (path, "token", b'{"a": 1}')
    assert request.headers[b"idempotency-key"] == b"k 1"
    assert request.keeps_alive


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
    assert not read(make("/v1/jobs", b"{}", "Connection: Close")).keeps_alive


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
    assert {name: value.strip(b" \t") for name, value in whole.headers} == request.headers
    assert whole.parser.should_keep_alive() == request.keeps_alive
