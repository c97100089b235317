"""One job's money on a real database, from the hold to the refund: who pays what, when, and never twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.accounts import owner_pending, submitter_available, submitter_held
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.ledger.transfer import Posting
from computepool.core.market.rate_card import Bucket
from computepool.core.payments.errors import AccountFrozen
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import billing, freezes
from computepool.hub.services import jobs as job_service
from computepool.hub.services.attempts import Beat
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.hub.store.ledger import Drift
from computepool.wire.attempts import Usage
from computepool.wire.jobs import Requirements
from tests.support.spine import EnrolledNode, Spine, open_spine

CREDIT = 1_000_000
# Whole numbers per second, so that sums can be followed by eye: 3,600 credits an hour are one credit a second.
HOUR = 3_600 * CREDIT
CEILING = Requirements(ceiling_microcredits_per_hour=HOUR)
FAILED = {"exit_code": 1, "cause": Cause.EXIT_CODE}


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        # Slots cost what the submitter offers, at most.
        spine.leases.prices.spots = {Bucket("cpu", region): 10 * HOUR for region in ("default", "in")}
        yield spine


@dataclass
class Books:
    """What people have, in credits."""

    spine: Spine

    async def of(self, account_id: AccountId) -> tuple[float, float, float]:
        """Available, held, and earned but held back."""
        accounts = [submitter_available(account_id), submitter_held(account_id), owner_pending(account_id)]
        async with self.spine.pool.acquire() as conn:
            found = await ledger.get_balances(conn, accounts)
        return tuple(found[account] / CREDIT for account in accounts)

    async def fee(self) -> float:
        return await self.spine.fetch_value("SELECT sum(balance) FROM ledger_accounts WHERE kind = 'fee'") / CREDIT

    async def drifts(self) -> list[Drift]:
        async with self.spine.pool.acquire() as conn:
            return await ledger.list_drifts(conn)


@pytest.fixture
async def books(spine: Spine) -> AsyncIterator[Books]:
    books = Books(spine)
    yield books
    assert await books.drifts() == []
    uncovered = "finished_at IS NULL AND held_remaining < reserve_microcredits * " + (
        "(slice_count - succeeded_count - failed_count - cancelled_count)"
    )
    assert await spine.fetch(f"SELECT id FROM jobs WHERE {uncovered}") == []
    assert await spine.fetch("SELECT id FROM jobs WHERE finished_at IS NOT NULL AND held_remaining > 0") == []


async def start(
    spine: Spine, *, credits: int = 1_000, wall_seconds: int = 100, ran_seconds: float = 50.0, **spec: Any
) -> tuple[Any, EnrolledNode, Job, Grant]:
    """A submitter, an owner's node, a job on it that has held its slot for so long."""
    submitter, node = await spine.sign_up(credits=credits), await spine.enrol()
    job = await spine.submit(by=submitter, requirements=CEILING, wall_seconds=wall_seconds, **spec)
    grant = await spine.grant_one(node)
    await turn_back(spine, grant, ran_seconds)
    return submitter, node, job, grant


async def turn_back(spine: Spine, grant: Grant, seconds: float) -> None:
    """As if the lease had been given so much earlier."""
    await spine.fetch(
        "UPDATE attempts SET leased_at = leased_at - $2 * interval '1 second' WHERE id = $1", grant.id, seconds
    )


def ran(seconds: float) -> dict[str, Any]:
    return {"usage": Usage(run_seconds=seconds, cpu_seconds=seconds, memory_bytes_peak=1)}


# Submit


async def test_a_job_holds_the_most_that_it_can_cost(spine, books):
    submitter = await spine.sign_up(credits=1_000)
    job = await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100, slice_count=3)
    assert await books.of(submitter.account_id) == (700, 300, 0)
    assert job.held_remaining == 300 * CREDIT


async def test_a_job_that_the_account_cannot_pay_is_refused_with_the_figures_and_leaves_nothing_behind(spine, books):
    submitter = await spine.sign_up(credits=299)
    with pytest.raises(InsufficientCredits, match=r"up to 300 credits.*You have 299.*Top up"):
        await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100, slice_count=3)
    assert await books.of(submitter.account_id) == (299, 0, 0)
    assert await spine.fetch_value("SELECT count(*) FROM jobs") == 0


async def test_in_a_batch_only_those_that_are_not_covered_are_refused(spine, books):
    poor, rich = await spine.sign_up(credits=150), await spine.sign_up(credits=1_000)
    batch = [
        spine.submission(account, requirements=CEILING, wall_seconds=100) for account in (poor, rich, poor, rich)
    ]
    answers = (await spine.submit_all(*batch)).answers
    assert [type(answer) for answer in answers] == [Job, Job, InsufficientCredits, Job]
    assert await books.of(poor.account_id) == (50, 100, 0)
    assert await books.of(rich.account_id) == (800, 200, 0)


