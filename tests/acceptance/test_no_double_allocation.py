"""Two hubs, twelve restless nodes, fifty clients in the same millisecond: no slice and no slot is ever given twice.

The negative controls take a guard away and must be caught by the very same check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import httpx
import pytest

from tests.support.people import sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode

pytestmark = pytest.mark.alone

PLANTED = ("-m", "tests.support.planted_hub")

# A clock is read before a unique index is asked, so times of leases may cross by a hair although the leases never
# did. A sequence drawn by an AFTER trigger tells the order exactly: a row that had to wait for another's end
# in the index draws its number after it.
WATCH = """
CREATE SEQUENCE live_order;
CREATE TABLE live_spans (attempt_id uuid PRIMARY KEY, job_id uuid, slice_index integer, node_id uuid, slot text,
                         began bigint NOT NULL, ended bigint);
CREATE FUNCTION note_live() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO live_spans
        VALUES (NEW.id, NEW.job_id, NEW.slice_index, NEW.node_id, NEW.slot, nextval('live_order'));
    ELSIF OLD.state IN ('leased', 'running') AND NEW.state NOT IN ('leased', 'running') THEN
        UPDATE live_spans SET ended = nextval('live_order') WHERE attempt_id = NEW.id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER attempts_note_live AFTER INSERT OR UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION note_live();
"""

OVERLAPS = """
SELECT count(*) FROM live_spans a JOIN live_spans b ON a.attempt_id < b.attempt_id AND {same}
   AND int8range(a.began, a.ended) && int8range(b.began, b.ended)
