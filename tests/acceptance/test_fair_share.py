"""Two accounts on three real hubs: one waits with thousands of slices, the other arrives later with ten times as long
ones, and half of the first one's work is cancelled on the way. Each gets half of the slots' time while both wait."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.people import Person, sign_up
from tests.support.protocol_node import Held, ProtocolNode

pytestmark = pytest.mark.alone

SHORT_SECONDS, LONG_SECONDS = 0.2, 2.0
NODES, SLOTS = 6, 2
LONG_SLICES = 60
# What 200 grants take when 12 slots are shared evenly between slices of 0.2 and of 2 seconds.
WINDOW_SECONDS = 200 / (6 / SHORT_SECONDS + 6 / LONG_SECONDS)
TOLERANCE = 0.05
# One slice of the long kind more or less in a window is beyond anybody's power to even out.
ONE_LONG_SLICE = LONG_SECONDS / (WINDOW_SECONDS * NODES * SLOTS)


def submit(url: str, person: Person, slice_count: int, seconds: float) -> str:
    spec = {"command": ["true"], "slice_count": slice_count, "env": {"SECONDS": str(seconds)}}
    answer = httpx.post(f"{url}/v1/jobs", json=spec, headers=person.headers, timeout=60)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def work(held: Held) -> None:
    await asyncio.sleep(float(held.order["env"]["SECONDS"]))


async def read_attempts(dsn: str) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(dsn)
    rows = await conn.fetch(
        "SELECT extract(epoch FROM a.leased_at)::float8 AS begin, j.account_id::text AS account,"
        " extract(epoch FROM coalesce(a.finished_at, clock_timestamp()))::float8 AS end"
        " FROM attempts a JOIN jobs j ON j.id = a.job_id ORDER BY a.leased_at"
    )
    await conn.close()
    return rows


def share_held(attempts: list[Any], account: str, begin: float, end: float) -> float:
    """The account's part of all slot-seconds between two moments."""
    had = [(a["account"], max(0.0, min(a["end"], end) - max(a["begin"], begin))) for a in attempts]
    return sum(seconds for who, seconds in had if who == account) / sum(seconds for _, seconds in had)


@pytest.mark.timeout(280)
async def test_a_newcomer_gets_its_half_of_the_time_whatever_the_other_has_waiting(dsn, start_hub):
    hubs = [start_hub(beat_seconds=5, lease_seconds=20) for _ in range(3)]
    urls = [hub.url for hub in hubs]
    owner, rich, newcomer = (sign_up(urls[0], name) for name in ("owner", "rich", "newcomer"))
    fleet = [ProtocolNode([urls[i % 3]], owner, name=f"n{i}", seed=i, cpu_slots=SLOTS) for i in range(NODES)]
    for node in fleet:
        await node.enrol()
    stop = asyncio.Event()
    jobs = [submit(urls[i % 3], rich, 5_000, SHORT_SECONDS) for i in range(2)]
    living = [asyncio.create_task(node.run(stop, work=work, claims=True, wait_seconds=5)) for node in fleet]
    await asyncio.sleep(6)
    submit(urls[1], newcomer, LONG_SLICES, LONG_SECONDS)
    await asyncio.sleep(8)
    httpx.post(f"{urls[2]}/v1/jobs/{jobs[0]}/cancel", headers=rich.headers, timeout=60).raise_for_status()
    await asyncio.sleep(8)
    stop.set()
    await asyncio.gather(*living, return_exceptions=True)
    attempts = await read_attempts(dsn)
    for node in fleet:
        await node.close()

    begin = next(a["begin"] for a in attempts if a["account"] == newcomer.account_id)
    last = max(a["begin"] for a in attempts if a["account"] == newcomer.account_id)
    # Until the first of its slices has ended nothing is known of the newcomer; after that, any 200 grants count.
    moments = [begin + 2 * LONG_SECONDS + 0.5 * i for i in range(200)]
    windows = [(t, t + WINDOW_SECONDS) for t in moments if t + WINDOW_SECONDS < last]
    assert len(windows) >= 4, "both should have waited for a while"
    shares = [share_held(attempts, newcomer.account_id, *window) for window in windows]
    assert all(abs(share - 0.5) <= TOLERANCE + ONE_LONG_SLICE for share in shares), [f"{s:.2f}" for s in shares]
