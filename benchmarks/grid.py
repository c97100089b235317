"""Our side of a benchmark: a hub process on a real PostgreSQL, and clients that speak its public HTTP API.

The clients know the API from docs/reference/node-protocol.md alone; what the hub does behind it is not their affair.
Nodes sign true receipts, which the hub verifies. They do not verify job tokens: that work is spread over the
machines of a grid, and here it would be taken from the one machine that is measured.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.http_load import Connection, connect, make_head
from benchmarks.peers.processes import free_port, running, wait_listening
from computepool.hub.config import HubSettings
from computepool.hub.store.embedded import EmbeddedPostgres

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
WAIT_SECONDS = 30.0
_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def running_postgres() -> AsyncIterator[tuple[str, Path]]:
    """The DSN of a server that keeps its word (fsync and synchronous_commit on), and a folder for logs."""
    with tempfile.TemporaryDirectory(prefix="cp-bench-") as name:
        folder = Path(name)
        # As root the server runs as another user, who must be able to reach its data.
        folder.chmod(0o755)
        server = EmbeddedPostgres(folder / "database")
        dsn = await server.start()
        try:
            yield dsn, folder
        finally:
            await server.stop()


def has_setting(name: str) -> bool:
    return name in {field.name for field in msgspec.structs.fields(HubSettings)}


@dataclass(frozen=True, slots=True)
class HubAddress:
    port: int
    pid: int
    openapi: dict[str, Any]


@contextlib.asynccontextmanager
async def running_hub(
    dsn: str, folder: Path, settings: Mapping[str, object] | None = None
) -> AsyncIterator[HubAddress]:
    port = free_port()
    log = folder / f"hub-{port}.log"
    env = {
        "PORT": str(port),
        "DATABASE_URL": dsn,
        "COMPUTEPOOL_HUB_DATA_DIR": str(folder / f"hub-{port}"),
        "COMPUTEPOOL_HUB_DEMO": "true",
        # The limit protects a hub from one account; here a few accounts are the whole world.
        "COMPUTEPOOL_HUB_CALLS_PER_MINUTE_MAX": "100000000",
        **{f"COMPUTEPOOL_HUB_{name.upper()}": str(value) for name, value in (settings or {}).items()},
    }
    with running(["-m", "computepool.hub"], log=log, env=env, program=sys.executable) as process:
        await wait_listening(port, process, log)
        connection = await connect(port)
        _, openapi = await connection.call("GET", "/openapi.json")
        connection.close()
        yield HubAddress(port, process.pid, openapi)


async def sign_up(connection: Connection) -> str:
    """A new account's API key."""
    number = next(_numbers)
    body = {"email": f"bench{number}@example.org", "name": f"bench{number}"}
    status, answer = await connection.call("POST", "/v1/accounts", body)
    if status != 201:
        raise RuntimeError(f"sign-up was refused: {status} {answer}")
    return str(answer["key"]["secret"])


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A call that carries many items in the one array of its body."""

    path: str
    field: str


def find_batch_call(openapi: Mapping[str, Any], *words: str) -> BatchCall | None:
    """The POST whose path ends in /batch and contains all `words`, if this hub has it."""
    for path, item in openapi["paths"].items():
        if "post" not in item or not path.endswith("/batch") or not all(word in path for word in words):
            continue
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        while "$ref" in schema:
            schema = openapi["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        arrays = [name for name, prop in schema.get("properties", {}).items() if prop.get("type") == "array"]
        if len(arrays) == 1:
            return BatchCall(path, arrays[0])
    return None


class Given(msgspec.Struct):
    """What a node must keep of an assignment."""

    attempt_id: str
    lease_secret: str
    order: str


class _Answer(msgspec.Struct):
    assignments: list[Given] = []


_decode_answer = msgspec.json.Decoder(_Answer).decode


class Node:
    """Holds one connection and all its slots free between two calls, so that its question never changes."""

    def __init__(self, connection: Connection, *, slots: int = 1, complete_batch: BatchCall | None = None) -> None:
        self.connection = connection
        self._slots = [f"cpu:{i}" for i in range(slots)]
        self._private = Ed25519PrivateKey.generate()
        self._boot_id = str(uuid.uuid4())
        self._complete_batch = complete_batch

    async def enrol(self, owner_key: str) -> None:
        count = len(self._slots)
        body = {
            "name": "bench",
            "public_key": _base64url(self._private.public_key().public_bytes_raw()).decode(),
            "hardware": {
                "cores": count,
                "ram_bytes": 4_000_000_000 * count,
                "disk_bytes": 20_000_000_000 * count,
                "cpu_slots": count,
            },
            "isolation": "sandboxed",
        }
        status, answer = await self.connection.call("POST", "/v1/nodes", body, token=owner_key)
        if status != 201:
            raise RuntimeError(f"enrolment was refused: {status} {answer}")
        token = answer["token"]
        self._next_head = make_head("POST", "/v1/jobs/next", token=token)
        self._complete_head = make_head("POST", "/v1/jobs/complete", token=token)
        if self._complete_batch:
            self._complete_many_head = make_head("POST", self._complete_batch.path, token=token)
        question = {"boot_id": self._boot_id, "free_slots": self._slots, "wait_seconds": WAIT_SECONDS}
        self._next_body = msgspec.json.encode(question)
        # Everything of a receipt that is the same for all attempts, spelt out once.
        self._receipt_head = _base64url(b'{"alg":"EdDSA","typ":"computepool-receipt+jwt"}')
        self._claims = (
            f'{{"iss":"{answer["node_id"]}","aud":"{answer["hub_id"]}","result_sha256":"{EMPTY_SHA256}",'
            f'"exit_code":0,"run_seconds":0.0,"iat":%d,"jti":"%s"}}'
        )
        self._completion = (
            f'{{"boot_id":"{self._boot_id}","exit_code":0,"result_sha256":"{EMPTY_SHA256}",'
            f'"attempt_id":"%s","lease_secret":"%s","receipt":"%s"}}'
        )

    async def next(self) -> list[Given]:
        """Parks until there is work, or until the hub has held the call for long enough."""
        status, body = await self.connection.send(self._next_head, self._next_body)
        if status == 200:
            return _decode_answer(body).assignments
        if status not in (204, 429, 503):
            raise RuntimeError(f"next was refused: {status} {body[:300]!r}")
        if status != 204:
            await asyncio.sleep(0.01)
        return []

    async def complete(self, given: list[Given], on_accepted: Callable[[int], None]) -> None:
        """By one call each, or by one call for all if the hub offers that; tells of each as it is answered."""
        if self._complete_batch is not None and len(given) > 1:
            items = ",".join(self._to_completion(one) for one in given)
            body = f'{{"{self._complete_batch.field}":[{items}]}}'.encode()
            on_accepted(await self._send_completion(self._complete_many_head, body))
            return
        for one in given:
            on_accepted(await self._send_completion(self._complete_head, self._to_completion(one).encode()))

    async def _send_completion(self, head: bytes, body: bytes) -> int:
        while True:
            status, answer = await self.connection.send(head, body)
            if status == 200:
                return answer.count(b'"accepted":true')
            if status not in (429, 503):
                raise RuntimeError(f"complete was refused: {status} {answer[:300]!r}")
            await asyncio.sleep(0.01)

    def _to_completion(self, given: Given) -> str:
        claims = self._claims % (int(time.time()), given.attempt_id)
        signed = self._receipt_head + b"." + _base64url(claims.encode())
        receipt = signed + b"." + _base64url(self._private.sign(signed))
        return self._completion % (given.attempt_id, given.lease_secret, receipt.decode())


def _base64url(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
