"""What money costs: whole lives of a no-op job per second with holds, charges and refunds in the books, and without.

    python -m benchmarks.ledger [--seconds N] [--rounds N] [--quick] [--out FILE]

The same hub, clients and jobs on both sides; without money nothing is held, charged or posted. After every
measurement with money the books are added up: a figure of books that do not balance is none.
"""

from __future__ import annotations

import argparse
import functools

from benchmarks import closed_load, grid, tables
from benchmarks.closed_load import CLIENTS, Tally, pass_time
from benchmarks.meters import Meter
from benchmarks.peers import processes
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end
from computepool.hub.store import ledger
from computepool.hub.store.connect import create_pool

BATCH = 64
WARM_SECONDS = 1.0


async def measure(stage: Stage, *, seconds: float, money: bool, batch: int = 1) -> dict[str, float]:
    async with (
        processes.fresh_database(stage.dsn) as dsn,
        grid.running_hub(dsn, stage.folder, money=money) as hub,
    ):
        tally = Tally()
        async with closed_load.loaded_hubs([hub.port], tally, batch=batch) as load:
            await pass_time(WARM_SECONDS, load)
            meter, done = Meter([hub.pid], postmaster=stage.postmaster), tally.done
            await pass_time(seconds, load)
            figures = meter.read().to_figures(tally.done - done)
        await closed_load.check_stored(dsn, tally)
        figures["transfers"] = await check_books(dsn, money=money)
        return figures


async def check_books(dsn: str, *, money: bool) -> float:
    """How many transfers there are; raises where they do not add up."""
    pool = await create_pool(dsn, size_max=1)
    try:
        async with pool.acquire() as conn:
            drifts = await ledger.list_drifts(conn)
            settled = int(await conn.fetchval("SELECT count(*) FROM ledger_transfers WHERE kind = 'settle'"))
    finally:
        await pool.close()
    if drifts or bool(settled) is not money:
        raise RuntimeError(f"the books do not balance, or were not written: {settled} settlements, {drifts[:3]}")
    return float(settled)


async def run(options: argparse.Namespace) -> None:
    async with open_stage("ledger", options) as stage:
        of = functools.partial(bind, measure, stage, seconds=options.seconds)
        series = {
            "money on": Series("money on", of(money=True)),
            "money off": Series("money off", of(money=False)),
            "money on, bulk": Series("money on, bulk", of(money=True, batch=BATCH)),
            "money off, bulk": Series("money off, bulk", of(money=False, batch=BATCH)),
        }
        await measure_all(list(series.values()), rounds=options.rounds, ends_at=stage.ends_at)
    show(stage, series)


def show(stage: Stage, series: dict[str, Series]) -> None:
    keys = ("server_us", "database_us", "client_us", "transfers")
    stage.report.table(
        f"No-op lifecycles, {CLIENTS} HTTP clients (bulk: {BATCH} jobs per call), medians",
        ["", "per second", "spread", "hub us", "database us", "client us", "settlements", "note"],
        [[s.name, s.median(), s.spread(), *[s.median(key) for key in keys], s.note] for s in series.values()],
    )
    stage.report.finish(
        {
            "money_on_vs_off": tables.ratio(series["money on"].median(), series["money off"].median()),
            "money_on_vs_off_bulk": tables.ratio(
                series["money on, bulk"].median(), series["money off, bulk"].median()
            ),
        }
    )


def main() -> None:
    run_to_end(run, parse(make_parser(__doc__, seconds=5.0), quick_seconds=1.5))


if __name__ == "__main__":
    main()
