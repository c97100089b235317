"""The limit of the HTTP stack: a bare ASGI application that decodes a typed body and encodes it again."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from benchmarks.peers.front import read_body, send_json, serve


class Order(msgspec.Struct):
    """About 300 bytes, the size of a small call."""

    id: str
    payload: str
    slots: list[str]
    seconds: float


_decode = msgspec.json.Decoder(Order).decode


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send_json(send, msgspec.json.encode(_decode(await read_body(receive))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    serve(app, parser.parse_args().port)
