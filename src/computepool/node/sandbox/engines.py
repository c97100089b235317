"""The container engines we know how to drive, and the command line each is given. Pure: starts nothing.

Every option closes a hole that was seen open, or an engine's own default that a stranger's job must not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox.bubblewrap_line import INSIDE_UID, TMP_BYTES, plan_shm_bytes
from computepool.node.sandbox.port import (
    CHECKPOINT_DIR,
    ENVIRONMENT_DIR,
    JOB_DIR,
    MODULE_DIR,
    OUTPUT_DIR,
    Limits,
    SandboxRequest,
)

MEGABYTE = 1 << 20
OPEN_FILES = 1024
SYSTEM_IMAGE = "computepool-system"
# Through a shell, as everywhere: a command that is not there is code 127. One stream, because Docker carries two
# of them apart and mixes up their order.
STARTING_SHELL = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
# Of the machine's /etc nothing but what the loader needs.
SYSTEM_MOUNTS = ("/usr", "/etc/ld.so.cache", "/etc/alternatives")


class Engine(NamedTuple):
    name: str
    program: str
    package: str
    level: IsolationLevel
    options: tuple[str, ...] = ()  # before the verb
    run_options: tuple[str, ...] = ()
    image_prefix: str = ""  # of images that were made here
    # Gives each container user ids of its own, so that even its root is nobody outside.
    maps_users: bool = False
    # Its client does the mounting, so that it sees what only this process has mounted.
    sees_private_mounts: bool = False
    # The job's processes are processes of this machine, which we can signal by number.
    shares_kernel: bool = True
    has_egress: bool = False
    # What the walls themselves take out of the job's control group.
    memory_overhead_bytes: int = 0
    pids_overhead: int = 0


_PODMAN = ("--log-level", "fatal", "--cgroup-manager", "cgroupfs")
# Own volumes and health checks of an image would run beside the limits; conmon stays out of the job's group.
_PODMAN_RUN = (
    *("--cgroups", "no-conmon", "--read-only-tmpfs=false", "--image-volume", "ignore", "--no-hosts"),
    # Its own default is more than root may ask for on some machines.
    *("--ulimit", "nproc=4096:4096"),
)
_LOCAL = "localhost/"

PODMAN = Engine(
    "podman",
    "podman",
    "podman",
    IsolationLevel.CONTAINER,
    options=_PODMAN,
    run_options=(*_PODMAN_RUN, "--log-driver", "passthrough"),
    image_prefix=_LOCAL,
    maps_users=True,
    sees_private_mounts=True,
    has_egress=True,
)
DOCKER = Engine(
    "docker",
    "docker",
    "docker.io",
    IsolationLevel.CONTAINER,
    run_options=("--log-driver", "none"),
)
GVISOR = Engine(
    "gvisor",
    "podman",
    "podman",
    IsolationLevel.GVISOR,
    options=(*_PODMAN, "--runtime", "runsc", "--runtime-flag", "network=none"),
    run_options=(*_PODMAN_RUN, "--log-driver", "passthrough"),
    image_prefix=_LOCAL,
    sees_private_mounts=True,
    shares_kernel=False,
    memory_overhead_bytes=96 * MEGABYTE,
    pids_overhead=128,
)


class Place(NamedTuple):
    """Where one job's things are on this machine."""

    job_dir: str
    cgroup_parent: str
    seccomp_profile: str
    env_file: str
    uid_base: int  # the first of the container's own user ids; without such, the job's user id itself
    image: str  # as the engine knows it
    system_mounts: Sequence[str] = ()  # paths of the machine, shown read-only; empty where the image has its own
    environment: str | None = None
    network: str | None = None  # path of a network that was made for this job


