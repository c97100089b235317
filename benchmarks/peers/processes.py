"""Starts what a benchmark needs and ends all of it, whatever happens: fronts, workers, Redis, databases.

Every process carries a mark in its environment, which its children inherit. That finds those too that left their
parent's process group, as workers of task queues do, and never a process that somebody else started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks import http_load
from benchmarks.peers.environment import PYTHON, ROOT, find_redis_server

MARK = "COMPUTEPOOL_BENCH_MARK"
READY_SECONDS = 60.0
STOP_SECONDS = 3.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(
    arguments: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, program: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that comes of it, until the block is left."""
    mark = uuid.uuid4().hex
    # What a person has set for their own hub must not reach the measured ones.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COMPUTEPOOL_")}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [program or str(PYTHON), *arguments],
            cwd=ROOT,
            env={**clean, **(env or {}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process, mark)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    deadline = time.monotonic() + STOP_SECONDS
    while (left := _list_marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait()


def _list_marked(mark: str) -> list[int]:
    needle = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Without any persistence: the fastest that it can be. It forgets everything in a crash."""
    program = find_redis_server()
    if program is None:
        raise RuntimeError("redis-server is not installed")
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with running(arguments, log=folder / "redis.log", program=program):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"


def to_superuser(dsn: str) -> str:
    """The embedded server lets its owner in as this role too. Only it may order a checkpoint."""
    return urlunsplit(urlsplit(dsn)._replace(netloc="postgres@"))


@contextlib.asynccontextmanager
async def fresh_database(dsn: str) -> AsyncIterator[str]:
    """An empty database on the same server, so that no round finds what another left."""
    name, parts = f"bench_{uuid.uuid4().hex[:12]}", urlsplit(dsn)
    conn = await asyncpg.connect(to_superuser(dsn))
    try:
        await conn.execute(f"CREATE DATABASE {name} OWNER {parts.username}")
        # Or else what the one before left to be written would be written while this one is measured.
        await conn.execute("CHECKPOINT")
        yield urlunsplit(parts._replace(path=f"/{name}"))
    finally:
        await conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await conn.close()


async def wait_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            connection = await http_load.connect(port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        connection.close()
        return
    raise RuntimeError(f"a process did not get ready; its log ends with:\n{log.read_text(errors='replace')[-2_000:]}")
