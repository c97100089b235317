"""How strongly a node keeps a job apart from its own machine. A job may ask for a minimum."""

from __future__ import annotations

from enum import Enum


class IsolationLevel(str, Enum):
    SANDBOXED = "sandboxed"  # namespaces, seccomp and cgroups, no container engine (bubblewrap)
    CONTAINER = "container"  # a container engine with the same limits and an image of its own
    GVISOR = "gvisor"  # a user-space kernel between the job and the host's

    @property
    def rank(self) -> int:
        """Higher holds better; a job that asks for a level also accepts every higher one."""
        return tuple(type(self)).index(self)