def write_run(engine: Engine, program: Sequence[str], request: SandboxRequest, place: Place) -> list[str]:
    """`program` is the engine's client with its options. Secrets travel by file, never on a command line."""
    # A stranger's image may have no shell.
    command = (*STARTING_SHELL, *request.command) if request.image is None else request.command
    return [
        *(*program, "run", "--name", container_name(request.name), "--pull", "never"),
        *("--entrypoint", "", "--init", "--no-healthcheck", "--hostname", "job", "--workdir", JOB_DIR),
        *("--network", f"ns:{place.network}" if place.network else "none"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--security-opt", f"seccomp={place.seccomp_profile}"),
        *_write_user(engine, place),
        # Memory, processes and CPU are held by a group of our own around the container.
        *("--cgroup-parent", place.cgroup_parent, "--cgroupns", "private"),
        *("--ulimit", f"nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit", "core=0:0"),
        *("--ipc", "none", "--tmpfs", f"/dev/shm:rw,nosuid,nodev,mode=1777,size={plan_shm_bytes(request.limits)}"),
        *("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={TMP_BYTES}"),
        *engine.run_options,
        *_write_volumes(place),
        *_write_devices(engine, request.devices),
        *("--env-file", place.env_file),
        place.image,
        *command,
    ]


def container_name(name: str) -> str:
    return f"computepool-{name}"


def write_environment(engine: Engine, request: SandboxRequest, *, has_gate: bool) -> dict[str, str]:
    """What the job finds in its environment, beside what its image sets."""
    defaults = {
        "HOME": JOB_DIR,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "OMP_NUM_THREADS": str(max(1, int(request.limits.cpu_cores))),
    }
    if request.image is None:
        defaults["PATH"] = "/usr/bin:/bin"
    if not engine.maps_users:
        # Its number has no name in any file.
        defaults |= {"USER": "job", "LOGNAME": "job"}
    return {**defaults, **request.env, **fixed_environment(request, has_gate=has_gate)}


def fixed_environment(request: SandboxRequest, *, has_gate: bool) -> dict[str, str]:
    """What no setting of the job's own can change, on any backend."""
    fixed = {"COMPUTEPOOL_OUTPUT_DIR": OUTPUT_DIR, "COMPUTEPOOL_CHECKPOINT_DIR": CHECKPOINT_DIR}
    if request.image is None:
        # An image may have a search path of its own. Our module comes last: a job's own of that name goes before it.
        packages = ENVIRONMENT_DIR if request.environment is not None else ""
        fixed["PYTHONPATH"] = ":".join(filter(None, (packages, request.env.get("PYTHONPATH", ""), MODULE_DIR)))
    if has_gate:
        from computepool.node.sandbox.egress import GATE_URL

        fixed |= {"HTTPS_PROXY": GATE_URL, "https_proxy": GATE_URL}
    return fixed


def inside_uid(engine: Engine, place_uid: int) -> int:
    return INSIDE_UID if engine.maps_users else place_uid


def widen(engine: Engine, limits: Limits) -> Limits:
    """The job's limits, and what its walls need for themselves."""
    return limits._replace(
        memory_bytes=limits.memory_bytes + engine.memory_overhead_bytes,
        pids_max=limits.pids_max + engine.pids_overhead,
    )


def _write_user(engine: Engine, place: Place) -> list[str]:
    uid = inside_uid(engine, place.uid_base)
    words = ["--user", f"{uid}:{uid}"]
    if engine.maps_users:
        words += ["--uidmap", f"0:{place.uid_base}:65536", "--gidmap", f"0:{place.uid_base}:65536"]
    return words


def _write_volumes(place: Place) -> list[str]:
    mounts = [f"{place.job_dir}:{JOB_DIR}:rw"]
    mounts += [f"{path}:{path}:ro" for path in place.system_mounts]
    if place.environment is not None:
        mounts.append(f"{place.environment}:{ENVIRONMENT_DIR}:ro")
    return [word for mount in mounts for word in ("--volume", mount)]


def _write_devices(engine: Engine, devices: Sequence[str]) -> list[str]:
    """One GPU. NVIDIA's cards need their libraries too, which the engines' own ways bring along."""
    numbers = [path[len("/dev/nvidia") :] for path in devices if path[len("/dev/nvidia") :].isdigit()]
    if numbers and engine.program == "docker":
        return ["--gpus", f"device={','.join(numbers)}"]
    if numbers:
        return [word for number in numbers for word in ("--device", f"nvidia.com/gpu={number}")]
    return [word for path in devices for word in ("--device", path)]
