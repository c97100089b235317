"""Memory, process and CPU limits by control groups: version 2 where it is delegated to us, else version 1.

Knows which version may be used here and where. Refuses half a set of limits: a job whose memory, processes
and CPU cannot all be held does not run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from computepool.node.sandbox import cgroup_v1, cgroup_v2
from computepool.node.sandbox.cgroup_files import PREFIX, kill_until_empty, read_words, remove_dir
from computepool.node.sandbox.port import Limits, SandboxRefused, Usage


class Cgroup(Protocol):
    """The group of one job."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories to be removed at the end."""

    def open_doors(self) -> list[int]:
        """Descriptors; a process that writes b"0" to each of them is inside, with all its children."""

    def process_ids(self) -> list[int]: ...

    def kill(self) -> None:
        """Returns when the group is empty; TimeoutError when something in it cannot be killed."""

    def usage(self) -> Usage: ...

    def remove(self) -> None: ...


class Site(Protocol):
    """A place in the hierarchy where we may make groups."""

    @property
    def version(self) -> int: ...

    def plan_paths(self, name: str) -> tuple[str, ...]:
        """What `create` would make; to be written down first, so that a crash leaves no unknown group."""

    def create(self, name: str, limits: Limits) -> Cgroup: ...


def find_site(proc_self: str = "/proc/self", *, uid: int | None = None) -> Site:
    """Where groups with all the limits we need can be made; raises SandboxRefused with the reason."""
    uid = os.geteuid() if uid is None else uid
    mounts = list(_list_mounts(os.path.join(proc_self, "mountinfo")))
    own_paths = _read_own_paths(os.path.join(proc_self, "cgroup"))
    unified = next((point for point, controllers in mounts if not controllers), None)
    # In the hybrid layout version 2 is mounted but its controllers are bound to version 1.
    if unified is not None and read_words(unified, "cgroup.controllers") >= cgroup_v2.CONTROLLERS:
        return cgroup_v2.find_site(unified, own_paths.get("", "/"), is_root=uid == 0)
    return cgroup_v1.find_site({name: point for point, names in mounts for name in names}, own_paths)


def find_parent_path(site: Site, name: str) -> str:
    """The job's group as an engine names it: its path within each hierarchy, which must be the same in all."""
    found = {_within_hierarchy(path) for path in site.plan_paths(name)}
    if len(found) != 1:
        raise SandboxRefused("control groups of one name lie at different places, which no engine can be told")
    return found.pop()


def list_shadows(parent_path: str, proc_self: str = "/proc/self") -> list[str]:
    """Where a group of that path is, or may come to be, in every hierarchy of this machine."""
    points = [point for point, _ in _list_mounts(os.path.join(proc_self, "mountinfo"))]
    return [os.path.join(point, parent_path.lstrip("/")) for point in dict.fromkeys(points)]


def _within_hierarchy(path: str) -> str:
    point = os.path.dirname(path)
    while not os.path.ismount(point):
        point = os.path.dirname(point)
    return "/" + os.path.relpath(path, point)


def remove_leftover(path: str) -> None:
    """End what still runs in a group that nobody looks after any more, and remove it."""
    if not os.path.basename(path).startswith(PREFIX):
        raise ValueError(f"{path} is not one of our groups")
    if os.path.isdir(path):
        kill_until_empty((path,))
        remove_dir(os.rmdir, path)


def _list_mounts(mountinfo: str) -> Iterator[tuple[str, frozenset[str]]]:
    """(mount point, controllers) of each hierarchy; no controllers marks version 2."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            point, (kind, _, options) = before.split()[4], after.split()[:3]
            if kind == "cgroup2":
                yield point, frozenset()
            elif kind == "cgroup":
                yield point, frozenset(options.split(","))


def _read_own_paths(cgroup_file: str) -> dict[str, str]:
    """Controller -> our path in its hierarchy; the empty name stands for version 2."""
    paths = {}
    with open(cgroup_file, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths
