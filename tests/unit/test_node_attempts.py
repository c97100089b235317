"""One attempt's way through the agent, with a hub that is only a transport: what is told, how often, and when."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import entropy
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import patience, tokens
from computepool.node.adoption import list_left_behind
from computepool.node.agent import make_slots
from computepool.node.attempts import Surroundings, make_env, make_limits
from computepool.node.config import NodeConfig
from computepool.node.hardware.detect import Detected
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient
from computepool.node.identity import Identity
from computepool.node.input_cache import InputCache
from computepool.node.runner import handle
from computepool.node.runner.request import AttemptRequest
from computepool.node.runner.status import FINISHED, RUNNING, VANISHED, Output, Status
from computepool.node.spent_tokens import SpentTokens
from computepool.node.state_dir import StateDir
from computepool.wire.attempts import Assignment, Controls, RunOrder
from computepool.wire.jobs import InputFile
from computepool.wire.nodes import EnrolledNode, EnrolNode, Hardware, HubKey

HUB_PRIVATE = Ed25519PrivateKey.generate()


class Line:
    """Stands for the wire: notes every call and answers as told."""

    def __init__(self) -> None:
        self.completions: list[bytes] = []
        self.uploads: dict[str, bytes] = {}
        self.inputs: dict[str, bytes] = {}
        self.log = b""
        # Answers to completions, in order; the last one is repeated.
        self.answers: list[Callable[[], httpx.Response]] = [accept]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/jobs/complete":
            answer = self.answers[min(len(self.completions), len(self.answers) - 1)]
            self.completions.append(request.content)
            return answer()
        name = path.rsplit("/", 1)[-1]
        if "/outputs/" in path:
            self.uploads[name] = request.content
            return httpx.Response(200, json={"sha256": name, "size_bytes": len(request.content)})
        if "/inputs/" in path:
            if name not in self.inputs:
                return httpx.Response(404, json={"code": "not_found", "message": "no such input"})
            return httpx.Response(200, content=self.inputs[name])
        offset = int(request.url.params["offset"])
        self.log = self.log[:offset] + request.content
        return httpx.Response(200, json={"next_offset": len(self.log)})

    @property
    def told(self) -> dict[str, Any]:
        return dict(json.loads(self.completions[-1]))


def accept() -> httpx.Response:
    return httpx.Response(200, json={"accepted": True})


def hang_up() -> httpx.Response:
    raise httpx.ReadError("the line broke")


def refuse(status: int, code: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status, json={"code": code, "message": "no"})


class Runners:
    """Stands for the runner processes: an attempt ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: dict[Path, AttemptRequest] = {}
        self.statuses: dict[Path, Status] = {}
        self.stops: list[str] = []
        monkeypatch.setattr(handle, "spawn", self.spawn)
        monkeypatch.setattr(handle, "read_status", self.read_status)
        monkeypatch.setattr(handle, "request_stop", self.request_stop)
        monkeypatch.setattr(handle, "cleanup", lambda _: None)

    def spawn(self, state_dir: Path, request: AttemptRequest) -> None:
        self.requests[state_dir] = request
        self.statuses[state_dir] = Status(state=RUNNING)

    def read_status(self, state_dir: Path) -> Status:
        return self.statuses.get(state_dir, Status(state=VANISHED))

    def request_stop(self, state_dir: Path, *, cause: str, grace_seconds: float) -> None:
        self.stops.append(cause)
        self.statuses[state_dir] = Status(state=FINISHED, exit_code=143, cause=cause, message="stopped")

    def finish(self, **result: Any) -> None:
        (state_dir,) = self.requests
        (state_dir / "outputs").mkdir(parents=True, exist_ok=True)
        self.statuses[state_dir] = Status(state=FINISHED, **result)

    @property
    def request(self) -> AttemptRequest:
        (request,) = self.requests.values()
        return request


