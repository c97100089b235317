"""How strongly a node keeps a job apart from its own machine: an ordered ladder. A job may ask for a minimum."""

from __future__ import annotations

from enum import Enum


class IsolationLevel(str, Enum):
    """What a node offers and what a job may ask for as a minimum. The value is the wire string."""

    SANDBOXED = "sandboxed"  # namespaces, seccomp and cgroups, no container engine (bubblewrap)
    CONTAINER = "container"  # a container engine with the same limits and an image of its own
    GVISOR = "gvisor"  # a user-space kernel between the job and the host's

    @property
    def rank(self) -> int:
        """Higher holds better; a job that asks for a level also accepts every higher one."""
        return _RANKS[self.value]

    # A str enum would otherwise compare by spelling, and "container" < "sandboxed" is the wrong ladder.
    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, IsolationLevel) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, IsolationLevel) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, IsolationLevel) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, IsolationLevel) else NotImplemented

    def meets(self, minimum: IsolationLevel) -> bool:
        """Whether a node that offers this level may run a job that asks for `minimum`."""
        return self.rank >= minimum.rank


_RANKS = {"sandboxed": 0, "container": 1, "gvisor": 2}
