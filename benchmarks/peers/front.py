"""The front that every peer stands behind: bare ASGI and msgspec on uvicorn, the leanest HTTP that Python offers.

python -m benchmarks.peers.front PEER --port N      POST /submit, POST /submit-many, GET /done
python -m benchmarks.peers.front PEER --direct N    no HTTP: submits for N seconds, prints jobs done per second
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from typing import Any

import msgspec
import uvicorn
import uvloop

from benchmarks.peers.peer import Peer

_HEADERS = [(b"content-type", b"application/json")]


class Submit(msgspec.Struct):
    payload: str


class SubmitMany(msgspec.Struct):
    payloads: list[str]


_decode_one = msgspec.json.Decoder(Submit).decode
_decode_many = msgspec.json.Decoder(SubmitMany).decode


class Front:
    """Counts what it has acknowledged; what is done it asks the peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._submitted_count = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = await read_body(receive)
        path = scope["path"]
        if path == "/submit":
            await self._peer.submit(_decode_one(body).payload)
            self._submitted_count += 1
            await send_json(send, b"{}")
        elif path == "/submit-many":
            payloads = _decode_many(body).payloads
            await self._peer.submit_many(payloads)
            self._submitted_count += len(payloads)
            await send_json(send, b"{}")
        elif path == "/done":
            done = await self._peer.count_done(self._submitted_count)
            await send_json(send, msgspec.json.encode({"submitted": self._submitted_count, "done": done}))
        else:
            await send_json(send, b"{}")


async def read_body(receive: Any) -> bytes:
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


async def send_json(send: Any, body: bytes) -> None:
    headers = [*_HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve_until_stopped(app: Any, port: int) -> None:
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve()


def serve(app: Any, port: int) -> None:
    uvloop.run(serve_until_stopped(app, port))


async def serve_peer(name: str, port: int) -> None:
    module = importlib.import_module(f"benchmarks.peers.{name}_peer")
    await serve_until_stopped(Front(await module.open_peer()), port)


async def measure_direct(name: str, *, seconds: float, clients: int, batch: int, backlog_max: int) -> float:
    """Jobs done per second without HTTP, submitted by as many tasks as there are HTTP clients otherwise."""
    module = importlib.import_module(f"benchmarks.peers.{name}_peer")
    peer: Peer = await module.open_peer()
    payload = "0:" + "x" * 254
    submitted = 0
    stopped = False
    gate = asyncio.Event()
    gate.set()

    async def submit_all() -> None:
        nonlocal submitted
        while not stopped:
            await gate.wait()
            if batch > 1:
                await peer.submit_many([payload] * batch)
            else:
                await peer.submit(payload)
                # A blocking client would never let the others, or the count, have their turn.
                await asyncio.sleep(0)
            submitted += batch

    await peer.submit(payload)
    submitted = 1
    while await peer.count_done(submitted) < 1:
        await asyncio.sleep(0.05)
    submitters = [asyncio.create_task(submit_all()) for _ in range(clients)]
    warm_at = time.perf_counter() + min(1.0, seconds / 2)
    ends_at = warm_at + seconds
    first: tuple[float, int] | None = None
    while True:
        await asyncio.sleep(0.1)
        done, now = await peer.count_done(submitted), time.perf_counter()
        gate.set() if submitted - done < backlog_max else gate.clear()
        if first is None and now >= warm_at:
            first = (now, done)
        elif first is not None and now >= ends_at:
            break
    stopped = True
    gate.set()
    await asyncio.wait(submitters, timeout=10)
    return (done - first[1]) / (now - first[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("--port", type=int)
    parser.add_argument("--direct", type=float)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--backlog-max", type=int, default=4_096)
    options = parser.parse_args()
    if options.direct is None:
        uvloop.run(serve_peer(options.peer, options.port))
        return
    rate = uvloop.run(
        measure_direct(
            options.peer,
            seconds=options.direct,
            clients=options.clients,
            batch=options.batch,
            backlog_max=options.backlog_max,
        )
    )
    print(json.dumps({"jobs_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
