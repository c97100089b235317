"""The runner as the agent meets it: through a state directory, and through nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computepool import entropy
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.runner import handle
from computepool.node.runner.liveness import find_birth
from computepool.node.runner.request import InvalidAttempt
from computepool.node.sandbox.port import InputFile
from tests.contract.sandbox_lab import (
    MEGABYTE,
    PYTHON,
    Attempt,
    Lab,
    await_nothing_left,
    list_processes_with,
    wait_until,
)
from tests.support.quickest import quickest

# Traps SIGTERM, writes an output when it comes, and ends with the given code. No print: a signal that comes
# while one is under way makes the second one fail.
LISTENER = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"TERM\\n")
    open("out/last", "w").write("last words")
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, end)
open("out/first", "w").write("first words")
os.write(1, b"READY\\n")
while True:
    time.sleep(0.05)
"""


def start_listener(lab: Lab, code: int = 0, **options: object) -> Attempt:
    attempt = lab.start(PYTHON, "-c", LISTENER, str(code), **options)

    def is_ready() -> bool:
        # A start that takes longer than a lease, as on a busy machine, is no silence of the agent's.
        lab.alive_path.touch()
        return "READY" in attempt.log()

    wait_until(is_ready, 60.0, "the job never said that it is ready")
    return attempt


def test_outputs_come_out_with_their_hashes(lab: Lab) -> None:
    script = "mkdir -p out/deep/er; printf hello > out/a; head -c 3000000 /dev/zero > out/deep/er/b; : > out/empty"
    result = lab.run("sh", "-c", script)

    assert result.status.cause is None
    assert result.status.exit_code == 0
    assert {output.path for output in result.status.outputs} == {"a", "deep/er/b", "empty"}
    for output in result.status.outputs:
        content = (result.outputs / output.path).read_bytes()
        assert output.size_bytes == len(content)
        assert output.sha256 == hashlib.sha256(content).hexdigest()
    assert (result.outputs / "a").read_bytes() == b"hello"


