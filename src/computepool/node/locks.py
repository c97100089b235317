"""A lock on an open file that ends with its process, on every platform."""

from __future__ import annotations

import sys


def lock(descriptor: int) -> None:
    """Raises OSError when another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
