"""Exchanges: results for new leases in one statement come to the same as the ways that ask first, and take nothing
that is not as the hub believes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import aiosql
import asyncpg
import pytest

from computepool.core.errors import InvalidRequest
from computepool.core.market.rate_card import Bucket
from computepool.core.placement.fronts import Fronts
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import exchanges as exchange_service
from computepool.hub.services.exchanges import Exchanged, Exchanges
from computepool.hub.services.leases import Session
from computepool.hub.services.reports import check_completions
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import exchanges as store
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from computepool.hub.store.queries import SQL_DIR, _Adapter
from computepool.wire.attempts import CompleteRequest, Usage
from computepool.wire.jobs import OutputFile, Requirements
from tests.integration.test_deliveries import tell
from tests.support.postgres import TestServer, through_pooler, wait_for
from tests.support.spine import EnrolledNode, Spine, expect_the_usual, open_spine

HOUR = 3_600_000_000
CEILING = Requirements(ceiling_microcredits_per_hour=HOUR)
RAN = {"usage": Usage(run_seconds=7.5, cpu_seconds=6.0, memory_bytes_peak=123), "message": "a word\0"}


@pytest.fixture
async def other_dsn(postgres: TestServer) -> AsyncIterator[str]:
    dsn = await postgres.create_database()
    yield through_pooler(dsn)
    await postgres.drop_database(dsn)


@pytest.fixture
async def direct_dsn(postgres: TestServer) -> AsyncIterator[str]:
    """Never through a pooler."""
    dsn = await postgres.create_database()
    yield dsn
    await postgres.drop_database(dsn)


def set_spots(spine: Spine) -> Spine:
    spine.leases.prices.spots = {Bucket("cpu", region): 10 * HOUR for region in ("default", "in")}
    return spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield set_spots(spine)


async def start(
    spine: Spine, *, jobs: int = 1, slices: int = 1, slots: int | None = None
) -> tuple[EnrolledNode, list[Grant]]:
    """A paying submitter's jobs, some slices of which have held their slots for 50 s."""
    submitter, node = await spine.sign_up(credits=10_000), await spine.enrol(cpu_slots=slots or jobs * slices)
    for _ in range(jobs):
        await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100, slice_count=slices)
    grants = sorted(await spine.grant(node), key=lambda grant: (grant.job_id, grant.slice_index))
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds'")
    return node, grants


def remember(spine: Spine, grants: Sequence[Grant]) -> Exchanges:
    exchanges = Exchanges(spine.leases)
    for grant in grants:
        exchanges.note_granted(grant)
    return exchanges


async def exchange(
    spine: Spine,
    exchanges: Exchanges,
    *done: tuple[EnrolledNode, CompleteRequest],
    fill: Sequence[EnrolledNode] = (),
) -> Exchanged:
    """As rounds do it. With `fill` all slots of these nodes are offered, those too that are only about to be free."""
    reports = [
        report for node, one in done for report in check_completions(spine.keyring, node.caller, (one,), one.receipt)
    ]
    firsts = exchanges.take_ready(reports)
    planned: list[Grant] = []
    try:
        async with spine.leases.open(alone=False) as session:
            if fill:
                round_ = await spine.open_round(await spine.list_candidates(*fill, busy=True))
                planned = await spine.leases.plan_on(session, round_, expected_seconds=expect_the_usual, fronts=None)
            ready = [report for report in reports if report.attempt_id in firsts]
            exchanged = await exchanges.write(await session.ready(), ready, firsts, planned, opened=spine.opened)
    finally:
        spine.leases.let_go(planned)
    spine.opened.note(exchanged.postings)
    spine.ended.extend(exchanged.ended)
    return exchanged


# The same record


async def deliver_all(spine: Spine, *, jobs: int, slices: int, batch: int, by_exchange: bool) -> dict[str, Any]:
    """All slices of these jobs, so many at a time."""
    node, grants = await start(spine, jobs=jobs, slices=slices)
    exchanges = remember(spine, grants)
    for first in range(0, len(grants), batch):
        done = [(node, spine.completion(node, grant, **RAN)) for grant in grants[first : first + batch]]
        if by_exchange:
            exchanged = await exchange(spine, exchanges, *done)
            assert [outcome.accepted for outcome in exchanged.outcomes.values()] == [True] * len(done)
        else:
            await spine.finish(*done)
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []
    told = await tell(spine)
    # The order of events of different jobs says nothing.
    events = told["events WHERE job_id IS NOT NULL"]
    for event in events:
        if event["kind"].startswith("slices_"):
            event["body"] = list_indexes(event["body"]["slices"])
    events.sort(key=repr)
    return told


