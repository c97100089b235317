"""Rounds, parked calls and claims of one hub on a real database, without HTTP: who is told what, and exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import aiosql
import asyncpg
import msgspec
import pytest

from computepool import clock, entropy
from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import JobState
from computepool.core.ledger.charging import LeaseTerms
from computepool.hub.dispatch import rounds as rounds_module
from computepool.hub.dispatch.backlog import Backlog
from computepool.hub.dispatch.door import Claim, Door
from computepool.hub.dispatch.elsewhere import Elsewhere
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.dispatch.parked import ParkedCall, ParkedCalls
from computepool.hub.dispatch.reception import Reception
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Ending, Rounds
from computepool.hub.dispatch.stubborn import REFUSALS_MAX, Stubborn
from computepool.hub.services import jobs as job_service
from computepool.hub.services import reports
from computepool.hub.services import submissions as submission_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import exchanges as exchange_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.hub.store.queries import SQL_DIR, _Adapter
from computepool.wire.attempts import NextAnswer
from tests.support.postgres import wait_for
from tests.support.rows import insert_attempt
from tests.support.spine import EnrolledNode, Spine, open_spine

SECONDS = 60


@dataclass
class Waiting:
    """A node's end of a parked call."""

    call: ParkedCall
    answers: list[NextAnswer | None] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def hear(self) -> NextAnswer | None:
        async with asyncio.timeout(SECONDS):
            await self.answered.wait()
        [answer] = self.answers
        return answer


@dataclass
class Dispatch:
    """What `main.py` puts together for a hub, as far as rounds need it; nothing runs by itself."""

    spine: Spine
    reception: Reception
    rounds: Rounds
    door: Door

    async def park(self, node: EnrolledNode, *free_slots: str, seconds: float = 60.0) -> Waiting:
        def reply(_: ParkedCall, answer: NextAnswer | None) -> None:
            waiting.answers.append(answer)
            waiting.answered.set()

        call = self.door.open(node.caller, free_slots, frozenset(), reply, hurried=False)
        waiting = Waiting(call)
        await self.door.park(call, seconds)
        return waiting

    async def submit(self, count: int = 1, *, by: AccountCaller | None = None, **spec: object) -> list[Job]:
        caller = by or await self.spine.sign_up()
        return list(await self.rounds.submit([self.spine.submission(caller, **spec) for _ in range(count)]))

    async def claim(self, node: EnrolledNode, *free_slots: str) -> Claim:
        return await self.door.prepare_claim(node.caller, free_slots, frozenset())

    async def complete(self, node: EnrolledNode, grant: Grant, claim: Claim) -> NextAnswer | None:
        done = self.spine.completion(node, grant)
        [report] = reports.check_completions(self.spine.keyring, node.caller, [done], done.receipt)
        [outcome] = await self.rounds.complete([Ending(report, claim.call)])
        assert outcome.accepted
        async with asyncio.timeout(SECONDS):
            return await self.door.hear(claim)


def compose(spine: Spine, now: Callable[[], datetime] = clock.now) -> Dispatch:
    sets = {name: spine.book.sets[name] for name in spine.book.split.names_in_use}
    registry, hub_process_id = Registry(sets, Evidence(spine.pool), spine.leases.prices.ask), entropy.new_id()
    elsewhere = Elsewhere(spine.pool, registry.fleet, sets[spine.book.split.first], hub_process_id)
    share = FairShare(spine.pool, hub_process_id)
    reception = Reception(spine.pool, ParkedCalls(), registry, elsewhere, now=now)
    rounds = Rounds(spine.pool, reception, spine.leases, spine.submissions, registry, Backlog(), share, elsewhere)
    return Dispatch(spine, reception, rounds, Door(reception, spine.leases))


@pytest.fixture
async def dispatch(dsn: str) -> AsyncIterator[Dispatch]:
    async with open_spine(dsn) as spine:
        yield compose(spine)


def list_attempts(answers: Iterable[NextAnswer | None]) -> list[AttemptId]:
    return [assignment.attempt_id for answer in answers if answer is not None for assignment in answer.assignments]


async def list_live(spine: Spine) -> list[AttemptId]:
    rows = await spine.fetch("SELECT id FROM attempts WHERE state IN ('leased', 'running') ORDER BY leased_at")
    return [row["id"] for row in rows]


