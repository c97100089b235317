"""A bench for sandboxes: runs jobs through the real runner, probes outside of it, and counts what is left over.

Everything is bounded. Controls that could hurt run in namespaces of their own.
"""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from computepool import entropy
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.runner import handle
from computepool.node.runner.liveness import find_birth
from computepool.node.runner.request import CHECKPOINT_SECONDS, AttemptRequest
from computepool.node.runner.status import FINISHED, VANISHED, Status
from computepool.node.sandbox.bubblewrap import JOB_UID_BASE
from computepool.node.sandbox.bubblewrap_line import INSIDE_UID
from computepool.node.sandbox.container import UID_BASE, UID_RANGES
from computepool.node.sandbox.port import Backend, InputFile, Limits

PROBES = Path(__file__).parent / "probes"
PYTHON = "/usr/bin/python3"
MEGABYTE = 1 << 20
PLAIN_UID = 54321
LIMITS = Limits(128 * MEGABYTE, 64, 1.0, 16 * MEGABYTE, 20.0, 64 * 1024)

# Ways to run a probe without a sandbox, each just wide enough for the probe to show what it can do.
AS_USER = ("setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups", "--")
AS_ROOT: tuple[str, ...] = ()
IN_MOUNT_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "--")
IN_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")


class Scene(NamedTuple):
    """What a job must not reach."""

    folder: Path  # anybody's files, open to anybody
    secret_path: Path
    secret: str
    token: str  # in the environment of the test process, which plays the agent
    word: str  # in the command line of a bystander
    bystander: subprocess.Popen[bytes]
    tcp_port: int
    udp: socket.socket
    abstract_name: str
    descriptor: int  # an open file that a careless agent leaves to its children
    canary: str  # the name of a file that is nowhere but here
    lan_address: str
    lan_port: int
    socket_path: str


class Result(NamedTuple):
    status: Status
    log: str
    outputs: Path


class Attempt(NamedTuple):
    name: str
    state_dir: Path
    # Whether it may leave a container behind.
    by_engine: bool

    def status(self) -> Status:
        return handle.read_status(self.state_dir)

    def log(self) -> str:
        path = self.state_dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def result(self) -> Result:
        return Result(self.status(), self.log(), self.state_dir / "outputs")

    def await_end(self, seconds_max: float = 60.0) -> Result:
        wait_until(lambda: self.status().state in (FINISHED, VANISHED), seconds_max, "the attempt does not end")
        return self.result()

    def await_words(self, words: str, seconds_max: float = 60.0) -> None:
        wait_until(lambda: words in self.log(), seconds_max, f"the job never said {words!r}")


class Lab:
    """Starts attempts on one backend and remembers them, so that none is forgotten."""

    def __init__(self, root: Path, backend: Backend) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.backend = backend
        self.is_bubblewrap = backend.name == "bubblewrap"
        self.is_gvisor = backend.name == "gvisor"
        self.alive_path = root / "alive"
        self.alive_path.touch()
        self.attempts: list[Attempt] = []

    def start(
        self,
        *command: str,
        inputs: Sequence[InputFile] = (),
        env: dict[str, str] | None = None,
        lease_seconds: float = 60.0,
        **overrides: Any,
    ) -> Attempt:
        attempt = self.plan()
        handle.spawn(
            attempt.state_dir,
            self.make_request(
                attempt.name, *command, inputs=inputs, env=env, lease_seconds=lease_seconds, **overrides
            ),
        )
        return attempt

    def plan(self) -> Attempt:
        name = str(entropy.new_id())
        attempt = Attempt(name, self.root / "attempts" / name, by_engine=not self.is_bubblewrap)
        self.attempts.append(attempt)
        return attempt

    def make_request(
        self,
        name: str,
        *command: str,
        inputs: Sequence[InputFile] = (),
        env: dict[str, str] | None = None,
        lease_seconds: float = 60.0,
        isolation: IsolationLevel | None = None,
        backend: str | None = None,
        image: str | None = None,
        devices: tuple[str, ...] = (),
        environment: str | None = None,
        egress: tuple[str, ...] = (),
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        secrets: tuple[str, ...] = (),
        restored: Mapping[str, str] = MappingProxyType({}),
        **limits: Any,
    ) -> AttemptRequest:
        return AttemptRequest(
            attempt_id=name,
            command=command,
            env=env or {},
            inputs=tuple(inputs),
            limits=LIMITS._replace(**limits),
            isolation=isolation or self.backend.level,
            backend=self.backend.name if backend is None else backend,
            image=image,
            devices=devices,
            environment=environment,
            egress=egress,
            checkpoint_seconds=checkpoint_seconds,
            secrets=secrets,
            restored=restored,
            slot="cpu:0",
            lease_seconds=lease_seconds,
            agent_alive_path=str(self.alive_path),
        )

    def run(self, *command: str, **options: Any) -> Result:
        return self.start(*command, **options).await_end()

    def start_probe(self, name: str, *arguments: str, **options: Any) -> Attempt:
        return self.start(PYTHON, f"{name}.py", *arguments, inputs=probe_inputs(name), **options)

    def run_probe(self, name: str, *arguments: str, **options: Any) -> Result:
        return self.start_probe(name, *arguments, **options).await_end()

    def close(self) -> None:
        """Ends what still runs, then insists that nothing of any attempt is left on the machine."""
        for attempt in self.attempts:
            if attempt.state_dir.exists() and attempt.status().state not in (FINISHED, VANISHED):
                handle.request_stop(attempt.state_dir, cause="cancelled", grace_seconds=0.0)
                attempt.await_end()
        for attempt in self.attempts:
            if attempt.status().state == FINISHED:
                leftovers = list_leftovers(attempt, corpses_count=True)
                assert not leftovers, leftovers
            else:
                await_nothing_left(attempt)
            handle.cleanup(attempt.state_dir)
            assert not attempt.state_dir.exists()


