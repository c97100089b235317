"""Hubs as an operator runs them: behind PgBouncer, as a plain role, on a server that drops them, several on one port.

`make test/pgbouncer` runs the rest of the suite behind PgBouncer too; here are the short forms.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from soaks.spine import Record, RecordingNode, count_losses, postmaster_pid, wait_done
from tests.support.hub_process import HubProcess, free_port
from tests.support.people import Person, sign_up
from tests.support.pgbouncer import PLAIN_ROLE, PgBouncer
from tests.support.postgres import TestServer, connected, goes_through_pgbouncer, wait_for
from tests.support.protocol_node import ProtocolNode
from tests.support.quickest import quickest_of

DROPS, DROPS_MAX = 6, 60
CLIENTS = 6
FIVE_SECONDS = 5.0
# A call waits for so long that only a notice, or the timer that stands in for it, can be what ends it.
PATIENT = {"beat_seconds": 60, "lease_seconds": 180}
CALL_SECONDS, NEWS_SECONDS = 30.0, 25.0
PARENT = ("-m", "computepool", "hub", "--workers", "2")


@pytest.fixture
def pgbouncer(postgres: TestServer) -> Iterator[PgBouncer]:
    pooler = PgBouncer(postgres.dsn).start()
    yield pooler
    pooler.stop()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that the database's own user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="cp-hubs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def start_hub_on(tmp_path: Path) -> Iterator[Callable[..., HubProcess]]:
    """Starts hubs on any database; `wait=False` for one that is expected to refuse."""
    started: list[HubProcess] = []

    def start(dsn: str, *, wait: bool = True, **options: object) -> HubProcess:
        hub = HubProcess(dsn=dsn, data_dir=tmp_path, **{**PATIENT, **options})  # type: ignore[arg-type]
        started.append(hub)
        return hub.start(wait=wait)

    yield start
    for hub in started:
        hub.kill()


def submit(hub: HubProcess, person: Person, **spec: object) -> str:
    answer = httpx.post(f"{hub.url}/v1/jobs", json={"command": ["true"], **spec}, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def get_state(hub: HubProcess, person: Person, job_id: str) -> str:
    return httpx.get(f"{hub.url}/v1/jobs/{job_id}", headers=person.headers, timeout=20).json()["state"]


async def await_stop(node: ProtocolNode, attempt_id: str) -> None:
    while attempt_id in node.held:
        answer = await node.next(wait_seconds=CALL_SECONDS)
        assert answer.status_code in (200, 204), answer.text
        node.take(answer.json() if answer.status_code == 200 else {})


async def live_a_whole_life(submits_at: HubProcess, works_at: HubProcess) -> None:
    """Submit, next, complete, cancel, with the submitter at one hub and the node at the other."""
    submitter, owner = sign_up(submits_at.url, "submitter"), sign_up(works_at.url, "owner")
    node = ProtocolNode([works_at.url], owner, cpu_slots=2)
    await node.enrol()
    try:
        # Parked first: only a notice, or the timer that stands in for it, can tell its hub of the job.
        waiting = asyncio.create_task(node.claim_one(wait_seconds=CALL_SECONDS))
        await asyncio.sleep(0.3)
        job_id = submit(submits_at, submitter, slice_count=3)
        await asyncio.wait_for(waiting, NEWS_SECONDS)
        for _ in range(3):
            held = next(iter(node.held.values()), None) or await node.claim_one()
            assert (await node.complete(held)).status_code == 200
            node.forget(held.attempt_id)
        assert get_state(submits_at, submitter, job_id) == "succeeded"

        cancelled = submit(submits_at, submitter)
        held = await node.claim_one()
        stopping = asyncio.create_task(await_stop(node, held.attempt_id))
        answer = httpx.post(f"{submits_at.url}/v1/jobs/{cancelled}/cancel", headers=submitter.headers, timeout=20)
        assert answer.status_code == 200, answer.text
        await asyncio.wait_for(stopping, NEWS_SECONDS)
        assert get_state(works_at, submitter, cancelled) == "cancelled"
    finally:
        await node.close()


async def test_whole_lives_pass_through_pgbouncer(start_hub_on, dsn, pgbouncer):
    hubs = [start_hub_on(pgbouncer.through(dsn), pool_size_max=10) for _ in range(2)]
    await live_a_whole_life(*hubs)
    await live_a_whole_life(*reversed(hubs))
    await work_at_once([hub.url for hub in hubs])
    for hub in hubs:
        assert "listener_off reason=pooler" in hub.log_path.read_text()
        assert "prepared statement" not in hub.log_path.read_text()


async def test_hubs_of_this_run_reach_the_database_the_way_they_were_told(hub):
    def says_so() -> bool:
        return "listener_off reason=pooler" in hub.log_path.read_text()

    if goes_through_pgbouncer():
        await wait_for(says_so, what="the hub to say that there is a pooler")
    else:
        assert not says_so()


async def work_at_once(urls: list[str]) -> None:
    """Many at a time, so that transactions of both hubs wait for the same few servers."""
    submitter, owner = sign_up(urls[0], "submitter"), sign_up(urls[1], "owner")
    fleet = [ProtocolNode(urls, owner, name=f"n{i}", seed=i, cpu_slots=4) for i in range(6)]
    for node in fleet:
        await node.enrol()
    stop = asyncio.Event()
    living = [asyncio.create_task(node.run(stop)) for node in fleet]
    async with httpx.AsyncClient(timeout=20, headers=submitter.headers) as client:
        spec = {"command": ["true"], "slice_count": 5}
        answers = await asyncio.gather(*(client.post(f"{urls[i % 2]}/v1/jobs", json=spec) for i in range(40)))
        assert {answer.status_code for answer in answers} == {201}
        assert await wait_done(urls, submitter, seconds=100)
        jobs = (await client.get(f"{urls[0]}/v1/jobs?limit=100&state=succeeded")).json()["jobs"]
        assert len(jobs) == 40
    stop.set()
    await asyncio.gather(*living, return_exceptions=True)
    assert sum(node.double_slots for node in fleet) == 0
    for node in fleet:
        await node.close()


async def test_a_hub_behind_pgbouncer_can_listen_to_the_server_itself(start_hub_on, dsn, pgbouncer):
    hubs = [start_hub_on(pgbouncer.through(dsn), database_listen_url=dsn) for _ in range(2)]
    await live_a_whole_life(*hubs)
    assert not any("listener" in hub.log_path.read_text() for hub in hubs)


def test_control_a_hub_that_takes_pgbouncer_for_the_server_refuses_and_names_the_setting(
    start_hub_on, dsn, pgbouncer
):
    hub = start_hub_on(pgbouncer.through(dsn), database_pooler="none", wait=False)
    assert hub.process.wait(60) == 2
    assert "COMPUTEPOOL_HUB_DATABASE_POOLER" in hub.log_text()


@pytest.fixture(params=["directly", "pgbouncer"])
async def plain_dsn(request, postgres: TestServer, pgbouncer: PgBouncer) -> AsyncIterator[str]:
    dsn = await postgres.create_plain_database()
    yield dsn if request.param == "directly" else pgbouncer.through(dsn)
    await postgres.drop_database(dsn)


async def test_a_role_that_owns_one_empty_database_and_nothing_else_is_enough(start_hub_on, plain_dsn, postgres):
    hub = start_hub_on(plain_dsn)
    await live_a_whole_life(hub, hub)
    async with connected(postgres.superuser_dsn()) as conn:
        role = await conn.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", PLAIN_ROLE)
        assert not any(role[right] for right in ("rolsuper", "rolcreatedb", "rolcreaterole", "rolbypassrls"))
        memberships = "SELECT count(*) FROM pg_auth_members WHERE member = $1"
        assert await conn.fetchval(memberships, role["oid"]) == 0


class Answers:
    """Every answer that was not a success, from whoever asked."""

    def __init__(self) -> None:
        self.refused: list[httpx.Response] = []

    async def note(self, answer: httpx.Response) -> None:
        if answer.status_code >= 500:
            await answer.aread()
            self.refused.append(answer)


async def submit_until(
    stop: asyncio.Event, hub: HubProcess, person: Person, record: Record, answers: Answers
) -> None:
    async with httpx.AsyncClient(timeout=20, event_hooks={"response": [answers.note]}) as client:
        turn = 0
        while not stop.is_set():
            key = f"{id(client)}-{turn}"
            answer = await client.post(
                f"{hub.url}/v1/jobs",
                json={"command": ["true"]},
                headers={**person.headers, "Idempotency-Key": key},
            )
            if answer.status_code == 201:
                record.jobs[answer.json()["id"]] = key
                record.acknowledge()
                turn += 1
            else:
                await asyncio.sleep(0.05)


async def drop_connections(postgres: TestServer, record: Record, answers: Answers) -> None:
    """All that anybody has to the test's databases, six times, each after more work was acknowledged; and again
    until a call was under way."""
    async with connected(postgres.superuser_dsn()) as conn:
        for number in range(DROPS_MAX):
            if number >= DROPS and answers.refused:
                break
            await asyncio.sleep(0.5)
            before = record.acknowledged
            await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            await wait_for(lambda floor=before: record.acknowledged > floor + 10, what="the hub to go on")


@pytest.mark.timeout(280)
@pytest.mark.parametrize("way", ["directly", "pgbouncer"])
async def test_nothing_acknowledged_is_lost_when_the_server_drops_all_connections(
    start_hub_on, postgres, dsn, pgbouncer, way
):
    hub = start_hub_on(pgbouncer.through(dsn) if way == "pgbouncer" else dsn, beat_seconds=1, lease_seconds=3)
    pid = hub.process.pid
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    record, answers = Record(), Answers()
    fleet = [RecordingNode([hub.url], owner, name=f"n{i}", seed=i, cpu_slots=2) for i in range(4)]
    for node in fleet:
        node.record = record
        node.client.event_hooks = {"response": [answers.note]}
        await node.enrol()
    stop, done = asyncio.Event(), asyncio.Event()
    living = [asyncio.create_task(node.run(done)) for node in fleet]
    clients = [asyncio.create_task(submit_until(stop, hub, submitter, record, answers)) for _ in range(CLIENTS)]
    await drop_connections(postgres, record, answers)
    stop.set()
    await asyncio.gather(*clients)
    assert await wait_done([hub.url], submitter, seconds=100)
    done.set()
    await asyncio.gather(*living, return_exceptions=True)
    for node in fleet:
        await node.close()

    losses = await count_losses(dsn, record)
    assert [losses[name] for name in ("lost", "unfinished", "duplicate_jobs", "double_results")] == [0] * 4, losses
    assert answers.refused, "no call was under way at any drop: this run shows nothing"
    assert {answer.status_code for answer in answers.refused} == {503}, [a.text for a in answers.refused]
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers.refused)
    assert (hub.process.pid, hub.process.poll()) == (pid, None)


@pytest.fixture
def family(open_dir: Path) -> Iterator[HubProcess]:
    """A parent with two hub processes and an embedded database."""
    hub = HubProcess(dsn=None, data_dir=open_dir, program=PARENT, **PATIENT).start()
    yield hub
    hub.stop()


def list_hub_processes(family: HubProcess) -> dict[int, int]:
    """Number -> pid, as last started."""
    found = re.findall(r"hub_process_started number=(\d+) pid=(\d+)", family.log_path.read_text())
    return {int(number): int(pid) for number, pid in found}


def await_serving(family: HubProcess, starts: int) -> None:
    deadline = time.monotonic() + 100
    while family.log_path.read_text().count("hub_started") < starts:
        assert time.monotonic() < deadline, family.log_text()
        time.sleep(0.05)


def count_connections(pid: int, port: int) -> int:
    """Calls of this port that this process holds open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"}
    links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return sum(1 for link in links if link[8:-1] in inodes and link.startswith("socket:["))


