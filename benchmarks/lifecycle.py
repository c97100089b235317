"""How many whole lives of a no-op job per second, durably, against the task queues that people use.

    python -m benchmarks.lifecycle [--seconds N] [--rounds N] [--peers a,b] [--quick]

What is compared, and why it is fair: docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import msgspec

from benchmarks import grid, http_load, tables
from benchmarks.http_load import Connection, make_head
from benchmarks.peers import processes, stand
from benchmarks.rounds import MEASURE_SECONDS_MAX, Series, bind, measure_all, run_to_end

CLIENTS = 64
BATCH = 64
# A life is three calls, of which the submitter makes one: so a third of the clients submit and the rest are nodes.
SUBMITTERS = CLIENTS // 3
# Submitters pause while this many jobs are unfinished, on every side. Without it a fast submit path starves the
# workers of the processor, and the queue is measured rather than the life.
BACKLOG_MAX = 4_096
WARM_SECONDS = 1.0
RUN_SECONDS_MAX = 540.0
PAYLOAD = "0:" + "x" * 254

QUICK_PEERS = ("pgqueuer", "huey")


@dataclass(slots=True)
class Tally:
    """Jobs so far, as the clients were told."""

    submitted: int = 0
    done: int = 0
    refused: int = 0
    stopped: bool = False

    def note_done(self, count: int) -> None:
        self.done += count

    @property
    def full(self) -> bool:
        return self.submitted - self.done >= BACKLOG_MAX


# ---- our side


async def submit_for_ever(
    connection: Connection, key: str, tally: Tally, *, slices: int, batch: grid.BatchCall | None
) -> None:
    spec = {"command": ["true"], "env": {"PAYLOAD": PAYLOAD}}
    if slices == 1 or batch is None:
        head, body = make_head("POST", "/v1/jobs", token=key), msgspec.json.encode({**spec, "slice_count": slices})
    else:
        head = make_head("POST", batch.path, token=key)
        body = msgspec.json.encode({batch.field: [spec] * slices})
    while not tally.stopped:
        if tally.full:
            await asyncio.sleep(0.002)
            continue
        status, answer = await connection.send(head, body)
        if status in (200, 201):
            tally.submitted += slices
        elif status in (429, 503):
            tally.refused += 1
            await asyncio.sleep(0.01)
        else:
            raise RuntimeError(f"submit was refused: {status} {answer[:300]!r}")


async def serve_for_ever(node: grid.Node, tally: Tally) -> None:
    while not tally.stopped:
        given = await node.next()
        if given:
            await node.complete(given, tally.note_done)


@contextlib.asynccontextmanager
async def loaded_hub(hub: grid.HubAddress, tally: Tally, *, slices: int) -> AsyncIterator[asyncio.Task[object]]:
    """All clients at work; the value fails as soon as one of them does."""
    connections = [await http_load.connect(hub.port) for _ in range(CLIENTS)]
    submit_batch = grid.find_batch_call(hub.openapi, "jobs") if slices > 1 else None
    complete_batch = grid.find_batch_call(hub.openapi, "complete") if slices > 1 else None
    owner = await grid.sign_up(connections[0])
    nodes = [grid.Node(c, slots=slices, complete_batch=complete_batch) for c in connections[SUBMITTERS:]]
    for node in nodes:
        await node.enrol(owner)
    keys = [await grid.sign_up(c) for c in connections[:SUBMITTERS]]
    lives = [serve_for_ever(node, tally) for node in nodes] + [
        submit_for_ever(c, key, tally, slices=slices, batch=submit_batch)
        for c, key in zip(connections, keys, strict=False)
    ]
    load = asyncio.gather(*lives)
    try:
        yield load
    finally:
        tally.stopped = True
        load.cancel()
        for connection in connections:
            connection.close()
        await asyncio.gather(load, return_exceptions=True)


async def measure_hub(
    dsn: str, folder: Path, *, seconds: float, slices: int = 1, **settings: object
) -> dict[str, float]:
    async with processes.fresh_database(dsn) as own_dsn, grid.running_hub(own_dsn, folder, settings) as hub:
        tally = Tally()
        async with loaded_hub(hub, tally, slices=slices) as load:
            await _pass(WARM_SECONDS, load)
            done, cpu, started = tally.done, processes.cpu_seconds(hub.pid), time.perf_counter()
            await _pass(seconds, load)
            done, cpu = tally.done - done, processes.cpu_seconds(hub.pid) - cpu
            elapsed = time.perf_counter() - started
        await _check_stored(own_dsn, tally)
        return {
            "per_second": done / elapsed,
            "per_cpu_second": done / cpu if cpu else 0.0,
            "core_share": cpu / elapsed,
        }


async def _pass(seconds: float, load: asyncio.Future[object]) -> None:
    await asyncio.wait({load}, timeout=seconds)
    if load.done():
        load.result()


async def _check_stored(dsn: str, tally: Tally) -> None:
    """A figure counts only if the database holds every job that was acknowledged as done."""
    conn = await asyncpg.connect(dsn)
    stored = await conn.fetchval("SELECT count(*) FROM attempts WHERE state = 'succeeded'")
    await conn.close()
    if stored < tally.done or tally.done == 0:
        raise RuntimeError(f"{tally.done} completions were acknowledged, the database holds {stored}")


async def measure_lone_client(dsn: str, folder: Path, *, seconds: float, **settings: object) -> dict[str, float]:
    """One person, one node, one job at a time: what the machinery for crowds costs where there is none."""
    async with processes.fresh_database(dsn) as own_dsn, grid.running_hub(own_dsn, folder, settings) as hub:
        connection = await http_load.connect(hub.port)
        key = await grid.sign_up(connection)
        node = grid.Node(connection)
        await node.enrol(key)
        head = make_head("POST", "/v1/jobs", token=key)
        body = msgspec.json.encode({"command": ["true"], "env": {"PAYLOAD": PAYLOAD}})
        lives: list[float] = []
        ends_at = time.perf_counter() + WARM_SECONDS / 2 + seconds
        while (started := time.perf_counter()) < ends_at:
            status, answer = await connection.send(head, body)
            if status != 201:
                raise RuntimeError(f"submit was refused: {status} {answer[:300]!r}")
            while not (given := await node.next()):
                pass
            await node.complete(given, lambda count: None)
            lives.append((time.perf_counter() - started) * 1e3)
        connection.close()
        warm = lives[len(lives) // 10 :]
        return {"per_second": 1e3 / (sum(warm) / len(warm)), "p50_ms": tables.quantile(warm, 0.5) or 0.0}


# ---- the limit


async def measure_echo(folder: Path, *, seconds: float) -> dict[str, float]:
    port = processes.free_port()
    log = folder / "echo.log"
    arguments = ["-m", "benchmarks.peers.echo", "--port", str(port)]
    # With our own interpreter and packages: those that the hub is served by.
    with processes.running(arguments, log=log, program=sys.executable) as server:
        await processes.wait_listening(port, server, log)
        tally = Tally()
        order = {"id": "x" * 36, "payload": "x" * 200, "slots": ["gpu:0", "cpu:0"], "seconds": 30.0}
        head, body = make_head("POST", "/"), msgspec.json.encode(order)

        async def ask_for_ever(connection: Connection) -> None:
            while not tally.stopped:
                await connection.send(head, body)
                tally.done += 1

        connections = [await http_load.connect(port) for _ in range(CLIENTS)]
        load = asyncio.gather(*[ask_for_ever(connection) for connection in connections])
        await _pass(WARM_SECONDS / 2, load)
        done, cpu, started = tally.done, processes.cpu_seconds(server.pid), time.perf_counter()
        await _pass(min(seconds, 2.0), load)
        done, cpu = tally.done - done, processes.cpu_seconds(server.pid) - cpu
        elapsed = time.perf_counter() - started
        load.cancel()
        for connection in connections:
            connection.close()
        await asyncio.gather(load, return_exceptions=True)
        return {"per_second": done / elapsed, "per_cpu_second": done / cpu, "core_share": cpu / elapsed}


# ---- the peers


async def measure_peer(peer: str, dsn: str, folder: Path, *, seconds: float, batch: int = 1) -> dict[str, float]:
    async with stand.peer_store(peer, dsn, folder) as store:
        with ExitStack() as stack:
            port = await stand.start_front(peer, store, folder, stack)
            watcher = await http_load.connect(port)
            await stand.wait_first_done(watcher)
            tally = Tally()
            connections = [await http_load.connect(port) for _ in range(CLIENTS)]
            load = asyncio.gather(*[submit_to_peer(c, tally, batch=batch) for c in connections])
            try:
                await _watch(watcher, tally, load, seconds=WARM_SECONDS)
                done, started = tally.done, time.perf_counter()
                await _watch(watcher, tally, load, seconds=seconds)
                return {"per_second": (tally.done - done) / (time.perf_counter() - started)}
            finally:
                tally.stopped = True
                load.cancel()
                for connection in [watcher, *connections]:
                    connection.close()
                await asyncio.gather(load, return_exceptions=True)


async def submit_to_peer(connection: Connection, tally: Tally, *, batch: int) -> None:
    if batch == 1:
        head, body = make_head("POST", "/submit"), msgspec.json.encode({"payload": PAYLOAD})
    else:
        head, body = make_head("POST", "/submit-many"), msgspec.json.encode({"payloads": [PAYLOAD] * batch})
    while not tally.stopped:
        if tally.full:
            await asyncio.sleep(0.002)
            continue
        status, answer = await connection.send(head, body)
        if status != 200:
            raise RuntimeError(f"the front refused: {status} {answer[:300]!r}")
        tally.submitted += batch


async def _watch(watcher: Connection, tally: Tally, load: asyncio.Future[object], *, seconds: float) -> None:
    """Keeps the tally by what the peer's store says; seldom, because counting costs it something too."""
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        await _pass(min(0.1, max(0.0, ends_at - time.perf_counter())), load)
        _, counts = await watcher.call("GET", "/done")
        tally.submitted, tally.done = counts["submitted"], counts["done"]


