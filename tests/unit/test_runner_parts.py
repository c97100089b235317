"""The runner's pure parts: why a job ended, what is kept of its log, what it was asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.runner.liveness import find_birth, is_alive
from computepool.node.runner.log import CappedLog
from computepool.node.runner.request import AttemptRequest, InvalidAttempt
from computepool.node.runner.status import Output, RefusedOutput, Status
from computepool.node.runner.verdict import Ending, judge
from computepool.node.sandbox.bubblewrap import JOB_UID_BASE, JOB_UID_BASE_SMALL, choose_job_uid
from computepool.node.sandbox.disk import plan_image_bytes
from computepool.node.sandbox.port import InputFile, Limits, SandboxRefused

LIMITS = Limits(100, 10, 1.0, 1000, 60.0, 1000)
ENDED = Ending(
    exit_code=0,
    was_built=True,
    stop_cause=None,
    stop_message="",
    oom_kill_count=0,
    memory_bytes_peak=50,
    memory_bytes_limit=100,
    disk_is_full=False,
    first_words="",
)
REQUEST = AttemptRequest(
    attempt_id="a-1",
    command=("python3", "job.py"),
    env={"SEED": "1"},
    inputs=(InputFile("job.py", "/cache/x", True),),
    limits=LIMITS,
    isolation=IsolationLevel.SANDBOXED,
    slot="cpu:0",
    lease_seconds=60.0,
    agent_alive_path="/run/alive",
    restored={"deep/w": "0" * 64},
)


def test_job_that_returns_zero_has_no_cause() -> None:
    verdict = judge(ENDED)

    assert (verdict.cause, verdict.exit_code, verdict.signal) == (None, 0, None)


@pytest.mark.parametrize(
    ("code", "words"), [(1, "returned 1"), (85, "queued again"), (127, "not found"), (139, "SIGSEGV")]
)
def test_code_of_the_job_is_explained(code: int, words: str) -> None:
    verdict = judge(ENDED._replace(exit_code=code))

    assert (verdict.cause, verdict.exit_code) == ("exit_code", code)
    assert words in verdict.message


def test_137_without_a_kill_is_the_jobs_own_number() -> None:
    assert judge(ENDED._replace(exit_code=137)).cause == "exit_code"


def test_kill_by_the_kernel_is_out_of_memory() -> None:
    verdict = judge(ENDED._replace(exit_code=137, oom_kill_count=1, memory_bytes_peak=100))

    assert (verdict.cause, verdict.signal) == ("out_of_memory", 9)


def test_kill_by_the_kernel_far_below_the_limit_is_the_machines_shortage() -> None:
    assert judge(ENDED._replace(exit_code=137, oom_kill_count=1, memory_bytes_peak=30)).cause == "owner_returned"


def test_our_own_stop_wins_over_the_code_and_keeps_it() -> None:
    stopped = ENDED._replace(exit_code=85, stop_cause="owner_returned", stop_message="stopped")
    assert judge(stopped)[0] == "owner_returned"
    assert judge(stopped).exit_code == 85
    assert judge(stopped).signal is None

    killed = judge(stopped._replace(exit_code=None))
    assert (killed.exit_code, killed.signal) == (None, 9)


def test_walls_that_failed_are_not_the_jobs_fault() -> None:
    verdict = judge(ENDED._replace(exit_code=1, was_built=False, first_words="bwrap: setting up uid map: denied"))

    assert verdict.cause == "sandbox_refused"
    assert "uid map" in verdict.message
    assert verdict.exit_code is None


def test_log_within_its_limit_is_kept_whole(tmp_path: Path) -> None:
    log = CappedLog(str(tmp_path / "log"), 10)
    log.add(b"01234")
    log.add(b"56789")
    log.close()

    assert (tmp_path / "log").read_bytes() == b"0123456789"
    assert not log.is_cut


@pytest.mark.parametrize(("chunks", "kept"), [([b"abc\n", b"defg"], b"abc\nd\n"), ([b"abcd\n", b"e"], b"abcd\n")])
def test_cut_log_ends_with_one_whole_line_about_it(chunks: list[bytes], kept: bytes, tmp_path: Path) -> None:
    log = CappedLog(str(tmp_path / "log"), 5)
    for chunk in [*chunks, b"more", b"and more"]:
        log.add(chunk)
    log.close()
    content = (tmp_path / "log").read_bytes()

    assert content.startswith(kept)
    assert content[len(kept) :].count(b"\n") == 1
    assert content.count(b"the log was cut") == 1
    assert log.bytes_seen == sum(map(len, chunks)) + 12


def test_request_and_status_survive_json() -> None:
    assert AttemptRequest.from_json(REQUEST.to_json()) == REQUEST
    status = Status(state="finished", outputs=(Output("a", 1, "f"),), outputs_refused=(RefusedOutput("b", "why"),))
    assert Status.from_json(status.to_json()) == status


def test_status_of_a_newer_runner_can_be_read() -> None:
    assert Status.from_json({**Status().to_json(), "invented_later": 1}) == Status()


@pytest.mark.parametrize(
    "content", [{}, {**REQUEST.to_json(), "limits": {}}, {**REQUEST.to_json(), "isolation": "none"}]
)
def test_request_that_cannot_be_read_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InvalidAttempt):
        AttemptRequest.from_json(content)


def test_levels_stand_in_order_of_strictness_and_not_of_spelling() -> None:
    assert sorted(IsolationLevel) == [IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER, IsolationLevel.GVISOR]
    assert IsolationLevel.GVISOR.meets(IsolationLevel.SANDBOXED)
    assert not IsolationLevel.SANDBOXED.meets(IsolationLevel.CONTAINER)


def test_jobs_that_run_at_once_have_different_uids(tmp_path: Path) -> None:
    whole, small, tiny = (tmp_path / name for name in ("whole", "small", "tiny"))
    whole.write_text("         0          0 4294967295\n")
    small.write_text("0 100000 65536\n")
    tiny.write_text("0 1000 1\n")

    assert choose_job_uid(7, str(whole)) == JOB_UID_BASE + 7
    assert choose_job_uid(7, str(small)) == JOB_UID_BASE_SMALL + 7
    with pytest.raises(SandboxRefused, match="too few user ids"):
        choose_job_uid(7, str(tiny))


def test_image_has_room_for_its_own_tables() -> None:
    for disk_bytes in (1 << 20, 1 << 26, 1 << 30, 1 << 36):
        assert disk_bytes * 1.02 <= plan_image_bytes(disk_bytes) <= disk_bytes * 1.04 + (1 << 20)


def test_process_is_known_by_number_and_birth() -> None:
    birth = find_birth(os.getpid())

    assert is_alive(os.getpid(), birth)
    assert not is_alive(os.getpid(), "another-boot:1")
    assert not is_alive(None, birth)
    assert find_birth(2**22 + 1) is None
