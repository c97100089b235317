"""How often the kernel has killed for memory in a group and all groups below it.

Version 2 counts through the tree by itself. Version 1 counts where the victim was, in a group that its engine
removes at once; there the kernel's event on our own group is counted instead.
"""

from __future__ import annotations

import contextlib
import os

from computepool.node.sandbox.cgroup_v1 import V1Cgroup
from computepool.node.sandbox.cgroups import Cgroup


class MemoryWatch:
    def __init__(self, memory_dir: str | None) -> None:
        self._count = 0
        self._fd = -1
        if memory_dir is None:
            return
        control = os.open(os.path.join(memory_dir, "memory.oom_control"), os.O_RDONLY | os.O_CLOEXEC)
        door = os.open(os.path.join(memory_dir, "cgroup.event_control"), os.O_WRONLY | os.O_CLOEXEC)
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            os.write(door, f"{self._fd} {control}".encode())
        finally:
            os.close(door)
            os.close(control)

    def count(self) -> int:
        if self._fd >= 0:
            with contextlib.suppress(BlockingIOError):
                self._count += os.eventfd_read(self._fd)
        return self._count

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def watch(cgroup: Cgroup) -> MemoryWatch:
    return MemoryWatch(cgroup.memory if isinstance(cgroup, V1Cgroup) else None)