class Gate:
    """Lets a statement through only when it is told to: a slow database, or a crowded one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
        self.opened = asyncio.Event()
        self._passes: list[asyncio.Event] = []
        really = getattr(module, name)

        async def wait(*args: object, **options: object) -> object:
            own = asyncio.Event()
            self._passes.append(own)
            await asyncio.wait(
                [asyncio.create_task(event.wait()) for event in (self.opened, own)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            return await really(*args, **options)

        monkeypatch.setattr(module, name, wait)

    async def reached(self, *, count: int = 1) -> None:
        await wait_for(lambda: len(self._passes) >= count, what="the statement")

    def let_through(self, number: int) -> None:
        """Only the call with this number, counted from 0."""
        self._passes[number].set()


# A job meets a node


async def test_a_job_that_meets_a_parked_node_is_born_leased_and_told_at_once(dispatch):
    node = await dispatch.spine.enrol()
    waiting = await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit()
    assert job.state is JobState.RUNNING
    answer = await waiting.hear()
    assert list_attempts([answer]) == await list_live(dispatch.spine)
    assert answer.token


async def test_a_job_that_finds_nobody_waits_and_goes_to_the_next_node_that_calls(dispatch):
    [job] = await dispatch.submit()
    assert job.state is JobState.QUEUED
    waiting = await dispatch.park(await dispatch.spine.enrol(), "cpu:0")
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()]) == await list_live(dispatch.spine)
    assert await dispatch.spine.slice_state(job) == "leased"


async def test_a_job_is_not_born_into_a_slot_that_somebody_waits_for(dispatch):
    """Its turn has not come: whoever was there before goes first."""
    await dispatch.submit()
    waiting = await dispatch.park(await dispatch.spine.enrol(), "cpu:0")
    [late] = await dispatch.submit()
    assert late.state is JobState.QUEUED
    assert waiting.answers == []
    await dispatch.rounds.run_once()
    assert len(list_attempts([await waiting.hear()])) == 1, "a round decides who goes first"


async def test_a_round_that_was_full_is_followed_by_another_without_waiting_for_the_timer(dispatch, monkeypatch):
    monkeypatch.setattr(rounds_module, "GRANTS_MAX", 3)
    await dispatch.submit(slice_count=8)
    waiting = [await dispatch.park(await dispatch.spine.enrol(), "cpu:0") for _ in range(8)]
    rounds = 0
    while dispatch.rounds._wake.is_set():
        dispatch.rounds._wake.clear()
        await dispatch.rounds.run_once()
        rounds += 1
        assert rounds < 10
    assert len(list_attempts([await each.hear() for each in waiting])) == 8
    assert rounds <= 4


# Slots that are not what they seem


async def test_a_slot_that_another_hub_has_filled_is_not_tried_again_and_again(dispatch):
    spine = dispatch.spine
    node = await spine.enrol()
    waiting = await dispatch.park(node, "cpu:0")
    other = spine.open_second_hub()
    await other.submit()
    await other.grant_one(node)
    [job] = await dispatch.submit()
    assert job.state is JobState.QUEUED
    await dispatch.rounds.run_once()
    assert len(dispatch.rounds._registry.fleet) == 0, "the record is asked before it is offered again"
    assert waiting.answers == []
    assert not dispatch.reception._holding


@pytest.mark.parametrize("is_set_aside", [True, False])
async def test_a_record_at_odds_with_itself_holds_up_nobody_else(dispatch, monkeypatch, is_set_aside):
    """A slice that waits though its first attempt is in the record can never be leased. Control: not set aside."""
    if not is_set_aside:
        monkeypatch.setattr(Stubborn, "is_aside", lambda *_: False)
    caller = await dispatch.spine.sign_up()
    [odd] = await dispatch.submit(by=caller)
    async with dispatch.spine.pool.acquire() as conn:
        made_up = await insert_attempt(conn, odd.id, 0, state="succeeded")
    [other] = await dispatch.submit(by=caller)
    node = await dispatch.spine.enrol()
    for _ in range(2 * REFUSALS_MAX):
        # As an agent does: it calls again after each call that brought nothing.
        await dispatch.park(node, "cpu:0")
        dispatch.rounds.hear("queue")
        dispatch.rounds._looked_at = 0.0
        await dispatch.rounds.run_once()
    states = [await dispatch.spine.slice_state(job) for job in (odd, other)]
    assert states == ["queued", "leased" if is_set_aside else "queued"]
    await dispatch.spine.fetch("DELETE FROM attempts WHERE id = $1", made_up)


async def test_when_the_database_goes_away_after_the_commit_the_node_is_told_when_it_is_looked_up(
    dispatch, monkeypatch
):
    spine = dispatch.spine
    caller, node = await spine.sign_up(), await spine.enrol()
    [known] = await dispatch.rounds.submit([spine.submission(caller, "k")])
    await spine.succeed(node, await spine.grant_one(node))
    await dispatch.rounds.run_once()
    waiting = await dispatch.park(node, "cpu:0")

    async def go_away(*_: object) -> None:
        raise OSError("connection lost")

    monkeypatch.setattr(submission_service.job_store, "list_idempotent", go_away)
    with pytest.raises(OSError, match="connection lost"):
        await dispatch.rounds.submit([spine.submission(caller), spine.submission(caller, "k")])
    monkeypatch.undo()
    live = await list_live(spine)
    assert len(live) == 1, "it was committed"
    assert not dispatch.reception._holding, "no call is held for leases that nobody will deliver"
    await dispatch.reception.greet({node.id: waiting.call})
    assert list_attempts([await waiting.hear()]) == live
    assert known.id is not None


# Claims beside a parked call


async def busy_node(dispatch: Dispatch, *, cpu_slots: int) -> tuple[EnrolledNode, Grant]:
    """A node whose slot cpu:0 is taken."""
    node = await dispatch.spine.enrol(cpu_slots=cpu_slots)
    await dispatch.spine.submit()
    [grant] = await dispatch.spine.grant(node, grants_max=1)
    assert grant.slot == "cpu:0"
    return node, grant


async def test_a_claim_brings_the_next_slice_in_the_transaction_that_ends_the_last(dispatch):
    node, grant = await busy_node(dispatch, cpu_slots=1)
    [job] = await dispatch.submit()
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
    assert list_attempts([answer]) == await list_live(dispatch.spine)
    assert await dispatch.spine.slice_state(job) == "leased"
    rows = await dispatch.spine.fetch("SELECT xmin::text FROM attempts")
    assert len({row["xmin"] for row in rows}) == 1


async def hold_one(
    dispatch: Dispatch, node: EnrolledNode, *, by: AccountCaller | None = None, **spec: object
) -> Grant:
    """The lease of a new job's first slice, which its node was told of."""
    waiting = await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit(by=by, **spec)
    [attempt_id] = list_attempts([await waiting.hear()])
    return Grant(attempt_id, job.account_id, job.id, 0, 1, node.id, "cpu:0", 1.0, None, LeaseTerms(0, 0))


