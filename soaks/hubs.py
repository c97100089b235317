"""Three hubs, many accounts, everybody at once: counts deadlocks, and what was acknowledged and is gone.

Clients submit jobs of one and of many slices, singly and in batches, and cancel some; nodes run, fail and claim at
whichever hub they like. With kills, one hub at a time is ended with -9 and started again. Jobs are shared between
the hubs, so that every order of locks which is not one order shows.

    python -m soaks.hubs [--seconds N] [--accounts N] [--kill-every SECONDS] [--planted BUG]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx

from computepool.hub.store.embedded import EmbeddedPostgres
from soaks.books import count_money
from soaks.spine import Record, RecordingNode, count_losses
from tests.support.hub_process import HubProcess
from tests.support.people import Person, sign_up
from tests.support.postgres import TestServer, connected
from tests.support.protocol_node import Held

HUBS = 3
CLIENTS = 12
NODES = 18
OPEN_JOBS_MAX = 200
DONE_SECONDS = 120.0


@dataclass
class Span:
    """How long the load goes on: longer than planned when the kills need more time. And how much of it is undone."""

    ends_at: float
    open_jobs: int = 0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends_at


class Submitter:
    """One client of many accounts; what it was promised, it notes."""

    def __init__(self, number: int, urls: list[str], people: list[Person], record: Record) -> None:
        self._random = random.Random(number)
        self._number = number
        self._urls = urls
        self._people = people
        self._record = record
        self.cancelled: set[str] = set()
        self._recent: list[tuple[str, Person]] = []
        self._turn = 0

    async def run(self, span: Span) -> None:
        async with httpx.AsyncClient(timeout=20) as client:
            while not span.over:
                if span.open_jobs > OPEN_JOBS_MAX:
                    await asyncio.sleep(0.05)
                    continue
                with contextlib.suppress(httpx.HTTPError):
                    await self._act(client)

    async def _act(self, client: httpx.AsyncClient) -> None:
        person = self._random.choice(self._people)
        draw = self._random.random()
        if draw < 0.1 and self._recent:
            await self._cancel(client)
        elif draw < 0.4:
            await self._submit(client, person, [{"command": ["true"], "retries": 20}] * self._random.randint(2, 12))
        else:
            slice_count = self._random.choice([1, 5, 40, 40])
            await self._submit(client, person, [{"command": ["true"], "slice_count": slice_count, "retries": 20}])

    async def _submit(self, client: httpx.AsyncClient, person: Person, specs: list[dict[str, object]]) -> None:
        self._turn += 1
        headers = {**person.headers, "Idempotency-Key": f"{self._number}-{self._turn}"}
        while True:
            try:
                answer = await client.post(
                    f"{self._random.choice(self._urls)}/v1/jobs/batch", json={"jobs": specs}, headers=headers
                )
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                break
            assert answer.status_code in (503, 429, 401), answer.text
            await asyncio.sleep(0.1)
        for item in answer.json()["answers"]:
            assert item["job"], item
            self._record.jobs[item["job"]["id"]] = headers["Idempotency-Key"]
            self._record.acknowledge()
            self._recent = [*self._recent[-20:], (item["job"]["id"], person)]

    async def _cancel(self, client: httpx.AsyncClient) -> None:
        job_id, person = self._random.choice(self._recent)
        # From here on it may be cancelled, whether or not we hear of it.
        self.cancelled.add(job_id)
        await client.post(f"{self._random.choice(self._urls)}/v1/jobs/{job_id}/cancel", headers=person.headers)


async def kill_in_turn(
    hubs: list[HubProcess], record: Record, span: Span, *, every_seconds: float, kills_min: int
) -> None:
    """One is up again before the next is killed. On a busy machine that takes its time, and the load goes on."""
    while record.hub_kills < kills_min or time.monotonic() + every_seconds < span.ends_at:
        if record.hub_kills < kills_min:
            span.ends_at = max(span.ends_at, time.monotonic() + 2 * every_seconds)
        await asyncio.sleep(every_seconds)
        hub = random.choice(hubs)
        hub.kill()
        record.hub_kills += 1
        await asyncio.to_thread(hub.start)


COUNT_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


async def follow_queue(dsn: str, span: Span, record: Record, *, acknowledged_min: int, until_deadlock: bool) -> None:
    """Without it submitters outrun the nodes, and the end would be a wait for what is left. A slow machine is given
    the time that it needs to show something."""
    async with connected(dsn) as conn:
        while not span.over:
            span.open_jobs = await conn.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
            if record.acknowledged < acknowledged_min:
                span.ends_at = max(span.ends_at, time.monotonic() + 1.0)
            if until_deadlock and await conn.fetchval(COUNT_DEADLOCKS):
                span.ends_at = time.monotonic()
            await asyncio.sleep(0.2)


async def run_hubs(
    dsn: str,
    data_dir: Path,
    *,
    seconds: float,
    accounts: int = 200,
    clients: int = CLIENTS,
    owners: int = 1,
    kill_every_seconds: float | None = None,
    kills_min: int = 0,
    planted: str | None = None,
    acknowledged_min: int = 0,
    until_deadlock: bool = False,
) -> dict[str, int]:
    program = ("-m", "tests.support.planted_hub", planted) if planted else ("-m", "computepool.hub")
    hubs = [
        HubProcess(dsn=dsn, data_dir=data_dir, program=program, lease_seconds=10, beat_seconds=3) for _ in range(HUBS)
    ]
    record = Record()
    await _look_for_deadlocks_early(dsn)
    try:
        for hub in hubs:
            await asyncio.to_thread(hub.start)
        urls = [hub.url for hub in hubs]
        lenders = [sign_up(urls[0], "owner") for _ in range(owners)]
        people = [sign_up(urls[i % HUBS], "submitter") for i in range(accounts)]
        fleet = [RecordingNode(urls, lenders[i % owners], name=f"n{i}", seed=i, cpu_slots=3) for i in range(NODES)]
        for node in fleet:
            node.record = record
            await node.enrol()
        stop, span = asyncio.Event(), Span(time.monotonic() + seconds)
        living = [asyncio.create_task(node.run(stop, work=_work_of(node), claims=True)) for node in fleet]
        crowd = [Submitter(i, urls, people, record) for i in range(clients)]
        following = follow_queue(dsn, span, record, acknowledged_min=acknowledged_min, until_deadlock=until_deadlock)
        chores = [following, *(client.run(span) for client in crowd)]
        if kill_every_seconds is not None:
            chores.append(kill_in_turn(hubs, record, span, every_seconds=kill_every_seconds, kills_min=kills_min))
        await asyncio.gather(*chores)
        await _wait_done(dsn, record)
        stop.set()
        await asyncio.gather(*living, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in fleet))
        return await _sum_up(dsn, record, set().union(*(client.cancelled for client in crowd)))
    finally:
        for hub in hubs:
            hub.stop()


async def _look_for_deadlocks_early(dsn: str) -> None:
    """A hub waits half a second for a lock; by itself the server would look for circles only after a whole one."""
    superuser = urlunsplit(urlsplit(dsn)._replace(netloc="postgres@"))
    async with connected(superuser) as conn:
        name = await conn.fetchval("SELECT current_database()")
        await conn.execute(f'ALTER DATABASE "{name}" SET deadlock_timeout = 30')


def _work_of(node: RecordingNode):  # type: ignore[no-untyped-def]
    async def work(held: Held) -> None:
        if node.random.random() < 0.05:
            # Some attempts fail, so that slices go back to the queue.
            with contextlib.suppress(httpx.HTTPError):
                await node.complete(held, exit_code=1, cause="exit_code")
        await asyncio.sleep(node.random.random() * 0.01)

    return work


async def _wait_done(dsn: str, record: Record) -> None:
    conn = await asyncpg.connect(dsn)
    deadline = time.monotonic() + DONE_SECONDS
    while time.monotonic() < deadline:
        if not await conn.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL"):
            break
        await asyncio.sleep(0.3)
    await conn.close()


async def _sum_up(dsn: str, record: Record, cancelled: set[str]) -> dict[str, int]:
    outcome = await count_losses(dsn, record)
    conn = await asyncpg.connect(dsn)
    try:
        # Statistics are written by each connection as it rests.
        await asyncio.sleep(1.5)
        states = dict(await conn.fetch("SELECT id::text, state::text FROM jobs"))
        outcome["unfinished"] = sum(1 for id in record.jobs if states.get(id) not in ("succeeded", "cancelled"))
        outcome["cancelled_unasked"] = sum(
            1 for id, state in states.items() if state == "cancelled" and id not in cancelled
        )
        outcome["deadlocks"] = await conn.fetchval(COUNT_DEADLOCKS)
        outcome["orphans"] = await conn.fetchval(
            "SELECT (SELECT count(*) FROM slices s WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = s.job_id))"
            " + (SELECT count(*) FROM attempts a WHERE NOT EXISTS"
            " (SELECT 1 FROM slices s WHERE s.job_id = a.job_id AND s.slice_index = a.slice_index))"
            " + (SELECT count(*) FROM jobs j"
            " WHERE (SELECT count(*) FROM slices WHERE job_id = j.id) <> j.slice_count)"
        )
        return {**outcome, **await count_money(conn)}
    finally:
        await conn.close()


async def run_alone(options: argparse.Namespace, **crowd: int) -> dict[str, int]:
    """On a database of its own."""
    with tempfile.TemporaryDirectory(prefix="cp-soak-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "database")
        found = TestServer(await server.start())
        try:
            await found.create_template()
            return await run_hubs(
                await found.create_database(),
                Path(folder),
                seconds=options.seconds,
                accounts=options.accounts,
                kill_every_seconds=options.kill_every,
                planted=getattr(options, "planted", None),
                **crowd,
            )
        finally:
            await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--kill-every", type=float)
    parser.add_argument("--planted")
    print(json.dumps(asyncio.run(run_alone(parser.parse_args()))))


if __name__ == "__main__":
    main()