class World:
    """An agent's insides without its loops."""

    def __init__(self, folder: Path, line: Line) -> None:
        state = StateDir(folder)
        identity = Identity(state)
        hardware = Hardware(cores=4, ram_bytes=4 * 10**9, disk_bytes=10**10, cpu_slots=2)
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
            isolation=IsolationLevel.SANDBOXED,
            slots=make_slots(identity.node_id, Detected(hardware, False, ()), IsolationLevel.SANDBOXED),
        )
        self.holdings = Holdings(self.around)

    def assign(self, *, slot: str = "cpu:0", claims: dict[str, Any] | None = None, **changes: Any) -> Assignment:
        order = make_order(slot=slot, **changes)
        text = encode(order)
        signed = {
            "aud": str(self.identity.node_id),
            "jti": str(order.attempt_id),
            "exp": time.time() + 60,
            "order_sha256": hashlib.sha256(text.encode()).hexdigest(),
            **(claims or {}),
        }
        token = jwt.encode(signed, HUB_PRIVATE, "EdDSA", headers={"kid": "k", "typ": tokens.JOB_TOKEN_TYPE})
        return Assignment(
            attempt_id=order.attempt_id, slot=slot, lease_secret="s", lease_seconds=60, token=token, order=text
        )

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


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(patience, "wait_seconds", lambda *_, **__: 0.0)
    return Line()


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    return Runners(monkeypatch)