async def test_what_another_hub_has_spent_in_the_meantime_refuses_one_job_of_the_batch_and_gives_its_slot_back(
    spine, books
):
    """Its memory says that there is enough; the books know better, and have the last word."""
    poor, rich = await spine.sign_up(credits=150), await spine.sign_up(credits=1_000)
    await spine.submit(by=poor, requirements=Requirements(ceiling_microcredits_per_hour=1), wall_seconds=60)
    await spine.open_second_hub().submit(by=poor, requirements=CEILING, wall_seconds=100)
    node = await spine.enrol(cpu_slots=2)
    spine.bench.put(await spine.list_candidates(node))
    batch = [spine.submission(account, requirements=CEILING, wall_seconds=100) for account in (poor, rich)]
    submitted = await spine.submit_all(*batch)
    assert [type(answer) for answer in submitted.answers] == [InsufficientCredits, Job]
    assert len(submitted.grants) == len(spine.bench.given_back) == 1
    assert await books.of(poor.account_id) == (50, 100, 0)
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 1


async def test_a_frozen_account_cannot_submit(spine, books):
    submitter = await spine.sign_up(credits=1_000)
    async with spine.pool.acquire() as conn, conn.transaction():
        await freezes.freeze(conn, submitter.account_id, why="charged back", top_up_id=entropy.new_id())
    with pytest.raises(AccountFrozen):
        await spine.submit(by=submitter, requirements=CEILING)


async def test_an_account_that_is_frozen_after_it_has_submitted_is_refused_once_its_hub_has_heard(spine, books):
    submitter = await spine.sign_up(credits=1_000)
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    async with spine.pool.acquire() as conn, conn.transaction():
        await freezes.freeze(conn, submitter.account_id, why="charged back", top_up_id=entropy.new_id())
    [change] = await spine.fetch("SELECT subject_id FROM hub_changes WHERE kind = 'account'")
    spine.submissions.allowances.forget(change["subject_id"])
    with pytest.raises(AccountFrozen):
        await spine.submit(by=submitter, requirements=CEILING)


async def test_a_repeated_submit_holds_once(spine, books):
    submitter = await spine.sign_up(credits=1_000)
    for _ in range(2):
        await spine.submit(by=submitter, key="one", requirements=CEILING, wall_seconds=100)
    assert await books.of(submitter.account_id) == (900, 100, 0)


async def test_a_job_without_a_ceiling_gets_one_from_the_rate_card(spine, books):
    submitter = await spine.sign_up(credits=1_000)
    job = await spine.submit(by=submitter, wall_seconds=3_600)
    # One and a half times 12 credits an hour x 0.8, brought down to a step of ceilings.
    assert 0.95 * 14_400_000 <= job.reserve_microcredits <= 14_400_000


# The price


