"""Kills hubs and the embedded database at busy moments and counts what was acknowledged and is gone.

Two hub processes share one embedded PostgreSQL. Clients submit, nodes complete; right after an acknowledgement,
when the next ones are in flight, somebody is killed with -9. Afterwards every acknowledged job must be there and
done, and every acknowledged result must stand.

    python -m soaks.spine [--slices N] [--hub-kills N] [--postmaster-kills N] [--planted BUG]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx

from computepool.hub.store.embedded import EmbeddedPostgres
from tests.support.hub_process import HubProcess
from tests.support.people import Person, sign_up
from tests.support.protocol_node import Held, ProtocolNode

CLIENTS = 16
NODES = 8
SLICES_PER_JOB = 5


@dataclass
class Record:
    """What the outside world was promised."""

    jobs: dict[str, str] = field(default_factory=dict)  # job id -> idempotency key
    results: set[str] = field(default_factory=set)  # attempt ids whose completion was accepted
    acknowledged: int = 0
    hub_kills: int = 0
    # Somebody was killed and is not back yet.
    restarting: bool = False
    postmaster_kills: int = 0

    def acknowledge(self) -> None:
        self.acknowledged += 1


class RecordingNode(ProtocolNode):
    record: Record

    async def complete(self, held: Held, **options):  # type: ignore[override]
        answer = await super().complete(held, **options)
        if answer.status_code == 200 and answer.json()["accepted"]:
            self.record.results.add(held.attempt_id)
            self.record.acknowledge()
        return answer


async def submit_all(urls: list[str], person: Person, record: Record, *, number: int, jobs: int) -> None:
    """One client; every request is repeated under its key until it is answered."""
    async with httpx.AsyncClient(timeout=20) as client:
        for turn in range(jobs):
            key = f"{number}-{turn}"
            while record.restarting:
                # Or fast hubs would have done all the work before the next of them is killed.
                await asyncio.sleep(0.01)
            while True:
                try:
                    answer = await client.post(
                        f"{random.choice(urls)}/v1/jobs",
                        json={"command": ["true"], "slice_count": SLICES_PER_JOB},
                        headers={**person.headers, "Idempotency-Key": key},
                    )
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status_code == 201:
                    record.jobs[answer.json()["id"]] = key
                    record.acknowledge()
                    break
                assert answer.status_code in (503, 429, 401), answer.text
                await asyncio.sleep(0.1)


def postmaster_pid(data_dir: Path) -> int | None:
    for path in data_dir.rglob("postmaster.pid"):
        try:
            return int(path.read_text().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return None


async def kill_at_busy_moments(
    hubs: list[HubProcess], data_dir: Path, record: Record, *, hub_kills: int, postmaster_kills: int, total: int
) -> None:
    """Spread over the run by acknowledgements, each right after one: then others are in flight."""
    victims = ["hub"] * hub_kills + ["postmaster"] * postmaster_kills
    random.shuffle(victims)
    for number, victim in enumerate(victims):
        due = max((number + 1) * total // (len(victims) + 1), record.acknowledged + 5)
        while record.acknowledged < min(due, total):
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        record.restarting = True
        if victim == "hub":
            hub = random.choice(hubs)
            hub.kill()
            record.hub_kills += 1
            await asyncio.to_thread(hub.start)
        else:
            pid = postmaster_pid(data_dir)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                record.postmaster_kills += 1
                await asyncio.to_thread(hubs[0].wait_ready)
        record.restarting = False


async def count_losses(dsn: str, record: Record) -> dict[str, int]:
    conn = await asyncpg.connect(dsn)
    try:
        states = dict(await conn.fetch("SELECT id::text, state::text FROM jobs"))
        attempts = dict(await conn.fetch("SELECT id::text, state::text FROM attempts"))
        duplicates = await conn.fetchval(
            "SELECT count(*) FROM (SELECT 1 FROM attempts WHERE state = 'succeeded' "
            "GROUP BY job_id, slice_index HAVING count(*) > 1) d"
        )
        return {
            "acknowledged": record.acknowledged,
            "lost": sum(1 for job_id in record.jobs if job_id not in states)
            + sum(1 for attempt_id in record.results if attempts.get(attempt_id) != "succeeded"),
            "unfinished": sum(1 for job_id in record.jobs if states.get(job_id) != "succeeded"),
            "duplicate_jobs": len(states) - len(record.jobs),
            "double_results": duplicates,
            "hub_kills": record.hub_kills,
            "postmaster_kills": record.postmaster_kills,
        }
    finally:
        await conn.close()


async def wait_done(urls: list[str], person: Person, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    async with httpx.AsyncClient(timeout=20) as client:
        while time.monotonic() < deadline:
            try:
                pages = [
                    (await client.get(f"{urls[0]}/v1/jobs?limit=1&state={s}", headers=person.headers)).json()
                    for s in ("queued", "running")
                ]
                if not any(page["jobs"] for page in pages):
                    return True
            except (httpx.HTTPError, KeyError):
                pass
            await asyncio.sleep(0.3)
    return False


async def run_soak(
    data_dir: Path,
    *,
    slices: int,
    hub_kills: int,
    postmaster_kills: int,
    planted: str | None = None,
    seconds: float = 900.0,
) -> dict[str, int]:
    program = ("-m", "tests.support.planted_hub", planted) if planted else ("-m", "computepool.hub")
    hubs = [
        HubProcess(dsn=None, data_dir=data_dir, program=program, lease_seconds=10, beat_seconds=3) for _ in range(2)
    ]
    record = Record()
    try:
        for hub in hubs:
            await asyncio.to_thread(hub.start)
        urls = [hub.url for hub in hubs]
        owner, submitter = sign_up(urls[0], "owner"), sign_up(urls[0], "submitter")
        fleet = [RecordingNode(urls, owner, name=f"n{i}", seed=i, cpu_slots=2) for i in range(NODES)]
        for node in fleet:
            node.record = record
            await node.enrol()
        stop = asyncio.Event()
        living = [asyncio.create_task(node.run(stop)) for node in fleet]
        jobs = slices // SLICES_PER_JOB
        killing = asyncio.create_task(
            kill_at_busy_moments(
                hubs,
                data_dir,
                record,
                hub_kills=hub_kills,
                postmaster_kills=postmaster_kills,
                total=jobs + slices,
            )
        )
        per_client = -(-jobs // CLIENTS)
        counts = [min(per_client, max(0, jobs - per_client * i)) for i in range(CLIENTS)]
        submits = [submit_all(urls, submitter, record, number=i, jobs=n) for i, n in enumerate(counts)]
        async with asyncio.timeout(seconds):
            await asyncio.gather(*submits)
            number = CLIENTS
            while not killing.done():
                # The kills that were promised need work that they can interrupt.
                await submit_all(urls, submitter, record, number=number, jobs=1)
                number += 1
        await wait_done(urls, submitter, seconds)
        stop.set()
        await asyncio.gather(*living, killing, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in fleet))
        # Attached to as one more hub would, so that the server is up whoever was killed last.
        server = EmbeddedPostgres(data_dir / "database")
        dsn = await server.start()
        try:
            return await count_losses(dsn, record)
        finally:
            await server.stop()
    finally:
        for hub in hubs:
            hub.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slices", type=int, default=2_000)
    parser.add_argument("--hub-kills", type=int, default=20)
    parser.add_argument("--postmaster-kills", type=int, default=5)
    parser.add_argument("--planted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cp-soak-") as folder:
        Path(folder).chmod(0o755)
        outcome = asyncio.run(
            run_soak(
                Path(folder),
                slices=options.slices,
                hub_kills=options.hub_kills,
                postmaster_kills=options.postmaster_kills,
                planted=options.planted,
            )
        )
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
