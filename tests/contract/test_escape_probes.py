"""Every known way out of a sandbox, tried through the real runner.

Each has a control: the same script without the sandbox, which must get out. A probe that cannot get out
anywhere proves nothing, so a control that fails, fails the test.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from computepool import entropy
from computepool.node.runner import handle
from tests.contract.sandbox_lab import (
    AS_ROOT,
    AS_USER,
    IN_MOUNT_NAMESPACE,
    IN_PID_NAMESPACE,
    MEGABYTE,
    PROBES,
    PYTHON,
    Lab,
    Scene,
    list_processes_with,
    run_control,
    wait_until,
)


class Case(NamedTuple):
    """One probe that says of itself how it went."""

    name: str
    how: Sequence[str] = AS_ROOT  # of the control
    arguments: Callable[[Scene], tuple[str, ...]] = lambda scene: ()
    limits: dict[str, Any] = {}  # noqa: RUF012
    cause: str | None = None  # when the job is ended for trying, this is the cause; else it says CONTAINED
    exit_code: int | None = None


def halves(word: str) -> tuple[str, str]:
    """So that the probe's own command line is not what it finds."""
    return word[: len(word) // 2], word[len(word) // 2 :]


CASES = [
    Case("read_shadow"),
    Case("read_ssh_key", arguments=lambda scene: (str(scene.secret_path),)),
    Case("read_through_init_root", IN_PID_NAMESPACE, lambda scene: (str(scene.secret_path),)),
    Case("write_outside", AS_USER, lambda scene: (str(scene.folder),)),
    Case("see_processes", AS_USER, lambda scene: halves(scene.word)),
    Case("become_root"),
    Case("setuid_program", AS_USER),
    Case("mount", IN_MOUNT_NAMESPACE, lambda scene: ("/tmp",)),
    Case("chroot"),
    Case("make_device"),
    Case("open_devices"),
    Case("write_sysctl"),
    Case("tty_inject"),
    # In a PID namespace of its own: the control reads environments, and the machine's are not its business.
    Case("agent_token", IN_PID_NAMESPACE, lambda scene: halves(scene.token)),
    Case("host_loopback", AS_USER, lambda scene: (str(scene.tcp_port),)),
    Case("abstract_socket", AS_USER, lambda scene: (scene.abstract_name,)),
    Case("network_cards", AS_USER),
    Case("raw_socket"),
    Case("vsock", AS_USER),
    Case("nested_userns", AS_USER),
    Case("clone_userns", AS_USER),
    Case("ptrace_others", AS_USER),
    Case("keyring", AS_USER),
    Case("bpf"),
    Case("io_uring", AS_USER),
    Case("perf_events"),
    Case("userfault"),
    Case("file_handle"),
    Case("kernel_log"),
    Case("real_time"),
    Case("fork_bomb", arguments=lambda scene: ("200",), limits={"pids_max": 32}),
    Case(
        "memory_hog",
        arguments=lambda scene: ("192",),
        limits={"memory_bytes": 64 * MEGABYTE},
        cause="out_of_memory",
    ),
]
if platform.machine() == "x86_64":
    CASES.append(Case("old_abi", AS_USER, cause="exit_code", exit_code=128 + signal.SIGSYS))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_job_cannot(case: Case, lab: Lab, scene: Scene, tmp_path: Path) -> None:
    arguments = case.arguments(scene)
    control = run_control(case.name, *arguments, how=case.how, cwd=tmp_path)
    assert "ESCAPED" in control, f"the control did not get out, so this probe proves nothing: {control}"

    result = lab.run_probe(case.name, *arguments, **case.limits)

    assert "ESCAPED" not in result.log
    if case.cause is not None:
        assert result.status.cause == case.cause, result.log
        assert case.exit_code in (None, result.status.exit_code)
    else:
        assert "CONTAINED" in result.log, result.status.message + result.log
        assert result.status.cause is None, result.status.message


HOGS = [
    # (path of the file inside, megabytes that are too many, path of the control's file)
    ("/job/out/hog", 48, "hog"),
    ("/tmp/hog", 96, "hog"),
    ("/dev/shm/hog", 96, "/dev/shm/computepool-probe-hog"),
]


@pytest.mark.parametrize(("path", "megabytes", "control_path"), HOGS, ids=["disk", "tmp", "shm"])
def test_job_cannot_fill(path: str, megabytes: int, control_path: str, lab: Lab, tmp_path: Path) -> None:
    assert "ESCAPED" in run_control("file_hog", control_path, str(megabytes), cwd=tmp_path)

    result = lab.run_probe("file_hog", path, str(megabytes), memory_bytes=256 * MEGABYTE)

    assert "CONTAINED" in result.log, result.log
    assert "No space left" in result.log


def test_job_cannot_plant_programs(lab: Lab, tmp_path: Path) -> None:
    over_usr_local = (*IN_MOUNT_NAMESPACE, "sh", "-c", 'mount -t tmpfs none /usr/local && exec "$@"', "sh")
    assert "ESCAPED" in run_control("write_usr", how=over_usr_local, cwd=tmp_path)
    assert not Path("/usr/local/planted").exists()

    assert "CONTAINED" in lab.run_probe("write_usr").log
    assert not Path("/usr/local/planted").exists()


def test_job_finds_no_open_files_of_the_agent(lab: Lab, scene: Scene, tmp_path: Path) -> None:
    assert "ESCAPED" in run_control("inherited_fds", cwd=tmp_path, pass_fds=(scene.descriptor,))

    result = lab.run_probe("inherited_fds")

    assert "CONTAINED" in result.log, result.log


@pytest.fixture
def throwaway_group() -> Iterator[Path]:
    """A control group that the control starts in, so that leaving one means something."""
    top = Path("/sys/fs/cgroup/pids") if Path("/sys/fs/cgroup/pids").exists() else Path("/sys/fs/cgroup")
    group = top / f"computepool-control-{entropy.new_id()}"
    group.mkdir()
    yield group
    group.rmdir()


def test_job_cannot_leave_its_control_group(lab: Lab, tmp_path: Path, throwaway_group: Path) -> None:
    door = str(throwaway_group.parent / "cgroup.procs")
    into = ("sh", "-c", 'echo 0 > "$0"/cgroup.procs && exec "$@"', str(throwaway_group))
    assert "ESCAPED" in run_control("leave_cgroup", door, how=into, cwd=tmp_path)

    assert "CONTAINED" in lab.run_probe("leave_cgroup").log


def test_job_cannot_kill_others(lab: Lab, scene: Scene) -> None:
    machine = os.readlink("/proc/self/ns/pid")
    # In a PID namespace of its own: a bystander, then the probe, then a look at the bystander.
    story = 'sleep 60 & "$@"; sleep 0.1; kill -0 $! 2>/dev/null && echo BYSTANDER_LIVES || echo BYSTANDER_DIED'
    control = subprocess.run(
        [*IN_PID_NAMESPACE, "sh", "-c", story, "sh", PYTHON, "-B", str(PROBES / "kill_everything.py"), machine],
        stdout=subprocess.PIPE,
        text=True,
        timeout=20,
        check=False,
    )
    assert "BYSTANDER_DIED" in control.stdout

    result = lab.run_probe("kill_everything", machine)

    assert "SURVIVED" in result.log
    assert scene.bystander.poll() is None


def test_job_cannot_send_packets(lab: Lab, scene: Scene, tmp_path: Path) -> None:
    port = str(scene.udp.getsockname()[1])
    run_control("udp_out", port, how=AS_USER, cwd=tmp_path)
    assert scene.udp.recv(16) == b"out"

    lab.run_probe("udp_out", port)

    scene.udp.setblocking(False)
    with pytest.raises(BlockingIOError):
        scene.udp.recv(16)
    scene.udp.settimeout(1.0)


def test_job_that_does_not_listen_is_ended(lab: Lab) -> None:
    control = subprocess.Popen([PYTHON, str(PROBES / "ignore_sigterm.py")], stdout=subprocess.PIPE)
    try:
        assert control.stdout is not None
        assert control.stdout.readline() == b"LOOPING\n"
        control.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            control.wait(0.3)
    finally:
        control.kill()
        control.communicate()

    attempt = lab.start_probe("ignore_sigterm")
    attempt.await_words("LOOPING")
    handle.request_stop(attempt.state_dir, cause="cancelled", grace_seconds=0.3)
    began = time.monotonic()
    status = attempt.await_end(5.0).status

    assert time.monotonic() - began < 2.0
    assert (status.cause, status.exit_code, status.signal) == ("cancelled", None, signal.SIGKILL)


def test_job_cannot_leave_a_process_behind(lab: Lab, tmp_path: Path) -> None:
    word, note = entropy.new_secret(12), tmp_path / "daemon"
    run_control("daemon", word, str(note), cwd=tmp_path)
    survivor = int(note.read_text())
    # The daemon itself and the process that waits for it are ours: found by a word nobody else knows.
    assert survivor in list_processes_with(word)
    os.kill(survivor, signal.SIGKILL)
    wait_until(lambda: not list_processes_with(word), 5.0, "the control's daemon does not die")

    word = entropy.new_secret(12)
    result = lab.run_probe("daemon", word, "/job/daemon")

    assert "LEFT" in result.log
    assert result.status.cause is None
    assert list_processes_with(word) == []


def test_outputs_that_trip_careless_collectors_are_refused(lab: Lab, scene: Scene, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    run_control("bad_outputs", str(trap), str(scene.secret_path), cwd=tmp_path)
    assert (trap / "link").read_text() == scene.secret
    assert (trap / "folder_link" / scene.secret_path.name).read_text() == scene.secret
    assert (trap / "sparse").stat().st_size == 64 << 30
    assert (trap / "twice").stat().st_nlink == 2
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["cat", str(trap / "pipe")], timeout=0.2, check=False)
    assert b"new\nline" in os.listdir(os.fsencode(trap))
    shutil.rmtree(trap)

    result = lab.run_probe("bad_outputs", "/job/out", str(scene.secret_path))

    assert "LEFT" in result.log
    assert {output.path for output in result.status.outputs} == {"good", "folder/good"}
    assert {path.relative_to(result.outputs).as_posix() for path in result.outputs.rglob("*") if path.is_file()} == {
        "good",
        "folder/good",
    }
    reasons = {refused.path: refused.reason for refused in result.status.outputs_refused}
    assert "a link" in reasons["link"]
    assert "a link" in reasons["folder_link"]
    assert "a link" in reasons["folder/relative_link"]
    assert "a pipe" in reasons["pipe"]
    assert "a socket" in reasons["socket"]
    assert "do not fit" in reasons["sparse"]
    assert "second name" in reasons["twice"]
    assert "second name" in reasons["folder/twice_too"]
    assert sum("characters" in reason for reason in reasons.values()) == 4


def test_gigabyte_of_output_is_cut_and_the_job_goes_on(lab: Lab, tmp_path: Path) -> None:
    control = run_control("print_much", "64", cwd=tmp_path)
    assert len(control) == 64 * MEGABYTE

    attempt = lab.start_probe("print_much", "1024", log_bytes=10_000)
    result = attempt.await_end(30.0)

    assert result.status.cause is None
    assert result.status.log_bytes == 1024 * MEGABYTE
    assert result.status.log_truncated
    assert (attempt.state_dir / "log").stat().st_size < 11_000
    assert result.log.count("the log was cut here") == 1
    assert result.log.endswith("limit of 10000 bytes\n")


def test_job_cannot_take_more_processor_than_its_share(lab: Lab, tmp_path: Path) -> None:
    # The probe counts for one second; other work on the machine may take part of it from the control.
    assert float(run_control("use_cpu", cwd=tmp_path)) > 0.3

    status = lab.run_probe("use_cpu", cpu_cores=0.1).status

    assert status.cause is None
    assert 0.0 < status.cpu_seconds / status.run_seconds < 0.15


def test_job_that_runs_for_ever_is_timed_out(lab: Lab) -> None:
    control = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            control.wait(1.2)
    finally:
        control.kill()
        control.wait()

    result = lab.run("sleep", "60", wall_seconds=1.0)

    assert result.status.cause == "timed_out"
    assert 1.0 <= result.status.run_seconds < 3.0


def test_exit_137_of_the_job_itself_is_no_kill(lab: Lab) -> None:
    # Without a cgroup's count the two look the same to a parent that sees bubblewrap's code only.
    own = subprocess.run(["sh", "-c", "exit 137"], check=False).returncode
    shot = subprocess.run(["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], check=False).returncode
    assert own == shot == 137

    result = lab.run("sh", "-c", "exit 137")
    assert (result.status.cause, result.status.exit_code, result.status.signal) == ("exit_code", 137, None)

    killed = lab.run_probe("memory_hog", "192", memory_bytes=64 * MEGABYTE)
    assert (killed.status.cause, killed.status.signal) == ("out_of_memory", signal.SIGKILL)
