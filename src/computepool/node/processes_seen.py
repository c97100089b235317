"""What process trees use now, by two looks at /proc: enough to tell a job that computes from one that waits."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name")
WAITS_MAX = 3


@dataclass(frozen=True, slots=True)
class Seen:
    cpu_seconds: float
    count: int
    waits: tuple[str, ...]


def watch(roots: Mapping[Name, int], seconds: float) -> dict[Name, Seen]:
    """Of the descendants of each process, the process itself left out. Empty where there is no /proc."""
    if not roots or not Path("/proc/self/stat").exists():
        return {}
    before = _read_all()
    time.sleep(seconds)
    after = _read_all()
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for name, root in roots.items():
        pids = _list_descendants(after, root)
        used = sum(after[pid][1] - (before[pid][1] if pid in before else 0) for pid in pids)
        # A parent that waits for its child hides what the child waits for.
        parents = {after[pid][0] for pid in pids}
        waits = Counter(filter(None, (_find_wait(pid) for pid in pids if pid not in parents)))
        found[name] = Seen(used / ticks, len(pids), tuple(wait for wait, _ in waits.most_common(WAITS_MAX)))
    return found


def _read_all() -> dict[int, tuple[int, int]]:
    """Parent and ticks used, by process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def _list_descendants(processes: Mapping[int, tuple[int, int]], root: int) -> list[int]:
    children = defaultdict(list)
    for pid, (parent, _) in processes.items():
        children[parent].append(pid)
    found, open_ends = [], list(children[root])
    while open_ends:
        pid = open_ends.pop()
        found.append(pid)
        open_ends += children[pid]
    return found


def _find_wait(pid: int) -> str:
    """The kernel's name of what it waits for; nothing while it runs, or where the kernel does not say."""
    try:
        said = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return "" if said in ("", "0") else said
