"""What every benchmark with a database begins and ends with: options, peers, PostgreSQL, a report, a clean end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import grid, meters
from benchmarks.peers import stand
from benchmarks.tables import Report

RUN_SECONDS_MAX = 540.0


def make_parser(
    doc: str | None, *, seconds: float, rounds: int = 3, peers: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=seconds, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help="one short round; proves that it runs, not how fast")
    parser.add_argument("--run-seconds-max", type=float, default=RUN_SECONDS_MAX)
    parser.add_argument("--out", type=Path, help="store the whole report in this file, as JSON")
    if peers is not None:
        parser.set_defaults(known_peers=tuple(peers))
        parser.add_argument("--peers", help="comma-separated; empty for none; all if not given")
    return parser


def parse(
    parser: argparse.ArgumentParser, *, quick_seconds: float, quick_peers: Sequence[str] = ()
) -> argparse.Namespace:
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, quick_seconds), 1
    known = getattr(options, "known_peers", ())
    if getattr(options, "peers", None) is None:
        options.peers = list(quick_peers if options.quick else known)
        return options
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(known):
        parser.error(f"not to be compared here: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


@dataclass(frozen=True, slots=True)
class Stage:
    """Where measurements take place."""

    dsn: str
    folder: Path
    postmaster: int
    report: Report
    # Those that can run here, and why the others cannot.
    peers: Sequence[str]
    missing: dict[str, str]
    # No measurement begins after this moment of the monotonic clock.
    ends_at: float


@contextlib.asynccontextmanager
async def open_stage(name: str, options: argparse.Namespace, *, complete: bool = True) -> AsyncIterator[Stage]:
    ends_at = time.monotonic() + options.run_seconds_max
    report = Report(name, complete=complete and not options.quick, out=options.out)
    missing = stand.list_missing(options.peers)
    peers = [peer for peer in options.peers if peer not in missing]
    async with grid.running_postgres() as (dsn, folder):
        # Our own pauses would be counted as somebody else's.
        gc.disable()
        yield Stage(dsn, folder, await meters.find_postmaster(dsn), report, peers, missing, ends_at)


def run_to_end(run: Callable[[argparse.Namespace], Awaitable[None]], options: argparse.Namespace) -> None:
    """Runs a benchmark; whoever stops it early (Ctrl-C, SIGTERM) gets all that it started taken down first."""

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await run(options)

    try:
        uvloop.run(guarded())
    except asyncio.CancelledError:
        sys.exit("bench: stopped")
