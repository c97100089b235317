"""What a long queue, a queue full of work that fits nowhere, and a long history cost a hub: lifecycles a second.

    python -m benchmarks.depth [--seconds N] [--rounds N] [--quick] [--queued N] [--finished N] [--out FILE]

Every condition is a database of its own that lives through all rounds; each round starts a new hub on each of them.
What is queued is submitted by the public API, one job each by ten accounts. The history is submitted the same way and
then finished by SQL, with the rows that a hub leaves. ANALYZE is left to autovacuum, and waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from benchmarks import closed_load, grid, http_load, meters, tables
from benchmarks.closed_load import Tally, make_spec, pass_time
from benchmarks.http_load import Connection
from benchmarks.peers import processes
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end

MILLION = 1_000_000
THOUSAND = 1_000
# For the curve.
BETWEEN = (10_000, 100_000)
FILLING_ACCOUNTS = 10
SLICES_PER_JOB_MAX = 100_000
UNPLACEABLE_SHAPES = 64
UNPLACEABLE_ACCOUNTS = 50
UNPLACEABLE_SLICES_PER_JOB = 10
# With a backlog the nodes are never short of work: submitters keep step with what is done, so that its depth stays.
KEEPING_STEP = 64
WARM_SECONDS = 1.5
AUTOVACUUM_SECONDS_MAX = 90.0
FILL_SECONDS_MAX = 180.0


@dataclass(slots=True)
class Condition:
    """A database in some state, the files that its hubs share, and how many jobs its load leaves unfinished."""

    name: str
    dsn: str
    files: Path
    backlog_max: int = closed_load.BACKLOG_MAX
    # What the load meets is meant to stay, so the load takes nothing of it along at its end.
    drained: bool = True


# ---- the states


async def queue_slices(connection: Connection, count: int) -> None:
    for _ in range(FILLING_ACCOUNTS):
        key = await grid.sign_up(connection)
        left = count // FILLING_ACCOUNTS
        while left > 0:
            part = min(left, SLICES_PER_JOB_MAX)
            await grid.submit(connection, key, {**make_spec(), "slice_count": part})
            left -= part


async def queue_unplaceable(connection: Connection) -> None:
    """In front of all that is placeable: older, and with a higher priority. Half needs a GPU that nobody has, half
    is for CPU slots like those that are there, only larger."""
    specs = [
        {
            **make_spec(),
            "priority": 1,
            "slice_count": UNPLACEABLE_SLICES_PER_JOB,
            "requirements": {"vram_bytes": 500_000_000 * (number + 1)} if number % 2 else {"cores": number + 2},
        }
        for number in range(UNPLACEABLE_SHAPES)
    ]
    for _ in range(UNPLACEABLE_ACCOUNTS):
        await grid.submit(connection, await grid.sign_up(connection), *specs)


# One receipt and two events per 64 slices: as a hub leaves them that was given and told 64 at a time.
FINISH_QUEUED = (
    """
    INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, leased_at, expires_at, started_at,
                          finished_at, exit_code, run_seconds, cpu_seconds, memory_bytes_peak, result_sha256,
                          report_sha256, receipt_id)
    SELECT gen_random_uuid(), job_id, slice_index, 1, $1::uuid, 'cpu:' || slice_index % 64, 'succeeded', now(), now(),
           now(), now(), 0, 1.5, 1.4, 73400320, sha256(''), sha256(slice_index::text::bytea),
           uuid_in(md5(job_id::text || slice_index / 64)::cstring)
      FROM slices WHERE state = 'queued'
    """,
    """
    INSERT INTO receipts (id, node_id, token, state)
    SELECT receipt_id, $1::uuid, (SELECT string_agg(md5(receipt_id::text || n), '') FROM generate_series(1, 64) AS n),
           'verified'::receipt_state
      FROM (SELECT DISTINCT receipt_id FROM attempts) AS signed
    """,
    """
    INSERT INTO events (kind, account_id, job_id, node_id, body)
    SELECT kind, account_id, job_id, $1::uuid, '{"slices": [[0, 63]]}'
      FROM slices, (VALUES ('slices_leased'), ('slices_succeeded')) AS kinds (kind)
     WHERE slice_index % 64 = 0
    """,
    """
    UPDATE slices SET state = 'succeeded', attempt_count = 1, finished_at = now(), accepted_attempt_id = attempts.id
      FROM attempts WHERE attempts.job_id = slices.job_id AND attempts.slice_index = slices.slice_index
       AND $1::uuid IS NOT NULL
    """,
    """
    UPDATE jobs SET state = 'succeeded', started_at = now(), finished_at = now(), succeeded_count = slice_count
     WHERE finished_at IS NULL AND $1::uuid IS NOT NULL
    """,
)


async def finish_queued(dsn: str, connection: Connection) -> None:
    """Everything that is queued becomes history, by a node that has done all of it."""
    node = grid.Node()
    await node.enrol(connection, await grid.sign_up(connection))
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            for statement in FINISH_QUEUED:
                await conn.execute(statement, node.node_id, timeout=FILL_SECONDS_MAX)
    finally:
        await conn.close()


async def make_condition(
    stage: Stage,
    stack: AsyncExitStack,
    name: str,
    fill: Callable[[str, Connection], Awaitable[None]] | None = None,
    *,
    backlog: bool = False,
) -> Condition:
    print(f"bench: filling: {name}", file=sys.stderr, flush=True)
    dsn = await stack.enter_async_context(processes.fresh_database(stage.dsn))
    files = stage.folder / f"files-{len(list(stage.folder.glob('files-*')))}"
    if fill is not None:
        async with asyncio.timeout(FILL_SECONDS_MAX), grid.running_hub(dsn, stage.folder, data_dir=files) as hub:
            connection = await http_load.connect(hub.port)
            await fill(dsn, connection)
            connection.close()
    if backlog:
        return Condition(name, dsn, files, backlog_max=KEEPING_STEP, drained=False)
    return Condition(name, dsn, files)


async def wait_analyzed(condition: Condition) -> bool:
    """Whether autovacuum has looked at the filled tables; a hub that runs for a day would not remember otherwise."""
    deadline = time.monotonic() + AUTOVACUUM_SECONDS_MAX
    async with _connected(condition.dsn) as conn:
        while time.monotonic() < deadline:
            if await conn.fetchval(
                "SELECT last_autoanalyze IS NOT NULL FROM pg_stat_user_tables WHERE relname = 'slices'"
            ):
                return True
            await asyncio.sleep(0.5)
    return False


# ---- the measurement


async def measure(stage: Stage, condition: Condition, *, seconds: float) -> dict[str, float]:
    await _checkpoint(stage)
    async with grid.running_hub(condition.dsn, stage.folder, data_dir=condition.files) as hub:
        tally = Tally(backlog_max=condition.backlog_max)
        async with closed_load.loaded_hubs([hub.port], tally, drained=condition.drained) as load:
            await pass_time(WARM_SECONDS, load)
            meter, done = meters.Meter([hub.pid], postmaster=stage.postmaster), tally.done
            await pass_time(seconds, load)
            figures = meter.read().to_figures(tally.done - done)
        async with _connected(condition.dsn) as conn:
            figures["queued_after"] = await conn.fetchval("SELECT count(*) FROM slices WHERE state = 'queued'")
        return figures


async def _checkpoint(stage: Stage) -> None:
    """Or else what the one before left to be written would be written while this one is measured."""
    async with _connected(processes.to_superuser(stage.dsn)) as conn:
        await conn.execute("CHECKPOINT")


@contextlib.asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


# ---- the run


async def run(options: argparse.Namespace) -> None:
    complete = options.queued == MILLION and options.finished == MILLION
    async with open_stage("depth", options, complete=complete) as stage, AsyncExitStack() as stack:

        async def queued(count: int) -> Condition:
            return await make_condition(
                stage, stack, f"{count:,} queued", lambda dsn, c: queue_slices(c, count), backlog=True
            )

        async def history(dsn: str, connection: Connection) -> None:
            await queue_slices(connection, options.finished)
            await finish_queued(dsn, connection)

        between = () if options.quick else [depth for depth in BETWEEN if depth < options.queued]
        depths = sorted({THOUSAND, *between, options.queued})
        queues = {depth: await queued(depth) for depth in depths}
        unplaceable = f"{UNPLACEABLE_SHAPES} shapes x {UNPLACEABLE_ACCOUNTS} accounts unplaceable"
        none = await make_condition(stage, stack, "nothing else")
        others = [
            none,
            await make_condition(stage, stack, unplaceable, lambda _, c: queue_unplaceable(c)),
            await make_condition(stage, stack, f"{options.finished:,} finished", history),
        ]
        for filled in (queues[options.queued], others[-1]):
            if not options.quick and not await wait_analyzed(filled):
                stage.report.line(f"  autovacuum has not come to {filled.name} in {AUTOVACUUM_SECONDS_MAX:.0f} s")
        found = [
            Series(c.name, bind(measure, stage, c, seconds=options.seconds)) for c in (*queues.values(), *others)
        ]
        await measure_all(found, rounds=options.rounds, ends_at=stage.ends_at)
        show(stage, found, depths, complete=complete)


def show(stage: Stage, found: list[Series], depths: list[int], *, complete: bool) -> None:
    keys = ("server_us", "database_us", "client_us", "queued_after")
    stage.report.table(
        f"No-op lifecycles a second, {closed_load.CLIENTS} HTTP clients, medians",
        ["beside", "per second", "spread", "server us", "database us", "client us", "queued after", "note"],
        [[s.name, s.median(), s.spread(), *[s.median(key) for key in keys], s.note] for s in found],
    )
    queues, (none, unplaceable, history) = found[: len(depths)], found[len(depths) :]
    for key, label in (("per_second", "lifecycles per second"), ("database_us", "PostgreSQL CPU us per lifecycle")):
        points = [
            (depth, figure) for depth, s in zip(depths, queues, strict=True) if (figure := s.median(key)) is not None
        ]
        stage.report.curve("A long queue", x="slices queued", y=label, series={"computepool": points})
    ratios = {
        "million_queued_vs_thousand": tables.ratio(queues[-1].median(), queues[0].median()),
        "unplaceable_shapes_vs_none": tables.ratio(unplaceable.median(), none.median()),
        "million_finished_vs_none": tables.ratio(history.median(), none.median()),
    }
    if not complete:
        stage.report.line(f"\n  not a million; with the numbers above: {ratios}")
        ratios |= {"million_queued_vs_thousand": None, "million_finished_vs_none": None}
    stage.report.finish(ratios)


def main() -> None:
    parser = make_parser(__doc__, seconds=5.0)
    parser.add_argument("--queued", type=int, help="the long queue; a million unless quick")
    parser.add_argument("--finished", type=int, help="the long history; a million unless quick")
    options = parse(parser, quick_seconds=1.5)
    options.queued = options.queued or (20_000 if options.quick else MILLION)
    options.finished = options.finished or (20_000 if options.quick else MILLION)
    run_to_end(run, options)


if __name__ == "__main__":
    main()
