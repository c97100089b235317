"""The hardened bubblewrap command line, as a pure function. Every option here closes a hole that was seen open.

Knows what a job may see. Refuses to start anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from computepool.node.sandbox.port import ENVIRONMENT_DIR, JOB_DIR, OUTPUT_DIR, Limits

SHM_BYTES_MIN = 16 * 1024 * 1024
TMP_BYTES = 64 * 1024 * 1024
INSIDE_UID = 65534
# A name for the one user inside and an address for localhost: libraries ask for both. Never the host's /etc.
ETC_FILES = {
    "/etc/passwd": f"job:x:{INSIDE_UID}:{INSIDE_UID}:job:{JOB_DIR}:/bin/sh\n",
    "/etc/group": f"job:x:{INSIDE_UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
# Through a shell, because bubblewrap says of a command that is not there what it says of walls that fail; the
# shell says 127, like everywhere.
STARTING_SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
# Where the job's folder is a tmpfs inside, we reach it through the first process; it waits for our word.
WAITING_SHELL = ("/bin/sh", "-c", 'echo ready; read -r go; exec "$@" </dev/null', "sh")


class Descriptors(NamedTuple):
    """Numbers of the open files that bubblewrap reads and writes; it closes all of them before the job runs."""

    seccomp: int
    status: int
    etc: Mapping[str, int]  # path inside -> descriptor of its text


def write_options(
    *,
    env: Mapping[str, str],
    limits: Limits,
    job_dir: str | None,
    descriptors: Descriptors,
    devices: Sequence[str] = (),
    environment: str | None = None,
    keeps_network: bool = False,
    find_link: Callable[[str], str | None] | None = None,
) -> list[str]:
    """All options but the command. `job_dir` is a sized folder on the host; None asks for a tmpfs inside.

    They travel by descriptor (--args), not on the command line, which every user of the host and the job
    itself could read: it would show secrets of the job and paths of the host.
    """
    return [
        # Every namespace there is, and no further user namespaces from inside.
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        # The one exception: it was started in a network made for this job alone, whose only door is the gate.
        *(("--share-net",) if keeps_network else ()),
        *("--hostname", "job", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--cap-drop", "ALL"),
        *_environment(env, limits),
        *("--ro-bind", "/usr", "/usr"),
        *_top_level(find_link or find_host_link),
        *("--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *(
            word
            for path, fd in descriptors.etc.items()
            for word in ("--perms", "0444", "--ro-bind-data", str(fd), path)
        ),
        *("--proc", "/proc", "--dev", "/dev"),
        # Without a size a job parks half of the machine's memory in /dev/shm.
        *("--size", str(plan_shm_bytes(limits)), "--perms", "1777", "--tmpfs", "/dev/shm"),
        # The one GPU that belongs to this job's slot. Its libraries look for the card in /sys too.
        *(word for path in devices for word in ("--dev-bind", path, path)),
        *(("--ro-bind", "/sys", "/sys") if devices else ()),
        *("--remount-ro", "/dev"),
        *("--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"),
        *_job_folder(job_dir, limits),
        *(("--ro-bind", environment, ENVIRONMENT_DIR) if environment is not None else ()),
        *("--remount-ro", "/", "--chdir", JOB_DIR),
        *("--seccomp", str(descriptors.seccomp), "--json-status-fd", str(descriptors.status)),
    ]


def plan_shm_bytes(limits: Limits) -> int:
    """A quarter of the memory: enough for loaders that share batches. What is used counts as memory anyway."""
    return max(SHM_BYTES_MIN, limits.memory_bytes // 4)


def _environment(env: Mapping[str, str], limits: Limits) -> list[str]:
    # Thread pools size themselves by the cores they see, which are the host's, and then fight for a quota.
    defaults = {
        "PATH": "/usr/bin:/bin",
        "HOME": JOB_DIR,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "OMP_NUM_THREADS": str(max(1, int(limits.cpu_cores))),
    }
    merged = {**defaults, **env, "COMPUTEPOOL_OUTPUT_DIR": OUTPUT_DIR}
    return ["--clearenv", *(word for name, value in merged.items() for word in ("--setenv", name, value))]


def _top_level(find_link: Callable[[str], str | None]) -> list[str]:
    """/bin, /lib and the like: links into /usr today, folders of their own on older systems."""
    words: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        target = find_link(f"/{name}")
        if target:
            words += ["--symlink", target, f"/{name}"]
        else:
            words += ["--ro-bind-try", f"/{name}", f"/{name}"]
    return words


def find_host_link(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _job_folder(job_dir: str | None, limits: Limits) -> list[str]:
    if job_dir is not None:
        return ["--bind", job_dir, JOB_DIR]
    return ["--size", str(limits.disk_bytes), "--perms", "0755", "--tmpfs", JOB_DIR]


def write_command(command: Sequence[str], *, args_fd: int, waits: bool) -> list[str]:
    return ["bwrap", "--args", str(args_fd), "--", *(WAITING_SHELL if waits else STARTING_SHELL), *command]
