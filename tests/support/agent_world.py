"""An agent's insides without its loops: the hub is only a transport, and runners end when the test says so."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import entropy
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import tokens
from computepool.node.adoption import list_left_behind
from computepool.node.agent import make_slots
from computepool.node.attempts import Surroundings
from computepool.node.config import NodeConfig
from computepool.node.hardware.detect import Detected
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient
from computepool.node.identity import Identity
from computepool.node.input_cache import InputCache
from computepool.node.outfit import Wardrobe
from computepool.node.packages import PackageCache
from computepool.node.runner import handle
from computepool.node.runner.request import AttemptRequest
from computepool.node.runner.status import FINISHED, RUNNING, VANISHED, Status
from computepool.node.sandbox.port import Report
from computepool.node.spent_tokens import SpentTokens
from computepool.node.state_dir import StateDir
from computepool.node.walls import Walls
from computepool.wire.attempts import Assignment, NextAnswer, RunOrder
from computepool.wire.nodes import EnrolledNode, EnrolNode, Hardware, HubKey

HUB_PRIVATE = Ed25519PrivateKey.generate()
# The parts of a completion; the rest of a call belongs to the call.
COMPLETION_FIELDS = (
    "attempt_id",
    "lease_secret",
    "exit_code",
    "cause",
    "message",
    "usage",
    "outputs",
    "result_sha256",
)

Body = dict[str, Any]
Answer = Callable[[Body], httpx.Response]


class Line:
    """Stands for the wire: notes every call and answers as told."""

    def __init__(self) -> None:
        # Bodies of the calls that completed something, in order; a batch has `completions`.
        self.calls: list[Body] = []
        self.uploads: dict[str, bytes] = {}
        self.inputs: dict[str, bytes] = {}
        self.log = b""
        # Checkpoints that were sent, and what the slice has.
        self.checkpoints: list[Body] = []
        self.kept: list[Body] = []
        # Answers to these calls, in order; the last one is repeated.
        self.answers: list[Answer] = [accept]
        # Bodies of the calls for work; each is held open until it is answered or given up.
        self.nexts: list[Body] = []
        self.parked: asyncio.Future[httpx.Response] | None = None
        # While this is not set, a call that completes something is under way.
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path in ("/v1/jobs/complete", "/v1/jobs/complete/batch"):
            answer = self.answers[min(len(self.calls), len(self.answers) - 1)]
            body = json.loads(request.content)
            assert ("completions" in body) == path.endswith("/batch")
            self.calls.append(body)
            await self.open.wait()
            return answer(body)
        if path == "/v1/jobs/next":
            self.nexts.append(json.loads(request.content))
            self.parked = asyncio.get_running_loop().create_future()
            return await self.parked
        name = path.rsplit("/", 1)[-1]
        if path.endswith("/checkpoint"):
            return self.hear_checkpoint(request)
        if "/outputs/" in path:
            content = await request.aread()
            self.uploads[name] = content
            return httpx.Response(200, json={"sha256": name, "size_bytes": len(content)})
        if "/inputs/" in path:
            if name not in self.inputs:
                return httpx.Response(404, json={"code": "not_found", "message": "no such input"})
            return httpx.Response(200, content=self.inputs[name])
        offset = int(request.url.params["offset"])
        self.log = self.log[:offset] + request.content
        return httpx.Response(200, json={"next_offset": len(self.log)})

    def hear_checkpoint(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"files": self.kept, "attempt_number": 1 if self.kept else 0})
        sent = json.loads(request.content)
        missing = sorted({file["sha256"] for file in sent["files"]} - self.uploads.keys())
        self.checkpoints.append(sent)
        return httpx.Response(200, json={"accepted": not missing, "missing": missing, "saved_seconds": 1})

    def answer_parked(self, answer: NextAnswer) -> None:
        assert self.parked is not None
        self.parked.set_result(httpx.Response(200, json=msgspec.to_builtins(answer)))

    @property
    def told(self) -> Body:
        return self.calls[-1]

    @property
    def completions(self) -> list[Body]:
        """What was told of attempts, whatever calls it came in."""
        ends = [end for call in self.calls for end in call.get("completions", [call])]
        return [{name: end[name] for name in COMPLETION_FIELDS} for end in ends]


def accept(body: Body, **more: Any) -> httpx.Response:
    if "completions" in body:
        return httpx.Response(200, json={"answers": [{"accepted": True}] * len(body["completions"]), **more})
    return httpx.Response(200, json={"accepted": True, **more})


def bring(answer: NextAnswer) -> Answer:
    """Accepts, and answers the claim."""
    return lambda body: accept(body, next=msgspec.to_builtins(answer))


def hang_up(body: Body) -> httpx.Response:
    raise httpx.ReadError("the line broke")


def refuse(status: int, code: str) -> Answer:
    return lambda body: httpx.Response(status, json={"code": code, "message": "no"})


class Runners:
    """Stands for the runner processes: an attempt ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: dict[Path, AttemptRequest] = {}
        self.statuses: dict[Path, Status] = {}
        self.stops: list[str] = []
        # What happened to which attempt, in order.
        self.diary: list[tuple[str, str]] = []
        monkeypatch.setattr(handle, "spawn", self.spawn)
        monkeypatch.setattr(handle, "read_status", self.read_status)
        monkeypatch.setattr(handle, "request_stop", self.request_stop)
        monkeypatch.setattr(handle, "cleanup", self.cleanup)

    def spawn(self, state_dir: Path, request: AttemptRequest) -> None:
        self.diary.append(("started", request.attempt_id))
        self.requests[state_dir] = request
        self.statuses[state_dir] = Status(state=RUNNING)

    def read_status(self, state_dir: Path) -> Status:
        return self.statuses.get(state_dir, Status(state=VANISHED))

    def request_stop(self, state_dir: Path, *, cause: str, grace_seconds: float) -> None:
        self.stops.append(cause)
        self.statuses[state_dir] = Status(state=FINISHED, exit_code=143, cause=cause, message="stopped")

    def cleanup(self, state_dir: Path) -> None:
        if state_dir in self.requests:
            self.diary.append(("cleaned", self.requests[state_dir].attempt_id))

    def finish(self, *, attempt_id: UUID | None = None, **result: Any) -> None:
        """Ends the one job that there is, or the one of this attempt."""
        (state_dir,) = (
            path
            for path, request in self.requests.items()
            if attempt_id is None or request.attempt_id == str(attempt_id)
        )
        (state_dir / "outputs").mkdir(parents=True, exist_ok=True)
        self.statuses[state_dir] = Status(state=FINISHED, **result)

    @property
    def started(self) -> list[str]:
        return [attempt_id for what, attempt_id in self.diary if what == "started"]

    @property
    def request(self) -> AttemptRequest:
        (request,) = self.requests.values()
        return request


