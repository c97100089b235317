"""What runs on this machine: process id, user and command line. A zombie does not run, so it is not listed.

`os.kill(pid, 0)` is not used anywhere: it takes a zombie for alive and any stranger with a reused id for ours.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Z is a zombie; X and x are processes the kernel is just taking away.
DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    uid: int
    # The words of the command line, joined by spaces. PostgreSQL's children overwrite theirs with a title.
    command: str


def find_process(pid: int) -> Process | None:
    if _has_proc():
        return _read_proc(pid)
    return next(iter(_ask_ps("-p", str(pid))), None)


def find_working_folder(pid: int) -> Path | None:
    """None where the system does not show it."""
    try:
        return Path(os.readlink(PROC / str(pid) / "cwd"))
    except OSError:
        return None


def list_processes(uid: int) -> list[Process]:
    """Every living process of one user."""
    if not _has_proc():
        return [process for process in _ask_ps("-ax") if process.uid == uid]
    pids = [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    return [process for pid in pids if (process := _read_proc(pid)) and process.uid == uid]


def _has_proc() -> bool:
    return (PROC / "self" / "status").exists()


def _read_proc(pid: int) -> Process | None:
    # Only files that every user may read: a hub that is root in a container often lacks the right to follow
    # /proc/<pid>/cwd or exe of a process that runs under another user.
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if fields.get("State", "Z")[0] in DEAD_STATES:
        return None
    return Process(pid, int(fields["Uid"].split()[0]), os.fsdecode(command).rstrip("\0").replace("\0", " "))


def _ask_ps(*selection: str) -> list[Process]:
    """For systems without /proc (macOS)."""
    answer = subprocess.run(
        ["ps", *selection, "-o", "pid=,uid=,stat=,command="], capture_output=True, text=True, timeout=10
    )
    found = []
    for line in answer.stdout.splitlines():
        words = line.split(None, 3)
        if len(words) == 4 and words[2][0] not in DEAD_STATES:
            found.append(Process(int(words[0]), int(words[1]), words[3].strip()))
    return found
