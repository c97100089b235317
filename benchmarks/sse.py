"""What live views cost: dispatch with 1,000 viewers in 20 tenants against none, and how soon a change is on a page.

    python -m benchmarks.sse [--viewers N] [--seconds N] [--rounds N] [--quick] [--out FILE]

50 slices a second are submitted by 20 accounts, run on 64 nodes and completed at once. Every viewer keeps one stream
open and reads all of it. A change is visible when the first viewer of its tenant that is looked at has the job's row;
counted from the moment that the submit is sent. Both sides are measured in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import resource
import time
from collections.abc import Sequence

import msgspec

from benchmarks import grid, http_load, meters, tables
from benchmarks.closed_load import make_payload
from benchmarks.http_load import make_head
from benchmarks.latency import RATE_PER_SECOND, Fleet
from benchmarks.open_load import GRACE_SECONDS, WARM_SECONDS, Ages, at_rate, open_submitters
from benchmarks.peers import processes
from benchmarks.rounds import Series, bind, measure_all
from benchmarks.stage import Stage, make_parser, open_stage, parse, run_to_end

VIEWERS = 1_000
# So many that a slow disk makes completions late and not slots scarce: a queue would hide what viewers cost.
NODES = 64
TENANTS = 20
CONNECTING_AT_ONCE = 64

_NAME = re.compile(rb'"name":"sent(\d+)"')


class Sight:
    """When jobs were first seen, by the number in their names."""

    def __init__(self) -> None:
        self.seen_ms: dict[int, float] = {}
        self.bytes = 0
        self.ended = 0

    def note(self, sent_ns: int) -> None:
        if sent_ns not in self.seen_ms:
            self.seen_ms[sent_ns] = (time.perf_counter_ns() - sent_ns) / 1e6


class ViewerConnection(asyncio.Protocol):
    """Reads a stream to its end. One of each tenant's looks at what it reads; the others only take it."""

    def __init__(self, head: bytes, sight: Sight, *, looks: bool) -> None:
        self._head = head
        self._sight = sight
        self._looks = looks
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.greeted = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(self._head)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        self._sight.bytes += len(data)
        if not self.greeted.done():
            self._rest += data
            if b"event: hello" in self._rest:
                self._rest = b""
                self.greeted.set_result(None)
            elif b"\r\n\r\n" in self._rest and b" 200 " not in self._rest[:20]:
                self.greeted.set_exception(RuntimeError(f"a stream was refused: {self._rest[:200]!r}"))
            return
        if self._looks:
            text = self._rest + data
            for found in _NAME.finditer(text):
                self._sight.note(int(found[1]))
            self._rest = text[-40:]

    def connection_lost(self, _: Exception | None) -> None:
        self._sight.ended += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_viewers(port: int, keys: Sequence[str], count: int, sight: Sight) -> list[ViewerConnection]:
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
    loop = asyncio.get_running_loop()

    async def open_one(number: int) -> ViewerConnection:
        key = keys[number % len(keys)]
        head = f"GET /v1/live HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        async with gate:
            _, viewer = await loop.create_connection(
                lambda: ViewerConnection(head, sight, looks=number < len(keys)), "127.0.0.1", port
            )
            await viewer.greeted
        return viewer

    return list(await asyncio.gather(*(open_one(number) for number in range(count))))


async def submit_slices(port: int, keys: Sequence[str], ages: Ages, *, seconds: float) -> None:
    submitters = await open_submitters(port)
    heads = [make_head("POST", "/v1/jobs", token=key) for key in keys]
    chance = random.Random(3)

    async def submit() -> None:
        sent_ns = time.perf_counter_ns()
        ages.waiting[sent_ns] = None
        body = {"name": f"sent{sent_ns}", "command": ["true"], "env": {"PAYLOAD": make_payload(sent_ns)}}
        async with submitters.one() as connection:
            status, answer = await connection.send(chance.choice(heads), msgspec.json.encode(body))
        if status != 201:
            ages.troubles.append(RuntimeError(f"submit was refused: {status} {answer[:200]!r}"))

    ages.begins_at_ns = time.perf_counter_ns() + int(WARM_SECONDS * 1e9)
    await at_rate(submit, per_second=RATE_PER_SECOND, seconds=WARM_SECONDS + seconds)
    await asyncio.sleep(GRACE_SECONDS)
    submitters.close()


