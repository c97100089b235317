"""How long from a submit until a parked node holds the assignment, at 50 slices a second, one hub process.

    python -m benchmarks.latency [--seconds N] [--rounds N] [--peers a,b] [--quick]

What is compared, and why it is fair: docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import msgspec

from benchmarks import grid, http_load, tables
from benchmarks.http_load import Connection, ConnectionLost, make_head
from benchmarks.peers import processes, stand
from benchmarks.rounds import Series, bind, measure_all, run_to_end

RATE_PER_SECOND = 50
SUBMITTERS = 8
NODES = 16
FLEET = 500
# A tenth of the fleet joins or leaves per minute.
CHURN_PER_SECOND = FLEET / 10 / 60
WARM_SECONDS = 1.0
GRACE_SECONDS = 3.0
RUN_SECONDS_MAX = 540.0


@dataclass(slots=True)
class Ages:
    """How old each slice was when a node held it, in milliseconds; `waiting` are those that nobody holds yet."""

    begins_at_ns: int
    ages_ms: list[float] = field(default_factory=list)
    waiting: dict[int, None] = field(default_factory=dict)
    troubles: list[BaseException] = field(default_factory=list)

    def note(self, sent_ns: int) -> None:
        now = time.perf_counter_ns()
        # A slice that is delivered again is the same one; its first delivery counts.
        if sent_ns in self.waiting:
            del self.waiting[sent_ns]
            if sent_ns >= self.begins_at_ns:
                self.ages_ms.append((now - sent_ns) / 1e6)

    def to_figures(self) -> dict[str, float]:
        if self.troubles:
            raise RuntimeError(f"{len(self.troubles)} calls failed, the first with {self.troubles[0]!r}")
        if not self.ages_ms:
            # A hub that gives out nothing is broken, not slow: there is no figure to print.
            raise RuntimeError(f"none of {len(self.waiting)} slices reached a node; see the hub's log")
        now = time.perf_counter_ns()
        # What never arrived is no reason for a better figure: it counts with its age at the end.
        lost = [(now - sent_ns) / 1e6 for sent_ns in self.waiting if sent_ns >= self.begins_at_ns]
        return to_figures(self.ages_ms + lost, missing=len(lost))


def to_figures(ages_ms: Sequence[float], *, missing: int = 0) -> dict[str, float]:
    if len(ages_ms) < 20:
        raise RuntimeError(f"only {len(ages_ms)} samples")
    return {
        "p50_ms": tables.quantile(ages_ms, 0.5) or 0.0,
        "p99_ms": tables.quantile(ages_ms, 0.99) or 0.0,
        "samples": float(len(ages_ms)),
        "missing": float(missing),
    }


async def at_rate(act: Callable[[], Awaitable[None]], *, seconds: float) -> None:
    """Starts `act` 50 times a second whether or not the earlier ones are answered: a slow system gets no rest.

    Each start is shifted at random within its 20 ms, so that no timer of the measured side runs in step with us.
    """
    chance = random.Random(1)
    started, tasks = time.perf_counter(), []
    for number in range(int(seconds * RATE_PER_SECOND)):
        due = started + (number + chance.random()) / RATE_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(act()))
    await asyncio.wait(tasks, timeout=GRACE_SECONDS)
    for task in tasks:
        task.cancel()


class Submitters:
    """A few connections; who finds none free waits, and the wait counts."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._free: asyncio.Queue[Connection] = asyncio.Queue()
        for connection in connections:
            self._free.put_nowait(connection)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        connection = await self._free.get()
        try:
            yield connection
        finally:
            self._free.put_nowait(connection)


def _payload(sent_ns: int) -> str:
    return f"{sent_ns}:".ljust(256, "x")


# ---- our side


class _Order(msgspec.Struct):
    env: dict[str, str]


_decode_order = msgspec.json.Decoder(_Order).decode


