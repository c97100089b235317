"""A lean HTTP/1.1 client: one keep-alive connection, one call in flight, answers with a Content-Length.

The load generator shares its machine with what it measures, so every microsecond that it spends is taken from the
measured side. It refuses all that the benchmarks do not need: redirects, chunks, pipelining, TLS.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec


class ConnectionLost(Exception):
    """The server closed the connection before it answered."""


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = b""
        # Of an answer whose head is there: its status, where its body begins, and how long that is.
        self._head: tuple[int, int, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio's without being of their class.
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        if self._head is None:
            end = received.find(b"\r\n\r\n")
            if end < 0:
                self._received = received
                return
            self._head = (int(received[9:12]), end + 4, _body_size(received[:end].lower()))
        status, start, size = self._head
        if len(received) < start + size:
            self._received = received
            return
        self._received, self._head = received[start + size :], None
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result((status, received[start : start + size]))

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLost())

    def send(self, head: bytes, body: bytes = b"") -> asyncio.Future[tuple[int, bytes]]:
        """`head` comes from `make_head`; the answer is (status, body)."""
        if self._transport is None:
            raise ConnectionLost
        assert self._answer is None, "one call at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return self._answer

    async def call(self, method: str, path: str, body: Any = None, *, token: str = "") -> tuple[int, Any]:
        """The comfortable form, for preparations: encodes and decodes JSON."""
        raw = b"" if body is None else msgspec.json.encode(body)
        status, answer = await self.send(make_head(method, path, token=token), raw)
        return status, msgspec.json.decode(answer) if answer else None

    @property
    def open(self) -> bool:
        return self._transport is not None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def make_head(method: str, path: str, *, token: str = "") -> bytes:
    """Everything up to the length of the body, so that a loop builds it once."""
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}Content-Type: application/json\r\nContent-Length: "
    ).encode()


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


def _body_size(head: bytes) -> int:
    start = head.find(b"\r\ncontent-length:")
    if start < 0:
        if b"\r\ntransfer-encoding:" in head:
            raise ConnectionLost("this client reads no chunks")
        return 0
    end = head.find(b"\r\n", start + 2)
    return int(head[start + 17 : end if end > 0 else None])