def test_two_hub_processes_share_one_port_and_one_embedded_database(family, open_dir):
    await_serving(family, 2)
    callers = [socket.create_connection(("127.0.0.1", family.port)) for _ in range(40)]
    for caller in callers:
        caller.sendall(b"GET /readyz HTTP/1.1\r\nHost: hub\r\n\r\n")
        assert caller.recv(4096).startswith(b"HTTP/1.1 200")
    shares = [count_connections(pid, family.port) for pid in list_hub_processes(family).values()]
    assert sum(shares) == 40
    assert min(shares) > 0
    for caller in callers:
        caller.close()
    log = family.log_path.read_text()
    assert log.count("sign-in?token=") == 1
    assert re.search(r"INFO hub-1 \S+ hub_started", log)
    assert re.search(r"INFO hub-2 \S+ hub_started", log)
    assert len(list(open_dir.rglob("postmaster.pid"))) == 1


async def test_work_goes_on_while_a_hub_process_is_killed_and_started_again(family):
    await_serving(family, 2)
    await live_a_whole_life(family, family)
    victim = list_hub_processes(family)[1]
    os.kill(victim, signal.SIGKILL)
    await wait_for(lambda: list_hub_processes(family)[1] != victim, what="a new hub process")
    await asyncio.to_thread(await_serving, family, 3)
    await live_a_whole_life(family, family)


