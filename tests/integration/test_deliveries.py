"""The short way of results comes to the same as the long one, and takes nothing that is not its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import patch

import pytest

from computepool.core.errors import InvalidRequest, StaleLease
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    AttemptEvent,
    AttemptState,
    SliceEvent,
    SliceState,
    move_attempt,
    move_slice,
)
from computepool.core.market.rate_card import Bucket
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import deliveries
from computepool.hub.services.attempts import reap_leases
from computepool.hub.store import ledger
from computepool.wire.attempts import Usage
from computepool.wire.jobs import OutputFile, Requirements
from tests.support.postgres import TestServer, through_pooler
from tests.support.spine import EnrolledNode, Spine, open_spine

HOUR = 3_600_000_000
CEILING = Requirements(ceiling_microcredits_per_hour=HOUR)
RAN = {"usage": Usage(run_seconds=7.5, cpu_seconds=6.0, memory_bytes_peak=123), "message": "a word\0"}
# Moments, and what is drawn anew for every run.
OWN = ("id", "account_id", "job_id", "node_id", "avoid_node_id", "receipt_id", "accepted_attempt_id", "report_sha256")


@pytest.fixture
async def other_dsn(postgres: TestServer) -> AsyncIterator[str]:
    dsn = await postgres.create_database()
    yield through_pooler(dsn)
    await postgres.drop_database(dsn)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        spine.leases.prices.spots = {Bucket("cpu", region): 10 * HOUR for region in ("default", "in")}
        yield spine


async def start(spine: Spine, *, slice_count: int, cpu_slots: int) -> tuple[Any, EnrolledNode, list[Any]]:
    """A paying submitter's job, some of whose slices have held their slots for 50 s."""
    submitter, node = await spine.sign_up(credits=10_000), await spine.enrol(cpu_slots=cpu_slots)
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100, slice_count=slice_count)
    grants = await spine.grant(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds'")
    return submitter, node, grants


async def tell(spine: Spine) -> dict[str, Any]:
    """The whole record, without what differs from run to run."""
    told = {}
    for table, order in (
        ("attempts", "slice_index, number"),
        ("slices", "slice_index"),
        ("jobs", "id"),
        ("events WHERE job_id IS NOT NULL", "id"),
        ("receipts", "id"),
    ):
        rows = await spine.fetch(f"SELECT * FROM {table} ORDER BY {order}")
        told[table] = [
            {k: v for k, v in row.items() if k not in OWN and not k.endswith(("_at", "xid")) and k != "at"}
            | {f"has {k}": row[k] is not None for k in dict(row) if k.endswith("_at") or k in OWN}
            for row in rows
        ]
        for row in told[table]:
            row.pop("token", None)
    told["balances"] = sorted(
        (row["kind"], row["balance"])
        for row in await spine.fetch(
            "SELECT kind, sum(balance)::bigint AS balance FROM ledger_accounts GROUP BY kind, account_id"
        )
    )
    told["ended"] = [(e.slot, e.cause, e.expected_seconds, round(e.held_seconds)) for e in spine.ended]
    return told


async def all_at_once(spine: Spine) -> None:
    _, node, grants = await start(spine, slice_count=3, cpu_slots=3)
    await spine.finish_call(node, [spine.completion(node, grant, **RAN) for grant in grants])


async def some_of_a_job(spine: Spine) -> None:
    _, node, grants = await start(spine, slice_count=5, cpu_slots=2)
    await spine.finish(*[(node, spine.completion(node, grant, **RAN)) for grant in grants])


async def a_second_try(spine: Spine) -> None:
    _, _, [grant] = await start(spine, slice_count=1, cpu_slots=1)
    await spine.let_lease_pass(grant)
    assert await reap_leases(spine.pool, grace_seconds=1, limit=10) == 1
    second = await spine.enrol()
    again = await spine.grant_one(second)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds' WHERE number = 2")
    await spine.succeed(second, again, **RAN)


STORIES = [all_at_once, some_of_a_job, a_second_try]


async def run_apart(dsn: str, story: Callable[[Spine], Any]) -> dict[str, Any]:
    async with open_spine(dsn) as spine:
        spine.leases.prices.spots = {Bucket("cpu", region): 10 * HOUR for region in ("default", "in")}
        await story(spine)
        async with spine.pool.acquire() as conn:
            assert await ledger.list_drifts(conn) == []
        return await tell(spine)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_the_short_way_leaves_the_record_that_the_long_one_leaves(dsn, other_dsn, story):
    with patch.object(attempt_service, "list_plain", lambda reports: {}):
        by_the_long_way = await run_apart(dsn, story)
    with patch.object(attempt_service, "_judge_all", None):
        by_the_short_way = await run_apart(other_dsn, story)
    assert by_the_short_way == by_the_long_way
    assert (
        any(row["charged_microcredits"] is not None for row in by_the_short_way["attempts"]) or story is a_second_try
    )


async def test_control_a_short_way_that_forgets_the_charge_is_noticed(dsn, other_dsn):
    with patch.object(attempt_service, "list_plain", lambda reports: {}):
        by_the_long_way = await run_apart(dsn, all_at_once)
    with patch.object(deliveries, "_price", lambda *_: None):
        assert await run_apart(other_dsn, all_at_once) != by_the_long_way


async def test_a_result_of_a_second_try_tells_nodes_to_let_go_of_the_first(spine):
    await a_second_try(spine)
    assert await spine.fetch("SELECT id FROM hub_changes WHERE kind = 'controls'") != []


async def test_failures_and_results_of_one_batch_are_each_judged_in_their_own_way(spine):
    _, node, grants = await start(spine, slice_count=3, cpu_slots=3)
    first, second, third = grants
    stale = spine.completion(node, third)
    await spine.succeed(node, third, **RAN)
    answers = await spine.finish(
        (node, spine.completion(node, first, **RAN)),
        (node, spine.completion(node, second, exit_code=1, cause=Cause.EXIT_CODE)),
        (node, stale),
    )
    assert [getattr(a, "accepted", None) for a in answers] == [True, False, True]
    assert answers[2].repeated
    assert await spine.slice_state(first, first.slice_index) == "succeeded"
    assert await spine.slice_state(second, second.slice_index) == "queued"


async def test_the_same_result_twice_in_one_batch_counts_once(spine):
    _, node, [grant] = await start(spine, slice_count=1, cpu_slots=1)
    report = spine.completion(node, grant, **RAN)
    answers = await spine.finish((node, report), (node, report))
    assert sorted(answer.repeated for answer in answers) == [False, True]
    assert len(await spine.fetch("SELECT id FROM events WHERE kind = 'slices_succeeded'")) == 1


async def test_a_result_without_its_files_is_refused_and_the_others_of_its_batch_count(spine):
    _, node, [first, second] = await start(spine, slice_count=2, cpu_slots=2)
    missing = OutputFile(path="out.bin", sha256="0" * 64, size_bytes=1)
    answers = await spine.finish(
        (node, spine.completion(node, first, outputs=(missing,))), (node, spine.completion(node, second))
    )
    assert isinstance(answers[0], InvalidRequest)
    assert answers[1].accepted
    assert await spine.slice_state(first, first.slice_index) == "leased"


async def test_another_nodes_attempt_is_not_taken(spine):
    _, _, [grant] = await start(spine, slice_count=1, cpu_slots=1)
    stranger = await spine.enrol()
    assert isinstance(await spine.succeed(stranger, grant), StaleLease)
    assert await spine.slice_state(grant) == "leased"


def test_whatever_is_live_may_deliver():
    """What the statement writes without asking is what the tables say."""
    for state in ATTEMPT_LIVE:
        assert move_attempt(state, AttemptEvent.RESULT_ACCEPTED) is AttemptState.SUCCEEDED
    for slice_state in (SliceState.LEASED, SliceState.RUNNING):
        assert move_slice(slice_state, SliceEvent.RESULT_ACCEPTED) is SliceState.SUCCEEDED