def list_indexes(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Whether slices are told in one piece or one by one says nothing either."""
    return [index for first, last in ranges for index in range(first, last + 1)]


async def run_apart(dsn: str, **how: Any) -> dict[str, Any]:
    async with open_spine(dsn) as spine:
        return await deliver_all(set_spots(spine), **how)


DELIVERED = {
    "jobs of one slice": {"jobs": 3, "slices": 1, "batch": 3},
    "one job at once": {"jobs": 1, "slices": 3, "batch": 3},
    "two jobs at once": {"jobs": 2, "slices": 3, "batch": 6},
    "slice by slice": {"jobs": 1, "slices": 3, "batch": 1},
    "the end of one job and a part of the next": {"jobs": 3, "slices": 4, "batch": 5},
}


@pytest.mark.parametrize("delivered", DELIVERED.values(), ids=DELIVERED)
async def test_an_exchange_leaves_the_record_that_the_other_ways_leave(dsn, other_dsn, delivered):
    with patch.object(attempt_service, "list_plain", lambda reports: {}):
        by_the_long_way = await run_apart(dsn, **delivered, by_exchange=False)
    by_exchange = await run_apart(other_dsn, **delivered, by_exchange=True)
    assert by_exchange == by_the_long_way
    assert all(row["charged_microcredits"] for row in by_exchange["attempts"])


async def test_control_an_exchange_that_forgets_the_charge_is_noticed(dsn, other_dsn):
    delivered = DELIVERED["jobs of one slice"]
    with patch.object(attempt_service, "list_plain", lambda reports: {}):
        by_the_long_way = await run_apart(dsn, **delivered, by_exchange=False)
    with patch.object(exchange_service, "_price", lambda *_: None):
        assert await run_apart(other_dsn, **delivered, by_exchange=True) != by_the_long_way


async def test_control_an_exchange_that_settles_each_slice_as_its_jobs_last_is_noticed(dsn, monkeypatch):
    """It would return what the other slices still need."""
    monkeypatch.setattr(exchange_service, "JobState", SimpleNamespace(RUNNING="succeeded", SUCCEEDED="succeeded"))
    with pytest.raises(Exception):  # noqa: B017
        await run_apart(dsn, **DELIVERED["slice by slice"], by_exchange=True)


async def test_events_of_one_job_stand_in_their_order(spine):
    node, [grant] = await start(spine)
    await exchange(spine, remember(spine, [grant]), (node, spine.completion(node, grant)))
    rows = await spine.fetch("SELECT kind FROM events WHERE job_id = $1 ORDER BY id", grant.job_id)
    assert [row["kind"] for row in rows] == ["job_submitted", "slices_leased", "slices_succeeded", "job_succeeded"]


# The next lease


async def test_the_slot_that_a_result_frees_is_leased_by_the_same_statement(spine):
    node, [grant] = await start(spine, jobs=2, slots=1)
    exchanged = await exchange(
        spine, remember(spine, [grant]), (node, spine.completion(node, grant, **RAN)), fill=[node]
    )
    assert exchanged.outcomes[grant.id].accepted
    [next_id] = exchanged.granted
    rows = await spine.fetch("SELECT id, state::text, slot FROM attempts ORDER BY leased_at")
    assert [tuple(row) for row in rows] == [(grant.id, "succeeded", grant.slot), (next_id, "leased", grant.slot)]
    states = await spine.fetch(
        "SELECT j.state::text, s.state::text FROM jobs j JOIN slices s ON s.job_id = j.id ORDER BY j.id"
    )
    assert [tuple(row) for row in states] == [("succeeded", "succeeded"), ("running", "leased")]


async def test_a_slot_whose_result_was_left_out_is_not_given_away(spine):
    node, [grant] = await start(spine, jobs=2, slots=1)
    exchanges = remember(spine, [grant])
    # Longer than it was held: the way that asks first has to say what that costs.
    claimed = spine.completion(node, grant, usage=Usage(run_seconds=500.0))
    exchanged = await exchange(spine, exchanges, (node, claimed), fill=[node])
    assert (exchanged.outcomes, exchanged.granted) == ({}, set())
    assert await spine.slice_state(grant) == "leased"
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 1


# What is not as the hub believes


async def cancel(spine: Spine, grant: Grant) -> None:
    await spine.fetch(
        "UPDATE attempts SET state = 'cancelled', cause = 'cancelled', finished_at = now() WHERE id = $1", grant.id
    )


async def lose(spine: Spine, grant: Grant) -> None:
    await spine.fetch(
        "UPDATE attempts SET state = 'lost', cause = 'node_vanished', finished_at = now() WHERE id = $1", grant.id
    )
    await spine.fetch("UPDATE slices SET state = 'queued' WHERE job_id = $1", grant.job_id)


async def save(spine: Spine, grant: Grant) -> None:
    await spine.fetch("UPDATE attempts SET saved_seconds = 5, saved_at = now() WHERE id = $1", grant.id)


async def take_for_a_seat(spine: Spine, grant: Grant) -> None:
    await spine.fetch("UPDATE attempts SET checkpoint_seconds = 0 WHERE id = $1", grant.id)


async def check(spine: Spine, grant: Grant) -> None:
    await spine.fetch("UPDATE jobs SET verify = 'audit' WHERE id = $1", grant.job_id)


async def hold_less(spine: Spine, grant: Grant) -> None:
    """Of what its other slice may cost."""
    await spine.fetch("UPDATE jobs SET held_remaining = reserve_microcredits WHERE id = $1", grant.job_id)


async def fail_another(spine: Spine, grant: Grant) -> None:
    """So that its job ends with it, and does not succeed."""
    await spine.fetch(
        "UPDATE attempts SET state = 'failed', cause = 'exit_code', finished_at = now() "
        "WHERE job_id = $1 AND id <> $2",
        grant.job_id,
        grant.id,
    )
    await spine.fetch(
        "UPDATE slices SET state = 'failed', cause = 'exit_code', finished_at = now() "
        "WHERE job_id = $1 AND slice_index <> $2",
        grant.job_id,
        grant.slice_index,
    )
    await spine.fetch("UPDATE jobs SET failed_count = 1 WHERE id = $1", grant.job_id)


async def try_again(spine: Spine, grant: Grant) -> None:
    await spine.fetch("UPDATE slices SET attempt_count = 2 WHERE job_id = $1", grant.job_id)


async def lease_later(spine: Spine, grant: Grant) -> None:
    """It has held the slot for less time than its node says that it ran."""
    await spine.fetch("UPDATE attempts SET leased_at = now() - interval '7 seconds' WHERE id = $1", grant.id)


CHANGES = [cancel, lose, save, take_for_a_seat, check, hold_less, fail_another, try_again, lease_later]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_what_has_changed_behind_the_hubs_back_is_left_out_and_the_others_count(spine, change):
    node, [changed, _, other, _] = await start(spine, jobs=2, slices=2)
    exchanges = remember(spine, [changed, other])
    await change(spine, changed)
    before = await list_rows(spine, changed)
    exchanged = await exchange(
        spine, exchanges, *[(node, spine.completion(node, grant, **RAN)) for grant in (changed, other)]
    )
    assert list(exchanged.outcomes) == [other.id]
    assert await list_rows(spine, changed) == before
    assert await spine.slice_state(other) == "succeeded"
    assert {posting.job_id for posting in exchanged.postings} == {other.job_id}


async def list_rows(spine: Spine, grant: Grant) -> list[Any]:
    tables = ("attempts", "slices")
    return [
        *[await spine.fetch(f"SELECT * FROM {table} WHERE job_id = $1", grant.job_id) for table in tables],
        await spine.fetch("SELECT * FROM jobs WHERE id = $1", grant.job_id),
        await spine.fetch("SELECT kind FROM events WHERE job_id = $1 ORDER BY id", grant.job_id),
    ]


GUARDS = {
    "save": "AND a.saved_seconds = 0",
    "take_for_a_seat": "AND a.checkpoint_seconds IS NULL",
    "check": "AND verify IS NULL",
    "hold_less": "AND held_remaining - charged >= (open_count - ended_count) * reserve_microcredits",
    "fail_another": "AND (open_count > ended_count OR spoilt_count = 0)",
    "try_again": "AND s.attempt_count = 1",
    "lease_later": "AND a.leased_at + e.run_seconds * interval '1 second' <= clock_timestamp()",
}


def plant(monkeypatch: pytest.MonkeyPatch, *faults: tuple[str, str]) -> None:
    text = (SQL_DIR / "exchanges.sql").read_text()
    for right, wrong in faults:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    adapter: Any = _Adapter
    planted = aiosql.from_str(text, adapter, mandatory_parameters=False)
    monkeypatch.setattr(store, "_q", planted)


@pytest.mark.parametrize("name", GUARDS)
async def test_control_without_its_guard_each_of_these_would_be_written(spine, name, monkeypatch):
    change: Callable[..., Any] = next(each for each in CHANGES if each.__name__ == name)
    plant(monkeypatch, (GUARDS[name], ""))
    node, [grant, _] = await start(spine, slices=2)
    await change(spine, grant)
    before = await list_rows(spine, grant)
    try:
        await exchange(spine, remember(spine, [grant]), (node, spine.completion(node, grant, **RAN)))
    except Exception:
        # Or a CHECK would have had to save us.
        return
    assert await list_rows(spine, grant) != before


async def test_the_same_result_at_two_hubs_at_once_counts_once(spine):
    node, [grant] = await start(spine)
    done = spine.completion(node, grant, **RAN)
    one, other = await asyncio.gather(*[exchange(spine, remember(spine, [grant]), (node, done)) for _ in range(2)])
    assert sorted([list(one.outcomes), list(other.outcomes)]) == [[], [grant.id]]
    assert len(one.postings) + len(other.postings) == 2, "the pay, and what is returned of the hold"
    [answer] = await spine.finish((node, done))
    assert answer.repeated
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []


# Several at work on one job

JOBS, SLICES, BATCHES = 3, 16, 8


async def deliver_at_once(spine: Spine) -> None:
    """Every batch has slices of all jobs, and meets rows of jobs that others have changed since it began."""
    node, grants = await start(spine, jobs=JOBS, slices=SLICES)
    exchanges = remember(spine, grants)
    await asyncio.gather(
        *[
            exchange(spine, exchanges, *[(node, spine.completion(node, g, **RAN)) for g in grants[i::BATCHES]])
            for i in range(BATCHES)
        ]
    )
    # Nobody was left out: rows of jobs are waited for.
    assert await spine.fetch("SELECT id FROM attempts WHERE state <> 'succeeded'") == []
    for job in await spine.fetch("SELECT * FROM jobs"):
        assert (job["state"], job["succeeded_count"], job["held_remaining"]) == ("succeeded", SLICES, 0)
        charged = await spine.fetch_value(
            "SELECT sum(charged_microcredits)::bigint FROM attempts WHERE job_id = $1", job["id"]
        )
        assert job["charged_microcredits"] == charged
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []


async def test_results_of_the_same_jobs_that_are_written_at_once_are_all_counted(spine):
    await deliver_at_once(spine)


async def test_control_what_is_added_to_the_row_as_it_was_is_noticed(spine, monkeypatch):
    """The planted fault: the job is counted from the row that the update finds first."""
    right = "succeeded_count = coalesce(m.succeeded_count, jobs.succeeded_count)"
    plant(monkeypatch, (right, f"succeeded_count = jobs.succeeded_count + {SLICES // BATCHES}"))
    with pytest.raises(asyncpg.CheckViolationError):
        await deliver_at_once(spine)


# Holds the statement up after it has begun, and before it has locked anything.
WAITING = ("FROM ends e JOIN slices s", "FROM ends e CROSS JOIN (SELECT pg_advisory_xact_lock(7)) AS w JOIN slices s")
WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
# Slices whose nodes say that they run them, and jobs that somebody has something else to do with.
CHANGED = {"slices": "UPDATE slices SET state = 'running'", "jobs": "UPDATE jobs SET retries = retries"}


async def exchange_while_rows_change(spine: Spine, change: str) -> None:
    node, grants = await start(spine, jobs=2, slices=4)
    done = [(node, spine.completion(node, grant, **RAN)) for grant in grants]
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(7)")
        task = asyncio.create_task(exchange(spine, remember(spine, grants), *done))
        await wait_for(lambda: conn.fetchval(WAITS), seconds=20, what="the statement that waits")
        await spine.fetch(change)
    assert len((await task).outcomes) == len(grants)
    for table in CHANGED:
        assert {row["state"] for row in await spine.fetch(f"SELECT state::text FROM {table}")} == {"succeeded"}


@pytest.mark.parametrize("table", CHANGED)
async def test_rows_that_were_changed_after_the_statement_began_are_ended(spine, monkeypatch, table):
    plant(monkeypatch, WAITING)
    await exchange_while_rows_change(spine, CHANGED[table])


@pytest.mark.parametrize("table", CHANGED)
async def test_control_rows_whose_list_is_made_anew_are_left_behind(direct_dsn, monkeypatch, table):
    """The planted fault: for a row that others have changed the list is made again, when its attempts have ended.
    With plans that are kept; those that are made behind a pooler come out right by chance."""
    plant(monkeypatch, WAITING, (f"moved_{table} AS MATERIALIZED (", f"moved_{table} AS NOT MATERIALIZED ("))
    with pytest.raises(AssertionError):
        async with open_spine(direct_dsn) as spine:
            await exchange_while_rows_change(set_spots(spine), CHANGED[table])


async def exchange_beside_a_lock(spine: Spine) -> Exchanged:
    """Somebody who is about to cancel the job has locked one of its slices, and will want the others."""
    node, grants = await start(spine, slices=2)
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM slices WHERE slice_index = 0 FOR UPDATE")
        async with asyncio.timeout(2):
            return await exchange(
                spine, remember(spine, grants), *[(node, spine.completion(node, grant, **RAN)) for grant in grants]
            )


async def test_a_slice_that_somebody_has_locked_is_left_out_and_not_waited_for(spine):
    exchanged = await exchange_beside_a_lock(spine)
    [taken] = exchanged.outcomes
    assert await spine.fetch_value("SELECT slice_index FROM attempts WHERE id = $1", taken) == 1
    assert await spine.fetch_value("SELECT succeeded_count FROM jobs") == 1


async def test_control_whoever_waited_could_be_waited_for(spine, monkeypatch):
    plant(monkeypatch, ("FOR NO KEY UPDATE OF s, a SKIP LOCKED", "FOR NO KEY UPDATE OF s, a"))
    with pytest.raises(TimeoutError):
        await exchange_beside_a_lock(spine)


async def start_beside_a_lock(spine: Spine) -> tuple[EnrolledNode, Grant]:
    """Somebody has locked a job that is to be started: they may want one that is locked here."""
    node, [grant] = await start(spine, jobs=2, slots=1)
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM jobs WHERE state = 'queued' FOR UPDATE")
        async with asyncio.timeout(2):
            exchanged = await exchange(
                spine, remember(spine, [grant]), (node, spine.completion(node, grant, **RAN)), fill=[node]
            )
    [attempt_id] = exchanged.granted
    [row] = await spine.fetch("SELECT job_id, slice_index FROM attempts WHERE id = $1", attempt_id)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds' WHERE id = $1", attempt_id)
    return node, grant._replace(id=attempt_id, job_id=row["job_id"], slice_index=row["slice_index"])


@pytest.mark.parametrize("by_exchange", [True, False])
async def test_a_job_that_nobody_came_to_start_is_started_by_its_first_result(spine, by_exchange):
    node, grant = await start_beside_a_lock(spine)
    states = "SELECT state::text FROM jobs WHERE id = $1"
    assert await spine.fetch_value(states, grant.job_id) == "queued"
    done = (node, spine.completion(node, grant, **RAN))
    if by_exchange:
        assert (await exchange(spine, remember(spine, [grant]), done)).outcomes[grant.id].accepted
    else:
        await spine.finish(done)
    assert await spine.fetch_value(states, grant.job_id) == "succeeded"
    assert await spine.fetch_value("SELECT started_at IS NOT NULL FROM jobs WHERE id = $1", grant.job_id)


async def test_control_whoever_waited_to_start_a_job_could_be_waited_for(spine, monkeypatch):
    plant(monkeypatch, ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"))
    with pytest.raises(TimeoutError):
        await start_beside_a_lock(spine)


async def lease_beside_a_lock(spine: Spine) -> list[Grant]:
    node = await spine.enrol()
    await spine.submit()
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM jobs FOR UPDATE")
        async with asyncio.timeout(2):
            return await spine.grant(node)


async def test_a_round_of_its_own_does_not_wait_for_a_job_that_it_starts(spine):
    assert len(await lease_beside_a_lock(spine)) == 1


async def test_control_a_round_that_waited_could_be_waited_for(spine, monkeypatch):
    text = (SQL_DIR / "attempts.sql").read_text()
    assert text.count("FOR NO KEY UPDATE SKIP LOCKED") == 1
    adapter: Any = _Adapter
    text = text.replace("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")
    monkeypatch.setattr(attempt_store, "_q", aiosql.from_str(text, adapter, mandatory_parameters=False))
    with pytest.raises(TimeoutError):
        await lease_beside_a_lock(spine)


# Reports


async def test_a_result_without_its_files_is_refused_and_the_others_of_its_batch_count(spine):
    node, [first, second] = await start(spine, jobs=2)
    missing = OutputFile(path="out.bin", sha256="0" * 64, size_bytes=1)
    exchanged = await exchange(
        spine,
        remember(spine, [first, second]),
        (node, spine.completion(node, first, outputs=(missing,))),
        (node, spine.completion(node, second)),
    )
    assert isinstance(exchanged.outcomes[first.id], InvalidRequest)
    assert exchanged.outcomes[second.id].accepted
    assert await spine.slice_state(first) == "leased"


# What is remembered


async def test_only_first_attempts_are_remembered_and_each_once(spine):
    node = await spine.enrol(cpu_slots=3)
    await spine.submit(slice_count=2)
    await spine.submit()
    grants = await spine.grant(node)
    exchanges = remember(spine, [*grants[:2], grants[2]._replace(number=2)])
    reports = [
        report
        for grant in grants
        for report in check_completions(
            spine.keyring, node.caller, (spine.completion(node, grant),), spine.completion(node, grant).receipt
        )
    ]
    assert set(exchanges.take_ready(reports)) == {grant.id for grant in grants[:2]}
    assert exchanges.take_ready(reports) == {}, "what was taken is forgotten"


async def test_another_nodes_result_is_not_exchanged(spine):
    _, [grant] = await start(spine)
    stranger = await spine.enrol()
    done = spine.completion(stranger, grant)
    [report] = check_completions(spine.keyring, stranger.caller, (done,), done.receipt)
    assert remember(spine, [grant]).take_ready([report]) == {}


async def test_no_more_leases_are_remembered_than_should_be(spine, monkeypatch):
    monkeypatch.setattr(exchange_service, "REMEMBERED_MAX", 2)
    _, grants = await start(spine, jobs=4)
    assert list(remember(spine, grants)._firsts) == [grant.id for grant in grants[-2:]]


# Looks beside each other


async def test_what_is_about_to_be_leased_is_not_planned_for_again(spine):
    node = await spine.enrol(cpu_slots=4)
    for _ in range(4):
        await spine.submit()
    candidates = await spine.list_candidates(node)

    @contextlib.asynccontextmanager
    async def planning(count: int) -> AsyncIterator[list[Grant]]:
        round_ = await spine.open_round(candidates[:count])
        async with spine.pool.acquire() as conn, conn.transaction():
            yield await spine.leases.plan_on(
                Session(conn), round_, expected_seconds=expect_the_usual, fronts=Fronts()
            )

    async with planning(2) as first, planning(4) as second:
        pass
    jobs = {grant.job_id for grant in first}
    assert (len(jobs), len(second)) == (2, 2)
    assert jobs.isdisjoint(grant.job_id for grant in second)
    spine.leases.let_go([*first, *second])
    async with planning(4) as third:
        assert len(third) == 4, "nothing of it was written, and all of it is there again"


async def test_control_without_that_memory_it_would_be(spine):
    node = await spine.enrol(cpu_slots=2)
    await spine.submit()
    candidates = await spine.list_candidates(node)
    planned = []
    for _ in range(2):
        round_ = await spine.open_round(candidates)
        async with spine.pool.acquire() as conn, conn.transaction():
            planned += await spine.leases.plan_on(
                Session(conn), round_, expected_seconds=expect_the_usual, fronts=Fronts()
            )
        spine.leases._writing.clear()
    assert len({grant.job_id for grant in planned}) == 1 < len(planned)