async def refuse_to_ask_first(*_: object, **__: object) -> list[object]:
    raise AssertionError("this can be exchanged")


def forget(dispatch: Dispatch, grant: Grant) -> None:
    """As if another hub had leased it."""
    del dispatch.rounds._exchanges._firsts[grant.id]


@pytest.mark.parametrize("slice_count", [1, 2])
async def test_a_result_and_the_next_lease_are_exchanged(dispatch, monkeypatch, slice_count):
    node, submitter = await dispatch.spine.enrol(), await dispatch.spine.sign_up()
    first = await hold_one(dispatch, node, by=submitter)
    # The hub has not seen their accounts before.
    await dispatch.complete(node, first, await dispatch.claim(node, "cpu:0"))
    grant = await hold_one(dispatch, node, by=submitter, slice_count=slice_count)
    await dispatch.submit()
    monkeypatch.setattr(rounds_module, "finish_attempts", refuse_to_ask_first)
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
    assert list_attempts([answer]) == await list_live(dispatch.spine)
    assert await dispatch.spine.slice_state(grant) == "succeeded"


async def test_the_result_of_a_lease_that_the_hub_does_not_know_is_judged_by_asking_first(dispatch, monkeypatch):
    """The control of the one before: what is patched there is what this takes."""
    node = await dispatch.spine.enrol()
    grant = await hold_one(dispatch, node, slice_count=2)
    forget(dispatch, grant)
    claim = await dispatch.claim(node, "cpu:0")
    with monkeypatch.context() as patched:
        patched.setattr(rounds_module, "finish_attempts", refuse_to_ask_first)
        with pytest.raises(AssertionError):
            await dispatch.complete(node, grant, claim)
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
    assert list_attempts([answer]) == await list_live(dispatch.spine)


