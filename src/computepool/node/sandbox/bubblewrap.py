"""The bubblewrap backend: namespaces, a system-call filter, a cgroup and a sized folder around one command.

As root the job gets a kernel uid of its own and a disk image; as a plain user (control groups version 2,
delegated) it has the user's uid behind a user namespace and a folder in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from computepool import clock
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox import bubblewrap_line, leftovers, syscalls
from computepool.node.sandbox.cgroups import Cgroup, find_site
from computepool.node.sandbox.disk import JobDisk, create_disk, plan_image, plan_mount_point
from computepool.node.sandbox.egress import Gate, open_gate, plan_network
from computepool.node.sandbox.engines import fixed_environment
from computepool.node.sandbox.environment_mount import hide_environment, plan_environment, show_environment
from computepool.node.sandbox.inputs import furnish, open_folder
from computepool.node.sandbox.port import (
    CHECKPOINT_NAME,
    JOB_DIR,
    NODE_NAME,
    OUTPUT_NAME,
    Exit,
    Limits,
    Report,
    Sandbox,
    SandboxRefused,
    SandboxRequest,
    Usage,
    never,
)
from computepool.node.sandbox.processes import find_parent, inner_number
from computepool.node.sandbox.programs import get_program
from computepool.node.sandbox.seccomp import find_filter

# Imported everywhere, used on POSIX.
if sys.platform != "win32":
    import fcntl
    import resource

OLDEST_VERSION = (0, 8)  # the first with --disable-userns and --size
OPEN_FILES_MAX = 16_384
PIPE_BYTES = 1024 * 1024
GATE_SECONDS_MAX = 10.0
JOB_UID_BASE = 1_879_048_192  # above the ranges that distributions hand out; unused in systemd's table too
JOB_UID_BASE_SMALL = 30_000  # for machines that are containers themselves and own few uids


class Bubblewrap(NamedTuple):
    name: str = "bubblewrap"
    level: IsolationLevel = IsolationLevel.SANDBOXED
    runs_images: bool = False

    @property
    def has_egress(self) -> bool:
        return os.geteuid() == 0

    def probe(self) -> Report:
        reasons = []
        for check in (_check_version, find_filter, _try_limits):
            try:
                check()
            except SandboxRefused as refusal:
                reasons.append(str(refusal))
        return Report(self.name, self.level, usable=not reasons, reasons=tuple(reasons))

    def start(self, request: SandboxRequest, *, is_cancelled: Callable[[], bool] = never) -> Sandbox:
        if request.image is not None:
            raise SandboxRefused("bubblewrap runs no images")
        program, filter_path, site = get_program("bwrap", "bubblewrap"), find_filter(), find_site()
        syscalls.adopt_orphans()
        is_root = os.geteuid() == 0
        if request.egress and not is_root:
            raise SandboxRefused("a gate to other hosts needs an agent that runs as root")
        leftovers.write_note(
            request.state_dir,
            cgroup_paths=site.plan_paths(request.name),
            mount_point=plan_mount_point(request.name) if is_root else None,
            image=plan_image(request.state_dir) if is_root else None,
            mounts=plan_extra_mounts(request) if is_root else (),
        )
        with contextlib.ExitStack() as undo:
            cgroup = site.create(request.name, request.limits)
            undo.callback(cgroup.remove)
            disk, uid, gate = None, None, None
            if is_root:
                uid = choose_job_uid(os.getpid())
                disk = create_disk(
                    request.name, disk_bytes=request.limits.disk_bytes, uid=uid, state_dir=request.state_dir
                )
                undo.callback(disk.remove)
                furnish(disk.fd, request, uid=uid, is_cancelled=is_cancelled)
                request = show_environment(request, undo)
                if request.egress:
                    gate = open_gate(request.name, request.egress, uid=uid)
                    undo.callback(gate.close)
            sandbox = _launch(program, filter_path, request, cgroup, disk, uid, gate)
            undo.callback(sandbox.abandon)
            undo.callback(sandbox.kill)
            if disk is None:
                sandbox.pass_gate(lambda fd: furnish(fd, request, uid=None, is_cancelled=is_cancelled))
            undo.pop_all()
            return sandbox


class BubblewrapSandbox:
    """The handle on one running bubblewrap."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output_fd: int,
        status_fd: int,
        cgroup: Cgroup,
        disk: JobDisk | None,
        gate: Gate | None,
        environment: str | None,
    ) -> None:
        self._process = process
        self._gate = gate
        self._environment = environment
        self._output_fd = output_fd
        self._status_fd = status_fd
        self._status_text = b""
        self._cgroup = cgroup
        self._disk = disk
        self._job_dir_fd = disk.fd if disk is not None else -1

    @property
    def output_fd(self) -> int:
        return self._output_fd

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        self._read_status()
        # bubblewrap reports an exit code only once it has handed over to the command. Ended by a signal, it
        # could not report anything, which says nothing about the walls.
        was_built = "exit-code" in self._status() or code < 0
        return Exit(code=128 - code if code < 0 else code, was_built=was_built)

    def terminate(self) -> None:
        """To the first process inside only, as on any machine where a service is stopped: it knows its children."""
        first = self._find_first_process()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)

    def kill(self) -> None:
        self._cgroup.kill()
        self._process.wait()
        if self._gate is not None:
            self._gate.close()
        # bubblewrap's inner process, if the outer one died first. Left to the machine's PID 1, its corpse may
        # lie about for long: in a container that is often a program that reaps nobody.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def usage(self) -> Usage:
        return self._cgroup.usage()

    def open_outputs(self) -> int | None:
        return open_folder(self._job_dir_fd, OUTPUT_NAME)

    def open_checkpoint(self) -> int | None:
        return open_folder(self._job_dir_fd, NODE_NAME, CHECKPOINT_NAME)

    def close(self) -> None:
        self.abandon()
        if self._disk is not None:
            if self._environment is not None:
                hide_environment(self._environment)
            self._disk.remove()
        self._cgroup.remove()

    def abandon(self) -> None:
        """Close what only this handle holds; disk and cgroup have owners of their own until `start` is through."""
        for fd in (self._output_fd, self._status_fd):
            os.close(fd)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._disk is None and self._job_dir_fd >= 0:
            os.close(self._job_dir_fd)

    def pass_gate(self, furnish: Callable[[int], None]) -> None:
        """Reach into the job's tmpfs while its first process waits, fill it, then let that process go on.

        Our descriptor keeps the tmpfs alive after the last process inside is gone: that is how the outputs
        get out.
        """
        if not self._is_ready():
            return
        first = self._find_first_process()
        try:
            if first is None:
                raise SandboxRefused("the first process of the sandbox is not to be found")
            path = f"/proc/{first}/root{JOB_DIR}"
            self._job_dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxRefused(f"the job's folder cannot be reached from outside: {error}") from error
        furnish(self._job_dir_fd)
        assert self._process.stdin is not None
        # The job may be gone already; its end is then seen by whoever polls.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.close()

    def _is_ready(self) -> bool:
        """Wait for the waiting shell. Raises SandboxRefused when there are no walls.

        False when the walls stand but the shell failed behind them, which only the job's own environment
        (a preloaded library, say) can bring about: that is the job's end, not the sandbox's.
        """
        deadline = clock.seconds() + GATE_SECONDS_MAX
        seen = b""
        while not seen.endswith(b"ready\n") and len(seen) < 4096:
            readable, _, _ = select.select([self._output_fd], [], [], max(0.0, deadline - clock.seconds()))
            chunk = os.read(self._output_fd, 1) if readable else b""
            if not chunk:
                break
            seen += chunk
        if seen.endswith(b"ready\n"):
            return True
        self.kill()
        self._read_status()
        if "exit-code" not in self._status():
            words = seen.decode(errors="replace").strip()[:500]
            raise SandboxRefused(words or "bubblewrap did not come up in time")
        return False

    def _find_first_process(self) -> int | None:
        """The job's own first process: the oldest child of bubblewrap's PID 1."""
        self._read_status()
        init = self._status().get("child-pid")
        children = [pid for pid in self._cgroup.process_ids() if find_parent(pid) == init]
        return min(children, key=inner_number, default=None)

    def _read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._status_fd, 4096):
                self._status_text += chunk

    def _status(self) -> dict[str, int]:
        merged: dict[str, int] = {}
        for line in self._status_text.splitlines():
            with contextlib.suppress(ValueError):
                merged.update(json.loads(line))
        return merged


