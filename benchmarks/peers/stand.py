"""Puts a peer on its feet: a fresh store, its front, its worker; and takes it down again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.http_load import Connection
from benchmarks.peers import environment, processes

POSTGRES_PEERS = ("pgqueuer", "procrastinate")
REDIS_PEERS = ("huey", "dramatiq", "taskiq", "celery")
OWN_SCHEDULER_PEERS = ("dask", "ray")
PEERS = POSTGRES_PEERS + REDIS_PEERS + OWN_SCHEDULER_PEERS
DISTRIBUTIONS = {"taskiq": "taskiq-redis", "dask": "distributed"}


def list_missing(peers: Sequence[str]) -> dict[str, str]:
    """Those that could not be installed here, with the reason; makes their environment first."""
    if not peers:
        return {}
    environment.ensure_venv()
    return {p: "not installable" for p in peers if not environment.is_installed(DISTRIBUTIONS.get(p, p))}


@contextlib.asynccontextmanager
async def peer_store(peer: str, dsn: str, folder: Path) -> AsyncIterator[str]:
    """A store that nobody has used before: a database, a Redis, or the address of the peer's own scheduler."""
    if peer in POSTGRES_PEERS:
        async with processes.fresh_database(dsn) as own_dsn:
            yield own_dsn
    elif peer in REDIS_PEERS:
        with processes.running_redis(folder) as url:
            yield url
    else:
        yield f"tcp://127.0.0.1:{processes.free_port()}"


def start_worker(peer: str, store: str, folder: Path, stack: ExitStack, **env: str) -> None:
    arguments = _worker_arguments(peer)
    if arguments:
        log = folder / f"{peer}-worker.log"
        stack.enter_context(processes.running(arguments, log=log, env={"BENCH_STORE": store, **env}))


def _worker_arguments(peer: str) -> list[str] | None:
    """Asked of the peer's own module in its own environment: nothing of it is importable here."""
    code = f"import json, benchmarks.peers.{peer}_peer as p; print(json.dumps(p.WORKER))"
    env = {"BENCH_STORE": "redis://127.0.0.1:1/0", "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    done = subprocess.run(
        [str(environment.PYTHON), "-c", code], cwd=environment.ROOT, env=env, capture_output=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


async def start_front(peer: str, store: str, folder: Path, stack: ExitStack, **worker_env: str) -> int:
    port = processes.free_port()
    log = folder / f"{peer}-front.log"
    arguments = ["-m", "benchmarks.peers.front", peer, "--port", str(port)]
    if peer == "dask":
        # Its store is the scheduler, which lives with the workers and must be there before the front.
        start_worker(peer, store, folder, stack, **worker_env)
    front = stack.enter_context(processes.running(arguments, log=log, env={"BENCH_STORE": store}))
    await processes.wait_listening(port, front, log)
    if peer != "dask":
        start_worker(peer, store, folder, stack, **worker_env)
    return port


async def wait_first_done(watcher: Connection) -> None:
    status, answer = await watcher.call("POST", "/submit", {"payload": f"{time.perf_counter_ns()}:first"})
    if status != 200:
        raise RuntimeError(f"the peer refused its first job: {answer}")
    deadline = time.monotonic() + processes.READY_SECONDS
    while time.monotonic() < deadline:
        _, counts = await watcher.call("GET", "/done")
        if counts["done"] >= 1:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the peer's worker did not run its first job")