def await_nothing_left(attempt: Attempt) -> None:
    """After a runner that was killed: the kernel takes down a dead process's mounts in its own time."""
    wait_until(lambda: not list_leftovers(attempt, corpses_count=False), 60.0, "something is left")


def probe_inputs(name: str) -> list[InputFile]:
    return [InputFile(f"{each}.py", str(PROBES / f"{each}.py")) for each in (name, "probe")]


def run_control(
    name: str,
    *arguments: str,
    how: Sequence[str] = AS_ROOT,
    cwd: Path,
    pass_fds: tuple[int, ...] = (),
    seconds_max: float = 60.0,
) -> str:
    """The probe without a sandbox; what it printed."""
    done = subprocess.run(
        # -B: a probe that runs as root must not leave compiled files beside its source.
        [*how, PYTHON, "-B", str(PROBES / f"{name}.py"), *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds_max,
        pass_fds=pass_fds,
        check=False,
    )
    return done.stdout


def wait_until(holds: Callable[[], bool], seconds_max: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.005)


def list_leftovers(attempt: Attempt, *, corpses_count: bool = True) -> list[str]:
    """Processes, groups, mounts, loop devices and folders that an attempt has left on the machine.

    Without `corpses_count`, dead processes that the machine's PID 1 has yet to reap are passed over: a runner
    that was killed can reap nobody.
    """
    found = [f"group {path}" for path in glob.glob(f"/sys/fs/cgroup/**/*{attempt.name}*", recursive=True)]
    found += [f"folder {path}" for path in glob.glob(f"/run/computepool/*{attempt.name}*")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if attempt.name in line]
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            if attempt.name in Path(path).read_text():
                found.append(f"loop device {path}")
        except OSError:
            pass  # it went away while we looked
    content = handle.read_status(attempt.state_dir)
    if content.runner_pid is not None:
        # Every user id that a job of this runner may have had, behind whichever walls.
        range_base = UID_BASE + content.runner_pid % UID_RANGES * 65_536
        uids = {JOB_UID_BASE + content.runner_pid, range_base, range_base + INSIDE_UID}
        pids = [pid for uid in uids for pid in list_processes_of(uid)]
        found += [f"process {pid}" for pid in pids if corpses_count or find_birth(pid) is not None]
    # Engines are slow to answer, and bubblewrap knows none.
    names = list_containers() if attempt.by_engine else []
    return found + [f"container {name}" for name in names if attempt.name in name]


def list_containers() -> list[str]:
    """Names of all containers of this machine, of whatever engine answers."""
    names: list[str] = []
    for program in ("podman", "docker"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [program, "ps", "--all", "--format", "{{.Names}}"]
            names += subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    return names


def list_processes_of(uid: int) -> list[int]:
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        try:
            if os.stat(path).st_uid == uid:
                found.append(int(os.path.basename(path)))
        except OSError:
            pass
    return found


def list_processes_with(word: str) -> list[int]:
    """Processes of the whole machine that carry this word in their command line."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if word.encode() in Path(path).read_bytes():
                found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found