async def measure(stage: Stage, *, seconds: float, viewers: int) -> dict[str, float]:
    async with processes.fresh_database(stage.dsn) as dsn, grid.running_hub(dsn, stage.folder) as hub:
        connection = await http_load.connect(hub.port)
        owner = await grid.sign_up(connection)
        keys = [await grid.sign_up(connection) for _ in range(TENANTS)]
        ages, sight = Ages(), Sight()
        fleet = Fleet(hub.port, owner, ages)
        for _ in range(NODES):
            await fleet.join()
        open_streams = await open_viewers(hub.port, keys, viewers, sight) if viewers else []
        try:
            meter = meters.Meter([hub.pid])
            await submit_slices(hub.port, keys, ages, seconds=seconds)
            spent = meter.read()
            figures = ages.to_figures()
            figures["core_share"] = spent.server / spent.wall
            if viewers:
                figures |= to_sight(sight, ages, viewers)
            return figures
        finally:
            for viewer in open_streams:
                viewer.close()
            await fleet.close()
            connection.close()


def to_sight(sight: Sight, ages: Ages, viewers: int) -> dict[str, float]:
    if sight.ended:
        raise RuntimeError(f"{sight.ended} of {viewers} streams ended by themselves")
    seen = [ms for sent_ns, ms in sight.seen_ms.items() if sent_ns >= ages.begins_at_ns]
    unseen = len(ages.ages_ms) - len(seen)
    if unseen > 0:
        raise RuntimeError(f"{unseen} of {len(ages.ages_ms)} jobs were seen by nobody")
    return {
        "visible_p50_seconds": (tables.quantile(seen, 0.5) or 0.0) / 1e3,
        "visible_p95_seconds": (tables.quantile(seen, 0.95) or 0.0) / 1e3,
        "megabytes": sight.bytes / 1e6,
    }


async def run(options: argparse.Namespace) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, options.viewers * 2 + 1_000)), hard))
    async with open_stage("sse", options, complete=options.viewers >= VIEWERS) as stage:
        none = Series("no viewers", bind(measure, stage, seconds=options.seconds, viewers=0))
        many = Series(
            f"{options.viewers:,} viewers", bind(measure, stage, seconds=options.seconds, viewers=options.viewers)
        )
        await measure_all([none, many], rounds=options.rounds, ends_at=stage.ends_at)
    show(stage, none, many)


def show(stage: Stage, none: Series, many: Series) -> None:
    stage.report.table(
        f"Submit to the job being held, {RATE_PER_SECOND} a second by {TENANTS} accounts, medians",
        ["viewers", "p50 ms", "p99 ms", "spread of p99", "hub's share of a core", "visible p95 s", "MB sent", "note"],
        [
            [
                series.name,
                series.median("p50_ms"),
                series.median("p99_ms"),
                series.spread("p99_ms"),
                series.median("core_share"),
                series.median("visible_p95_seconds"),
                series.median("megabytes"),
                series.note,
            ]
            for series in (none, many)
        ],
    )
    stage.report.finish(
        {
            "dispatch_p99_with_1000_viewers_vs_none": tables.ratio(many.median("p99_ms"), none.median("p99_ms")),
            "change_visible_p95_seconds": many.median("visible_p95_seconds"),
        }
    )


def main() -> None:
    parser = make_parser(__doc__, seconds=15.0)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    run_to_end(run, parse(parser, quick_seconds=5.0))


if __name__ == "__main__":
    main()