def test_inputs_are_copies_with_the_right_modes(lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "cached"
    source.write_text("#!/bin/sh\necho ran; echo changed > run.sh; cat deep/data\n")
    source.chmod(0o400)
    result = lab.run(
        "./run.sh", inputs=[InputFile("run.sh", str(source), True), InputFile("deep/data", str(source), False)]
    )

    assert result.status.cause is None, result.log
    assert result.log.startswith("ran\n#!/bin/sh")
    assert "changed" not in source.read_text().splitlines()
    assert source.stat().st_nlink == 1


def test_environment_holds_what_was_given_and_little_else(lab: Lab) -> None:
    result = lab.run("env", env={"SEED": "7", "HOME": "/tmp"})

    names = dict(line.split("=", 1) for line in result.log.splitlines())
    assert names["SEED"] == "7"
    assert names["HOME"] == "/tmp"
    assert names["COMPUTEPOOL_OUTPUT_DIR"] == "/job/out"
    assert names["COMPUTEPOOL_CHECKPOINT_DIR"] == "/job/.computepool/checkpoint"
    assert names["PYTHONPATH"] == "/job/.computepool/lib"
    assert set(names) <= {
        *("SEED", "HOME", "PATH", "LANG", "TMPDIR", "OMP_NUM_THREADS", "COMPUTEPOOL_OUTPUT_DIR"),
        *("COMPUTEPOOL_CHECKPOINT_DIR", "PYTHONPATH"),
        *("PWD", "OLDPWD", "SHLVL", "_"),
        # What engines add; and a name for a user whose number has none.
        *(() if lab.is_bubblewrap else ("TERM", "HOSTNAME", "container", "USER", "LOGNAME")),
    }


def test_secrets_of_the_job_are_on_no_command_line(lab: Lab) -> None:
    secret = entropy.new_secret()
    attempt = lab.start("sh", "-c", "echo READY; sleep 30", env={"API_KEY": secret})
    attempt.await_words("READY")

    assert list_processes_with(secret) == []


def test_secrets_of_the_job_are_not_in_its_log(lab: Lab) -> None:
    """In one piece, in two with a pause between, and where the log is cut."""
    told = {"env": {"API_KEY": entropy.new_secret()}, "secrets": ("API_KEY",)}
    script = 'echo "$API_KEY"; printf "%.10s" "$API_KEY"; sleep 0.3; echo "${API_KEY#??????????}"; echo "${#API_KEY}"'
    assert lab.run("sh", "-c", script, **told).log == "[secret]\n[secret]\n43\n"
    assert lab.run("sh", "-c", 'printf %s "$API_KEY"', log_bytes=5, **told).log.startswith("[secr\n")
    # Negative control: what is no secret is printed.
    assert lab.run("sh", "-c", 'echo "$API_KEY"', env=told["env"]).log == told["env"]["API_KEY"] + "\n"


def test_ordinary_programs_work_inside(lab: Lab) -> None:
    script = """
import getpass, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
assert subprocess.check_output(["echo", "x"]) == b"x\\n"
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
server = socket.create_server(("localhost", 0))
socket.create_connection(server.getsockname()).close()
assert getpass.getuser() == "job" and os.path.expanduser("~") == "/job"
with tempfile.TemporaryFile() as file:
    file.write(b"x")
sqlite3.connect("out/db").execute("create table t(x)")
print("FINE")
"""
    result = lab.run(PYTHON, "-c", script)

    assert "FINE" in result.log, result.log


@pytest.mark.parametrize("code", [1, 85, 126, 137, 255])
def test_exit_code_is_passed_on(code: int, lab: Lab) -> None:
    status = lab.run("sh", "-c", f"exit {code}").status

    assert (status.cause, status.exit_code, status.signal) == ("exit_code", code, None)


def test_command_that_does_not_exist_is_the_jobs_fault(lab: Lab) -> None:
    result = lab.run("no-such-program")

    assert (result.status.cause, result.status.exit_code) == ("exit_code", 127)
    assert "not found" in result.log


def test_memory_kill_of_a_child_ends_the_whole_job(lab: Lab) -> None:
    script = f"{PYTHON} -c 'x = bytearray(1 << 28)'; echo WENT_ON; sleep 30"
    status = lab.run("sh", "-c", script, memory_bytes=64 * MEGABYTE).status

    assert status.cause == "out_of_memory"
    assert status.run_seconds < 5
    assert status.memory_bytes_peak > 50 * MEGABYTE
    assert "64" in status.message or "67" in status.message


def test_full_disk_is_named_in_the_message(lab: Lab) -> None:
    status = lab.run("sh", "-c", "head -c 64M /dev/zero > big", disk_bytes=8 * MEGABYTE).status

    assert status.cause == "exit_code"
    assert "disk was full" in status.message


def test_log_is_cut_in_the_middle_of_a_line_with_one_line_that_says_so(lab: Lab) -> None:
    result = lab.run("sh", "-c", "printf 0123456789; printf abcdefghij >&2; echo; echo more", log_bytes=15)

    assert result.log.splitlines()[0] == "0123456789abcde"
    assert len(result.log.splitlines()) == 2
    assert "limit of 15 bytes" in result.log
    assert result.status.log_bytes == 26
    assert result.status.log_truncated


def test_missing_input_is_named(lab: Lab, tmp_path: Path) -> None:
    status = lab.run("true", inputs=[InputFile("model.bin", str(tmp_path / "gone"))]).status

    assert status.cause == "input_missing"
    assert "model.bin" in status.message
    assert status.started_at is None


@pytest.mark.parametrize("path", ["/abs", "../up", "a/../../up", "a//b", "", ".", "a/.", "out", "a\\b", "a\nb"])
def test_input_with_a_crooked_path_is_refused(path: str, lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")

    assert lab.run("true", inputs=[InputFile(path, str(source))]).status.cause == "input_missing"


def test_input_that_is_a_link_or_a_pipe_is_refused(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "pipe"):
        status = lab.run("true", inputs=[InputFile("x", str(tmp_path / name))]).status
        assert status.cause == "input_missing"


def test_input_larger_than_the_disk_is_refused(lab: Lab, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(8 * MEGABYTE))
    status = lab.run("true", inputs=[InputFile("big", str(big))], disk_bytes=2 * MEGABYTE).status

    assert status.cause == "input_missing"
    assert "No space left" in status.message


def test_backend_that_is_weaker_than_the_job_asks_for_or_unknown_is_refused(lab: Lab) -> None:
    weaker = lab.run("true", isolation=IsolationLevel.GVISOR, backend="bubblewrap").status
    unknown = lab.run("true", backend="chroot").status

    assert (weaker.cause, unknown.cause) == ("sandbox_refused", "sandbox_refused")
    assert "gvisor" in weaker.message
    assert "chroot" in unknown.message


def test_disk_that_the_machine_does_not_have_is_refused(lab: Lab) -> None:
    status = lab.run("true", disk_bytes=1 << 50).status

    assert status.cause == "sandbox_refused"
    assert "free" in status.message


def test_request_that_breaks_a_rule_is_refused_when_it_is_made(lab: Lab) -> None:
    for broken in (
        lambda: lab.make_request("../x", "true"),
        lambda: lab.make_request("x"),
        lambda: lab.make_request("x", "a\0b"),
        lambda: lab.make_request("x", "true", env={"A=B": "c"}),
        lambda: lab.make_request("x", "true", memory_bytes=0),
        lambda: lab.make_request("x", "true", inputs=[InputFile("a", "/a"), InputFile("a", "/b")]),
    ):
        with pytest.raises(InvalidAttempt):
            broken()


def test_stop_is_heard_within_a_tenth_of_a_second(lab: Lab) -> None:
    def stop_one() -> float:
        attempt = start_listener(lab, code=85)
        began = time.monotonic()
        handle.request_stop(attempt.state_dir, cause="owner_returned", grace_seconds=60.0)
        attempt.await_words("TERM")
        heard_seconds = time.monotonic() - began
        status = attempt.await_end().status
        # The job used its grace: its own code is kept beside our cause.
        assert (status.cause, status.exit_code, status.signal) == ("owner_returned", 85, None)
        assert {output.path for output in status.outputs} == {"first", "last"}
        return heard_seconds

    # The job itself looks up only every 50 ms.
    assert quickest(stop_one, enough=0.2) < 0.2


def test_stop_without_a_signal_is_seen_at_the_next_look(lab: Lab) -> None:
    attempt = start_listener(lab)
    (attempt.state_dir / "stop.json").write_text(json.dumps({"cause": "superseded", "grace_seconds": 2}))

    assert attempt.await_end().status.cause == "superseded"


def test_second_stop_with_less_grace_counts(lab: Lab) -> None:
    attempt = lab.start("sh", "-c", "trap '' TERM; echo READY; while :; do sleep 1; done")
    attempt.await_words("READY")
    handle.request_stop(attempt.state_dir, cause="cancelled", grace_seconds=60.0)
    handle.request_stop(attempt.state_dir, cause="cancelled", grace_seconds=0.0)

    assert attempt.await_end(50.0).status.signal == signal.SIGKILL


def test_stop_before_the_start_runs_nothing(lab: Lab) -> None:
    attempt = lab.plan()
    attempt.state_dir.mkdir(parents=True)
    handle.request_stop(attempt.state_dir, cause="cancelled", grace_seconds=0.0)
    handle.spawn(attempt.state_dir, lab.make_request(attempt.name, "sh", "-c", "echo RAN"))
    result = attempt.await_end()

    assert result.status.cause == "cancelled"
    assert result.status.started_at is None
    assert result.log == ""


def test_unknown_cause_of_a_stop_is_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match="no cause"):
        handle.request_stop(lab.root, cause="boredom")


def test_bare_sigterm_means_that_the_owner_wants_the_machine(lab: Lab) -> None:
    attempt = start_listener(lab)
    runner = attempt.status().runner_pid
    assert runner is not None
    os.kill(runner, signal.SIGTERM)
    status = attempt.await_end().status

    assert status.cause == "owner_returned"
    assert {output.path for output in status.outputs} == {"first", "last"}


def test_job_is_stopped_when_the_agent_vanishes_and_its_outputs_are_kept(lab: Lab) -> None:
    attempt = start_listener(lab, lease_seconds=2.0)
    result = attempt.await_end()

    assert result.status.cause == "node_vanished"
    assert "sign of life" in result.status.message
    assert (result.outputs / "first").read_text() == "first words"
    assert (result.outputs / "last").read_text() == "last words"


def test_job_goes_on_while_the_agent_gives_signs_of_life(lab: Lab) -> None:
    attempt = start_listener(lab, lease_seconds=3.0)
    # For longer than a lease, and never silent for as long, even where others take the processor for a second.
    for _ in range(80):
        lab.alive_path.touch()
        time.sleep(0.05)

    assert attempt.status().state == "running"


def test_nothing_survives_the_kill_of_a_runner(lab: Lab) -> None:
    word = entropy.new_secret(12)
    script = f"setsid sleep 300 {word} 2>/dev/null & setsid {PYTHON} -c 'import time; time.sleep(300)' {word} & "
    attempt = lab.start("sh", "-c", script + "echo READY; wait; sleep 300")
    attempt.await_words("READY")
    wait_until(lambda: bool(list_processes_with(word)), 60.0, "the job's daemons did not start")
    runner = attempt.status().runner_pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    wait_until(lambda: not list_processes_with(word), 60.0, "a process of the job outlived its runner")
    wait_until(lambda: attempt.status().state == "vanished", 60.0, "the runner's death is not seen")
    assert attempt.status().cause == "node_vanished"

    handle.cleanup(attempt.state_dir)

    await_nothing_left(attempt)
    assert not attempt.state_dir.exists()


def test_runner_killed_at_any_moment_of_its_start_leaves_nothing_that_a_cleanup_does_not_find(lab: Lab) -> None:
    for delay_seconds in (0.03, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12):
        attempt = lab.start("sleep", "300")
        wait_until(lambda: attempt.status().runner_pid is not None, 60.0, "no runner")  # noqa: B023
        time.sleep(delay_seconds - 0.03)
        runner = attempt.status().runner_pid
        assert runner is not None
        os.kill(runner, signal.SIGKILL)
        wait_until(lambda: attempt.status().state == "vanished", 60.0, "not seen")  # noqa: B023
        handle.cleanup(attempt.state_dir)
        await_nothing_left(attempt)


def test_cleanup_leaves_running_attempts_alone(lab: Lab) -> None:
    attempt = start_listener(lab)
    with pytest.raises(handle.RunnerAlive):
        handle.cleanup(attempt.state_dir)
    assert attempt.status().state == "running"


def test_runner_outlives_the_process_that_started_it_and_is_adopted_by_another(lab: Lab) -> None:
    attempt = lab.plan()
    request = lab.make_request(attempt.name, PYTHON, "-c", LISTENER, "0")
    story = (
        "import json, sys; from pathlib import Path\n"
        "from computepool.node.runner import handle; from computepool.node.runner.request import AttemptRequest\n"
        "handle.spawn(Path(sys.argv[1]), AttemptRequest.from_json(json.loads(sys.argv[2])))\n"
    )
    first_agent = [sys.executable, "-c", story, str(attempt.state_dir), json.dumps(request.to_json())]
    subprocess.run(first_agent, check=True, timeout=60)
    attempt.await_words("READY")

    assert handle.list_state_dirs(attempt.state_dir.parent) == [attempt.state_dir]
    assert attempt.status().state == "running"
    runner = attempt.status().runner_pid
    assert runner is not None
    assert os.getsid(runner) not in (os.getsid(0), 0)
    handle.request_stop(attempt.state_dir, cause="cancelled")
    assert attempt.await_end().status.cause == "cancelled"


def test_directory_serves_one_attempt_only(lab: Lab) -> None:
    attempt = lab.start("true")
    attempt.await_end()
    with pytest.raises(FileExistsError):
        handle.spawn(attempt.state_dir, lab.make_request(attempt.name, "true"))


def test_reused_process_number_is_not_taken_for_the_runner(lab: Lab) -> None:
    attempt = lab.start("true")
    attempt.await_end()
    path = attempt.state_dir / "status.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "state": "running", "runner_pid": os.getpid()}))
    assert attempt.status().state == "vanished"

    path.write_text(
        json.dumps(
            {**content, "state": "running", "runner_pid": os.getpid(), "runner_started": find_birth(os.getpid())}
        )
    )
    assert attempt.status().state == "running"
    path.write_text(json.dumps(content))


def test_runner_that_never_came_up_is_vanished_after_a_while(lab: Lab, tmp_path: Path) -> None:
    state_dir = tmp_path / "never"
    state_dir.mkdir()
    status_path = state_dir / "status.json"
    status_path.write_text(json.dumps({"state": "starting", "runner_pid": None}))
    assert handle.read_status(state_dir).state == "starting"

    long_ago = time.time() - 60
    os.utime(status_path, (long_ago, long_ago))
    assert handle.read_status(state_dir).state == "vanished"
    assert handle.read_status(tmp_path / "nowhere").state == "vanished"


def test_many_runners_at_once_do_not_disturb_each_other(lab: Lab) -> None:
    attempts = [lab.start("sh", "-c", f"echo {number} > out/number") for number in range(8)]
    for number, attempt in enumerate(attempts):
        result = attempt.await_end()
        assert result.status.cause is None, result.status.message
        assert (result.outputs / "number").read_text() == f"{number}\n"


def test_waiting_runner_costs_next_to_nothing(lab: Lab) -> None:
    attempt = lab.start("sh", "-c", "echo READY; sleep 60")
    attempt.await_words("READY")
    runner = attempt.status().runner_pid

    def ticks() -> int:
        fields = Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(2.0)
    # A tick is 10 ms: under one percent of a processor.
    assert ticks() - before <= 2
    lines = Path(f"/proc/{runner}/status").read_text().splitlines()
    anonymous_kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    assert anonymous_kilobytes < 16_000


def test_runner_imports_the_standard_library_and_us_only() -> None:
    story = (
        "import sys; import computepool.node.runner.__main__\n"
        "print('\\n'.join({name.split('.')[0] for name in sys.modules}))"
    )
    root = str(Path(handle.__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-S", "-c", story], env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"computepool", "__main__"}

    assert foreign == set()