@pytest.mark.parametrize(
    ("floor", "spot", "rate"),
    [(0, HOUR // 2, HOUR // 2), (HOUR // 4, HOUR // 8, HOUR // 4), (0, 10 * HOUR, HOUR)],
    ids=["spot", "floor above spot", "spot above ceiling"],
)
async def test_the_price_of_a_match_is_frozen_with_the_lease(spine, books, floor, spot, rate):
    spine.leases.prices.spots = {Bucket("cpu", region): spot for region in ("default", "in")}
    node = await spine.enrol()
    await spine.fetch("UPDATE nodes SET floor_microcredits_per_hour = $2 WHERE id = $1", node.id, floor)
    await spine.submit(requirements=CEILING, wall_seconds=100)
    grant = await spine.grant_one(node)
    spine.leases.prices.spots = {}
    row = await spine.attempt(grant)
    assert row["rate_microcredits_per_hour"] == rate
    assert row["rate_card_version"] == spine.leases.prices.card.version
    assert (row["fee_ppm"], row["holdback_seconds"]) == (200_000, 72 * 3_600)


# The end


async def test_a_result_pays_owner_and_fee_and_returns_the_rest(spine, books):
    submitter, node, _, grant = await start(spine)
    await spine.succeed(node, grant, **ran(40.0))
    assert await books.of(submitter.account_id) == (960, 0, 0)
    assert await books.of(node.caller.account_id) == (10_000_000, 0, 32)
    assert await books.fee() == 8
    row = await spine.attempt(grant)
    assert (row["charged_microcredits"], row["fee_microcredits"], row["earning_state"]) == (
        40 * CREDIT,
        8 * CREDIT,
        "pending",
    )
    assert (row["release_at"] - row["finished_at"]).total_seconds() == pytest.approx(72 * 3_600, abs=1)


async def test_a_result_that_is_reported_twice_is_paid_once(spine, books):
    submitter, node, _, grant = await start(spine)
    request = spine.completion(node, grant, **ran(40.0))
    await spine.finish((node, request), (node, request))
    await spine.finish((node, request))
    assert await books.of(submitter.account_id) == (960, 0, 0)


async def test_a_node_cannot_claim_more_time_than_it_had_nor_more_than_the_limit(spine, books):
    submitter, node, _, grant = await start(spine, ran_seconds=20)
    await spine.succeed(node, grant, **ran(1e9))
    available, *_ = await books.of(submitter.account_id)
    assert 978 <= available <= 980


async def test_slices_of_one_job_are_paid_one_by_one_and_the_rest_returns_at_its_end(spine, books):
    submitter, node, job, grant = await start(spine, slice_count=2)
    await spine.succeed(node, grant, **ran(10.0))
    assert await books.of(submitter.account_id) == (800, 190, 0)
    second = await spine.grant_one(node)
    await turn_back(spine, second, 50)
    await spine.succeed(node, second, **ran(20.0))
    assert await books.of(submitter.account_id) == (970, 0, 0)
    assert await spine.fetch_value("SELECT charged_microcredits FROM jobs WHERE id = $1", job.id) == 30 * CREDIT


async def test_the_submitters_own_failure_is_paid_and_another_try_is_covered_anew(spine, books):
    submitter, node, job, grant = await start(spine, retries=3)
    await spine.succeed(node, grant, **FAILED, **ran(30.0))
    assert await books.of(submitter.account_id) == (870, 100, 0)
    assert await books.of(node.caller.account_id) == (10_000_000, 0, 24)
    assert await spine.slice_state(job) == "queued"


async def test_with_nothing_left_for_another_try_the_slice_ends_with_what_went_wrong(spine, books):
    submitter, node, job, grant = await start(spine, credits=120, retries=3)
    await spine.succeed(node, grant, **FAILED, **ran(30.0))
    assert await books.of(submitter.account_id) == (90, 0, 0)
    assert await spine.slice_state(job) == "failed"


async def test_what_other_slices_have_saved_pays_for_another_try(spine, books):
    submitter, node, _, grant = await start(spine, credits=200, retries=3, slice_count=2)
    await spine.succeed(node, grant, **ran(10.0))
    second = await spine.grant_one(node)
    await turn_back(spine, second, 50)
    await spine.succeed(node, second, **FAILED, **ran(40.0))
    assert await spine.slice_state(second, second.slice_index) == "queued"
    assert await books.of(submitter.account_id) == (0, 150, 0)


async def test_a_nodes_fault_costs_nothing(spine, books):
    submitter, node, _, grant = await start(spine)
    await spine.succeed(node, grant, exit_code=None, cause=Cause.GPU_LOST, **ran(30.0))
    assert await books.of(submitter.account_id) == (900, 100, 0)
    assert await books.of(node.caller.account_id) == (10_000_000, 0, 0)


async def test_a_silent_node_is_paid_nothing_unless_it_delivers_after_all(spine, books):
    submitter, node, _, grant = await start(spine)
    await spine.let_lease_pass(grant)
    await attempt_service.reap_leases(spine.pool, grace_seconds=5, limit=10)
    assert await books.of(submitter.account_id) == (900, 100, 0)
    other = await spine.enrol()
    await spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    rival = await spine.grant_one(other)
    await spine.succeed(node, grant, **ran(20.0))
    assert await books.of(submitter.account_id) == (980, 0, 0)
    assert await books.of(other.caller.account_id) == (10_000_000, 0, 0)
    assert (await spine.attempt(rival))["charged_microcredits"] is None


@pytest.mark.parametrize(("running", "cost"), [(True, 50), (False, 0)], ids=["running", "not yet begun"])
async def test_who_cancels_pays_for_what_has_run(spine, books, running, cost):
    submitter, node, job, grant = await start(spine, ran_seconds=49.5)
    if running:
        beat = Beat(node.id, frozenset({grant.id}))
        await attempt_service.record_beats(spine.pool, [beat], lease_seconds=60)
    await job_service.cancel_job(spine.pool, submitter, job.id)
    available, held, _ = await books.of(submitter.account_id)
    assert held == 0
    assert available == pytest.approx(1_000 - cost, abs=2)


async def test_ones_own_job_on_ones_own_node_is_free(spine, books):
    owner = await spine.sign_up(credits=1_000)
    node = await spine.enrol(owner=owner)
    await spine.submit(by=owner, requirements=CEILING, wall_seconds=100)
    grant = await spine.grant_one(node)
    await turn_back(spine, grant, 50)
    await spine.succeed(node, grant, **ran(40.0))
    assert await books.of(owner.account_id) == (1_000, 0, 0)
    assert (await spine.attempt(grant))["earning_state"] is None


# Controls


async def test_control_a_hub_that_forgets_to_post_is_found_by_the_books(spine, monkeypatch):
    async def forget(conn: object, postings: object, **options: object) -> None:
        return

    monkeypatch.setattr(billing, "post", forget)
    _, node, _, grant = await start(spine)
    await spine.succeed(node, grant, **ran(40.0))
    assert await Books(spine).drifts() != []


async def test_control_a_hub_that_posts_a_result_twice_is_refused_by_the_books(spine, monkeypatch):
    posted = []
    really = billing.post

    async def twice(conn: Any, postings: list[Posting], **options: Any) -> None:
        await really(conn, postings, **options)
        posted.extend(await ledger.post(conn, postings, writes_jobs=False))

    monkeypatch.setattr(billing, "post", twice)
    submitter, node, _, grant = await start(spine)
    await spine.succeed(node, grant, **ran(40.0))
    assert await Books(spine).of(submitter.account_id) == (960, 0, 0)
    assert {outcome.value for outcome in posted} == {"replayed"}
