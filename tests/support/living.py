"""Whether a process lives. A corpse that nobody has buried yet does not, nor one that went while it was looked at."""

from computepool.node.runner.liveness import find_birth


def is_alive(pid: int) -> bool:
    return find_birth(pid) is not None
