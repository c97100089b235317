"""Our side of a benchmark: a hub process on a real PostgreSQL, and clients that speak its public HTTP API.

The clients know the API from docs/reference/node-protocol.md alone; what the hub does behind it is not their affair.
Nodes sign true receipts. They do not verify job tokens: that work is spread over the machines of a grid, and here it
would be taken from the one machine that is measured.
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.http_load import Connection, make_head
from benchmarks.peers.processes import free_port, running, wait_listening
from computepool.hub.config import HubSettings
from computepool.hub.store.embedded import EmbeddedPostgres

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
WAIT_SECONDS = 30.0
# Pause after "not now" (429, 503): the hub's Retry-After is meant for agents, not for a load that must not let up.
RETRY_SECONDS = 0.01
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


@contextlib.asynccontextmanager
async def running_hub(
    dsn: str,
    folder: Path,
    settings: Mapping[str, object] | None = None,
    *,
    data_dir: Path | None = None,
    money: bool = False,
) -> AsyncIterator[HubAddress]:
    """`data_dir` is given when several hubs, or one after the other, share a database: they share its files too.

    Peers know no money, so nothing costs anything here unless `money` is on.
    """
    port = free_port()
    log = folder / f"hub-{port}.log"
    env = {
        "PORT": str(port),
        "DATABASE_URL": dsn,
        "COMPUTEPOOL_HUB_DATA_DIR": str(data_dir or folder / f"hub-{port}"),
        "COMPUTEPOOL_HUB_DEMO": "true",
        # These limits protect a hub from one account and its nodes; here a few accounts are the whole world.
        "COMPUTEPOOL_HUB_CALLS_PER_MINUTE_MAX": "100000000",
        "COMPUTEPOOL_HUB_QUEUED_SLICES_MAX": "100000000",
        "COMPUTEPOOL_HUB_WELCOME_MICROCREDITS": str(10**15),
        **{f"COMPUTEPOOL_HUB_{name.upper()}": str(value) for name, value in (settings or {}).items()},
    }
    program = "computepool.hub" if money else "benchmarks.free_hub"
    with running(["-m", program], log=log, env=env, program=sys.executable) as process:
        await wait_listening(port, process, log)
        yield HubAddress(port, process.pid)


async def sign_up(connection: Connection) -> str:
    """A new account's API key."""
    number = next(_numbers)
    body = {"email": f"bench{number}-{uuid.uuid4().hex[:8]}@example.org", "name": f"bench{number}"}
    status, answer = await connection.call("POST", "/v1/accounts", body)
    if status != 201:
        raise RuntimeError(f"sign-up was refused: {status} {answer}")
    return str(answer["key"]["secret"])


async def submit(connection: Connection, key: str, *specs: Mapping[str, object]) -> None:
    """For preparations: all of them are taken, or it fails."""
    status, answer = await connection.call("POST", "/v1/jobs/batch", {"jobs": specs}, token=key)
    refused = [each["error"] for each in answer["answers"] if each.get("error")] if status in (200, 201) else [answer]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(specs)} jobs were refused, the first with {status} {refused[0]}")


class Given(msgspec.Struct):
    """What a node must keep of an assignment."""

    attempt_id: str
    lease_secret: str
    # Read only by those who want to know what they run.
    order: msgspec.Raw = msgspec.Raw()


class _Next(msgspec.Struct):
    assignments: list[Given] = []


class _Outcome(msgspec.Struct):
    accepted: bool = False


class _Completed(msgspec.Struct):
    accepted: bool = False
    next: _Next | None = None


class _CompletedMany(msgspec.Struct):
    answers: list[_Outcome]
    next: _Next | None = None


_decode_next = msgspec.json.Decoder(_Next).decode
_decode_completed = msgspec.json.Decoder(_Completed).decode
_decode_completed_many = msgspec.json.Decoder(_CompletedMany).decode


def make_offer(*, slots: int = 1, **changes: object) -> dict[str, Any]:
    """A machine of so many CPU slots, as an agent would describe it."""
    hardware = {
        "cores": slots,
        "ram_bytes": 4_000_000_000 * slots,
        "disk_bytes": 20_000_000_000 * slots,
        "cpu_slots": slots,
    }
    return {"name": "bench", "hardware": hardware, "isolation": "sandboxed", **changes}


