"""The container backend: one job in a container of Podman, Docker or gVisor, driven by the client.

The engine builds the walls. Limits, disk, clock and log are ours, the same as behind bubblewrap: a control group of
our own stands around the container, so that no engine can forget a limit or outlive its job. For root only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from computepool import clock
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox import cgroup_oom, engines, leftovers, programs, syscalls, system_image
from computepool.node.sandbox.bubblewrap import PIPE_BYTES, plan_extra_mounts
from computepool.node.sandbox.bubblewrap_line import INSIDE_UID
from computepool.node.sandbox.cgroup_files import list_tree, read_process_ids, remove_dir
from computepool.node.sandbox.cgroups import Cgroup, Site, find_parent_path, find_site, list_shadows
from computepool.node.sandbox.disk import JobDisk, create_disk, plan_image, plan_mount_point
from computepool.node.sandbox.egress import Gate, open_gate, plan_network
from computepool.node.sandbox.engines import Engine, Place
from computepool.node.sandbox.environment_mount import hide_environment, show_environment
from computepool.node.sandbox.inputs import furnish, open_folder
from computepool.node.sandbox.port import (
    CHECKPOINT_NAME,
    NODE_NAME,
    OUTPUT_NAME,
    Exit,
    InputMissing,
    Report,
    Sandbox,
    SandboxRefused,
    SandboxRequest,
    StartCancelled,
    Usage,
    never,
)
from computepool.node.sandbox.processes import inner_number
from computepool.node.sandbox.seccomp import FILTERS_DIR

# Imported everywhere, used on POSIX.
if sys.platform != "win32":
    import fcntl
    import resource

PROFILE = "container.json"
# An engine on a busy machine needs seconds; the job's clock has not begun.
START_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.005
REMOVE_SECONDS_MAX = 30.0
# Codes by which a client may mean itself as well as the job.
ENGINE_CODES = (125, 126, 127)
NEVER_STARTED = "0001-01-01"
UID_BASE = 0x71000000  # beside the single user ids of bubblewrap's jobs
UID_RANGES = 3_000
IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}")
# Beside the runner and in no way its child: when the runner is killed, somebody must end the container.
KEEPER = 'read -r word && exit 0; for turn in 1 2 3; do "$@" >/dev/null 2>&1; sleep 1; done'


class Taken(NamedTuple):
    """What one job has of the machine, besides its container."""

    cgroup: Cgroup
    disk: JobDisk
    group_paths: tuple[str, ...]
    gate: Gate | None
    environment: str | None


class Container(NamedTuple):
    engine: Engine
    runs_images: bool = True

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def level(self) -> IsolationLevel:
        return self.engine.level

    @property
    def has_egress(self) -> bool:
        return self.engine.has_egress

    def probe(self) -> Report:
        try:
            if os.geteuid() != 0:
                raise SandboxRefused("the agent must run as root to hold a container's disk and limits")
            client = find_client(self.engine)
            _check_runtime(self.engine)
            find_parent_path(find_site(), f"probe-{os.getpid()}")
            prepare_system_image(self.engine, client)
        except SandboxRefused as refusal:
            return Report(self.name, self.level, usable=False, reasons=(str(refusal),))
        return Report(self.name, self.level, usable=True)

    def start(self, request: SandboxRequest, *, is_cancelled: Callable[[], bool] = never) -> Sandbox:
        # A network that was made outside belongs to the machine's own users, and not to renumbered ones.
        engine = self.engine._replace(maps_users=self.engine.maps_users and not request.egress)
        if os.geteuid() != 0:
            raise SandboxRefused("containers are started by an agent that runs as root")
        if request.image is not None and not IMAGE.fullmatch(request.image):
            raise SandboxRefused(f"{request.image!r} names no image by its digest")
        if request.egress and not engine.has_egress:
            raise SandboxRefused(f"{engine.name} has no gate to other hosts")
        client, site = find_client(engine), find_site()
        uid_base = choose_uid_base(engine, os.getpid())
        job_uid = uid_base + INSIDE_UID if engine.maps_users else uid_base
        remove = [*client, "rm", "--force", engines.container_name(request.name)]
        group_paths = _list_group_paths(site, request.name)
        mounts = plan_extra_mounts(request)
        leftovers.write_note(
            request.state_dir,
            cgroup_paths=group_paths,
            mount_point=plan_mount_point(request.name),
            image=plan_image(request.state_dir),
            mounts=mounts,
            undo=remove,
        )
        with contextlib.ExitStack() as undo:
            cgroup = site.create(request.name, engines.widen(engine, request.limits))
            undo.callback(_remove_groups, group_paths)
            disk = create_disk(
                request.name,
                disk_bytes=request.limits.disk_bytes,
                uid=job_uid,
                state_dir=request.state_dir,
                is_private=engine.sees_private_mounts,
            )
            undo.callback(disk.remove)
            furnish(disk.fd, request, uid=job_uid, is_cancelled=is_cancelled)
            request = show_environment(request, undo)
            gate = open_gate(request.name, request.egress, uid=job_uid) if request.egress else None
            if gate is not None:
                undo.callback(gate.close)
            place = _make_place(engine, request, site, disk, uid_base)
            taken = Taken(cgroup, disk, group_paths, gate, request.environment)
            sandbox = _launch(engine, client, request, place, taken, remove)
            undo.callback(sandbox.abandon)
            undo.callback(sandbox.kill)
            sandbox.await_start(is_cancelled)
            undo.pop_all()
            return sandbox


class ContainerSandbox:
    """The handle on one running container."""

    def __init__(
        self,
        engine: Engine,
        client: list[str],
        name: str,
        process: subprocess.Popen[bytes],
        output_fd: int,
        taken: Taken,
        keeper: subprocess.Popen[bytes],
    ) -> None:
        self._engine = engine
        self._client = client
        self._name = name
        self._process = process
        self._output_fd = output_fd
        self._taken = taken
        self._cgroup = taken.cgroup
        self._keeper = keeper
        self._memory = cgroup_oom.watch(taken.cgroup)

    @property
    def output_fd(self) -> int:
        return self._output_fd

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        was_built = code not in ENGINE_CODES or self._was_started()
        return Exit(code=128 - code if code < 0 else code, was_built=was_built)

    def terminate(self) -> None:
        """To the container's init, which passes it on to the job's own first process."""
        if not self._engine.shares_kernel:
            with contextlib.suppress(SandboxRefused):
                programs.ask([*self._client, "kill", "--signal", "TERM", self._name], seconds_max=10)
            return
        for process_id in self._list_process_ids():
            if inner_number(process_id) == 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGTERM)

    def kill(self) -> None:
        self._cgroup.kill()
        try:
            self._process.wait(REMOVE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # The engine's last helpers may have been on their way in.
        self._cgroup.kill()

    def usage(self) -> Usage:
        usage = self._cgroup.usage()
        return usage._replace(oom_kill_count=max(usage.oom_kill_count, self._memory.count()))

    def open_outputs(self) -> int | None:
        return open_folder(self._taken.disk.fd, OUTPUT_NAME)

    def open_checkpoint(self) -> int | None:
        return open_folder(self._taken.disk.fd, NODE_NAME, CHECKPOINT_NAME)

    def close(self) -> None:
        self.abandon()
        if self._taken.gate is not None:
            self._taken.gate.close()
        if self._taken.environment is not None:
            hide_environment(self._taken.environment)
        self._taken.disk.remove()
        _remove_groups(self._taken.group_paths)

    def abandon(self) -> None:
        """What only this handle holds: the container itself, its keeper and our descriptors."""
        with contextlib.suppress(SandboxRefused):
            programs.ask([*self._client, "rm", "--force", self._name], seconds_max=REMOVE_SECONDS_MAX)
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(b"done\n")
            self._keeper.stdin.close()
        self._keeper.wait()
        self._memory.close()
        os.close(self._output_fd)

    def await_start(self, is_cancelled: Callable[[], bool]) -> None:
        """Until something of the job runs, so that its clock does not count the engine's own time."""
        deadline = clock.seconds() + START_SECONDS_MAX
        while self._process.poll() is None and not self._list_process_ids():
            if is_cancelled():
                raise StartCancelled
            if clock.seconds() > deadline:
                raise SandboxRefused(f"{self._engine.name} did not start the container in time")
            time.sleep(LOOK_SECONDS)

    def _was_started(self) -> bool:
        try:
            said = programs.ask([*self._client, "inspect", "--format", "{{json .State}}", self._name])
            return not str(json.loads(said)["StartedAt"]).startswith(NEVER_STARTED)
        except (SandboxRefused, ValueError, KeyError, TypeError):
            return False

    def _list_process_ids(self) -> list[int]:
        return [
            each for path in self._cgroup.paths[:1] for part in list_tree(path) for each in read_process_ids(part)
        ]