def plan_extra_mounts(request: SandboxRequest) -> tuple[str, ...]:
    planned = [plan_environment(request.name)] if request.environment is not None else []
    planned += [plan_network(request.name)] if request.egress else []
    return tuple(planned)


def choose_job_uid(process_id: int, uid_map: str = "/proc/self/uid_map") -> int:
    """A number that no account and no other running job has: runners of one machine have different PIDs."""
    with open(uid_map, encoding="ascii") as lines:
        ranges = [tuple(int(word) for word in line.split()) for line in lines]
    for candidate in (JOB_UID_BASE + process_id, JOB_UID_BASE_SMALL + process_id % 30_000):
        if any(inside <= candidate < inside + count for inside, _, count in ranges):
            return candidate
    raise SandboxRefused("this machine is a container with too few user ids to give each job its own")


def _check_version() -> None:
    try:
        command = [get_program("bwrap", "bubblewrap"), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env={}, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxRefused(f"bubblewrap does not run: {error}") from error
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_VERSION:
        raise SandboxRefused(f"bubblewrap 0.8 or newer is needed, found: {done.stdout.strip() or 'nothing'}")


def _try_limits() -> None:
    """Make and remove a group with limits: permission bits alone do not tell whether that works."""
    limits = Limits(64 << 20, 16, 1.0, 1 << 20, 1.0, 1024)
    find_site().create(f"probe-{os.getpid()}", limits).remove()


def _launch(
    program: str,
    filter_path: str,
    request: SandboxRequest,
    cgroup: Cgroup,
    disk: JobDisk | None,
    uid: int | None,
    gate: Gate | None,
) -> BubblewrapSandbox:
    output_fd, job_output_fd = os.pipe2(os.O_CLOEXEC)
    status_fd, job_status_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(output_fd, False)
    os.set_blocking(status_fd, False)
    # A larger pipe halves the wake-ups for a chatty job; a plain user may be over their quota of pipe pages.
    with contextlib.suppress(OSError):
        fcntl.fcntl(output_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with contextlib.ExitStack() as ours:
        ours.callback(os.close, job_output_fd)
        ours.callback(os.close, job_status_fd)
        seccomp_fd = os.open(filter_path, os.O_RDONLY | os.O_CLOEXEC)
        ours.callback(os.close, seccomp_fd)
        etc = {path: _open_text(ours, text) for path, text in bubblewrap_line.ETC_FILES.items()}
        network_fd = -1
        if gate is not None:
            network_fd = os.open(gate.network, os.O_RDONLY | os.O_CLOEXEC)
            ours.callback(os.close, network_fd)
        options = bubblewrap_line.write_options(
            env={**request.env, **fixed_environment(request, has_gate=gate is not None)},
            limits=request.limits,
            devices=request.devices,
            environment=request.environment,
            keeps_network=gate is not None,
            job_dir=disk.mount_point if disk is not None else None,
            descriptors=bubblewrap_line.Descriptors(seccomp_fd, job_status_fd, etc),
        )
        args_fd = _open_text(ours, "".join(f"{word}\0" for word in options))
        doors = cgroup.open_doors()
        for door in doors:
            ours.callback(os.close, door)
        try:
            process = subprocess.Popen(
                bubblewrap_line.write_command(request.command, args_fd=args_fd, waits=disk is None),
                executable=program,
                # bubblewrap's PID 1 shows its environment to the job, whatever --clearenv says.
                env={},
                cwd="/",
                stdin=subprocess.PIPE if disk is None else subprocess.DEVNULL,
                stdout=job_output_fd,
                stderr=job_output_fd,
                pass_fds=(seccomp_fd, job_status_fd, args_fd, *etc.values()),
                preexec_fn=_prepare_child(doors, uid, os.getpid(), network_fd),
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(output_fd)
            os.close(status_fd)
            raise SandboxRefused(f"bubblewrap could not be started: {error}") from error
    environment = request.environment if disk is not None else None
    return BubblewrapSandbox(process, output_fd, status_fd, cgroup, disk, gate, environment)


def _prepare_child(doors: Iterable[int], uid: int | None, parent: int, network_fd: int = -1) -> Callable[[], None]:
    """What happens between fork and exec. The runner has one thread, so that Python code is safe here."""
    hard_open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    open_files = OPEN_FILES_MAX if hard_open_files == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, hard_open_files)

    def prepare() -> None:
        for door in doors:
            os.write(door, b"0")
        # When the machine itself runs out of memory, a job goes before anything of the owner's.
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        if network_fd >= 0:
            syscalls.enter_network(network_fd)
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        # bubblewrap asks for the same, a moment later; this closes the moment. After the change of uid,
        # which would clear it.
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _open_text(stack: contextlib.ExitStack, text: str) -> int:
    fd = os.memfd_create("computepool", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    content = os.fsencode(text)
    while content:
        content = content[os.write(fd, content) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