class World:
    def __init__(self, folder: Path, line: Line, *, cpu_slots: int = 2) -> None:
        state = StateDir(folder)
        identity = Identity(state)
        hardware = Hardware(cores=4, ram_bytes=4 * 10**9, disk_bytes=10**10, cpu_slots=cpu_slots)
        request = EnrolNode(
            name="x", public_key=identity.public_key_text, hardware=hardware, isolation=IsolationLevel.SANDBOXED
        )
        if not identity.is_enrolled:
            keys = [HubKey(kid="k", public_key=tokens.to_key_text(HUB_PRIVATE.public_key()))]
            answer = EnrolledNode(node_id=uuid4(), hub_id=uuid4(), token="t", token_seconds=900, hub_keys=keys)
            identity.record_enrolment("http://hub", request, answer)
        self.hub = HubClient("http://hub", agent_version="1", transport=httpx.MockTransport(line))
        self.hub.sign_in_as(identity)
        self.hub._keep_token("t", 900)
        self.identity = identity
        self.around = Surroundings(
            hub=self.hub,
            identity=identity,
            state=state,
            cache=InputCache(state.inputs, bytes_max=10**6),
            spent=SpentTokens(state.spent_path, now_seconds=time.time()),
            config=NodeConfig(hub_url="http://hub", stop_grace_seconds=0),
            boot_id=entropy.new_id(),
            wardrobe=Wardrobe(
                Walls((Report("bubblewrap", IsolationLevel.SANDBOXED, usable=True),)),
                PackageCache(state.packages, index_url="", bytes_max=10**6),
                images_allowed=("registry.example.org/*",),
            ),
            slots=make_slots(identity.node_id, Detected(hardware, False, ()), IsolationLevel.SANDBOXED),
        )
        self.holdings = Holdings(self.around)

    def assign(self, *, claims: dict[str, Any] | None = None, **changes: Any) -> NextAnswer:
        """An answer with one assignment."""
        return self.sign(make_order(**changes), claims=claims)

    def sign(self, *orders: RunOrder, claims: dict[str, Any] | None = None) -> NextAnswer:
        """An answer with these assignments, under one token."""
        texts = {order.attempt_id: encode(order) for order in orders}
        signed = {
            "aud": str(self.identity.node_id),
            "jti": str(uuid4()),
            "exp": time.time() + 60,
            "orders": {str(id): sha256_of(text) for id, text in texts.items()},
            **(claims or {}),
        }
        token = jwt.encode(signed, HUB_PRIVATE, "EdDSA", headers={"kid": "k", "typ": tokens.JOB_TOKEN_TYPE})
        assignments = [
            Assignment(
                attempt_id=order.attempt_id,
                slot=order.slot,
                lease_secret="s",
                lease_seconds=60,
                order=texts[order.attempt_id],
            )
            for order in orders
        ]
        return NextAnswer(assignments=assignments, token=token)

    def read_receipt(self, receipt: str) -> dict[str, Any]:
        """Its claims, if this node signed it for its hub."""
        claims = jwt.decode(
            receipt, self.identity.key.public_key(), algorithms=["EdDSA"], audience=str(self.identity.hub_id)
        )
        return dict(claims)

    def adopt_all(self) -> None:
        for left in list_left_behind(self.around.state):
            self.holdings.adopt(left)

    async def settle(self) -> None:
        assert await self.holdings.wait_until_empty(5)

    async def close(self) -> None:
        await self.holdings.abandon()
        await self.hub.close()


def make_order(**changes: Any) -> RunOrder:
    values: dict[str, Any] = {
        "attempt_id": uuid4(),
        "job_id": uuid4(),
        "slice_index": 2,
        "slice_count": 5,
        "attempt_number": 1,
        "slot": "cpu:0",
        "command": ("python3", "main.py"),
        "script": "print(1)",
        "files": (),
        "env": {},
        "vram_bytes": 0,
        "cores": 2,
        "ram_bytes": 10**9,
        "disk_bytes": 10**8,
        "wall_seconds": 60,
        "log_bytes": 1000,
        "isolation": IsolationLevel.SANDBOXED,
    }
    return RunOrder(**{**values, **changes})


def encode(order: RunOrder) -> str:
    return msgspec.json.encode(order).decode()


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def id_of(answer: NextAnswer) -> UUID:
    (only,) = answer.assignments
    return only.attempt_id


async def until(is_so: Callable[[], object]) -> None:
    for _ in range(12_000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that within a minute")