def find_client(engine: Engine) -> list[str]:
    """The engine's client with the options that stand before every verb."""
    client = [programs.get_program(engine.program, engine.package), *engine.options]
    if engine.program == "podman" and "--runtime" not in engine.options:
        # crun, the default, refuses the mixed layout of control groups that many servers still have.
        runc = programs.find_program("runc")
        client += ["--runtime", runc] if runc is not None else []
    return client


def _check_runtime(engine: Engine) -> None:
    if engine.level is IsolationLevel.GVISOR:
        programs.get_program("runsc", "runsc")
    if engine.program == "docker":
        said = programs.ask([programs.get_program("docker", engine.package), "info", "--format", "{{json .}}"])
        found = json.loads(said)
        if not found.get("ServerVersion"):
            errors = "; ".join(found.get("ServerErrors") or ["dockerd does not answer"])
            raise SandboxRefused(f"dockerd does not run: {errors}")
        if found.get("CgroupDriver") != "cgroupfs":
            raise SandboxRefused(
                "dockerd leaves its control groups to systemd, and the limits are held by a group of our own: "
                'set "exec-opts": ["native.cgroupdriver=cgroupfs"], or install podman'
            )
        if any("userns" in option or "rootless" in option for option in found.get("SecurityOptions") or []):
            raise SandboxRefused("dockerd renumbers users, and the job's folder belongs to a number of our own")


