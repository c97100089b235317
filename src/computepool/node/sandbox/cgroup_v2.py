"""Control groups version 2: one hierarchy, used where a subtree of it is ours (delegated, or we are root)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from computepool.node.sandbox.cgroup_files import (
    CPU_PERIOD_MICROSECONDS,
    PREFIX,
    SANDBOX_PROCESS_COUNT,
    find_number,
    is_ours,
    kill_until_empty,
    make_dirs,
    open_door,
    plan_cpu_quota,
    read_process_ids,
    read_table,
    read_words,
    remove_dir,
    write,
    write_if_there,
)
from computepool.node.sandbox.port import Limits, SandboxRefused, Usage

CONTROLLERS = frozenset({"memory", "pids", "cpu"})
# A group that limits its children may hold no processes of its own: the agent sits in this leaf beside them.
AGENT_LEAF = "computepool-agent"


class V2Site(NamedTuple):
    base: str
    mkdir: Callable[[str], None] = os.mkdir
    rmdir: Callable[[str], None] = os.rmdir
    version: int = 2

    def plan_paths(self, name: str) -> tuple[str, ...]:
        return (os.path.join(self.base, PREFIX + name),)

    def create(self, name: str, limits: Limits) -> V2Cgroup:
        (path,) = self.plan_paths(name)
        make_dirs(self.mkdir, self.rmdir, (path,))
        group = V2Cgroup(path, self.rmdir)
        try:
            write(path, "memory.max", limits.memory_bytes)
            write(path, "pids.max", limits.pids_max + SANDBOX_PROCESS_COUNT)
            write(path, "cpu.max", f"{plan_cpu_quota(limits)} {CPU_PERIOD_MICROSECONDS}")
            # Without swap in the kernel this file does not exist, and there is nothing to limit.
            write_if_there(path, "memory.swap.max", 0)
            # A job with one process shot is broken: the kernel ends all of it, and we can say why.
            write_if_there(path, "memory.oom.group", 1)
        except OSError as error:
            group.remove()
            raise SandboxRefused(f"the limits could not be set: {error}") from error
        return group


class V2Cgroup(NamedTuple):
    path: str
    rmdir: Callable[[str], None] = os.rmdir

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def open_doors(self) -> list[int]:
        return [open_door(self.path)]

    def process_ids(self) -> list[int]:
        return read_process_ids(self.path)

    def kill(self) -> None:
        # cgroup.kill (Linux 5.14) takes also what is being forked at this moment; older kernels get the loop.
        with contextlib.suppress(OSError):
            write_if_there(self.path, "cgroup.kill", 1)
        kill_until_empty((self.path,))

    def usage(self) -> Usage:
        # memory.peak came with Linux 5.19; before it, the runner's samples of memory.current must do.
        peak = find_number(self.path, "memory.peak")
        if peak is None:
            peak = find_number(self.path, "memory.current")
        return Usage(
            cpu_seconds=read_table(self.path, "cpu.stat").get("usage_usec", 0) / 1e6,
            memory_bytes_peak=peak or 0,
            oom_kill_count=read_table(self.path, "memory.events").get("oom_kill", 0),
        )

    def remove(self) -> None:
        remove_dir(self.rmdir, self.path)


def find_site(mount_point: str, own_path: str, *, is_root: bool) -> V2Site:
    """The first place that can limit its children: beside the agent's leaf, the top (root), our own group."""
    own = os.path.normpath(os.path.join(mount_point, own_path.lstrip("/")))
    candidates = [own]
    if is_root:
        # Directly under the top, as a container engine without systemd does it.
        candidates.insert(0, mount_point)
    if os.path.basename(own) == AGENT_LEAF:
        candidates.insert(0, os.path.dirname(own))
    refusals = []
    for base in dict.fromkeys(candidates):
        refusal = _explain_refusal(base)
        if refusal is None:
            return V2Site(base)
        refusals.append(refusal)
    raise SandboxRefused(
        "memory, process and CPU limits need a control group that is delegated to this user: "
        f"{'; '.join(refusals)} (start the agent with `systemd-run --user --scope -p Delegate=yes`, "
        "or as a service with Delegate=yes)"
    )


def _explain_refusal(base: str) -> str | None:
    """Make `base` hand memory, pids and cpu on to its children; the reason why not, if it cannot."""
    missing = CONTROLLERS - read_words(base, "cgroup.controllers")
    if missing:
        return f"{base} lacks the controllers {', '.join(sorted(missing))}"
    if not is_ours(base):
        return f"{base} is not ours to write"
    switched_off = CONTROLLERS - read_words(base, "cgroup.subtree_control")
    if not switched_off:
        return None
    order = " ".join(f"+{name}" for name in sorted(switched_off))
    try:
        try:
            write(base, "cgroup.subtree_control", order)
        except OSError as error:
            # EBUSY: the group holds processes, and only the real top of the hierarchy may do both.
            if error.errno != errno.EBUSY:
                raise
            _move_processes_into_leaf(base)
            write(base, "cgroup.subtree_control", order)
    except OSError as error:
        return f"{base} cannot limit its children: {error}"
    return None


def _move_processes_into_leaf(base: str) -> None:
    leaf = os.path.join(base, AGENT_LEAF)
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf)
    for process_id in read_process_ids(base):
        with contextlib.suppress(ProcessLookupError):
            write(leaf, "cgroup.procs", process_id)
