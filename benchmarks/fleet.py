"""What many parked nodes cost one hub process: memory, CPU at rest, the time to wake one, beats, and the shutdown.

    python -m benchmarks.fleet [--nodes N] [--beat N] [--seconds N] [--rounds N] [--quick] [--out FILE]

All nodes enrol at a hub that is then stopped. Each round starts a new hub, parks 100 nodes, then 1,000, then all of
them, measures at each step, and ends the hub by SIGTERM. Memory is the growth of the hub's resident set from the
first step to the last, per node. What the kernel holds for the sockets is beside it, and is told for 100,000 nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from benchmarks import grid, http_load, meters, tables
from benchmarks.http_load import Connection, make_head
from benchmarks.open_load import Ages, at_rate, live_as_node, open_submitters, submit_slices
from benchmarks.peers import processes
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end
from computepool.node.runner.liveness import find_birth

NODES = 10_000
FEW = 100
MORE = 1_000
BEAT_SECONDS = 30.0
WAKES_PER_SECOND = 20
# Between two beats of a node must lie more than a hub remembers a caller for, or every beat but the first is spared
# what it costs in earnest: with 10,000 nodes, ten seconds.
BEATS_PER_SECOND = 1_000
# Sockets of the hub beside those of parked nodes.
SPARE_FILES = 1_000
ENROLLING_CONNECTIONS = 32
CONNECTING_AT_ONCE = 128
EXIT_SECONDS_MAX = 30.0
ROUND_SECONDS_MAX = 240.0
# Longer than the run: no token needs renewal meanwhile.
TOKEN_SECONDS = 7_200


# ---- the fleet


async def enrol_all(port: int, count: int, *, beat_seconds: float) -> list[grid.Node]:
    nodes = [grid.Node(wait_seconds=beat_seconds) for _ in range(count)]
    connections = [await http_load.connect(port) for _ in range(ENROLLING_CONNECTIONS)]
    owner = await grid.sign_up(connections[0])

    async def enrol(connection: Connection, part: Sequence[grid.Node]) -> None:
        for node in part:
            await node.enrol(connection, owner)

    await asyncio.gather(*[enrol(c, nodes[i::ENROLLING_CONNECTIONS]) for i, c in enumerate(connections)])
    for connection in connections:
        connection.close()
    return nodes


class Parked:
    """Nodes of this process that are parked at one hub. They take what they are given and park again."""

    def __init__(self, port: int, ages: Ages) -> None:
        self._port = port
        self._ages = ages
        self._lives: list[asyncio.Task[None]] = []
        self._connections: list[Connection] = []

    async def park(self, nodes: Sequence[grid.Node]) -> None:
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def park_one(node: grid.Node) -> None:
            async with gate:
                node.connection = await http_load.connect(self._port)
            self._connections.append(node.connection)
            self._lives.append(asyncio.create_task(live_as_node(node, self._ages)))

        await asyncio.gather(*[park_one(node) for node in nodes])

    def check(self) -> None:
        if self._ages.troubles:
            raise RuntimeError(f"{len(self._ages.troubles)} calls failed, the first with {self._ages.troubles[0]!r}")

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        await asyncio.gather(*self._lives, return_exceptions=True)
        self._connections.clear()
        self._lives.clear()


# ---- what is measured


async def wait_all_parked(pid: int, *, seconds_max: float = 60.0) -> float:
    """Until the hub has taken every call in and rests; the seconds it took. Its CPU time tells when."""
    started = time.monotonic()
    last = meters.cpu_seconds(pid)
    while time.monotonic() - started < seconds_max:
        await asyncio.sleep(0.5)
        now = meters.cpu_seconds(pid)
        if now - last < 0.1:
            return time.monotonic() - started
        last = now
    raise RuntimeError(f"the hub is still busy {seconds_max:.0f} s after the last node has parked")


async def measure_wake(hub: grid.HubAddress, key: str, ages: Ages, *, seconds: float) -> dict[str, float]:
    ages.ages_ms.clear()
    ages.waiting.clear()
    await submit_slices(hub.port, key, ages, per_second=WAKES_PER_SECOND, seconds=seconds)
    return ages.to_figures()


async def measure_share(pid: int, *, seconds: float) -> float:
    """Of one core, while we only watch."""
    meter = meters.Meter([pid])
    await asyncio.sleep(seconds)
    spent = meter.read()
    return spent.server / spent.wall


async def measure_beats(hub: grid.HubAddress, nodes: Sequence[grid.Node], *, seconds: float) -> dict[str, float]:
    """CPU seconds of the hub per heartbeat, its share of the flush to the database included."""
    submitters = await open_submitters(hub.port, 32)
    turns = itertools.cycle(nodes)
    accepted = 0

    async def beat() -> None:
        nonlocal accepted
        node = next(turns)
        body = msgspec.json.encode({"boot_id": node.boot_id})
        async with submitters.one() as connection:
            status, answer = await connection.send(make_head("POST", "/v1/nodes/heartbeat", token=node.token), body)
        if status != 200:
            raise RuntimeError(f"a beat was refused: {status} {answer[:200]!r}")
        accepted += 1

    # One turn of all nodes first, so that the hub knows them.
    rate = min(BEATS_PER_SECOND, len(nodes) / 5)
    await at_rate(beat, per_second=rate, seconds=len(nodes) / rate)
    meter, before = meters.Meter([hub.pid]), accepted
    await at_rate(beat, per_second=rate, seconds=seconds)
    spent, count = meter.read(), accepted - before
    submitters.close()
    if count < rate * seconds * 0.9:
        raise RuntimeError(f"only {count} of {rate * seconds:.0f} beats were answered")
    return {"beat_us": spent.server / count * 1e6}


async def measure_exit(hub: grid.HubAddress) -> float:
    os.kill(hub.pid, signal.SIGTERM)
    started = time.perf_counter()
    while time.perf_counter() - started < EXIT_SECONDS_MAX:
        if _has_ended(hub.pid):
            return time.perf_counter() - started
        await asyncio.sleep(0.01)
    return EXIT_SECONDS_MAX


def _has_ended(pid: int) -> bool:
    """As a process of its own; that we have not yet asked for its exit code is not its fault."""
    return find_birth(pid) is None


async def measure_round(
    stage: Stage, dsn: str, files: Path, nodes: Sequence[grid.Node], *, seconds: float
) -> dict[str, float]:
    figures: dict[str, float] = {}
    settings = {"node_token_seconds": TOKEN_SECONDS}
    async with grid.running_hub(dsn, stage.folder, settings, data_dir=files) as hub:
        connection = await http_load.connect(hub.port)
        key = await grid.sign_up(connection)
        async with _parked(hub.port) as (parked, ages):
            for step in list_steps(len(nodes)):
                # Anew, so that all are held from the same moment on and none parks again while the others rest.
                await parked.close()
                begun = time.monotonic()
                await parked.park(nodes[:step])
                figures["parking_seconds"] = await wait_all_parked(hub.pid)
                if step == len(nodes):
                    figures |= await measure_rest(hub, nodes, begun=begun, beat_seconds=nodes[0].wait_seconds)
                wake = await measure_wake(hub, key, ages, seconds=seconds)
                figures |= {f"{name}_{step}": wake[name] for name in ("p50_ms", "p99_ms", "missing")}
                figures[f"mib_{step}"] = meters.resident_kib(hub.pid) / 1024
                figures[f"kernel_mib_{step}"] = meters.kernel_kib() / 1024
            parked.check()
            connection.close()
            figures["exit_seconds"] = await measure_exit(hub)
    for kind in ("mib", "kernel_mib"):
        grown = figures[f"{kind}_{len(nodes)}"] - figures[f"{kind}_{FEW}"]
        figures[f"{kind}_per_node"] = grown / (len(nodes) - FEW)
    # Both ends of every connection are on this machine; only one would be on a hub's.
    figures["kernel_mib_per_node"] /= 2
    return figures


def list_steps(nodes: int) -> list[int]:
    return [step for step in (FEW, MORE) if step < nodes] + [nodes]


async def measure_rest(
    hub: grid.HubAddress, nodes: Sequence[grid.Node], *, begun: float, beat_seconds: float
) -> dict[str, float]:
    """First while all are held and nothing happens; then while each parks again once a beat, evenly spread."""
    rest = begun + beat_seconds - 1.0 - time.monotonic()
    if rest < 2.0:
        raise RuntimeError("parking took so long that there was no time in which all rested")
    idle = await measure_share(hub.pid, seconds=rest)
    # They came within seconds of each other and would do so once a beat for ever, as no real fleet does.
    chance = random.Random(3)
    for node in nodes:
        node.wait_seconds_once = chance.uniform(1.0, beat_seconds)
    await asyncio.sleep(begun + 2 * beat_seconds + (beat_seconds - rest) - time.monotonic())
    return {"idle_share": idle, "beating_share": await measure_share(hub.pid, seconds=min(10.0, beat_seconds))}


async def measure_beats_alone(
    stage: Stage, dsn: str, files: Path, nodes: Sequence[grid.Node], *, seconds: float
) -> dict[str, float]:
    settings = {"node_token_seconds": TOKEN_SECONDS}
    async with grid.running_hub(dsn, stage.folder, settings, data_dir=files) as hub:
        return await measure_beats(hub, nodes, seconds=seconds)


@contextlib.asynccontextmanager
async def _parked(port: int) -> AsyncIterator[tuple[Parked, Ages]]:
    ages = Ages()
    parked = Parked(port, ages)
    try:
        yield parked, ages
    finally:
        await parked.close()


# ---- the run


async def run(options: argparse.Namespace) -> None:
    allow_files(options.nodes + SPARE_FILES)
    complete = options.nodes == NODES and options.beat == BEAT_SECONDS
    async with open_stage("fleet", options, complete=complete) as stage, processes.fresh_database(stage.dsn) as dsn:
        files = stage.folder / "files"
        started = time.monotonic()
        async with grid.running_hub(dsn, stage.folder, {"node_token_seconds": TOKEN_SECONDS}, data_dir=files) as hub:
            nodes = await enrol_all(hub.port, options.nodes, beat_seconds=options.beat)
        stage.report.line(f"  {options.nodes:,} nodes enrolled by calls in {time.monotonic() - started:.0f} s")
        parked = Series("parked", bind(measure_round, stage, dsn, files, nodes, seconds=options.seconds))
        beats = Series("beats", bind(measure_beats_alone, stage, dsn, files, nodes, seconds=options.seconds))
        await measure_all(
            [parked, beats], rounds=options.rounds, ends_at=stage.ends_at, seconds_max=ROUND_SECONDS_MAX
        )
    show(stage, parked, beats, nodes=options.nodes, beat_seconds=options.beat, complete=complete)


def allow_files(count: int) -> None:
    """Every connection is an open file, here and in the hub, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count and soft != resource.RLIM_INFINITY:
        if hard != resource.RLIM_INFINITY and hard < count and os.geteuid() != 0:
            raise SystemExit(f"bench: {count:,} open files are needed; the limit is {hard:,} (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))


def show(stage: Stage, parked: Series, beats: Series, *, nodes: int, beat_seconds: float, complete: bool) -> None:
    report, steps = stage.report, list_steps(nodes)
    beat_us = beats.median("beat_us")
    per_node = parked.median("mib_per_node")
    figures = {
        "kib_per_parked_node": None if per_node is None else per_node * 1024,
        "idle_core_share": parked.median("idle_share"),
        "wake_p99_10k_vs_100_nodes": tables.ratio(parked.median(f"p99_ms_{nodes}"), parked.median(f"p99_ms_{FEW}")),
        "sigterm_exit_seconds": parked.median("exit_seconds"),
        "core_share_per_100k_nodes_heartbeats": None if beat_us is None else beat_us / 1e6 * 100_000 / BEAT_SECONDS,
    }
    lines = [
        ("share of a core, nothing happens", parked, "idle_share"),
        ("share of a core, all park again once a beat", parked, "beating_share"),
        ("seconds until the last were parked", parked, "parking_seconds"),
        ("seconds from SIGTERM to the end", parked, "exit_seconds"),
        ("CPU us per heartbeat", beats, "beat_us"),
    ]
    report.table(
        f"{nodes:,} nodes parked at one hub process, medians",
        ["", "median", "spread", "note"],
        [[name, series.median(key), series.spread(key), series.note] for name, series, key in lines],
    )
    kinds = ("p50_ms", "p99_ms", "missing", "mib")
    report.table(
        f"{WAKES_PER_SECOND} submits a second until a node holds each, medians",
        ["nodes parked", "p50 ms", "p99 ms", "spread of p99", "missing", "hub MiB"],
        [
            [f"{step:,}", *[parked.median(f"{kind}_{step}") for kind in kinds[:2]], parked.spread(f"p99_ms_{step}")]
            + [parked.median(f"{kind}_{step}") for kind in kinds[2:]]
            for step in steps
        ],
    )
    draw(report, parked, steps)
    # A beat that was shorter for the sake of a short run is more often than it would be.
    often = beat_seconds / BEAT_SECONDS
    beats_share = figures["core_share_per_100k_nodes_heartbeats"]
    show_hundred_thousand(report, parked, parking_factor=often * 100_000 / nodes, beats_share=beats_share)
    if not complete:
        report.line(f"\n  not {NODES:,} nodes; with {nodes:,}: {figures}")
        figures = dict.fromkeys(figures)
    report.finish(figures)


def draw(report: tables.Report, parked: Series, steps: Sequence[int]) -> None:
    def points(kind: str) -> list[tuple[float, float]]:
        return [(step, y) for step in steps if (y := parked.median(f"{kind}_{step}")) is not None]

    report.curve(
        "Waking one of many",
        x="nodes parked",
        y="ms from submit to assignment",
        series={"p50": points("p50_ms"), "p99": points("p99_ms")},
    )
    report.curve("Memory", x="nodes parked", y="MiB of the hub process", series={"computepool": points("mib")})


def show_hundred_thousand(
    report: tables.Report, parked: Series, *, parking_factor: float, beats_share: float | None
) -> None:
    """Derived, not measured: what grows with the number of nodes, as large as it would be."""
    keys = ("mib_per_node", "kernel_mib_per_node", f"mib_{FEW}", "idle_share", "beating_share")
    known = [figure for key in keys if (figure := parked.median(key)) is not None]
    if len(known) < len(keys):
        return
    own, kernel, base, idle, beating = known
    parking = idle + (beating - idle) * parking_factor
    report.line(
        f"\n  100,000 nodes at one hub, derived: {(base + own * 100_000) / 1024:.1f} GiB in the hub and "
        f"{kernel * 100_000 / 1024:.1f} GiB in the kernel; {parking:.2f} of a core if all park once in "
        f"{BEAT_SECONDS:.0f} s" + ("" if beats_share is None else f", {beats_share:.2f} if all send beats instead")
    )


def main() -> None:
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("--nodes", type=int, help=f"{NODES:,} unless quick")
    parser.add_argument("--beat", type=float, help=f"seconds that a call is held; {BEAT_SECONDS:.0f} unless quick")
    options = parse(parser, quick_seconds=2.0)
    options.beat = options.beat or (8.0 if options.quick else BEAT_SECONDS)
    options.nodes = options.nodes or (500 if options.quick else NODES)
    run_to_end(run, options)


if __name__ == "__main__":
    main()