def prepare_system_image(engine: Engine, client: list[str]) -> str:
    """The name of the image for jobs without one, made if it is not there."""
    tar = system_image.write_tar()
    name = system_image_name(engine, tar)
    try:
        programs.ask([*client, "image", "inspect", "--format", "x", name])
    except SandboxRefused:
        programs.ask([*client, "import", "-", name], given=tar)
    return name


def system_image_name(engine: Engine, tar: bytes) -> str:
    return f"{engine.image_prefix}{engines.SYSTEM_IMAGE}:{system_image.find_tag(tar)}"


def choose_uid_base(engine: Engine, process_id: int, uid_map: str = "/proc/self/uid_map") -> int:
    """User ids that no account and hardly another running job has."""
    base = UID_BASE + process_id % UID_RANGES * 65_536
    with open(uid_map, encoding="ascii") as lines:
        ranges = [tuple(int(word) for word in line.split()) for line in lines]
    if not any(inside <= base and base + 65_535 < inside + count for inside, _, count in ranges):
        raise SandboxRefused("this machine is a container with too few user ids to give each job its own")
    return base


def _make_place(engine: Engine, request: SandboxRequest, site: Site, disk: JobDisk, uid_base: int) -> Place:
    environment = engines.write_environment(engine, request, has_gate=bool(request.egress))
    for name, value in environment.items():
        if "\n" in value or "\r" in value:
            raise InputMissing(f"the variable {name} holds a line break, which cannot be given to a container")
    lines = "".join(f"{name}={value}\n" for name, value in environment.items())
    env_file = _write_file(request.state_dir, "environment", lines, mode=0o600)
    image = request.image
    system_mounts: tuple[str, ...] = ()
    if image is None:
        image = system_image_name(engine, system_image.write_tar())
        system_mounts = tuple(path for path in engines.SYSTEM_MOUNTS if os.path.exists(path))
    return Place(
        job_dir=disk.mount_point,
        cgroup_parent=find_parent_path(site, request.name),
        seccomp_profile=os.path.join(FILTERS_DIR, PROFILE),
        env_file=env_file,
        uid_base=uid_base,
        image=image,
        system_mounts=system_mounts,
        environment=request.environment,
        network=plan_network(request.name) if request.egress else None,
    )


def _write_file(folder: str, name: str, text: str, *, mode: int) -> str:
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        os.fchmod(fd, mode)
        file.write(text)
    return path


def _launch(
    engine: Engine,
    client: list[str],
    request: SandboxRequest,
    place: Place,
    taken: Taken,
    remove: list[str],
) -> ContainerSandbox:
    output_fd, job_output_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(output_fd, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(output_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "sh", *remove],
            env=programs.PLAIN_ENV,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = subprocess.Popen(
            engines.write_run(engine, client, request, place),
            env=programs.PLAIN_ENV,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=job_output_fd,
            stderr=job_output_fd,
            preexec_fn=_prepare_client,
        )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(output_fd)
        raise SandboxRefused(f"{engine.name} could not be started: {error}") from error
    finally:
        os.close(job_output_fd)
    name = engines.container_name(request.name)
    return ContainerSandbox(engine, client, name, process, output_fd, taken, keeper)


def _prepare_client() -> None:
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # In a group of its own: what is sent to the runner's terminal is not for the engine.
    os.setpgid(0, 0)
    syscalls.die_with_parent(signal.SIGKILL)


def _list_group_paths(site: Site, name: str) -> tuple[str, ...]:
    """Our own groups, and those of the same name that engines make in the other hierarchies."""
    return tuple(dict.fromkeys((*site.plan_paths(name), *list_shadows(find_parent_path(site, name)))))


def _remove_groups(paths: tuple[str, ...]) -> None:
    for path in paths:
        if os.path.isdir(path):
            remove_dir(os.rmdir, path)
