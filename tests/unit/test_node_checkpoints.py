"""What an attempt saves, through the agent: sent with what the hub lacks, and put back for the attempt after it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from computepool.node import patience
from computepool.node.runner import files as runner_files
from tests.support.agent_world import Body, Line, Runners, World, id_of, until


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(patience, "wait_seconds", lambda *_, **__: 0.0)
    return Line()


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    return Runners(monkeypatch)


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def take(state_dir: Path, number: int, *contents: bytes, copied: bool = True) -> Body:
    """As a runner does it: the files by their hash, then the word that they belong together."""
    saved = state_dir / runner_files.SAVED
    saved.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {"number": number, "run_seconds": 10.0 * number, "progress": 0.5, "files": []}
    for index, content in enumerate(contents):
        sha256 = sha256_of(content)
        if copied:
            (saved / sha256).write_bytes(content)
        manifest["files"].append({"path": f"part-{index}", "sha256": sha256, "size_bytes": len(content)})
    runner_files.write_json(str(state_dir), runner_files.CHECKPOINT, manifest)
    return manifest


def shipped(state_dir: Path) -> dict[str, Any] | None:
    return runner_files.find_json(str(state_dir), runner_files.SHIPPED)


async def begin(world: World, runners: Runners, **order: Any) -> Path:
    world.holdings.accept(world.assign(**order))
    await until(lambda: runners.requests)
    (state_dir,) = runners.requests
    return state_dir


async def test_a_checkpoint_is_sent_while_the_job_runs_and_only_what_the_hub_lacks_of_it(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    state_dir = await begin(world, runners, checkpoint_seconds=7)
    assert runners.request.checkpoint_seconds == 7
    assert runners.request.env["COMPUTEPOOL_CHECKPOINT_SECONDS"] == "7"
    line.uploads[sha256_of(b"there already")] = b""
    sent = take(state_dir, 1, b"there already", b"new")
    await until(lambda: shipped(state_dir) == {"number": 1, "accepted": True})
    assert line.uploads[sha256_of(b"new")] == b"new"
    assert line.uploads[sha256_of(b"there already")] == b""
    # Asked first, sent what was missing, asked again.
    assert line.checkpoints == [sent, sent]
    await world.close()


async def test_the_last_one_is_sent_before_the_end_is_told(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    state_dir = await begin(world, runners)
    take(state_dir, 1, b"last words")
    runners.finish(exit_code=85, cause="owner_returned")
    await world.settle()
    assert line.told["cause"] == "owner_returned"
    assert line.checkpoints[-1]["number"] == 1
    assert line.uploads == {sha256_of(b"last words"): b"last words"}
    await world.close()


async def test_a_result_does_not_wait_for_a_checkpoint(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    state_dir = await begin(world, runners)
    runners.finish(exit_code=0)
    take(state_dir, 1, b"needless")
    await world.settle()
    assert line.told["cause"] is None
    await world.close()


async def test_what_the_hub_refuses_is_told_to_the_runner_and_the_attempt_goes_on(
    tmp_path: Path, line: Line, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = httpx.Response(400, json={"code": "invalid_request", "message": "too large"})
    monkeypatch.setattr(line, "hear_checkpoint", lambda request: refusal)
    world = World(tmp_path, line)
    state_dir = await begin(world, runners)
    take(state_dir, 1, b"x")
    await until(lambda: shipped(state_dir) == {"number": 1, "accepted": False})
    runners.finish(exit_code=1)
    await world.settle()
    assert line.told["cause"] == "exit_code"
    await world.close()


async def test_files_that_are_not_where_the_runner_said_spoil_nothing(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    state_dir = await begin(world, runners)
    take(state_dir, 1, b"x", copied=False)
    await until(lambda: shipped(state_dir) == {"number": 1, "accepted": False})
    await world.close()


async def test_an_agent_that_starts_anew_sends_what_the_one_before_it_did_not(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    first = World(tmp_path, line)
    state_dir = await begin(first, runners)
    await first.close()
    take(state_dir, 3, b"x")
    second = World(tmp_path, line)
    second.adopt_all()
    await until(lambda: shipped(state_dir) == {"number": 3, "accepted": True})
    await second.close()


# Put back


async def test_a_later_attempt_begins_with_the_files_of_the_last_checkpoint(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    content = b"weights"
    line.inputs[sha256_of(content)] = content
    line.kept = [{"path": "deep/w", "sha256": sha256_of(content), "size_bytes": len(content)}]
    world = World(tmp_path, line)
    await begin(world, runners, attempt_number=2)
    [restored] = [file for file in runners.request.inputs if file.path.startswith(".computepool/checkpoint/")]
    assert restored.path == ".computepool/checkpoint/deep/w"
    assert Path(restored.source).read_bytes() == content
    # By these the runner knows that the hub has them.
    assert runners.request.restored == {"deep/w": sha256_of(content)}
    await world.close()


async def test_a_first_attempt_asks_for_none(tmp_path: Path, line: Line, runners: Runners) -> None:
    line.kept = [{"path": "w", "sha256": "0" * 64, "size_bytes": 1}]
    world = World(tmp_path, line)
    await begin(world, runners, attempt_number=1)
    assert not any(file.path.startswith(".computepool/checkpoint/") for file in runners.request.inputs)
    await world.close()


@pytest.mark.parametrize(
    ("path", "sha256"),
    [("w", sha256_of(b"what it says")), ("../../w", sha256_of(b"w")), ("w", "not a hash"), ("gone", "0" * 64)],
    ids=["other bytes", "a path that leads out", "no hash", "gone"],
)
async def test_a_checkpoint_that_is_not_what_it_says_is_not_begun_with(
    path: str, sha256: str, tmp_path: Path, line: Line, runners: Runners
) -> None:
    if sha256 != "0" * 64:
        line.inputs[sha256] = b"something else"
    line.kept = [{"path": path, "sha256": sha256, "size_bytes": 14}]
    world = World(tmp_path, line)
    answer = world.assign(attempt_number=2)
    world.holdings.accept(answer)
    await world.settle()
    assert (line.told["attempt_id"], line.told["cause"]) == (str(id_of(answer)), "input_missing")
    assert runners.requests == {}
    await world.close()
