"""Histories of money by seed: 100,000 in memory, 2,000 on both stores, and every planted bug.

    python -m sims.ledger_histories [--memory N] [--sql N] [--first-seed N] [--processes N]

The last line is one JSON object. A history that goes wrong prints its seed: `--first-seed SEED --memory 1` shows it
again. What is checked stands in tests/support/ledger_histories.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from computepool.hub.store.embedded import EmbeddedPostgres
from tests.support.ledger_bugs import PLANTED, find_bug
from tests.support.ledger_histories import History, post_on_sql
from tests.support.postgres import TestServer, connected

SHOWN_MAX = 10
# So many at a time for each process.
PORTION = 500
# Seeds of the two parts do not overlap.
SQL_SEEDS_FROM = 10**9


def run_memory(seeds: range, *, processes: int) -> int:
    """How many went wrong."""
    portions = [seeds[start : start + PORTION] for start in range(0, len(seeds), PORTION)]
    violations = 0
    with ProcessPoolExecutor(processes) as pool:
        for found in pool.map(_run_portion, portions):
            for words in found:
                violations += 1
                _show(violations, words)
    return violations


def _run_portion(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            History(seed).run()
        except AssertionError as violation:
            found.append(f"history {seed}: {violation}")
    return found


def run_sql(seeds: Iterator[int]) -> int:
    with tempfile.TemporaryDirectory(prefix="cp-histories-") as folder:
        # The database's own user must get in.
        Path(folder).chmod(0o755)
        return asyncio.run(_run_in(Path(folder), seeds))


async def _run_in(folder: Path, seeds: Iterator[int]) -> int:
    server = EmbeddedPostgres(folder / "database")
    found = TestServer(await server.start())
    try:
        await found.create_template()
        return await _run_on(await found.create_database(), seeds)
    finally:
        await server.stop()


async def _run_on(dsn: str, seeds: Iterator[int]) -> int:
    violations = 0
    async with connected(dsn) as conn:
        for seed in seeds:
            try:
                await post_on_sql(conn, History(seed).run())
            except AssertionError as violation:
                violations += 1
                _show(violations, f"history {seed} on both stores: {violation}")
    return violations


def _show(count: int, words: str) -> None:
    if count <= SHOWN_MAX:
        print(words, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, default=100_000)
    parser.add_argument("--sql", type=int, default=2_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    first = options.first_seed
    missed = [bug.name for bug in PLANTED if find_bug(bug) is None]
    for name in missed:
        print(f"planted and missed: {name}", file=sys.stderr)
    violations = run_memory(range(first, first + options.memory), processes=options.processes)
    if options.sql:
        start = SQL_SEEDS_FROM + first
        violations += run_sql(iter(range(start, start + options.sql)))
    print(
        json.dumps(
            {
                "histories": options.memory + options.sql,
                "histories_on_both_stores": options.sql,
                "violations": violations,
                "planted_bugs": len(PLANTED),
                "planted_bugs_missed": len(missed),
            }
        )
    )
    return 1 if violations or missed else 0


if __name__ == "__main__":
    sys.exit(main())
