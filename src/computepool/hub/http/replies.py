"""What leaves the hub: an answer as bytes. It knows no transport; each of them sends it in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.types import Send


@dataclass(slots=True)
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


class Later(NamedTuple):
    """What an endpoint returns whose answer is being written, by others: `then` makes it out of what that came to.

    An endpoint that waits as a coroutine needs a task, which costs more than most of what the hub does for a call.
    """

    written: asyncio.Future[Any]
    # Gives what an endpoint may give, another `Later` too; or raises a refusal.
    then: Callable[[Any], Any]
