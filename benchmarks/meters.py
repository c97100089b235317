"""What processes cost: CPU time and memory of a server, of all of PostgreSQL, and of the load generator itself."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of one process, all its threads, without its children."""
    fields = _read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def family_cpu_seconds(pid: int) -> float:
    """Of a process and its children, those that have ended included: PostgreSQL is one process per connection."""
    fields = _read_stat(pid)
    ticks = sum(int(field) for field in fields[11:15])
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # It may end while we look; then its parent has its time.
            with contextlib.suppress(OSError):
                child = _read_stat(int(folder.name))
                if int(child[1]) == pid:
                    ticks += int(child[11]) + int(child[12])
    return ticks / _CLOCK_TICKS


def resident_kib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB


def kernel_kib() -> float:
    """What the kernel holds on this machine for its own purposes, sockets among them, and in TCP's buffers."""
    slab = re.search(r"^Slab: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    buffers = re.search(r"^TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return (int(slab[1]) if slab else 0) + (int(buffers[1]) * _PAGE_KIB if buffers else 0)


async def find_postmaster(dsn: str) -> int:
    """The parent of all of the server's processes; the server runs on this machine."""
    conn = await asyncpg.connect(dsn)
    try:
        return int(_read_stat(await conn.fetchval("SELECT pg_backend_pid()"))[1])
    finally:
        await conn.close()


@dataclass(frozen=True, slots=True)
class Spent:
    """All in seconds. `server` is the measured process, without its database."""

    wall: float
    server: float
    database: float
    client: float

    def to_figures(self, done: int) -> dict[str, float]:
        """By the number of things done meanwhile."""
        figures = {"per_second": done / self.wall, "core_share": self.server / self.wall}
        if done:
            figures |= {
                "server_us": self.server / done * 1e6,
                "database_us": self.database / done * 1e6,
                "client_us": self.client / done * 1e6,
            }
        if self.server:
            figures["per_cpu_second"] = done / self.server
        return figures


class Meter:
    """Reads everything when it is made, and again when it is asked."""

    def __init__(self, servers: Sequence[int], *, postmaster: int | None = None) -> None:
        self._servers = servers
        self._postmaster = postmaster
        self._started = self._read()

    def read(self) -> Spent:
        return Spent(*[now - then for now, then in zip(self._read(), self._started, strict=True)])

    def _read(self) -> tuple[float, float, float, float]:
        database = family_cpu_seconds(self._postmaster) if self._postmaster else 0.0
        server = sum(cpu_seconds(pid) for pid in self._servers)
        return time.perf_counter(), server, database, time.process_time()


def _read_stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything; so [1] is the parent, [11] and [12] are CPU ticks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