class Node:
    """Has one call open at a time and all its slots free between two calls, so that its questions never change."""

    def __init__(self, offer: Mapping[str, Any] | None = None, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.offer = offer or make_offer()
        self.wait_seconds = wait_seconds
        self.node_id = ""
        self.token = ""
        self.boot_id = str(uuid.uuid4())
        self.connection: Connection | None = None
        # For the next call only: to spread calls that would otherwise come all at once, for ever.
        self.wait_seconds_once: float | None = None
        self._private = Ed25519PrivateKey.generate()

    @property
    def slots(self) -> Sequence[str]:
        hardware = self.offer["hardware"]
        return [f"gpu:{i}" for i in range(len(hardware.get("gpus", ())))] + [
            f"cpu:{i}" for i in range(hardware["cpu_slots"])
        ]

    async def enrol(self, connection: Connection, owner_key: str) -> None:
        """The connection may be any; from then on the node uses the one that it is given as its own."""
        public_key = _base64url(self._private.public_key().public_bytes_raw()).decode()
        body = {**self.offer, "public_key": public_key}
        status, answer = await connection.call("POST", "/v1/nodes", body, token=owner_key)
        if status != 201:
            raise RuntimeError(f"enrolment was refused: {status} {answer}")
        self.accept(node_id=answer["node_id"], hub_id=answer["hub_id"], token=answer["token"])

    def accept(self, *, node_id: str, hub_id: str, token: str) -> None:
        """Spells out once what is the same in all its calls."""
        self.node_id, self.token = node_id, token
        self._next_head = make_head("POST", "/v1/jobs/next", token=token)
        self._complete_head = make_head("POST", "/v1/jobs/complete", token=token)
        self._complete_many_head = make_head("POST", "/v1/jobs/complete/batch", token=token)
        self._next_body = self.to_question(self.wait_seconds)
        self._receipt_head = _base64url(b'{"alg":"EdDSA","typ":"computepool-receipt+jwt"}')
        self._claims = f'{{"iss":"{node_id}","aud":"{hub_id}","iat":%d,"results":{{%s}}}}'
        claim = msgspec.json.encode({"free_slots": self.slots}).decode()
        # The last thing in every completion: whose it is, what is claimed next, and the receipt.
        self._tail = f'"boot_id":"{self.boot_id}","claim":{claim},"receipt":"%s"}}'

    async def next(self) -> list[Given]:
        """Parks until there is work, or until the hub has held the call for long enough."""
        assert self.connection is not None
        question = self._next_body
        if self.wait_seconds_once is not None:
            question, self.wait_seconds_once = self.to_question(self.wait_seconds_once), None
        status, body = await self.connection.send(self._next_head, question)
        if status == 200:
            return _decode_next(body).assignments
        if status not in (204, 429, 503):
            raise RuntimeError(f"next was refused: {status} {body[:300]!r}")
        if status != 204:
            await asyncio.sleep(RETRY_SECONDS)
        return []

    async def complete(self, given: Sequence[Given], on_accepted: Callable[[int], None]) -> list[Given]:
        """All of them in one call, under one receipt. Returns what the claim that it carries has brought."""
        if len(given) == 1:
            one = _decode_completed(await self._send_completion(self._complete_head, self.to_completion(given[0])))
            on_accepted(int(one.accepted))
            return one.next.assignments if one.next else []
        body = self.to_completions(given)
        many = _decode_completed_many(await self._send_completion(self._complete_many_head, body))
        on_accepted(sum(outcome.accepted for outcome in many.answers))
        return many.next.assignments if many.next else []

    def to_question(self, wait_seconds: float) -> bytes:
        return msgspec.json.encode({"boot_id": self.boot_id, "free_slots": self.slots, "wait_seconds": wait_seconds})

    async def _send_completion(self, head: bytes, body: bytes) -> bytes:
        assert self.connection is not None
        while True:
            status, answer = await self.connection.send(head, body)
            if status == 200:
                return answer
            if status not in (429, 503):
                raise RuntimeError(f"complete was refused: {status} {answer[:300]!r}")
            await asyncio.sleep(RETRY_SECONDS)

    def to_completion(self, given: Given) -> bytes:
        return f"{{{_to_end(given)},{self._tail % self._sign([given])}".encode()

    def to_completions(self, given: Sequence[Given]) -> bytes:
        ends = ",".join(f"{{{_to_end(one)}}}" for one in given)
        return f'{{"completions":[{ends}],{self._tail % self._sign(given)}'.encode()

    def _sign(self, given: Sequence[Given]) -> str:
        results = ",".join(_RESULT % one.attempt_id for one in given)
        claims = self._claims % (int(time.time()), results)
        signed = self._receipt_head + b"." + _base64url(claims.encode())
        return (signed + b"." + _base64url(self._private.sign(signed))).decode()


_RESULT = f'"%s":{{"result_sha256":"{EMPTY_SHA256}","run_seconds":0.0,"exit_code":0}}'
_END = f'"attempt_id":"%s","lease_secret":"%s","exit_code":0,"result_sha256":"{EMPTY_SHA256}"'


def _to_end(given: Given) -> str:
    return _END % (given.attempt_id, given.lease_secret)


def _base64url(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
