"""What a second hub adds, and what hubs lose by seeing only their own nodes.

    python -m benchmarks.hubs [--seconds N] [--rounds N] [--quick] [--out FILE]

Two against one: lifecycles a second with the same 128 clients and 64 accounts, each hub process held to a quarter of
a core, so that two of them, the database and the load fit on two cores. Regret: 300 mixed nodes parked at random at
three hubs, jobs of mixed shapes submitted to random hubs; regret.py replays the grants and defines what is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import asyncpg
import msgspec

from benchmarks import closed_load, grid, http_load, match, quota, tables
from benchmarks.closed_load import Tally, make_spec, pass_time
from benchmarks.http_load import Connection, ConnectionLost, make_head
from benchmarks.meters import Meter
from benchmarks.open_load import at_rate, open_submitters
from benchmarks.peers import processes
from benchmarks.regret import Grant, Key, Lent, replay
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end
from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference
from computepool.core.trust.reputation import Reliability, to_job_class
from computepool.hub.services.weights import load_weights

QUOTA = 0.25
CLIENTS = 128
ACCOUNTS = 64
# Less than a second of work: what is measured is lives, not how a queue fills.
BACKLOG_MAX = 512
# The kernel's first periods with a quota are those of a process that has just been put into a group.
WARM_SECONDS = 2.0

HUBS = 3
NODES = 300
# Fewer than an account may have waiting.
SHAPES = 48
# With this mean run time half of the fleet is busy.
RUN_SECONDS_MEAN = 1.5
SUBMITS_PER_SECOND = 100
# Evidence of about as many attempts as the memory of a reputation holds.
EVIDENCE = 40.0
SETTLE_SECONDS = 3.0
# What an agent would read from the driver.
CARD_NAMES = {tier: f"NVIDIA GeForce {tier.replace('-', ' ').upper()}" for tier, *_ in match.CARDS if tier != "cpu"}


@contextlib.asynccontextmanager
async def running_hubs(stage: Stage, dsn: str, count: int) -> AsyncIterator[list[grid.HubAddress]]:
    files = stage.folder / f"files-{dsn.rpartition('/')[2]}"
    async with AsyncExitStack() as stack:
        # One after the other: the first makes the tables and the files.
        yield [
            await stack.enter_async_context(grid.running_hub(dsn, stage.folder, data_dir=files)) for _ in range(count)
        ]


# ---- two against one


async def measure_hubs(stage: Stage, *, hubs: int, seconds: float) -> dict[str, float]:
    async with processes.fresh_database(stage.dsn) as dsn, running_hubs(stage, dsn, hubs) as found:
        tally = Tally(backlog_max=BACKLOG_MAX)
        ports = [hub.port for hub in found]
        async with closed_load.loaded_hubs(ports, tally, clients=CLIENTS, accounts=ACCOUNTS) as load:
            with contextlib.ExitStack() as held:
                for hub in found:
                    held.enter_context(quota.held_to(hub.pid, QUOTA))
                await pass_time(WARM_SECONDS, load)
                meter, done = Meter([hub.pid for hub in found], postmaster=stage.postmaster), tally.done
                await pass_time(seconds, load)
                figures = meter.read().to_figures(tally.done - done)
        await closed_load.check_stored(dsn, tally)
        return figures


# ---- regret


def make_offer(number: int, chance: random.Random) -> dict[str, object]:
    """One node with one slot, drawn from the same fleet as `bench/match`."""
    candidate = match.make_slot(number, chance)
    slot = candidate.slot
    hardware: dict[str, object] = {
        "cores": slot.cores,
        "ram_bytes": slot.ram_bytes,
        "disk_bytes": slot.disk_bytes,
        "cpu_slots": 1 if slot.kind is SlotKind.CPU else 0,
    }
    if slot.kind is SlotKind.GPU:
        card = {"name": CARD_NAMES[slot.tier], "vram_bytes": slot.vram_bytes, "tflops": candidate.speed_tflops}
        hardware["gpus"] = [card]
    else:
        hardware["cpu_tflops"] = candidate.speed_tflops
    return {
        "name": f"bench-{number}",
        "hardware": hardware,
        "isolation": slot.isolation.value,
        "region": slot.region,
        "floor_microcredits_per_hour": candidate.price_microcredits_per_hour,
    }


def make_specs(chance: random.Random) -> list[dict[str, object]]:
    """One per shape, of the kind that `bench/match` asks for."""
    specs = []
    for _ in range(SHAPES):
        shape, preference, ceiling = match.make_request(chance)
        requirements: dict[str, object] = {
            "gpu": shape.gpu,
            "vram_bytes": shape.vram_bytes,
            "cores": shape.cores,
            "ram_bytes": shape.ram_bytes,
            "disk_bytes": shape.disk_bytes,
            "tiers": shape.tiers,
            "regions": shape.regions,
            "isolation": shape.isolation.value,
            "ceiling_microcredits_per_hour": ceiling,
        }
        specs.append({**make_spec(), "requirements": requirements, "prefer": preference.value})
    return specs


async def run_node(node: grid.Node, troubles: list[BaseException], chance: random.Random) -> None:
    """Takes as long as work takes; then asks for more."""
    try:
        while True:
            given = await node.next()
            while given:
                await asyncio.sleep(chance.expovariate(1 / RUN_SECONDS_MEAN))
                given = await node.complete(given, lambda count: None)
    except ConnectionLost:
        return
    except Exception as error:
        troubles.append(error)


async def enrol_fleet(connection: Connection, chance: random.Random) -> list[grid.Node]:
    owner = await grid.sign_up(connection)
    nodes = [grid.Node(make_offer(number, chance)) for number in range(NODES)]
    for node in nodes:
        await node.enrol(connection, owner)
    return nodes


async def write_evidence(dsn: str, nodes: Sequence[grid.Node], chance: random.Random) -> None:
    """Nodes with a past: good ones, worse ones, and newcomers of whom nothing is known."""
    conn = await asyncpg.connect(dsn)
    for node in nodes:
        share = chance.choice((None, chance.uniform(0.5, 0.98), chance.uniform(0.9, 0.99)))
        if share is not None:
            await conn.executemany(
                "INSERT INTO reliabilities (node_id, job_class, finished, failed, faults_running, counted_at)"
                " VALUES ($1, $2, $3, $4, 0, now())",
                [
                    (node.node_id, name, EVIDENCE * share, EVIDENCE * (1 - share))
                    for name in (to_job_class(gpu=False), to_job_class(gpu=True))
                ],
            )
    await conn.close()


async def measure_regret(stage: Stage, *, hubs: int, seconds: float) -> dict[str, float]:
    chance = random.Random(5)
    async with processes.fresh_database(stage.dsn) as dsn:
        async with running_hubs(stage, dsn, 1) as (first,):
            connection = await http_load.connect(first.port)
            nodes = await enrol_fleet(connection, chance)
            key = await grid.sign_up(connection)
            connection.close()
        await write_evidence(dsn, nodes, chance)
        before = await read_evidence(dsn)
        async with running_hubs(stage, dsn, hubs) as found_hubs:
            await stream_jobs(found_hubs, nodes, key, make_specs(chance), chance, seconds=seconds)
        lent, grants = await read_grants(dsn)
        found = replay(lent, before, grants, load_weights().sets["default"])
    if found.grants < seconds * SUBMITS_PER_SECOND / 4:
        raise RuntimeError(f"only {found.grants} grants: the fleet did not get the work")
    return {
        "lost": found.lost,
        "grants": float(found.grants),
        "best_share": found.best_share,
        "blunder_share": found.blunder_share,
        "choices": found.choices,
    }


async def stream_jobs(
    hubs: Sequence[grid.HubAddress],
    nodes: Sequence[grid.Node],
    key: str,
    specs: Sequence[dict[str, object]],
    chance: random.Random,
    *,
    seconds: float,
) -> None:
    troubles: list[BaseException] = []
    lives = []
    for node in nodes:
        node.connection = await http_load.connect(chance.choice(hubs).port)
        lives.append(asyncio.create_task(run_node(node, troubles, random.Random(node.node_id))))
    doors = [await open_submitters(hub.port) for hub in hubs]
    head, bodies = make_head("POST", "/v1/jobs", token=key), [msgspec.json.encode(spec) for spec in specs]

    async def submit() -> None:
        async with chance.choice(doors).one() as connection:
            status, answer = await connection.send(head, chance.choice(bodies))
        if status != 201:
            troubles.append(RuntimeError(f"submit was refused: {status} {answer[:200]!r}"))

    await asyncio.sleep(SETTLE_SECONDS)
    await at_rate(submit, per_second=SUBMITS_PER_SECOND, seconds=seconds)
    for node in nodes:
        if node.connection:
            node.connection.close()
    for door in doors:
        door.close()
    await asyncio.gather(*lives, return_exceptions=True)
    if troubles:
        raise RuntimeError(f"{len(troubles)} calls failed, the first with {troubles[0]!r}")


async def read_evidence(dsn: str) -> dict[tuple[str, bool], Reliability]:
    conn = await asyncpg.connect(dsn)
    rows = await conn.fetch("SELECT * FROM reliabilities")
    await conn.close()
    return {
        (str(row["node_id"]), row["job_class"] == to_job_class(gpu=True)): Reliability(
            row["finished"], row["failed"], row["faults_running"], row["counted_at"]
        )
        for row in rows
    }


async def read_grants(dsn: str) -> tuple[dict[Key, Lent], list[Grant]]:
    conn = await asyncpg.connect(dsn)
    slots = await conn.fetch(
        "SELECT slots.*, nodes.region, nodes.isolation, nodes.floor_microcredits_per_hour"
        "  FROM slots JOIN nodes ON nodes.id = slots.node_id"
    )
    attempts = await conn.fetch(
        "SELECT attempts.node_id, attempts.slot, attempts.leased_at, attempts.finished_at, jobs.prefer, shapes.*"
        "  FROM attempts JOIN jobs ON jobs.id = attempts.job_id JOIN shapes ON shapes.id = jobs.shape_id"
    )
    await conn.close()
    return {(str(row["node_id"]), row["name"]): _to_lent(row) for row in slots}, [_to_grant(row) for row in attempts]


def _to_lent(row: asyncpg.Record) -> Lent:
    slot = Slot(
        node_id=NodeId(row["node_id"]),
        name=SlotName(row["name"]),
        kind=SlotKind(row["kind"]),
        tier=row["tier"],
        vram_bytes=row["vram_bytes"],
        cores=row["cores"],
        ram_bytes=row["ram_bytes"],
        disk_bytes=row["disk_bytes"],
        region=row["region"],
        isolation=IsolationLevel(row["isolation"]),
    )
    return Lent(slot, row["floor_microcredits_per_hour"], row["speed_tflops"])


def _to_grant(row: asyncpg.Record) -> Grant:
    shape = Shape(
        gpu=row["gpu"],
        vram_bytes=row["vram_bytes"],
        cores=row["cores"],
        ram_bytes=row["ram_bytes"],
        disk_bytes=row["disk_bytes"],
        tiers=tuple(row["tiers"]),
        regions=tuple(row["regions"]),
        isolation=IsolationLevel(row["isolation"]),
        ceiling_microcredits_per_hour=row["ceiling_microcredits_per_hour"],
    )
    key = (str(row["node_id"]), row["slot"])
    return Grant(row["leased_at"], row["finished_at"], key, shape, Preference(row["prefer"]))


# ---- the run


async def run(options: argparse.Namespace) -> None:
    async with open_stage("hubs", options) as stage:
        one = Series("one hub", bind(measure_hubs, stage, hubs=1, seconds=options.seconds))
        two = Series("two hubs", bind(measure_hubs, stage, hubs=2, seconds=options.seconds))
        regret = Series(f"{HUBS} hubs", bind(measure_regret, stage, hubs=HUBS, seconds=options.seconds * 2))
        # One hub sees all: what it loses by this replay is the replay's own error, or the hub's.
        control = Series("one hub", bind(measure_regret, stage, hubs=1, seconds=options.seconds * 2))
        await measure_all([one, two, regret, control], rounds=options.rounds, ends_at=stage.ends_at)
    show(stage, one, two, regret, control)


def show(stage: Stage, one: Series, two: Series, regret: Series, control: Series) -> None:
    keys = ("core_share", "server_us", "database_us", "client_us")
    stage.report.table(
        f"Lifecycles a second, {CLIENTS} clients, each hub at {QUOTA:.0%} of a core ({quota.find_way()}), medians",
        ["", "per second", "spread", "hub cores", "hub us", "database us", "client us", "note"],
        [[s.name, s.median(), s.spread(), *[s.median(key) for key in keys], s.note] for s in (one, two)],
    )
    stage.report.table(
        f"Choice of slots, {NODES} nodes, {SUBMITS_PER_SECOND} submits a second, medians",
        ["", "share of score lost", "spread", "best chosen", "lost > 0.9", "free slots that fit", "grants", "note"],
        [
            [
                series.name,
                _show_small(series.median("lost")),
                "..".join(_show_small(value) for value in sorted(series.figures.get("lost", []))) or "-",
                *[_show_small(series.median(key)) for key in ("best_share", "blunder_share")],
                series.median("choices"),
                series.median("grants"),
                series.note,
            ]
            for series in (regret, control)
        ],
    )
    stage.report.finish(
        {"two_vs_one": tables.ratio(two.median(), one.median()), "global_regret": regret.median("lost")}
    )


def _show_small(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def main() -> None:
    run_to_end(run, parse(make_parser(__doc__, seconds=8.0), quick_seconds=3.0))


if __name__ == "__main__":
    main()