async def live_as_node(node: grid.Node, ages: Ages) -> None:
    try:
        while True:
            given = await node.next()
            for one in given:
                ages.note(int(_decode_order(one.order).env["PAYLOAD"].partition(":")[0]))
            if given:
                await node.complete(given, lambda count: None)
    except ConnectionLost:
        # It left, or the run is over.
        return
    except Exception as error:
        # A node that ended by mistake would otherwise look like a hub that gives out nothing.
        ages.troubles.append(error)


async def submit_slices(hub: grid.HubAddress, key: str, ages: Ages, *, seconds: float) -> None:
    submitters = Submitters([await http_load.connect(hub.port) for _ in range(SUBMITTERS)])
    head = make_head("POST", "/v1/jobs", token=key)

    async def submit() -> None:
        sent_ns = time.perf_counter_ns()
        # Noted before it is sent: the assignment may be in a node's hands before the answer is in ours.
        ages.waiting[sent_ns] = None
        body = msgspec.json.encode({"command": ["true"], "env": {"PAYLOAD": _payload(sent_ns)}})
        async with submitters.one() as connection:
            status, answer = await connection.send(head, body)
        if status != 201:
            ages.troubles.append(RuntimeError(f"submit was refused: {status} {answer[:200]!r}"))

    await at_rate(submit, seconds=WARM_SECONDS + seconds)
    deadline = time.monotonic() + GRACE_SECONDS
    while ages.waiting and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


class Fleet:
    """Nodes of one owner, each with its own connection, key pair and task."""

    def __init__(self, port: int, owner: str, ages: Ages) -> None:
        self._port = port
        self._owner = owner
        self._ages = ages
        self._members: list[tuple[grid.Node, asyncio.Task[None]]] = []

    async def join(self) -> None:
        node = grid.Node(await http_load.connect(self._port))
        await node.enrol(self._owner)
        self._members.append((node, asyncio.create_task(live_as_node(node, self._ages))))

    async def leave(self, index: int) -> None:
        """Without a word, as a PC does that is switched off."""
        node, task = self._members.pop(index)
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
    dsn: str, folder: Path, *, seconds: float, nodes: int = NODES, churning: bool = False
) -> dict[str, float]:
    async with processes.fresh_database(dsn) as own_dsn, grid.running_hub(own_dsn, folder) as hub:
        connection = await http_load.connect(hub.port)
        owner, submitter = await grid.sign_up(connection), await grid.sign_up(connection)
        ages = Ages(begins_at_ns=0)
        fleet = Fleet(hub.port, owner, ages)
        for _ in range(nodes):
            await fleet.join()
        ages.begins_at_ns = time.perf_counter_ns() + int(WARM_SECONDS * 1e9)
        churn = asyncio.create_task(fleet.churn()) if churning else None
        try:
            await submit_slices(hub, submitter, ages, seconds=seconds)
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


async def measure_parts(dsn: str, folder: Path, *, seconds: float) -> dict[str, float]:
    """One commit and two HTTP round trips, one after the other: what no durable dispatcher over HTTP can avoid."""
    port, log = processes.free_port(), folder / "echo.log"
    arguments = ["-m", "benchmarks.peers.echo", "--port", str(port)]
    async with processes.fresh_database(dsn) as own_dsn:
        with processes.running(arguments, log=log, program=sys.executable) as server:
            await processes.wait_listening(port, server, log)
            connections = Submitters([await http_load.connect(port) for _ in range(SUBMITTERS)])
            pool = await asyncpg.create_pool(own_dsn, min_size=SUBMITTERS, max_size=SUBMITTERS)
            await pool.execute("CREATE TABLE parts (id bigserial PRIMARY KEY, payload text NOT NULL)")
            begins_at, ages_ms = time.perf_counter() + WARM_SECONDS, []

            async def pass_once() -> None:
                started = time.perf_counter()
                order = {"id": "x" * 36, "payload": _payload(0), "slots": ["cpu:0"], "seconds": 30.0}
                body = msgspec.json.encode(order)
                async with connections.one() as connection:
                    await connection.send(make_head("POST", "/"), body)
                    await pool.execute("INSERT INTO parts (payload) VALUES ($1)", order["payload"])
                    await connection.send(make_head("POST", "/"), body)
                if started >= begins_at:
                    ages_ms.append((time.perf_counter() - started) * 1e3)

            await at_rate(pass_once, seconds=WARM_SECONDS + seconds)
            await pool.close()
            return to_figures(ages_ms)