async def measure_peer_directly(
    peer: str, dsn: str, folder: Path, *, seconds: float, batch: int = 1
) -> dict[str, float]:
    async with stand.peer_store(peer, dsn, folder) as store:
        with ExitStack() as stack:
            out = folder / f"{peer}-direct.log"
            out.unlink(missing_ok=True)
            arguments = ["-m", "benchmarks.peers.front", peer, "--direct", str(seconds), "--batch", str(batch)]
            arguments += ["--clients", str(CLIENTS), "--backlog-max", str(BACKLOG_MAX)]
            if peer == "dask":
                stand.start_worker(peer, store, folder, stack)
            process = stack.enter_context(processes.running(arguments, log=out, env={"BENCH_STORE": store}))
            if peer != "dask":
                # The submitting side makes the tables that the worker wants to find.
                await asyncio.sleep(1.5 if peer in stand.POSTGRES_PEERS else 0.0)
                stand.start_worker(peer, store, folder, stack)
            if await asyncio.to_thread(process.wait, MEASURE_SECONDS_MAX / 2) != 0:
                raise RuntimeError(f"the direct run failed:\n{out.read_text(errors='replace')[-1_500:]}")
            # Some peers have more to say when they end.
            lines = [line for line in out.read_text().splitlines() if line.startswith('{"jobs_per_second"')]
            return {"per_second": json.loads(lines[-1])["jobs_per_second"]}