def are_all_heard(hub: HubProcess, owner: Person) -> bool:
    """By whichever process; a call that was heard and is not answered is parked."""
    found = httpx.get(f"{hub.url}/v1/nodes", headers=owner.headers, timeout=20).json()["nodes"]
    return all(node["online"] for node in found)


@pytest.mark.parametrize("program", [PARENT, ("-m", "computepool.hub")], ids=["two processes", "one process"])
async def test_sigterm_ends_all_within_five_seconds_although_nodes_are_parked(open_dir, program):
    async def end_one() -> float:
        hub = HubProcess(dsn=None, data_dir=open_dir, program=program, **PATIENT).start()
        try:
            owner = sign_up(hub.url, "owner")
            fleet = [ProtocolNode([hub.url], owner, name=f"n{i}", seed=i) for i in range(8)]
            for node in fleet:
                await node.enrol()
            parked = [asyncio.create_task(node.next(wait_seconds=CALL_SECONDS)) for node in fleet]
            await wait_for(partial(are_all_heard, hub, owner), what="all calls to be heard")
            processes = list_hub_processes(hub).values()
            told_at = time.monotonic()
            assert await asyncio.to_thread(hub.stop) == 0
            seconds = time.monotonic() - told_at
            assert {answer.status_code for answer in await asyncio.gather(*parked)} <= {204, 503}
            assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
            assert postmaster_pid(open_dir) is None, "the last hub process out stops the embedded database"
            for node in fleet:
                await node.close()
            return seconds
        finally:
            hub.kill()

    assert await quickest_of(end_one, enough=FIVE_SECONDS, tries=3) < FIVE_SECONDS


async def test_hub_processes_end_with_a_parent_that_was_killed_and_the_port_is_free(family):
    await_serving(family, 2)
    processes = list_hub_processes(family)
    family.kill()
    await wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes.values()), what="the orphans")
    socket.create_server(("127.0.0.1", family.port)).close()


def test_a_second_parent_on_a_taken_port_refuses_to_start(family, dsn, start_hub_on):
    await_serving(family, 2)
    second = start_hub_on(dsn, program=PARENT, port=family.port, wait=False)
    assert second.process.wait(60) == 2
    assert f"port {family.port}" in second.log_text()


def test_when_every_hub_process_refuses_to_start_so_does_the_parent(start_hub_on, dsn, pgbouncer):
    hub = start_hub_on(pgbouncer.through(dsn), database_pooler="none", program=PARENT, port=free_port(), wait=False)
    assert hub.process.wait(60) == 2
    assert "COMPUTEPOOL_HUB_DATABASE_POOLER" in hub.log_text()