async def test_a_result_that_is_not_as_the_hub_believes_is_judged_by_asking_first(dispatch):
    node = await dispatch.spine.enrol()
    grant = await hold_one(dispatch, node)
    await dispatch.spine.fetch("UPDATE attempts SET saved_seconds = 1, saved_at = now()")
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
    assert answer is None
    assert await dispatch.spine.slice_state(grant) == "succeeded"


async def complete_two_ways(dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> list[AttemptId]:
    """An exchange is being written while a result comes that takes the other way; enough slices wait."""
    node, other, submitter = (
        await dispatch.spine.enrol(),
        await dispatch.spine.enrol(),
        await dispatch.spine.sign_up(),
    )
    known, unknown = await hold_one(dispatch, node, by=submitter), await hold_one(dispatch, other, by=submitter)
    forget(dispatch, unknown)
    await dispatch.submit(4, by=submitter)
    gate = Gate(monkeypatch, exchange_store, "exchange")
    first = asyncio.create_task(dispatch.complete(node, known, await dispatch.claim(node, "cpu:0")))
    await gate.reached()
    second = await dispatch.complete(other, unknown, await dispatch.claim(other, "cpu:0"))
    gate.opened.set()
    return list_attempts([await first, second])


def remember_nothing(dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.rounds._backlog.fronts, "recall", lambda run, count: None)


@pytest.mark.parametrize("looks", [False, True])
async def test_what_an_exchange_is_about_to_lease_is_not_planned_for_by_the_other_way(dispatch, monkeypatch, looks):
    """Neither by what is remembered nor by what is found still queued."""
    if looks:
        remember_nothing(dispatch, monkeypatch)
    given = await complete_two_ways(dispatch, monkeypatch)
    assert len(given) == 2
    assert sorted(given) == sorted(await list_live(dispatch.spine))


async def test_control_a_hub_that_looks_and_forgets_what_it_is_about_to_lease_plans_for_it_twice(
    dispatch, monkeypatch
):
    remember_nothing(dispatch, monkeypatch)
    monkeypatch.setattr(dispatch.spine.leases, "_writing", Forgetful())
    assert len(await complete_two_ways(dispatch, monkeypatch)) == 1


async def test_control_a_hub_that_remembers_what_it_is_about_to_lease_as_queued_plans_for_it_twice(
    dispatch, monkeypatch
):
    monkeypatch.setattr(dispatch.rounds._backlog.fronts, "remove", lambda *_: None)
    assert len(await complete_two_ways(dispatch, monkeypatch)) == 1


class Forgetful(dict[object, object]):
    def update(self, *_: object, **__: object) -> None:
        """It keeps nothing."""


# What a hub remembers of the queue


async def refuse_to_look(*_: object, **__: object) -> object:
    raise AssertionError("this hub knows what is queued")


async def serve(dispatch: Dispatch, node: EnrolledNode, grant: Grant, count: int) -> list[tuple[JobId, int]]:
    """The slices that a node is given one after the other, each with the result of the one before."""
    given = []
    for _ in range(count):
        answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
        assert answer is not None
        [order] = [msgspec.json.decode(assignment.order) for assignment in answer.assignments]
        attempt_id, job_id, index = (UUID(order["attempt_id"]), UUID(order["job_id"]), order["slice_index"])
        [row] = await dispatch.spine.fetch("SELECT account_id FROM jobs WHERE id = $1", job_id)
        given.append((JobId(job_id), index))
        grant = Grant(
            AttemptId(attempt_id), row["account_id"], job_id, index, 1, node.id, "cpu:0", 1.0, None, LeaseTerms(0, 0)
        )
    return given


async def test_what_a_hub_has_queued_itself_it_gives_out_in_order_without_looking(dispatch, monkeypatch):
    node, submitter = await dispatch.spine.enrol(), await dispatch.spine.sign_up()
    grant = await hold_one(dispatch, node)
    jobs = [*await dispatch.submit(3, by=submitter), *await dispatch.submit(2, by=submitter, slice_count=2)]
    [urgent] = await dispatch.submit(by=submitter, priority=5)
    monkeypatch.setattr(slice_store, "take_heads", refuse_to_look)
    expected = [(job.id, index) for job in (urgent, *jobs) for index in range(job.slice_count)]
    assert await serve(dispatch, node, grant, len(expected)) == expected


async def test_of_a_large_job_the_rest_is_looked_for(dispatch, monkeypatch):
    monkeypatch.setattr(submission_service, "HEADS_TOLD_MAX", 3)
    node = await dispatch.spine.enrol()
    grant = await hold_one(dispatch, node)
    [job] = await dispatch.submit(slice_count=30)
    assert await serve(dispatch, node, grant, 30) == [(job.id, index) for index in range(30)]


async def test_of_large_jobs_that_come_at_once_the_more_urgent_goes_first(dispatch, monkeypatch):
    monkeypatch.setattr(submission_service, "HEADS_TOLD_MAX", 1)
    node, caller = await dispatch.spine.enrol(), await dispatch.spine.sign_up()
    grant = await hold_one(dispatch, node)
    specs = [{"priority": 0, "slice_count": 3}, {"priority": 5, "slice_count": 3}]
    usual, urgent = await dispatch.rounds.submit([dispatch.spine.submission(caller, **spec) for spec in specs])
    expected = [(job.id, index) for job in (urgent, usual) for index in range(3)]
    assert await serve(dispatch, node, grant, 6) == expected


async def test_a_slice_that_was_cancelled_elsewhere_is_not_leased_and_the_next_one_is(dispatch):
    node, submitter = await dispatch.spine.enrol(), await dispatch.spine.sign_up()
    grant = await hold_one(dispatch, node)
    gone, stays = await dispatch.submit(2, by=submitter)
    await job_service.cancel_job(dispatch.spine.pool, submitter, gone.id)
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))
    assert answer is None, "the lease was refused, and the node is answered at once"
    waiting = await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()]) == await list_live(dispatch.spine)
    assert [await dispatch.spine.slice_state(job) for job in (gone, stays)] == ["cancelled", "leased"]


