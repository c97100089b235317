"""Finds open files that were left to it by whoever started it."""

import os

from probe import report


def target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""  # the one that listed the folder is closed by now


extra = [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and target(name)]
report(bool(extra), [target(name) for name in extra])