async def until(is_so: Callable[[], object]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that within 5 s")


async def spawned(runners: Runners) -> None:
    await until(lambda: runners.requests)


async def test_a_success_is_uploaded_signed_and_told(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    assignment = world.assign(files=(InputFile(path="in/a", sha256=hashlib.sha256(b"in").hexdigest(), size_bytes=2),))
    line.inputs[hashlib.sha256(b"in").hexdigest()] = b"in"
    world.holdings.take(assignment)
    assert world.holdings.running == (assignment.attempt_id,)
    assert world.holdings.free_slots == ("cpu:1",)
    await spawned(runners)
    (state_dir,) = runners.requests
    (state_dir / "outputs").mkdir(parents=True)
    (state_dir / "outputs" / "r.txt").write_bytes(b"result")
    (state_dir / "log").write_bytes(b"printed\n")
    sha256 = hashlib.sha256(b"result").hexdigest()
    runners.finish(exit_code=0, run_seconds=1.5, outputs=(Output("r.txt", 6, sha256),))
    await world.settle()
    assert line.uploads == {sha256: b"result"}
    assert line.log == b"printed\n"
    assert (line.told["exit_code"], line.told["cause"]) == (0, None)
    assert line.told["result_sha256"] == hashlib.sha256(f"{sha256}  r.txt\n".encode()).hexdigest()
    receipt = jwt.decode(
        line.told["receipt"],
        world.identity.key.public_key(),
        algorithms=["EdDSA"],
        audience=str(world.identity.hub_id),
    )
    assert receipt["result_sha256"] == line.told["result_sha256"]
    assert {each.path for each in runners.request.inputs} == {"in/a", "main.py"}
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    assert world.holdings.free_slots == ("cpu:0", "cpu:1")
    await world.close()


async def test_an_assignment_that_is_sent_again_is_not_taken_again(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    assignment = world.assign()
    for _ in range(3):
        world.holdings.take(assignment)
    await spawned(runners)
    world.holdings.take(assignment)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 1
    await world.close()


@pytest.mark.parametrize("claims", [{"aud": "another"}, {"jti": "another"}, {"exp": 1}, {"order_sha256": "0" * 64}])
async def test_a_token_that_does_not_hold_is_refused_and_nothing_runs(
    claims: dict[str, Any], tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.take(world.assign(claims=claims))
    await world.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert line.told["exit_code"] is None
    assert runners.requests == {}
    await world.close()


async def test_a_token_is_never_used_twice(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    assignment = world.assign()
    world.holdings.take(assignment)
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    runners.requests.clear()
    runners.statuses.clear()
    world.holdings.take(assignment)
    await world.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert runners.requests == {}
    await world.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"isolation": IsolationLevel.GVISOR},
        {"command": ()},
        {"env": {"BAD NAME": "x"}},
    ],
)
async def test_an_order_that_this_node_cannot_keep_is_refused(
    changes: dict[str, Any], tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.take(world.assign(**changes))
    await world.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert runners.requests == {}
    await world.close()


@pytest.mark.parametrize(
    ("path", "served"), [("a", None), ("a", b"other"), ("../a", b"right"), ("/etc/passwd", b"right")]
)
async def test_a_missing_wrong_or_escaping_input_is_told(
    path: str, served: bytes | None, tmp_path: Path, line: Line, runners: Runners
) -> None:
    sha256 = hashlib.sha256(b"right").hexdigest()
    if served is not None:
        line.inputs[sha256] = served
    world = World(tmp_path, line)
    world.holdings.take(world.assign(files=(InputFile(path=path, sha256=sha256, size_bytes=5),)))
    await world.settle()
    assert line.told["cause"] == "input_missing"
    assert runners.requests == {}
    await world.close()


async def test_a_completion_is_repeated_byte_for_byte_until_it_is_answered(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [hang_up, refuse(503, "hub_unavailable"), hang_up, accept]
    world = World(tmp_path, line)
    world.holdings.take(world.assign())
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 4
    assert len(set(line.completions)) == 1
    await world.close()


async def test_a_kept_completion_is_sent_by_the_next_agent(tmp_path: Path, line: Line, runners: Runners) -> None:
    line.answers = [hang_up]
    first = World(tmp_path, line)
    assignment = first.assign()
    first.holdings.take(assignment)
    await spawned(runners)
    runners.finish(exit_code=0)
    await until(lambda: line.completions)
    await first.close()
    line.answers = [accept]
    second = World(tmp_path, line)
    adopt_all(second)
    assert second.holdings.running == (assignment.attempt_id,)
    await second.settle()
    assert len(set(line.completions)) == 1
    await second.close()


async def test_a_completion_of_an_earlier_boot_is_renewed_when_the_hub_insists(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [hang_up]
    first = World(tmp_path, line)
    first.holdings.take(first.assign())
    await spawned(runners)
    runners.finish(exit_code=0)
    await until(lambda: line.completions)
    await first.close()
    line.completions.clear()
    line.answers = [refuse(409, "stale_boot"), accept]
    second = World(tmp_path, line)
    adopt_all(second)
    await second.settle()
    boots = [json.loads(each)["boot_id"] for each in line.completions]
    assert boots == [str(first.around.boot_id), str(second.around.boot_id)]
    await second.close()


@pytest.mark.parametrize(("status", "code"), [(409, "stale_lease"), (400, "invalid_request"), (404, "not_found")])
async def test_a_completion_that_the_hub_refuses_is_forgotten(
    status: int, code: str, tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [refuse(status, code)]
    world = World(tmp_path, line)
    world.holdings.take(world.assign())
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 1
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    await world.close()


async def test_a_stopped_attempt_ends_without_a_completion(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    assignment = world.assign()
    world.holdings.take(assignment)
    await spawned(runners)
    world.holdings.obey(Controls(stop={assignment.attempt_id: Cause.EXPIRED}))
    assert world.holdings.running == ()
    assert world.holdings.free_slots == ("cpu:1",), "the slot is free only when the runner has ended"
    await world.settle()
    assert runners.stops == ["cancelled"]
    assert line.completions == []
    await world.close()


async def test_an_adopted_runner_is_watched_to_its_end(tmp_path: Path, line: Line, runners: Runners) -> None:
    first = World(tmp_path, line)
    assignment = first.assign()
    first.holdings.take(assignment)
    await spawned(runners)
    await first.close()
    assert runners.stops == []
    second = World(tmp_path, line)
    adopt_all(second)
    assert second.holdings.running == (assignment.attempt_id,)
    assert second.holdings.free_slots == ("cpu:1",)
    runners.finish(exit_code=0)
    await second.settle()
    assert line.told["cause"] is None
    assert line.told["boot_id"] == str(second.around.boot_id)
    await second.close()


async def test_a_vanished_runner_is_cleaned_up_and_not_listed(tmp_path: Path, line: Line, runners: Runners) -> None:
    first = World(tmp_path, line)
    first.holdings.take(first.assign())
    await spawned(runners)
    await first.close()
    runners.statuses.clear()
    second = World(tmp_path, line)
    adopt_all(second)
    assert second.holdings.is_empty
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    await second.close()


async def test_after_the_drains_time_running_jobs_end_as_owner_returned(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.take(world.assign())
    await spawned(runners)
    world.holdings.leave()
    assert world.holdings.free_slots == ()
    assert not world.holdings.is_drained
    world.holdings.hurry_all(Cause.OWNER_RETURNED)
    await world.settle()
    assert line.told["cause"] == "owner_returned"
    assert world.holdings.is_drained
    await world.close()


async def test_work_that_arrives_while_leaving_is_handed_back(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    world.holdings.leave()
    world.holdings.take(world.assign())
    await world.settle()
    assert line.told["cause"] == "owner_returned"
    assert runners.requests == {}
    await world.close()


async def test_work_for_a_slot_that_is_busy_or_unknown_is_handed_back(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.take(world.assign(slot="cpu:0"))
    await spawned(runners)
    for slot in ("cpu:0", "gpu:7"):
        world.holdings.take(world.assign(slot=slot))
    await until(lambda: len(line.completions) == 2)
    assert {json.loads(each)["cause"] for each in line.completions} == {"sandbox_refused"}
    assert len(runners.requests) == 1
    await world.close()


def test_pause_and_drain_offer_no_slots(tmp_path: Path) -> None:
    async def look() -> None:
        world = World(tmp_path, Line())
        for controls in (Controls(pause=True), Controls(drain=True)):
            world.holdings.obey(controls)
            assert world.holdings.free_slots == ()
        assert world.holdings.is_drained
        world.holdings.obey(Controls())
        assert world.holdings.free_slots == ("cpu:0", "cpu:1")
        assert not world.holdings.is_drained
        await world.close()

    asyncio.run(look())


def test_the_jobs_environment_cannot_hide_what_the_protocol_promises() -> None:
    order = make_order(env={"A": "1", "COMPUTEPOOL_SLICE_INDEX": "99"})
    env = make_env(order)
    assert env["A"] == "1"
    assert env["COMPUTEPOOL_SLICE_INDEX"] == "2"
    assert env["COMPUTEPOOL_SLICE_COUNT"] == "5"
    assert env["COMPUTEPOOL_ATTEMPT_NUMBER"] == "1"
    assert env["COMPUTEPOOL_JOB_ID"] == str(order.job_id)
    assert env["COMPUTEPOOL_OUTPUT_DIR"] == "/job/out"


def test_limits_follow_the_order_and_never_become_nothing() -> None:
    limits = make_limits(make_order(), None, pids_max=512)
    assert (limits.memory_bytes, limits.cpu_cores, limits.disk_bytes) == (10**9, 2.0, 10**8)
    assert (limits.wall_seconds, limits.log_bytes, limits.pids_max) == (60.0, 1000, 512)
    machine = Detected(Hardware(cores=2, ram_bytes=10**9, disk_bytes=10**9), False, ())
    slot = make_slots(uuid4(), machine, IsolationLevel.SANDBOXED)["cpu:0"]
    open_sizes = make_limits(make_order(ram_bytes=0, disk_bytes=0, log_bytes=0), slot, pids_max=512)
    assert (open_sizes.memory_bytes, open_sizes.disk_bytes, open_sizes.log_bytes) == (10**9, 10**9, 1)


def adopt_all(world: World) -> None:
    for attempt in list_left_behind(world.around):
        world.holdings.adopt(attempt)
