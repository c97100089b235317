"""Moves itself to the top of a control group hierarchy, out of every limit. argv: doors to try, else all."""

import glob
import sys

from probe import report, works

doors = sys.argv[1:] or ["/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/*/cgroup.procs")]


def leave(door: str) -> None:
    with open(door, "r+b", buffering=0) as file:
        file.write(b"0")


report(any(works(lambda door=door: leave(door)) for door in doors))