# ---- the run


def list_series(dsn: str, folder: Path, peers: Sequence[str], *, seconds: float) -> list[Series]:
    def hub(name: str, **options: object) -> Series:
        return Series(name, lambda: measure_hub(dsn, folder, seconds=seconds, **options))  # type: ignore[arg-type]

    def lone(name: str, **options: object) -> Series:
        return Series(name, lambda: measure_lone_client(dsn, folder, seconds=min(seconds, 2.0), **options))

    found = [
        Series("bare ASGI echo", lambda: measure_echo(folder, seconds=seconds)),
        hub("computepool"),
        hub("computepool, bulk", slices=BATCH),
        lone("computepool, lone client"),
    ]
    if grid.has_setting("group_commit"):
        found += [
            hub("computepool, transaction per request", group_commit="false"),
            lone("computepool, transaction per request, lone client", group_commit="false"),
        ]
    for peer in peers:
        found.append(Series(peer, bind(measure_peer, peer, dsn, folder, seconds=seconds)))
        if peer == "pgqueuer":
            found.append(
                Series("pgqueuer, bulk", bind(measure_peer, peer, dsn, folder, seconds=seconds, batch=BATCH))
            )
    return found


def list_direct(dsn: str, folder: Path, peers: Sequence[str], *, seconds: float) -> list[Series]:
    found = []
    for peer in peers:
        found.append(Series(peer, bind(measure_peer_directly, peer, dsn, folder, seconds=seconds)))
        if peer == "pgqueuer":
            bulk = bind(measure_peer_directly, peer, dsn, folder, seconds=seconds, batch=BATCH)
            found.append(Series("pgqueuer, bulk", bulk))
    return found