async def test_control_without_the_guard_only_the_tables_own_rule_stops_it_and_all_that_came_with_it(
    dispatch, monkeypatch
):
    node, submitter = await dispatch.spine.enrol(), await dispatch.spine.sign_up()
    grant = await hold_one(dispatch, node)
    gone, _ = await dispatch.submit(2, by=submitter)
    await job_service.cancel_job(dispatch.spine.pool, submitter, gone.id)
    guard, text = "WHERE s.state::text = 'queued'", (SQL_DIR / "exchanges.sql").read_text()
    assert text.count(guard) == 1
    planted = aiosql.from_str(text.replace(guard, ""), cast(Any, _Adapter), mandatory_parameters=False)
    monkeypatch.setattr(exchange_store, "_q", planted)
    with pytest.raises(asyncpg.CheckViolationError):
        await dispatch.complete(node, grant, await dispatch.claim(node, "cpu:0"))


async def test_what_is_put_back_into_the_queue_is_found_beside_what_is_remembered(dispatch):
    node, other, submitter = (
        await dispatch.spine.enrol(),
        await dispatch.spine.enrol(),
        await dispatch.spine.sign_up(),
    )
    held = await hold_one(dispatch, other)
    failed = await hold_one(dispatch, node, by=submitter, retries=3)
    jobs = await dispatch.submit(2, by=submitter)
    await dispatch.spine.finish((node, dispatch.spine.completion(node, failed, exit_code=1, cause=Cause.EXIT_CODE)))
    dispatch.rounds.hear_of_queue()
    await dispatch.rounds.run_once()
    expected = [*[job.id for job in jobs], failed.job_id]
    assert [job_id for job_id, _ in await serve(dispatch, other, held, 3)] == expected


# Rounds that go along with results


async def test_a_round_is_left_to_results_that_wait_and_made_up_for_if_they_do_not_take_it(dispatch):
    node = await dispatch.spine.enrol()
    [job] = await dispatch.submit()
    dispatch.rounds.count_completions = lambda: 1
    waiting = await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    assert await dispatch.spine.slice_state(job) == "queued", "it goes along with what is written next"
    dispatch.rounds.count_completions = lambda: 0
    running = asyncio.create_task(dispatch.rounds.run())
    try:
        assert list_attempts([await waiting.hear()]) == await list_live(dispatch.spine)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_control_a_round_that_is_left_and_not_made_up_for_is_lost(dispatch, monkeypatch):
    monkeypatch.setattr(rounds_module, "LEFT_TO_COMPLETIONS_SECONDS", 3600.0)
    node = await dispatch.spine.enrol()
    [job] = await dispatch.submit()
    dispatch.rounds.count_completions = lambda: 1
    await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    dispatch.rounds._wake.clear()
    dispatch.rounds.count_completions = lambda: 0
    running = asyncio.create_task(dispatch.rounds.run())
    await asyncio.sleep(0.3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await dispatch.spine.slice_state(job) == "queued"
