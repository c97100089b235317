"""How many whole lives of a no-op job per second, durably, against the task queues that people use.

    python -m benchmarks.lifecycle [--seconds N] [--rounds N] [--peers a,b] [--quick] [--out FILE]

What is compared, and why it is fair: docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from benchmarks import closed_load, grid, http_load, tables
from benchmarks.closed_load import BACKLOG_MAX, CLIENTS, Tally, make_payload, make_spec, pass_time
from benchmarks.http_load import Connection, make_head
from benchmarks.meters import Meter
from benchmarks.peers import processes, stand
from benchmarks.rounds import MEASURE_SECONDS_MAX, Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end

BATCH = 64
WARM_SECONDS = 1.0
# How the rate grows with the number of clients; no target.
CLIENT_COUNTS = (3, 12, 32, 128, 256)
QUICK_PEERS = ("pgqueuer", "huey")


# ---- our side


async def measure_hub(
    stage: Stage, *, seconds: float, batch: int = 1, clients: int = CLIENTS, money: bool = False, **settings: object
) -> dict[str, float]:
    async with (
        processes.fresh_database(stage.dsn) as dsn,
        grid.running_hub(dsn, stage.folder, settings, money=money) as hub,
    ):
        tally = Tally()
        async with closed_load.loaded_hubs([hub.port], tally, clients=clients, batch=batch) as load:
            await pass_time(WARM_SECONDS, load)
            meter, done = Meter([hub.pid], postmaster=stage.postmaster), tally.done
            await pass_time(seconds, load)
            figures = meter.read().to_figures(tally.done - done)
        await closed_load.check_stored(dsn, tally)
        return figures


async def measure_lone_client(stage: Stage, *, seconds: float, **settings: object) -> dict[str, float]:
    """One person, one parked node, one job at a time: what the machinery for crowds costs where there is none."""
    async with (
        processes.fresh_database(stage.dsn) as dsn,
        grid.running_hub(dsn, stage.folder, settings) as hub,
    ):
        person, node = await http_load.connect(hub.port), grid.Node()
        node.connection = await http_load.connect(hub.port)
        key = await grid.sign_up(person)
        await node.enrol(person, key)
        head, body = make_head("POST", "/v1/jobs", token=key), msgspec.json.encode(make_spec())
        lives_ms: list[float] = []

        async def run_next() -> None:
            while not (given := await node.next()):
                pass
            await node.complete(given, lambda count: None)

        ends_at = time.perf_counter() + WARM_SECONDS / 2 + seconds
        while time.perf_counter() < ends_at:
            waiting = asyncio.create_task(run_next())
            # Its question leaves first.
            await asyncio.sleep(0)
            started = time.perf_counter()
            status, answer = await person.send(head, body)
            if status != 201:
                raise RuntimeError(f"submit was refused: {status} {answer[:300]!r}")
            await waiting
            lives_ms.append((time.perf_counter() - started) * 1e3)
        person.close()
        node.connection.close()
        warm = lives_ms[len(lives_ms) // 10 :]
        return {"per_second": 1e3 / (sum(warm) / len(warm)), "p50_ms": tables.quantile(warm, 0.5) or 0.0}


# ---- the limit


async def measure_echo(stage: Stage, *, seconds: float) -> dict[str, float]:
    port = processes.free_port()
    log = stage.folder / "echo.log"
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
        try:
            await pass_time(WARM_SECONDS / 2, load)
            meter, done = Meter([server.pid], postmaster=stage.postmaster), tally.done
            await pass_time(min(seconds, 2.0), load)
            return meter.read().to_figures(tally.done - done)
        finally:
            await closed_load.end_load(tally, load, connections)


# ---- the peers


async def measure_peer(
    peer: str, stage: Stage, *, seconds: float, batch: int = 1, clients: int = CLIENTS
) -> dict[str, float]:
    if batch == 1:
        head, body = make_head("POST", "/submit"), msgspec.json.encode({"payload": make_payload(0)})
    else:
        payloads = [make_payload(i) for i in range(batch)]
        head, body = make_head("POST", "/submit-many"), msgspec.json.encode({"payloads": payloads})
    async with stand.peer_store(peer, stage.dsn, stage.folder) as store:
        with ExitStack() as stack:
            port = await stand.start_front(peer, store, stage.folder, stack)
            watcher = await http_load.connect(port)
            await stand.wait_first_done(watcher)
            tally = Tally()
            connections = [await http_load.connect(port) for _ in range(clients)]
            load = asyncio.gather(
                *[closed_load.submit_for_ever(c, [head], body, tally, batch=batch) for c in connections]
            )
            try:
                await _watch(watcher, tally, load, seconds=WARM_SECONDS)
                # What a peer's own processes cost is not asked: they are several, and each has others.
                meter, done = Meter([], postmaster=stage.postmaster), tally.done
                await _watch(watcher, tally, load, seconds=seconds)
                figures = meter.read().to_figures(tally.done - done)
                return {key: figures[key] for key in ("per_second", "database_us", "client_us") if key in figures}
            finally:
                await closed_load.end_load(tally, load, [watcher, *connections])


async def _watch(watcher: Connection, tally: Tally, load: asyncio.Future[Any], *, seconds: float) -> None:
    """Keeps the tally by what the peer's store says; seldom, because counting costs it something too."""
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        await pass_time(min(0.1, max(0.0, ends_at - time.perf_counter())), load)
        _, counts = await watcher.call("GET", "/done")
        tally.note(submitted=counts["submitted"] - tally.submitted, done=counts["done"] - tally.done)


