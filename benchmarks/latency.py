"""How long from a submit until a parked node holds the assignment, at 50 slices a second, one hub process.

    python -m benchmarks.latency [--seconds N] [--rounds N] [--peers a,b] [--quick] [--out FILE]

What is compared, and why it is fair: docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import asyncpg
import msgspec

from benchmarks import grid, http_load, tables
from benchmarks.closed_load import make_payload
from benchmarks.http_load import Connection, make_head
from benchmarks.open_load import (
    GRACE_SECONDS,
    SUBMITTERS,
    WARM_SECONDS,
    Ages,
    at_rate,
    live_as_node,
    open_submitters,
    submit_slices,
    to_figures,
)
from benchmarks.peers import processes, stand
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end

RATE_PER_SECOND = 50
NODES = 16
FLEET = 500
# A tenth of the fleet joins or leaves per minute.
CHURN_PER_SECOND = FLEET / 10 / 60


# ---- our side


class Fleet:
    """Nodes of one owner, each with its own connection, key pair and task."""

    def __init__(self, port: int, owner: str, ages: Ages) -> None:
        self._port = port
        self._owner = owner
        self._ages = ages
        self._members: list[tuple[grid.Node, asyncio.Task[None]]] = []

    async def join(self) -> None:
        node = grid.Node()
        node.connection = await http_load.connect(self._port)
        await node.enrol(node.connection, self._owner)
        self._members.append((node, asyncio.create_task(live_as_node(node, self._ages))))

    async def leave(self, index: int) -> None:
        """Without a word, as a PC does that is switched off."""
        node, task = self._members.pop(index)
        if node.connection:
            node.connection.close()
        await asyncio.gather(task, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._members)

    async def churn(self) -> None:
        chance = random.Random(2)
        while True:
            for change in (lambda: self.leave(chance.randrange(len(self))), self.join):
                await asyncio.sleep(1 / CHURN_PER_SECOND)
                await change()

    async def close(self) -> None:
        while self._members:
            await self.leave(0)


async def measure_hub(
    stage: Stage, *, seconds: float, nodes: int = NODES, churning: bool = False
) -> dict[str, float]:
    async with processes.fresh_database(stage.dsn) as dsn, grid.running_hub(dsn, stage.folder) as hub:
        connection = await http_load.connect(hub.port)
        owner, submitter = await grid.sign_up(connection), await grid.sign_up(connection)
        ages = Ages()
        fleet = Fleet(hub.port, owner, ages)
        for _ in range(nodes):
            await fleet.join()
        churn = asyncio.create_task(fleet.churn()) if churning else None
        try:
            await submit_slices(hub.port, submitter, ages, per_second=RATE_PER_SECOND, seconds=seconds)
            if churn is not None and churn.done():
                churn.result()
            return ages.to_figures()
        finally:
            if churn is not None:
                churn.cancel()
                await asyncio.gather(churn, return_exceptions=True)
            await fleet.close()
            connection.close()


# ---- the physical parts


async def measure_parts(stage: Stage, *, seconds: float) -> dict[str, float]:
    """One commit and two HTTP round trips, one after the other: what no durable dispatcher over HTTP can avoid."""
    port, log = processes.free_port(), stage.folder / "echo.log"
    arguments = ["-m", "benchmarks.peers.echo", "--port", str(port)]
    async with processes.fresh_database(stage.dsn) as own_dsn:
        with processes.running(arguments, log=log, program=sys.executable) as server:
            await processes.wait_listening(port, server, log)
            connections = await open_submitters(port)
            pool = await asyncpg.create_pool(own_dsn, min_size=SUBMITTERS, max_size=SUBMITTERS)
            await pool.execute("CREATE TABLE parts (id bigserial PRIMARY KEY, payload text NOT NULL)")
            begins_at, ages_ms = time.perf_counter() + WARM_SECONDS, []

            async def pass_once() -> None:
                started = time.perf_counter()
                order = {"id": "x" * 36, "payload": make_payload(0), "slots": ["cpu:0"], "seconds": 30.0}
                body = msgspec.json.encode(order)
                async with connections.one() as connection:
                    await connection.send(make_head("POST", "/"), body)
                    await pool.execute("INSERT INTO parts (payload) VALUES ($1)", order["payload"])
                    await connection.send(make_head("POST", "/"), body)
                if started >= begins_at:
                    ages_ms.append((time.perf_counter() - started) * 1e3)

            await at_rate(pass_once, per_second=RATE_PER_SECOND, seconds=WARM_SECONDS + seconds)
            await pool.close()
            return to_figures(ages_ms)


# ---- the peers


async def measure_peer(peer: str, stage: Stage, *, seconds: float) -> dict[str, float]:
    """From the submit at the front until the job's function runs in the peer's worker."""
    stamps = stage.folder / f"{peer}.stamps"
    stamps.unlink(missing_ok=True)
    async with stand.peer_store(peer, stage.dsn, stage.folder) as store:
        with ExitStack() as stack:
            port = await stand.start_front(peer, store, stage.folder, stack, BENCH_STAMPS=str(stamps))
            watcher = await http_load.connect(port)
            await stand.wait_first_done(watcher)
            submitters = await open_submitters(port)
            head = make_head("POST", "/submit")

            async def submit() -> None:
                body = msgspec.json.encode({"payload": make_payload(time.perf_counter_ns())})
                async with submitters.one() as connection:
                    await connection.send(head, body)

            await at_rate(submit, per_second=RATE_PER_SECOND, seconds=WARM_SECONDS + seconds)
            await wait_all_done(watcher)
            watcher.close()
    ages_ms = [int(line) / 1e6 for line in stamps.read_text().splitlines()]
    # The first job, and the warm-up's.
    return to_figures(ages_ms[1 + int(WARM_SECONDS * RATE_PER_SECOND) :])


async def wait_all_done(watcher: Connection) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        _, counts = await watcher.call("GET", "/done")
        if counts["done"] >= counts["submitted"]:
            return
        await asyncio.sleep(0.1)


# ---- the run


async def run(options: argparse.Namespace) -> None:
    async with open_stage("latency", options) as stage:
        ours = Series("computepool", bind(measure_hub, stage, seconds=options.seconds))
        crowd = Series(
            f"computepool, {FLEET} churning nodes",
            bind(measure_hub, stage, seconds=options.seconds * 2, nodes=FLEET, churning=True),
        )
        parts = Series("commit + two round trips", bind(measure_parts, stage, seconds=options.seconds))
        others = [Series(peer, bind(measure_peer, peer, stage, seconds=options.seconds)) for peer in stage.peers]
        await measure_all([parts, ours, *others, crowd], rounds=options.rounds, ends_at=stage.ends_at)
    show(stage, ours, others, parts, crowd)


def show(stage: Stage, ours: Series, others: Sequence[Series], parts: Series, crowd: Series) -> None:
    stage.report.table(
        f"Submit to the job being held (peers: to its function running), {RATE_PER_SECOND} a second, medians",
        ["system", "p50 ms", "p99 ms", "spread of p99", "samples", "missing", "note"],
        [
            [
                series.name,
                series.median("p50_ms"),
                series.median("p99_ms"),
                series.spread("p99_ms"),
                sum(series.figures.get("samples", [])),
                int(sum(series.figures.get("missing", []))),
                series.note,
            ]
            for series in (parts, ours, *others, crowd)
        ]
        + [[name, None, None, "-", None, None, why] for name, why in stage.missing.items()],
    )

    def best(key: str) -> float | None:
        return min((value for peer in others if (value := peer.median(key)) is not None), default=None)

    stage.report.finish(
        {
            "p50_vs_best_durable_peer": tables.ratio(ours.median("p50_ms"), best("p50_ms")),
            "p99_vs_best_durable_peer": tables.ratio(ours.median("p99_ms"), best("p99_ms")),
            "p99_vs_commit_plus_two_round_trips": tables.ratio(ours.median("p99_ms"), parts.median("p99_ms")),
            "p99_ms_500_churning_nodes": crowd.median("p99_ms"),
        }
    )


def main() -> None:
    parser = make_parser(__doc__, seconds=12.0, peers=stand.POSTGRES_PEERS)
    run_to_end(run, parse(parser, quick_seconds=4.0, quick_peers=stand.POSTGRES_PEERS))


if __name__ == "__main__":
    main()
