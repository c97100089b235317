"""Control groups version 1: one hierarchy per controller, for root or in groups that root has handed over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
    remove_dir,
    write,
    write_if_there,
)
from computepool.node.sandbox.port import Limits, SandboxRefused, Usage

CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")


class V1Site(NamedTuple):
    bases: Mapping[str, str]  # controller -> directory; two controllers may share one
    mkdir: Callable[[str], None] = os.mkdir
    rmdir: Callable[[str], None] = os.rmdir
    version: int = 1

    def plan_paths(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(os.path.join(base, PREFIX + name) for base in self.bases.values()))

    def create(self, name: str, limits: Limits) -> V1Cgroup:
        at = {controller: os.path.join(base, PREFIX + name) for controller, base in self.bases.items()}
        make_dirs(self.mkdir, self.rmdir, self.plan_paths(name))
        group = V1Cgroup(at["memory"], at["pids"], at["cpu"], at["cpuacct"], self.rmdir)
        try:
            write(group.memory, "memory.limit_in_bytes", limits.memory_bytes)
            # Missing where swap accounting is off; then at least nothing of the job is swapped by choice.
            if not write_if_there(group.memory, "memory.memsw.limit_in_bytes", limits.memory_bytes):
                write_if_there(group.memory, "memory.swappiness", 0)
            write(group.pids, "pids.max", limits.pids_max + SANDBOX_PROCESS_COUNT)
            write(group.cpu, "cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS)
            write(group.cpu, "cpu.cfs_quota_us", plan_cpu_quota(limits))
        except OSError as error:
            group.remove()
            raise SandboxRefused(f"the limits could not be set: {error}") from error
        return group


class V1Cgroup(NamedTuple):
    memory: str
    pids: str
    cpu: str
    cpuacct: str
    rmdir: Callable[[str], None] = os.rmdir

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.memory, self.pids, self.cpu, self.cpuacct)))

    def open_doors(self) -> list[int]:
        return [open_door(path) for path in self.paths]

    def process_ids(self) -> list[int]:
        return read_process_ids(self.pids)

    def kill(self) -> None:
        # The job's PID 1 is among them, and with it the kernel ends its whole PID namespace: no fork escapes.
        kill_until_empty(self.paths)

    def usage(self) -> Usage:
        return Usage(
            cpu_seconds=(find_number(self.cpuacct, "cpuacct.usage") or 0) / 1e9,
            memory_bytes_peak=find_number(self.memory, "memory.max_usage_in_bytes") or 0,
            oom_kill_count=read_table(self.memory, "memory.oom_control").get("oom_kill", 0),
        )

    def remove(self) -> None:
        for path in self.paths:
            remove_dir(self.rmdir, path)


def find_site(mount_points: Mapping[str, str], own_paths: Mapping[str, str]) -> V1Site:
    bases = {}
    for controller in CONTROLLERS:
        point = mount_points.get(controller)
        if point is None:
            raise SandboxRefused(f"the kernel offers no control group for {controller} on this machine")
        own = os.path.normpath(os.path.join(point, own_paths.get(controller, "/").lstrip("/")))
        # The top first: a fixed place. Otherwise our own group, if somebody has given it to us.
        base = next((path for path in (point, own) if is_ours(path)), None)
        if base is None:
            raise SandboxRefused(
                f"the {controller} control group is not ours to write: with control groups version 1 the agent "
                "must run as root, or in a group that root has handed to it"
            )
        bases[controller] = base
    return V1Site(bases)