"""


async def watch(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(WATCH)
    finally:
        await conn.close()


async def read_history(dsn: str) -> dict[str, int]:
    """The verdict, from what the database recorded: overlapping leases and slices without exactly one result."""
    conn = await asyncpg.connect(dsn)
    try:
        return {
            "slices": await conn.fetchval("SELECT count(*) FROM slices"),
            "succeeded": await conn.fetchval("SELECT count(*) FROM slices WHERE state = 'succeeded'"),
            "double_slices": await conn.fetchval(
                OVERLAPS.format(same="a.job_id = b.job_id AND a.slice_index = b.slice_index")
            ),
            "double_slots": await conn.fetchval(OVERLAPS.format(same="a.node_id = b.node_id AND a.slot = b.slot")),
            "not_accepted_once": await conn.fetchval(
                """SELECT count(*) FROM (SELECT s.job_id, s.slice_index, count(a.id) AS accepted FROM slices s
                     LEFT JOIN attempts a ON a.job_id = s.job_id AND a.slice_index = s.slice_index
                      AND a.state = 'succeeded' GROUP BY 1, 2) c WHERE accepted <> 1"""
            ),
        }
    finally:
        await conn.close()


async def never() -> bool:
    return False


async def run_storm(
    hubs,
    *,
    slice_count: int,
    clients: int,
    nodes: int,
    slices_per_job: int,
    abandon: float,
    seconds: float,
    seen: Callable[[], Awaitable[bool]] = never,
) -> list[ProtocolNode]:
    """Submits everything as nearly at once as it goes, while the nodes work it off, or until `seen` is true."""
    urls = [hub.url for hub in hubs]
    owner, submitter = sign_up(urls[0], "owner"), sign_up(urls[0], "submitter")
    fleet = [ProtocolNode(urls, owner, name=f"n{i}", seed=i, cpu_slots=4, cores=64) for i in range(nodes)]
    await asyncio.gather(*(node.enrol() for node in fleet))
    stop = asyncio.Event()
    living = [asyncio.create_task(node.run(stop, abandon=abandon)) for node in fleet]
    job_ids: list[str] = []
    start = asyncio.Event()

    async def submit(number: int, client: httpx.AsyncClient) -> None:
        await start.wait()
        for turn in range(slice_count // clients // slices_per_job):
            answer = await client.post(
                f"{urls[(number + turn) % len(urls)]}/v1/jobs",
                json={"command": ["true"], "slice_count": slices_per_job},
                headers={**submitter.headers, "Idempotency-Key": f"{number}-{turn}"},
            )
            assert answer.status_code == 201, answer.text
            job_ids.append(answer.json()["id"])

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=clients)) as client:
        submits = [asyncio.create_task(submit(i, client)) for i in range(clients)]
        await asyncio.sleep(0.1)
        start.set()
        await asyncio.gather(*submits)

        async def drained(client: httpx.AsyncClient) -> bool:
            if await seen():
                return True
            for state in ("queued", "running"):
                page = await client.get(f"{urls[0]}/v1/jobs?limit=1&state={state}", headers=submitter.headers)
                if page.json()["jobs"]:
                    return False
            return True

        try:
            await wait_for(lambda: drained(client), seconds=seconds, every=0.3, what="every job to end")
        finally:
            stop.set()
            await asyncio.gather(*living, return_exceptions=True)
            await asyncio.gather(*(node.close() for node in fleet))
    return fleet


@pytest.mark.timeout(400)
async def test_same_millisecond_submissions_never_double_allocate(start_hub, dsn):
    await watch(dsn)
    hubs = [start_hub(lease_seconds=30, beat_seconds=10), start_hub(lease_seconds=30, beat_seconds=10)]
    started = time.monotonic()
    fleet = await run_storm(
        hubs, slice_count=5_000, clients=50, nodes=12, slices_per_job=5, abandon=0.05, seconds=300
    )
    print(f"5,000 slices in {time.monotonic() - started:.1f} s")
    history = await read_history(dsn)
    assert history == {
        "slices": 5_000,
        "succeeded": 5_000,
        "double_slices": 0,
        "double_slots": 0,
        "not_accepted_once": 0,
    }
    assert sum(node.double_slots for node in fleet) == 0
    delivered = [row[0] for node in fleet for row in node.diary]
    assert len(delivered) == len(set(delivered))


async def drop_index(dsn: str, name: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(f"DROP INDEX {name}")
    finally:
        await conn.close()


async def run_planted(start_hub, dsn: str, bug: str, *, until: str | None = None) -> dict[str, int]:
    """A smaller storm; with a guard gone it may not even finish, and that is no concern here. It is over when the
    count named by `until` is not zero any more."""

    async def seen() -> bool:
        return until is not None and (await read_history(dsn))[until] > 0

    await watch(dsn)
    hubs = [
        start_hub(lease_seconds=30, beat_seconds=10, program=(*PLANTED, bug)),
        start_hub(lease_seconds=30, beat_seconds=10, program=(*PLANTED, bug)),
    ]
    try:
        await run_storm(
            hubs,
            slice_count=1_000,
            clients=50,
            nodes=12,
            slices_per_job=2,
            abandon=0.3,
            seconds=100 if until else 25,
            seen=seen,
        )
    except AssertionError as error:
        print("the storm did not finish:", str(error)[:200])
    return await read_history(dsn)


@pytest.mark.timeout(280)
async def test_control_without_row_locks_and_the_slice_index_a_slice_is_leased_twice(start_hub, dsn):
    await drop_index(dsn, "attempts_live_slice_idx")
    await drop_index_constraint(dsn)
    history = await run_planted(start_hub, dsn, "no_row_locks", until="double_slices")
    assert history["double_slices"] > 0


async def drop_index_constraint(dsn: str) -> None:
    """The attempt number's uniqueness would catch it too: a third guard, taken away for this control."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("ALTER TABLE attempts DROP CONSTRAINT attempts_number_unique")
    finally:
        await conn.close()


@pytest.mark.timeout(280)
async def test_without_row_locks_alone_the_indexes_still_hold(start_hub, dsn):
    history = await run_planted(start_hub, dsn, "no_row_locks")
    assert (history["double_slices"], history["double_slots"]) == (0, 0)


@pytest.mark.timeout(280)
async def test_control_without_the_slot_index_a_slot_is_given_twice(start_hub, dsn):
    await drop_index(dsn, "attempts_live_slot_idx")
    history = await run_planted(start_hub, dsn, "none", until="double_slots")
    assert history["double_slots"] > 0