# ---- the peers


async def measure_peer(peer: str, dsn: str, folder: Path, *, seconds: float) -> dict[str, float]:
    """From the submit at the front until the job's function runs in the peer's worker."""
    stamps = folder / f"{peer}.stamps"
    stamps.unlink(missing_ok=True)
    async with stand.peer_store(peer, dsn, folder) as store:
        with ExitStack() as stack:
            port = await stand.start_front(peer, store, folder, stack, BENCH_STAMPS=str(stamps))
            watcher = await http_load.connect(port)
            await stand.wait_first_done(watcher)
            submitters = Submitters([await http_load.connect(port) for _ in range(SUBMITTERS)])
            head = make_head("POST", "/submit")

            async def submit() -> None:
                body = msgspec.json.encode({"payload": _payload(time.perf_counter_ns())})
                async with submitters.one() as connection:
                    await connection.send(head, body)

            await at_rate(submit, seconds=WARM_SECONDS + seconds)
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
    started = time.monotonic()
    missing = stand.list_missing(options.peers)
    peers = [peer for peer in options.peers if peer not in missing]
    async with grid.running_postgres() as (dsn, folder):
        gc.disable()
        ours = Series("computepool", bind(measure_hub, dsn, folder, seconds=options.seconds))
        crowd = Series(
            f"computepool, {FLEET} churning nodes",
            bind(measure_hub, dsn, folder, seconds=options.seconds * 2, nodes=FLEET, churning=True),
        )
        parts = Series("commit + two round trips", bind(measure_parts, dsn, folder, seconds=options.seconds))
        others = [Series(peer, bind(measure_peer, peer, dsn, folder, seconds=options.seconds)) for peer in peers]
        found = [parts, ours, *others, crowd]
        await measure_all(found, rounds=options.rounds, ends_at=started + options.run_seconds_max)
    show(ours, others, parts, crowd, missing)


def show(ours: Series, others: Sequence[Series], parts: Series, crowd: Series, missing: dict[str, str]) -> None:
    tables.print_table(
        f"Submit to the job being held (peers: to its function running), {RATE_PER_SECOND} a second, medians",
        ["system", "p50 ms", "p99 ms", "spread of p99", "samples", "missing", "note"],
        [
            [
                series.name,
                series.median("p50_ms"),
                series.median("p99_ms"),
                tables.spread(series.figures.get("p99_ms", [])),
                sum(series.figures.get("samples", [])),
                int(sum(series.figures.get("missing", []))),
                series.note,
            ]
            for series in (parts, ours, *others, crowd)
        ]
        + [[name, None, None, "-", None, None, why] for name, why in missing.items()],
    )

    def best(key: str) -> float | None:
        return min((value for peer in others if (value := peer.median(key)) is not None), default=None)

    print()
    tables.print_result(
        {
            "p50_vs_best_durable_peer": tables.ratio(ours.median("p50_ms"), best("p50_ms")),
            "p99_vs_best_durable_peer": tables.ratio(ours.median("p99_ms"), best("p99_ms")),
            "p99_vs_commit_plus_two_round_trips": tables.ratio(ours.median("p99_ms"), parts.median("p99_ms")),
            "p99_ms_500_churning_nodes": crowd.median("p99_ms"),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(stand.POSTGRES_PEERS), help="comma-separated; empty for none")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--run-seconds-max", type=float, default=RUN_SECONDS_MAX)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, 4.0), 1
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(stand.POSTGRES_PEERS):
        parser.error(f"not durable, or unknown: {', '.join(sorted(unknown))}")
    run_to_end(run(options))


if __name__ == "__main__":
    main()
