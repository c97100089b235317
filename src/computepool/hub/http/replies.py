"""What leaves the hub: an answer as bytes. It knows no transport; each of them sends it in its own way."""

from __future__ import annotations

from dataclasses import dataclass

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