async def measure_peer_directly(peer: str, stage: Stage, *, seconds: float, batch: int = 1) -> dict[str, float]:
    folder = stage.folder
    async with stand.peer_store(peer, stage.dsn, folder) as store:
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


def list_series(stage: Stage, *, seconds: float) -> list[Series]:
    def hub(name: str, **options: object) -> Series:
        return Series(name, bind(measure_hub, stage, seconds=seconds, **options))

    def lone(name: str, **options: object) -> Series:
        return Series(name, bind(measure_lone_client, stage, seconds=min(seconds, 2.0), **options))

    found = [
        Series("bare ASGI echo", bind(measure_echo, stage, seconds=seconds)),
        hub("computepool"),
        hub("computepool, bulk", batch=BATCH),
        lone("computepool, lone client"),
    ]
    if grid.has_setting("group_commit"):
        found += [
            hub("computepool, transaction per request", group_commit="false"),
            lone("computepool, transaction per request, lone client", group_commit="false"),
        ]
    for peer in stage.peers:
        found.append(Series(peer, bind(measure_peer, peer, stage, seconds=seconds)))
        if peer == "pgqueuer":
            found.append(Series("pgqueuer, bulk", bind(measure_peer, peer, stage, seconds=seconds, batch=BATCH)))
    return found


def list_direct(stage: Stage, *, seconds: float) -> list[Series]:
    found = []
    for peer in stage.peers:
        found.append(Series(peer, bind(measure_peer_directly, peer, stage, seconds=seconds)))
        if peer == "pgqueuer":
            bulk = bind(measure_peer_directly, peer, stage, seconds=seconds, batch=BATCH)
            found.append(Series("pgqueuer, bulk", bulk))
    return found


def list_crowds(stage: Stage, *, seconds: float) -> dict[str, dict[int, Series]]:
    """The same with fewer and with more clients, for the curve."""
    crowds = {
        "computepool": {
            n: Series(f"computepool, {n} clients", bind(measure_hub, stage, seconds=seconds, clients=n))
            for n in CLIENT_COUNTS
        }
    }
    if "pgqueuer" in stage.peers:
        crowds["pgqueuer"] = {
            n: Series(f"pgqueuer, {n} clients", bind(measure_peer, "pgqueuer", stage, seconds=seconds, clients=n))
            for n in CLIENT_COUNTS
        }
    return crowds


async def run(options: argparse.Namespace) -> None:
    async with open_stage("lifecycle", options) as stage:
        found = list_series(stage, seconds=options.seconds)
        direct = [] if options.quick else list_direct(stage, seconds=min(options.seconds, 3.0))
        crowds = {} if options.quick else list_crowds(stage, seconds=min(options.seconds, 2.0))
        # The figures with targets first: if time runs out, it does so for those without.
        await measure_all(found, rounds=options.rounds, ends_at=stage.ends_at - options.run_seconds_max * 0.25)
        every = [series for one in crowds.values() for series in one.values()]
        await measure_all([*every, *direct], rounds=1, ends_at=stage.ends_at)
    show(stage, found, direct, crowds)


def show(
    stage: Stage, found: Sequence[Series], direct: Sequence[Series], crowds: dict[str, dict[int, Series]]
) -> None:
    by_name = {series.name: series for series in found}
    report = stage.report
    report.table(
        f"No-op lifecycles, {CLIENTS} HTTP clients (bulk: {BATCH} jobs per call), medians",
        [
            "system",
            "per second",
            "spread",
            "per server-CPU-s",
            "server us",
            "database us",
            "client us",
            "p50 ms",
            "note",
        ],
        [
            [
                series.name,
                series.median(),
                series.spread(),
                *[
                    series.median(key)
                    for key in ("per_cpu_second", "server_us", "database_us", "client_us", "p50_ms")
                ],
                series.note,
            ]
            for series in found
        ]
        + [[name, None, "-", None, None, None, None, None, why] for name, why in stage.missing.items()],
    )
    report.line("\n  us: CPU time per lifecycle of the server, of all of PostgreSQL, and of the load generator")
    if direct:
        report.table(
            "The peers without HTTP: no target",
            ["peer", "per second", "note"],
            [[s.name, s.median(), s.note] for s in direct],
        )
    if crowds:
        show_crowds(report, crowds, by_name)
    report.finish(to_result(by_name))


def show_crowds(report: tables.Report, crowds: dict[str, dict[int, Series]], by_name: dict[str, Series]) -> None:
    counts = sorted({*CLIENT_COUNTS, CLIENTS})
    rows = {name: [{**each, CLIENTS: by_name[name]}[n].median() for n in counts] for name, each in crowds.items()}
    report.table(
        "Lifecycles a second by the number of clients: no target",
        ["system", *map(str, counts)],
        [[name, *figures] for name, figures in rows.items()],
    )
    report.curve(
        "Lifecycles against the number of clients",
        x="HTTP clients",
        y="lifecycles per second",
        series={
            name: [(n, figure) for n, figure in zip(counts, figures, strict=True) if figure is not None]
            for name, figures in rows.items()
        },
    )


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
    parser = make_parser(__doc__, seconds=4.0, peers=stand.PEERS)
    run_to_end(run, parse(parser, quick_seconds=1.5, quick_peers=QUICK_PEERS))


if __name__ == "__main__":
    main()