async def run(options: argparse.Namespace) -> None:
    started = time.monotonic()
    missing = stand.list_missing(options.peers)
    peers = [peer for peer in options.peers if peer not in missing]
    async with grid.running_postgres() as (dsn, folder):
        gc.disable()
        found = list_series(dsn, folder, peers, seconds=options.seconds)
        direct = [] if options.quick else list_direct(dsn, folder, peers, seconds=min(options.seconds, 3.0))
        # The figures with targets first: if time runs out, it does so for those without.
        await measure_all(found, rounds=options.rounds, ends_at=started + options.run_seconds_max * 0.8)
        await measure_all(direct, rounds=1, ends_at=started + options.run_seconds_max)
    show(found, direct, missing)


def show(found: Sequence[Series], direct: Sequence[Series], missing: dict[str, str]) -> None:
    by_name = {series.name: series for series in found}
    tables.print_table(
        f"No-op lifecycles, {CLIENTS} HTTP clients (bulk: {BATCH} jobs per call), medians",
        ["system", "per second", "spread", "per server-CPU-s", "server cores", "p50 ms", "note"],
        [
            [
                series.name,
                series.median(),
                tables.spread(series.figures.get("per_second", [])),
                series.median("per_cpu_second"),
                series.median("core_share"),
                series.median("p50_ms"),
                series.note,
            ]
            for series in found
        ]
        + [[name, None, "-", None, None, None, why] for name, why in missing.items()],
    )
    if direct:
        tables.print_table(
            "The peers without HTTP: no target",
            ["peer", "per second", "note"],
            [[s.name, s.median(), s.note] for s in direct],
        )
    print()
    tables.print_result(to_result(by_name))


def to_result(by_name: dict[str, Series]) -> dict[str, float | None]:
    def figure(name: str, key: str = "per_second") -> float | None:
        return by_name[name].median(key) if name in by_name else None

    def best(names: Sequence[str]) -> float | None:
        return max((value for name in names if (value := figure(name)) is not None), default=None)

    ours, per_request = "computepool", "computepool, transaction per request"
    echo = figure("bare ASGI echo", "per_cpu_second")
    return {
        "single_vs_best_postgres_peer": tables.ratio(figure(ours), best(stand.POSTGRES_PEERS)),
        "single_vs_fastest_redis_peer": tables.ratio(figure(ours), best(stand.REDIS_PEERS)),
        "bulk_vs_pgqueuer_bulk": tables.ratio(figure(f"{ours}, bulk"), figure("pgqueuer, bulk")),
        "group_commit_vs_transaction_per_request": tables.ratio(figure(ours), figure(per_request)),
        "lone_client_p50_vs_transaction_per_request": tables.ratio(
            figure(f"{ours}, lone client", "p50_ms"), figure(f"{per_request}, lone client", "p50_ms")
        ),
        "per_cpu_second_of_bare_asgi_third": tables.ratio(figure(ours, "per_cpu_second"), echo and echo / 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(stand.PEERS), help="comma-separated; empty for none")
    parser.add_argument("--quick", action="store_true", help="one short round with the nearest peers")
    parser.add_argument("--run-seconds-max", type=float, default=RUN_SECONDS_MAX)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, 1.5), 1
        if options.peers == ",".join(stand.PEERS):
            options.peers = ",".join(QUICK_PEERS)
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(stand.PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(stand.PEERS)}")
    run_to_end(run(options))


if __name__ == "__main__":
    main()
