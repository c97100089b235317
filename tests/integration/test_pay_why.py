"""Why was I paid this: the shipped query, over real attempts and a real ledger, finds what was planted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, timedelta
from typing import Any

import pytest

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.charging import PriceMode
from computepool.core.ledger.dispute import DisputeState
from computepool.core.ledger.explain import DIFFERS, Explained, PayMark, UnpaidReason
from computepool.hub.http.pay import to_paid_attempt
from computepool.hub.services import disputes, pay
from computepool.hub.services import jobs as job_service
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.make_good import make_good
from computepool.hub.services.releases import release_due
from computepool.wire.jobs import JobPrice
from tests.support.paid_jobs import CREDIT, FAILED, acknowledge, forge, lease, open_paid_spine, ran, run_one, submit
from tests.support.spine import EnrolledNode, Spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn) as spine:
        yield spine


@pytest.fixture
async def submitter(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=100_000)


@pytest.fixture
async def owner(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=0)


@pytest.fixture
async def node(spine: Spine, owner: AccountCaller) -> EnrolledNode:
    return await spine.enrol(owner=owner)


def last_days() -> list[date]:
    today = clock.now().date()
    return [today - timedelta(days=1), today]


async def ask(spine: Spine, caller: AccountCaller, node: EnrolledNode, **options: Any) -> dict[Any, Explained]:
    """By attempt, of one day or of the last two: a test may run at midnight."""
    days = [options.pop("day")] if "day" in options else last_days()
    found = {}
    for day in days:
        story = await pay.explain_day(
            spine.pool, caller, node.id, **{"day": day, "cursor": None, "limit": 500, **options}
        )
        for attempt, explained in story.attempts:
            # The wire takes whatever the story is.
            to_paid_attempt(attempt, explained)
            found[attempt.id] = explained
    return found


async def list_different(spine: Spine, caller: AccountCaller, node: EnrolledNode) -> list[tuple[Any, PayMark]]:
    return [(id, found.mark) for id, found in (await ask(spine, caller, node)).items() if found.mark in DIFFERS]


# What is as it should be


async def test_fixed_prices_are_explained_and_one_charged_by_the_second_is_found(spine, submitter, owner, node):
    price = JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=12_500_000)
    for slices in (2, 1):
        await spine.submit(by=submitter, price=price, wall_seconds=100, slice_count=slices, retries=0)
    paid, failed = await run_one(spine, node, 12.3), await run_one(spine, node, 30.0, **FAILED)
    wrong = await run_one(spine, node, 20.0)
    await spine.fetch(
        "UPDATE attempts SET charged_microcredits = 2000000, fee_microcredits = 400000 WHERE id = $1", wrong.id
    )
    found = await ask(spine, owner, node)
    assert found[paid.id].words == "8 credits, the owner's part of the fixed price of 10 credits, as agreed."
    assert (found[failed.id].due_microcredits, found[failed.id].metered_seconds) == (3 * CREDIT, 30)
    assert "30/100 of the fixed price of 10 credits" in found[failed.id].words
    assert found[wrong.id].mark is PayMark.UNDERPAID
    assert (found[wrong.id].due_microcredits, found[wrong.id].missing_microcredits) == (10 * CREDIT, 6_400_000)


async def test_a_day_of_every_kind_of_end_is_explained_without_a_difference(spine, submitter, owner, node):
    await submit(spine, submitter, slice_count=20)
    paid = await run_one(spine, node, 12.3)
    failed = await run_one(spine, node, 7.0, **FAILED)
    lost_gpu = await run_one(spine, node, 7.0, exit_code=None, cause=Cause.GPU_LOST)
    silent = await lease(spine, node)
    await spine.let_lease_pass(silent)
    await reap_leases(spine.pool, grace_seconds=1.0, limit=10)
    running = await lease(spine, node)
    found = await ask(spine, owner, node)
    assert [found[grant.id].mark for grant in (paid, failed)] == [PayMark.PAID, PayMark.PAID]
    assert (found[paid.id].metered_seconds, found[paid.id].due_microcredits) == (13, 13 * CREDIT)
    assert found[paid.id].moved_microcredits == 13 * CREDIT * 4 // 5
    assert [found[grant.id].reason for grant in (lost_gpu, silent)] == [UnpaidReason.NODE_FAULT] * 2
    assert found[running.id].mark is PayMark.RUNNING
    assert len(found) == 5


async def test_what_was_cancelled_is_paid_to_the_moment_if_it_ran(spine, submitter, owner, node):
    job = await submit(spine, submitter)
    ran_already = await lease(spine, node, held_seconds=20.0)
    await acknowledge(spine, node, ran_already)
    await job_service.cancel_job(spine.pool, submitter, job.id)
    job = await submit(spine, submitter)
    not_started = await lease(spine, node, held_seconds=20.0)
    await job_service.cancel_job(spine.pool, submitter, job.id)
    found = await ask(spine, owner, node)
    assert found[ran_already.id].mark is PayMark.PAID
    assert found[ran_already.id].metered_seconds in (20, 21, 22)
    assert found[not_started.id].reason is UnpaidReason.NOT_STARTED


async def test_one_of_two_who_worked_on_a_slice_is_superseded(spine, submitter, owner, node):
    await submit(spine, submitter)
    other = await spine.enrol()
    late = await lease(spine, other)
    await spine.let_lease_pass(late)
    await reap_leases(spine.pool, grace_seconds=1.0, limit=10)
    beaten = await lease(spine, node)
    await spine.succeed(other, late, **ran(9.0))
    found = (await ask(spine, owner, node))[beaten.id]
    assert found.reason is UnpaidReason.SUPERSEDED


async def test_time_that_was_made_good_is_told_and_a_piece_that_is_missing_of_it_is_found(
    spine, submitter, owner, node
):
    await submit(spine, submitter)
    other = await spine.enrol()
    late = await lease(spine, other)
    await spine.let_lease_pass(late)
    await reap_leases(spine.pool, grace_seconds=1.0, limit=10)
    beaten = await lease(spine, node)
    await acknowledge(spine, node, beaten)
    await spine.succeed(other, late, **ran(40.0))
    await spine.fetch("UPDATE attempts SET release_at = now() WHERE earning_state = 'pending'")
    await spine.fetch("UPDATE receipts SET state = 'verified'")
    await release_due(spine.pool, limit=10)
    await make_good(spine.pool, limit=10)
    found = (await ask(spine, owner, node))[beaten.id]
    assert (found.mark, found.missing_microcredits) == (PayMark.UNPAID, 0)
    assert found.words.endswith("8 credits for its time came out of our fee.")
    await forge(spine, "UPDATE ledger_transfers SET amount = amount - 1 WHERE kind = 'make_good'")
    found = (await ask(spine, owner, node))[beaten.id]
    assert (found.mark, found.missing_microcredits) == (PayMark.UNDERPAID, 1)


async def test_ones_own_jobs_are_free(spine, node):
    owner = AccountCaller(node.caller.account_id, None, frozenset(), 60_000)
    await spine.top_up(owner.account_id, 1_000 * CREDIT)
    await submit(spine, owner)
    grant = await run_one(spine, node, 10.0)
    assert (await ask(spine, owner, node))[grant.id].reason is UnpaidReason.OWN_JOB


async def test_a_settlement_for_several_attempts_at_once_is_told_apart(spine, submitter, owner):
    node = await spine.enrol(owner=owner, cpu_slots=4)
    await submit(spine, submitter, slice_count=4)
    grants = await spine.grant(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds'")
    reports = [spine.completion(node, grant, **ran(10.0 + n)) for n, grant in enumerate(grants)]
    await spine.finish(*((node, report) for report in reports))
    assert await spine.fetch_value("SELECT count(*) FROM ledger_transfers WHERE kind = 'settle'") == 2
    found = await ask(spine, owner, node)
    assert [found[grant.id].mark for grant in grants] == [PayMark.PAID] * 4
    assert [found[grant.id].moved_microcredits for grant in grants] == [(10 + n) * CREDIT * 4 // 5 for n in range(4)]


async def test_pay_in_dispute_and_pay_that_was_taken_back_are_marked_and_say_why(spine, submitter, owner, node):
    job = await submit(spine, submitter, slice_count=3)
    grants = [await run_one(spine, node, 10.0) for _ in range(3)]
    by_index = {grant.slice_index: grant for grant in grants}
    await disputes.open_dispute(
        spine.pool, submitter, job_id=job.id, slice_index=0, number=None, reason="every pixel is black"
    )
    await disputes.reverse_earning(spine.pool, submitter, by_index[1].id, reason="made up")
    story = [await pay.explain_day(spine.pool, owner, node.id, day=day, cursor=None, limit=9) for day in last_days()]
    found = {attempt.id: (attempt, explained) for each in story for attempt, explained in each.attempts}
    disputed, fraud, paid = [found[by_index[index].id] for index in range(3)]
    assert [each[1].mark for each in (disputed, fraud, paid)] == [PayMark.DISPUTED, PayMark.REVERSED, PayMark.PAID]
    assert "taken back later" in fraud[1].words
    assert [each[0].dispute and each[0].dispute.reason for each in (disputed, fraud, paid)] == [
        "every pixel is black",
        "made up",
        None,
    ]
    wire = to_paid_attempt(*disputed)
    assert (wire.dispute_state, wire.dispute_reason) == (DisputeState.OPEN, "every pixel is black")


# What was planted


PLANTED = [
    # Somebody was charged, and will be paid, too little.
    (
        "charged_microcredits = charged_microcredits - 5000000, fee_microcredits = fee_microcredits - 1000000",
        "underpaid",
    ),
    # A row that lost its charge altogether.
    ("charged_microcredits = NULL, fee_microcredits = NULL, earning_state = NULL, release_at = NULL", "underpaid"),
    ("fee_microcredits = fee_microcredits + 1", "underpaid"),
    ("rate_microcredits_per_hour = rate_microcredits_per_hour * 2", "underpaid"),
    ("rate_microcredits_per_hour = rate_microcredits_per_hour - 1000", "overpaid"),
    ("run_seconds = 3.0", "overpaid"),
    ("charged_microcredits = charged_microcredits + 1", "overpaid"),
    ("earning_state = 'reversed'", "overpaid"),
]


@pytest.mark.parametrize(("change", "mark"), PLANTED)
async def test_a_row_that_was_changed_is_found_among_honest_ones(spine, submitter, owner, node, change, mark):
    for _ in range(3):
        await submit(spine, submitter)
    grants = [await run_one(spine, node, 20.0) for _ in range(3)]
    assert await list_different(spine, owner, node) == []
    await spine.fetch(f"UPDATE attempts SET {change} WHERE id = $1", grants[1].id)
    assert await list_different(spine, owner, node) == [(grants[1].id, PayMark(mark))]


async def test_an_underpayment_that_row_and_ledger_agree_on_is_found_all_the_same(spine, submitter, owner, node):
    """As a bug in charging would leave it: everything adds up, and the owner has got too little."""
    await submit(spine, submitter)
    grant = await run_one(spine, node, 20.0)
    await spine.fetch(
        "UPDATE attempts SET charged_microcredits = 15000000, fee_microcredits = 3000000 WHERE id = $1", grant.id
    )
    await forge(spine, "UPDATE ledger_transfers SET amount = 12000000 WHERE kind = 'settle' AND amount = 16000000")
    found = (await ask(spine, owner, node))[grant.id]
    assert (found.mark, found.missing_microcredits) == (PayMark.UNDERPAID, 4 * CREDIT)
    assert found.differences == ("charged 15 credits, by the rules 20 credits",)


async def test_a_transfer_that_was_changed_behind_the_attempts_back_is_found(spine, submitter, owner, node):
    await submit(spine, submitter)
    grant = await run_one(spine, node, 20.0)
    await forge(spine, "UPDATE ledger_transfers SET amount = amount - 7 WHERE target_id LIKE 'owner_pending/%'")
    found = (await ask(spine, owner, node))[grant.id]
    assert (found.mark, found.missing_microcredits) == (PayMark.UNDERPAID, 7)
    assert "the ledger moved 15.999993 credits to the owner" in found.words


async def test_a_settlement_of_several_that_was_changed_marks_all_that_it_was_for(spine, submitter, owner):
    node = await spine.enrol(owner=owner, cpu_slots=2)
    await submit(spine, submitter, slice_count=2)
    grants = await spine.grant(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '50 seconds'")
    await spine.finish(*((node, spine.completion(node, grant, **ran(10.0))) for grant in grants))
    await forge(spine, "UPDATE ledger_transfers SET amount = amount - 1 WHERE target_id LIKE 'owner_pending/%'")
    found = await ask(spine, owner, node)
    assert [found[grant.id].mark for grant in grants] == [PayMark.UNDERPAID] * 2
    assert [found[grant.id].moved_microcredits for grant in grants] == [None, None]


# Days, pages, people


async def test_an_attempt_counts_on_the_day_it_ended(spine, submitter, owner, node):
    for _ in range(3):
        await submit(spine, submitter)
    grants = [await run_one(spine, node, 10.0) for _ in range(3)]
    day = date(2026, 3, 10)
    for grant, moment in zip(
        grants, ("2026-03-09 23:59:59.9", "2026-03-10 00:00:00", "2026-03-11 00:00:00"), strict=True
    ):
        await spine.fetch(
            f"UPDATE attempts SET finished_at = '{moment}+00', leased_at = '2026-03-09 23:59:09+00' WHERE id = $1",
            grant.id,
        )
    assert list(await ask(spine, owner, node, day=day)) == [grants[1].id]
    assert list(await ask(spine, owner, node, day=day - timedelta(days=1))) == [grants[0].id]


async def test_pages_come_in_order_and_miss_nothing(spine, submitter, owner, node):
    for _ in range(5):
        await submit(spine, submitter)
    grants = [await run_one(spine, node, 10.0) for _ in range(5)]
    # Two that ended at the same moment are told apart by their ids.
    day = date(2026, 3, 10)
    await spine.fetch("UPDATE attempts SET finished_at = '2026-03-10 12:00+00', leased_at = '2026-03-10 11:59+00'")
    seen, cursor = [], None
    while True:
        story = await pay.explain_day(spine.pool, owner, node.id, day=day, cursor=cursor, limit=2)
        seen += [attempt.id for attempt, _ in story.attempts]
        if story.cursor is None:
            break
        cursor = story.cursor
    assert seen == sorted(grant.id for grant in grants)


async def test_other_peoples_nodes_are_not_told_of_but_to_an_operator(spine, submitter, owner, node):
    await submit(spine, submitter)
    await run_one(spine, node, 10.0)
    with pytest.raises(NotFound):
        await ask(spine, submitter, node)
    operator = AccountCaller(submitter.account_id, submitter.key_id, frozenset(Role), 60_000)
    assert len(await ask(spine, operator, node)) == 1


@pytest.mark.parametrize("cursor", ["x", "~", "2026-01-01T00:00:00+00:00~no"])
async def test_a_cursor_that_is_none_is_refused(spine, owner, node, cursor):
    with pytest.raises(InvalidRequest):
        await ask(spine, owner, node, cursor=cursor)


async def test_a_days_attempts_are_found_by_an_index(spine, node):
    query = "EXPLAIN SELECT id FROM attempts WHERE node_id = $1 AND finished_at >= now() AND finished_at < now()"
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SET LOCAL enable_seqscan = off")
        plan = await conn.fetch(query, node.id)
    assert any("attempts_node_end_idx" in row[0] for row in plan)
