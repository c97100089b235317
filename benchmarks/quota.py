"""Holds a process to a share of one core, so that a machine with few cores can show what more of them would do.

By the kernel's CPU controller where we may use it (control groups, version 1 or 2); otherwise by stopping and
continuing the process 50 times a second, from a small process of its own:

    python -m benchmarks.quota PID SHARE
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

PERIOD_MICROSECONDS = 20_000
SITE_V1 = Path("/sys/fs/cgroup/cpu")
SITE_V2 = Path("/sys/fs/cgroup")
EMPTY_SECONDS_MAX = 5.0


def find_way() -> str:
    """How processes will be held here, in words for the report."""
    if os.access(SITE_V1 / "cgroup.procs", os.W_OK):
        return "control group version 1"
    if os.access(SITE_V2 / "cgroup.subtree_control", os.W_OK) and "cpu" in _read(SITE_V2 / "cgroup.controllers"):
        return "control group version 2"
    return "stop and continue"


@contextlib.contextmanager
def held_to(pid: int, share: float) -> Iterator[None]:
    way = find_way()
    if way == "stop and continue":
        with _stopping(pid, share):
            yield
        return
    with _group(way) as folder:
        quota = int(PERIOD_MICROSECONDS * share)
        if way.endswith("1"):
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        (folder / "cgroup.procs").write_text(str(pid))
        yield


@contextlib.contextmanager
def _group(way: str) -> Iterator[Path]:
    site = SITE_V1 if way.endswith("1") else SITE_V2
    if site == SITE_V2 and "cpu" not in _read(SITE_V2 / "cgroup.subtree_control"):
        (SITE_V2 / "cgroup.subtree_control").write_text("+cpu")
    folder = site / f"computepool-bench-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        _empty(folder, site)


def _empty(folder: Path, site: Path) -> None:
    """Whoever is still in it goes back to where it came from; a group can only be removed when nobody is."""
    deadline = time.monotonic() + EMPTY_SECONDS_MAX
    while True:
        for pid in _read(folder / "cgroup.procs").split():
            with contextlib.suppress(OSError):
                (site / "cgroup.procs").write_text(pid)
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def _stopping(pid: int, share: float) -> Iterator[None]:
    keeper = subprocess.Popen([sys.executable, "-m", "benchmarks.quota", str(pid), str(share)])
    try:
        yield
    finally:
        keeper.kill()
        keeper.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stop_and_continue(pid: int, share: float) -> None:
    period = PERIOD_MICROSECONDS / 1e6
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, signal.SIGCONT)
            time.sleep(period * share)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(period * (1 - share))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    stop_and_continue(int(sys.argv[1]), float(sys.argv[2]))
