"""One attempt's way through the agent, with a hub that is only a transport: what is told, how often, and when."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import patience
from computepool.node.agent import make_slots
from computepool.node.debug_bundle import list_secrets
from computepool.node.hardware.detect import Detected
from computepool.node.job_terms import make_env, make_limits
from computepool.node.runner.request import AttemptRequest
from computepool.node.runner.status import Output
from computepool.wire.attempts import Controls
from computepool.wire.jobs import InputFile
from computepool.wire.nodes import Hardware
from tests.support.agent_world import (
    Line,
    Runners,
    World,
    accept,
    encode,
    hang_up,
    id_of,
    make_order,
    refuse,
    sha256_of,
    until,
)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(patience, "wait_seconds", lambda *_, **__: 0.0)
    return Line()


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    return Runners(monkeypatch)


async def spawned(runners: Runners) -> None:
    await until(lambda: runners.requests)


async def test_a_success_is_uploaded_signed_and_told(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    answer = world.assign(files=(InputFile(path="in/a", sha256=hashlib.sha256(b"in").hexdigest(), size_bytes=2),))
    line.inputs[hashlib.sha256(b"in").hexdigest()] = b"in"
    world.holdings.accept(answer)
    assert world.holdings.running == (id_of(answer),)
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
    assert world.read_receipt(line.told["receipt"])["results"] == {
        str(id_of(answer)): {"result_sha256": line.told["result_sha256"], "run_seconds": 1.5, "exit_code": 0}
    }
    own = {f".computepool/lib/computepool/{name}" for name in ("__init__.py", "job.py")}
    assert {each.path for each in runners.request.inputs} == {"in/a", "main.py", *own}
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    assert world.holdings.free_slots == ("cpu:0", "cpu:1")
    await world.close()


async def test_an_assignment_that_is_sent_again_is_not_taken_again(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    answer = world.assign()
    for _ in range(3):
        world.holdings.accept(answer)
    await spawned(runners)
    world.holdings.accept(answer)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 1
    await world.close()


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"aud": "another"}, "another node"),
        ({"exp": 1}, "ran out"),
        ({"orders": {}}, "does not name"),
        ({"orders": None}, "no orders"),
    ],
)
async def test_a_token_that_does_not_hold_is_refused_and_nothing_runs(
    claims: dict[str, Any], words: str, tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign(claims=claims))
    await world.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert words in line.told["message"]
    assert line.told["exit_code"] is None
    assert runners.requests == {}
    await world.close()


async def test_an_order_that_the_same_token_names_for_another_node_is_refused(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    """Nodes that are answered at the same moment share a token: somebody on the way might swap their orders."""
    world = World(tmp_path, line, cpu_slots=2)
    own = make_order(slot="cpu:0", node_id=world.identity.node_id)
    other = make_order(slot="cpu:1", node_id=uuid4())
    audience = [str(world.identity.node_id), str(other.node_id)]
    world.holdings.accept(world.sign(own, other, claims={"aud": audience}))
    await until(lambda: len(line.completions) == 1)
    await spawned(runners)
    assert line.told["message"] == "the order is for another node"
    assert runners.started == [str(own.attempt_id)]
    await world.close()


async def test_an_assignment_that_the_token_does_not_cover_is_refused_alone(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line, cpu_slots=3)
    good, unnamed, changed = (make_order(slot=f"cpu:{number}") for number in range(3))
    orders = {str(good.attempt_id): sha256_of(encode(good)), str(changed.attempt_id): sha256_of("another order")}
    world.holdings.accept(world.sign(good, unnamed, changed, claims={"orders": orders}))
    await until(lambda: len(line.completions) == 2)
    await spawned(runners)
    assert {each["attempt_id"]: each["message"] for each in line.completions} == {
        str(unnamed.attempt_id): "the job token does not name this attempt",
        str(changed.attempt_id): "the order is not the one that the hub signed",
    }
    assert {each["cause"] for each in line.completions} == {"sandbox_refused"}
    assert runners.started == [str(good.attempt_id)]
    await world.close()


async def test_one_token_begins_many_attempts(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    orders = [make_order(slot="cpu:0"), make_order(slot="cpu:1")]
    world.holdings.accept(world.sign(*orders))
    await until(lambda: len(runners.started) == 2)
    assert set(runners.started) == {str(order.attempt_id) for order in orders}
    await world.close()


async def test_an_attempt_is_never_started_twice(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    answer = world.assign()
    world.holdings.accept(answer)
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    runners.requests.clear()
    runners.statuses.clear()
    world.holdings.accept(answer)
    await world.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert "before" in line.told["message"]
    assert runners.requests == {}
    await world.close()


async def test_a_new_token_does_not_start_an_attempt_again_not_even_after_a_restart(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    first, order = World(tmp_path, line), make_order()
    first.holdings.accept(first.sign(order))
    await spawned(runners)
    runners.finish(exit_code=0)
    await first.settle()
    await first.close()
    runners.requests.clear()
    second = World(tmp_path, line)
    second.holdings.accept(second.sign(order))
    await second.settle()
    assert line.told["cause"] == "sandbox_refused"
    assert runners.requests == {}
    # Negative control: another attempt at the same slice starts.
    second.holdings.accept(second.assign(job_id=order.job_id))
    await spawned(runners)
    await second.close()


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
    world.holdings.accept(world.assign(**changes))
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
    world.holdings.accept(world.assign(files=(InputFile(path=path, sha256=sha256, size_bytes=5),)))
    await world.settle()
    assert line.told["cause"] == "input_missing"
    assert runners.requests == {}
    await world.close()


async def test_a_completion_is_repeated_as_it_was_until_it_is_answered(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [hang_up, refuse(503, "hub_unavailable"), hang_up, accept]
    world = World(tmp_path, line)
    world.holdings.accept(world.assign())
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 4
    assert line.completions == [line.completions[0]] * 4
    await world.close()


async def test_a_kept_completion_is_told_by_the_next_agent_in_its_own_name(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [hang_up]
    first = World(tmp_path, line)
    answer = first.assign()
    first.holdings.accept(answer)
    await spawned(runners)
    runners.finish(exit_code=0)
    await until(lambda: line.calls)
    await first.close()
    line.answers = [accept]
    second = World(tmp_path, line)
    second.adopt_all()
    assert second.holdings.running == (id_of(answer),)
    await second.settle()
    assert line.completions == [line.completions[0]] * len(line.completions)
    assert line.told["boot_id"] == str(second.around.boot_id)
    assert list(second.read_receipt(line.told["receipt"])["results"]) == [str(id_of(answer))]
    await second.close()


async def test_a_completion_kept_by_an_older_agent_is_told(tmp_path: Path, line: Line, runners: Runners) -> None:
    first = World(tmp_path, line)
    answer = first.assign()
    first.holdings.accept(answer)
    await spawned(runners)
    await first.close()
    # It kept the whole call, with a receipt of the old kind.
    old_call = {"attempt_id": str(id_of(answer)), "lease_secret": "s", "exit_code": 0, "result_sha256": "ab" * 32}
    kept = json.dumps({**old_call, "boot_id": str(uuid4()), "receipt": "old"})
    (tmp_path / "attempts" / str(id_of(answer)) / "completion.json").write_text(kept)
    second = World(tmp_path, line)
    second.adopt_all()
    await second.settle()
    assert (line.told["exit_code"], line.told["result_sha256"]) == (0, "ab" * 32)
    assert line.told["boot_id"] == str(second.around.boot_id)
    await second.close()


async def test_a_failure_needs_no_receipt(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign())
    await spawned(runners)
    runners.finish(exit_code=3, cause="exit_code")
    await world.settle()
    assert (line.told["cause"], line.told["receipt"]) == ("exit_code", "")
    await world.close()


@pytest.mark.parametrize(("status", "code"), [(409, "stale_lease"), (400, "invalid_request"), (404, "not_found")])
async def test_a_completion_that_the_hub_refuses_is_forgotten(
    status: int, code: str, tmp_path: Path, line: Line, runners: Runners
) -> None:
    line.answers = [refuse(status, code)]
    world = World(tmp_path, line)
    world.holdings.accept(world.assign())
    await spawned(runners)
    runners.finish(exit_code=0)
    await world.settle()
    assert len(line.completions) == 1
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    await world.close()


async def test_a_stopped_attempt_ends_without_a_completion(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    answer = world.assign()
    world.holdings.accept(answer)
    await spawned(runners)
    world.holdings.obey(Controls(stop={id_of(answer): Cause.EXPIRED}))
    assert world.holdings.running == ()
    assert world.holdings.free_slots == ("cpu:1",), "the slot is free only when the runner has ended"
    await world.settle()
    assert runners.stops == ["cancelled"]
    assert line.completions == []
    await world.close()


async def test_an_adopted_runner_is_watched_to_its_end(tmp_path: Path, line: Line, runners: Runners) -> None:
    first = World(tmp_path, line)
    answer = first.assign()
    first.holdings.accept(answer)
    await spawned(runners)
    await first.close()
    assert runners.stops == []
    second = World(tmp_path, line)
    second.adopt_all()
    assert second.holdings.running == (id_of(answer),)
    assert second.holdings.free_slots == ("cpu:1",)
    runners.finish(exit_code=0)
    await second.settle()
    assert line.told["cause"] is None
    assert line.told["boot_id"] == str(second.around.boot_id)
    await second.close()


async def test_a_vanished_runner_is_cleaned_up_and_not_listed(tmp_path: Path, line: Line, runners: Runners) -> None:
    first = World(tmp_path, line)
    first.holdings.accept(first.assign())
    await spawned(runners)
    await first.close()
    runners.statuses.clear()
    second = World(tmp_path, line)
    second.adopt_all()
    assert second.holdings.is_empty
    assert list(tmp_path.joinpath("attempts").iterdir()) == []
    await second.close()


async def test_after_the_drains_time_running_jobs_end_as_owner_returned(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign())
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
    world.holdings.accept(world.assign())
    await world.settle()
    assert line.told["cause"] == "owner_returned"
    assert runners.requests == {}
    await world.close()


async def test_the_owners_return_ends_jobs_and_keeps_new_work_away_until_they_leave(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign(slot="cpu:0"))
    await spawned(runners)
    world.holdings.changed.clear()
    world.holdings.make_way("You are here.", grace_seconds=1.0)
    assert world.holdings.changed.is_set()
    assert world.holdings.free_slots == ()
    await world.settle()
    assert runners.stops == ["owner_returned"]
    assert line.told["cause"] == "owner_returned"
    world.holdings.accept(world.assign(slot="cpu:1"))
    await world.settle()
    assert [each["cause"] for each in line.completions] == ["owner_returned"] * 2
    assert len(runners.requests) == 1
    world.holdings.take_up()
    assert world.holdings.free_slots == ("cpu:0", "cpu:1")
    await world.close()


async def test_an_owner_who_returns_does_not_wait_for_a_download(
    tmp_path: Path, line: Line, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, line)
    began = asyncio.Event()

    async def download(*_: object) -> Path:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr(world.around.cache, "fetch", download)
    world.holdings.accept(world.assign(files=(InputFile(path="a", sha256="0" * 64, size_bytes=5),)))
    await asyncio.wait_for(began.wait(), 5)
    world.holdings.make_way("You are here.", grace_seconds=1.0)
    await world.settle()
    assert line.told["cause"] == "owner_returned"
    assert runners.requests == {}
    await world.close()


async def test_work_for_a_slot_that_is_busy_or_unknown_is_handed_back(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign(slot="cpu:0"))
    await spawned(runners)
    for slot in ("cpu:0", "gpu:7"):
        world.holdings.accept(world.assign(slot=slot))
    await until(lambda: len(line.completions) == 2)
    assert {each["cause"] for each in line.completions} == {"sandbox_refused"}
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


async def test_secrets_are_given_to_the_job_and_named_to_whoever_writes_its_log(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign(env={"A": "1"}, secrets={"TOKEN": "correct horse"}))
    await spawned(runners)
    assert runners.request.env["TOKEN"] == "correct horse"
    assert runners.request.env["A"] == "1"
    assert runners.request.secrets == ("TOKEN",)
    assert AttemptRequest.from_json(runners.request.to_json()) == runners.request
    assert "correct horse" in list_secrets(tmp_path)
    await world.close()


async def test_secrets_that_the_hub_did_not_sign_for_are_refused(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    answer = world.assign(secrets={"TOKEN": "correct horse"})
    [assignment] = answer.assignments
    swapped = msgspec.structs.replace(assignment, order=assignment.order.replace("correct", "another"))
    world.holdings.accept(msgspec.structs.replace(answer, assignments=[swapped]))
    await world.settle()
    assert line.told["message"] == "the order is not the one that the hub signed"
    assert runners.requests == {}
    await world.close()


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
