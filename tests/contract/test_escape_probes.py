"""Every known way out of a sandbox, tried through the real runner, on every backend.

Each has a control: the same script without the sandbox, which must get out. A probe that cannot get out
anywhere proves nothing, so a control that fails, fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from computepool import entropy
from computepool.node.runner import handle
from computepool.node.sandbox.port import Backend
from tests.contract.escape_cases import (
    BOMBS,
    CASES,
    FILES,
    SHARED,
    Case,
    is_contained,
    run_case_outside,
    run_shared,
    script_of,
)
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


@pytest.fixture(scope="session")
def controls(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], str]:
    """What each probe says outside; tried once, whatever number of sandboxes it is then tried in."""
    said: dict[str, str] = {}

    def look(case: Case) -> str:
        if case.name not in said:
            folder = tmp_path_factory.mktemp(f"control-{case.name}")
            folder.chmod(0o777)
            said[case.name] = run_case_outside(case, scene, folder)
        return said[case.name]

    return look


@pytest.fixture(scope="session")
def shared_runs(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Backend], dict[str, tuple[int, str]]]:
    """One sandbox for all probes that do not disturb each other, per backend."""
    told: dict[str, dict[str, tuple[int, str]]] = {}

    def look(backend: Backend) -> dict[str, tuple[int, str]]:
        if backend.name not in told:
            lab = Lab(tmp_path_factory.mktemp(f"shared-{backend.name}"), backend)
            try:
                told[backend.name] = run_shared(lab, scene)
            finally:
                lab.close()
        return told[backend.name]

    return look


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_probe_gets_out_where_there_are_no_walls(case: Case, controls: Callable[[Case], str]) -> None:
    assert "ESCAPED" in controls(case), f"this probe proves nothing: {controls(case)}"


@pytest.mark.engines
@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_job_cannot(
    case: Case, backend: Backend, shared_runs: Callable[[Backend], dict[str, tuple[int, str]]]
) -> None:
    code, last = shared_runs(backend)[case.name]

    assert is_contained(case, code, last, is_gvisor=backend.name == "gvisor"), (code, last)


@pytest.mark.engines
@pytest.mark.parametrize("case", BOMBS, ids=lambda case: case.name)
def test_bomb_is_held(case: Case, lab: Lab, scene: Scene) -> None:
    result = lab.run_probe(script_of(case), *case.arguments(scene), **dict(case.limits))

    assert "ESCAPED" not in result.log or (lab.is_gvisor and case.emulated)
    if lab.is_gvisor and case.cause is None:
        # The machine's limit may end gVisor's kernel, and the job with it; threads that wait cost the machine none.
        assert result.status.cause in (None, "exit_code", "out_of_memory"), result.status.message
    elif case.cause is not None:
        assert result.status.cause == case.cause, result.status.message + result.log
    else:
        assert "CONTAINED" in result.log, result.status.message + result.log
    # On a quiet machine under two seconds, by the benchmark; here only far from a hang.
    assert result.status.run_seconds < 15


def test_case_that_gets_out_is_noticed(scene: Scene, tmp_path: Path) -> None:
    """The same battery without walls: the judge must call nearly every probe an escape."""
    orders = [(case.name, f"{script_of(case)}.py", case.arguments(scene)) for case in FILES if case.how is AS_ROOT]
    (tmp_path / "plan.json").write_text(json.dumps(orders))
    for path in PROBES.glob("*.py"):
        shutil.copy(path, tmp_path / path.name)
    command = [PYTHON, "-B", "battery.py", "plan.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    told = {name: (code, last) for name, code, last in map(json.loads, done.stdout.splitlines())}

    held = [
        case.name for case in FILES if case.name in told and is_contained(case, *told[case.name], is_gvisor=False)
    ]
    assert held == []


def test_there_are_enough_cases() -> None:
    apart = [name for name in globals() if name.startswith("test_") and "case" not in name]

    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(CASES) + len(apart) >= 80


HOGS = [
    # (path of the file inside, megabytes that are too many, path of the control's file)
    ("/job/out/hog", 48, "hog"),
    ("/tmp/hog", 96, "hog"),
    ("/dev/shm/hog", 96, f"/dev/shm/computepool-probe-hog-{os.getpid()}"),
]


@pytest.mark.engines
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


@pytest.mark.engines
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


@pytest.mark.engines
def test_job_cannot_leave_its_control_group(lab: Lab, tmp_path: Path, throwaway_group: Path) -> None:
    door = str(throwaway_group.parent / "cgroup.procs")
    into = ("sh", "-c", 'echo 0 > "$0"/cgroup.procs && exec "$@"', str(throwaway_group))
    assert "ESCAPED" in run_control("leave_cgroup", door, how=into, cwd=tmp_path)

    assert "CONTAINED" in lab.run_probe("leave_cgroup").log


@pytest.mark.engines
def test_job_cannot_kill_others(lab: Lab, scene: Scene) -> None:
    machine = os.readlink("/proc/self/ns/pid")
    # In a PID namespace of its own: a bystander, then the probe, then a look at the bystander.
    story = 'sleep 60 & "$@"; sleep 0.1; kill -0 $! 2>/dev/null && echo BYSTANDER_LIVES || echo BYSTANDER_DIED'
    control = subprocess.run(
        [*IN_PID_NAMESPACE, "sh", "-c", story, "sh", PYTHON, "-B", str(PROBES / "kill_everything.py"), machine],
        stdout=subprocess.PIPE,
        text=True,
        timeout=50,
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


@pytest.mark.engines
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
    status = attempt.await_end().status

    assert (status.cause, status.exit_code, status.signal) == ("cancelled", None, signal.SIGKILL)


@pytest.mark.engines
def test_job_cannot_leave_a_process_behind(lab: Lab, tmp_path: Path) -> None:
    word, note = entropy.new_secret(12), tmp_path / "daemon"
    run_control("daemon", word, str(note), cwd=tmp_path)
    survivor = int(note.read_text())
    # The daemon itself and the process that waits for it are ours: found by a word nobody else knows.
    assert survivor in list_processes_with(word)
    os.kill(survivor, signal.SIGKILL)
    wait_until(lambda: not list_processes_with(word), 60.0, "the control's daemon does not die")

    word = entropy.new_secret(12)
    result = lab.run_probe("daemon", word, "/job/daemon")

    assert "LEFT" in result.log
    assert result.status.cause is None
    assert list_processes_with(word) == []


@pytest.fixture
def no_segment() -> Iterator[int]:
    """A key for shared memory that is free on this machine, before and after."""
    key = 0x0C9_0000 + os.getpid() % 65_536
    yield key
    subprocess.run(["ipcrm", "-M", str(key)], capture_output=True, timeout=10, check=False)


@pytest.mark.engines
def test_shared_memory_of_a_job_goes_with_it(lab: Lab, no_segment: int, tmp_path: Path) -> None:
    listed = f" {no_segment} "
    assert "LEFT" in run_control("more", "leave_segment", str(no_segment), cwd=tmp_path)
    assert listed in Path("/proc/sysvipc/shm").read_text(), "the control left nothing, so this proves nothing"
    subprocess.run(["ipcrm", "-M", str(no_segment)], timeout=10, check=True)

    lab.run_probe("more", "leave_segment", str(no_segment))

    assert listed not in Path("/proc/sysvipc/shm").read_text()


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/var/tmp", "/job"])
def test_files_of_a_job_go_with_it(folder: str, lab: Lab, tmp_path: Path) -> None:
    name = f"left-{entropy.new_secret(9)}"
    outside = Path(folder if Path(folder).is_dir() else tmp_path, name)
    assert "ESCAPED" in run_control("more", "leave_file", str(outside), cwd=tmp_path)
    outside.unlink()

    lab.run_probe("more", "leave_file", f"{folder}/{name}")

    assert not Path(folder, name).exists()


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
    if not lab.is_gvisor:  # which makes no pipes in a folder that it shares
        assert "a pipe" in reasons["pipe"]
    assert "a socket" in reasons["socket"]
    assert "do not fit" in reasons["sparse"]
    assert "second name" in reasons["twice"]
    assert "second name" in reasons["folder/twice_too"]
    assert sum("characters" in reason for reason in reasons.values()) == 4


def test_gigabyte_of_output_is_cut_and_the_job_goes_on(lab: Lab, tmp_path: Path) -> None:
    control = run_control("print_much", "64", cwd=tmp_path)
    assert len(control) == 64 * MEGABYTE

    attempt = lab.start_probe("print_much", "1024", log_bytes=10_000, wall_seconds=200.0)
    result = attempt.await_end(220.0)

    assert result.status.cause is None
    assert result.status.log_bytes == 1024 * MEGABYTE
    assert result.status.log_truncated
    assert (attempt.state_dir / "log").stat().st_size < 11_000
    assert result.log.count("the log was cut here") == 1
    assert result.log.endswith("limit of 10000 bytes\n")


def test_job_cannot_take_more_processor_than_its_share(lab: Lab, tmp_path: Path) -> None:
    # The probe counts for one second; other work on the machine may take part of it from the control.
    assert any(float(run_control("use_cpu", cwd=tmp_path)) > 0.3 for _ in range(20))

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
    assert 1.0 <= result.status.run_seconds < 30.0


def test_exit_137_of_the_job_itself_is_no_kill(lab: Lab) -> None:
    # Without a cgroup's count the two look the same to a parent that sees bubblewrap's code only.
    own = subprocess.run(["sh", "-c", "exit 137"], check=False).returncode
    shot = subprocess.run(["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], check=False).returncode
    assert own == shot == 137

    result = lab.run("sh", "-c", "exit 137")
    assert (result.status.cause, result.status.exit_code, result.status.signal) == ("exit_code", 137, None)

    killed = lab.run_probe("memory_hog", "192", memory_bytes=64 * MEGABYTE)
    assert (killed.status.cause, killed.status.signal) == ("out_of_memory", signal.SIGKILL)
