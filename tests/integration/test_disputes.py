"""Disputed pay: who may doubt it and when, what freezing it does, and what either decision moves."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidRequest, LimitExceeded, NotFound
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import dispute as rules
from computepool.core.ledger.accounts import owner_available, owner_pending, receivable, submitter_available
from computepool.core.ledger.dispute import DisputeOrigin, DisputeRefused, DisputeSide, DisputeState
from computepool.hub.http.disputes import _to_account_dispute, _to_own
from computepool.hub.services import audit, disputes, releases, statements
from computepool.hub.services.statements import Page
from computepool.hub.store import disputes as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.disputes import StoredDispute
from tests.support.earnings import RICH, Pay, earn, find_faults, get_balance, list_states, make_people
from tests.support.payment_lab import to_caller
from tests.support.rows import insert_account

S = DisputeState
FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)
LATER = {"due_seconds_ago": -3_600}
WHY = "every pixel of the picture is black"


@pytest.fixture
async def operator(pool: Pool) -> Any:
    async with pool.acquire() as conn:
        return to_caller(await insert_account(conn), frozenset(Role))


async def doubt(
    pool: Pool, submitter: AccountId, pay: Pay, *, index: int = 0, number: int | None = None, why: str = WHY
) -> StoredDispute:
    found = await disputes.open_dispute(
        pool, to_caller(submitter), job_id=pay.job_id, slice_index=index, number=number, reason=why
    )
    # The wire takes whatever it is.
    _to_own(found, DisputeSide.SUBMITTER)
    return found


async def decide(
    pool: Pool, operator: Any, id: Any, decision: DisputeState, note: str = "looked at it"
) -> StoredDispute:
    found = await disputes.decide_dispute(pool, operator, id, decision=decision, note=note)
    _to_account_dispute(found)
    return found


async def reverse(pool: Pool, operator: Any, pay: Pay, index: int = 0, reason: str = "made up") -> StoredDispute:
    return await disputes.reverse_earning(pool, operator, pay.attempt_ids[index], reason=reason)


async def list_events(pool: Pool, kind: str) -> set[tuple[Any, Any, str]]:
    async with pool.acquire() as conn:
        rows = await conn.fetch("SELECT account_id, job_id, body FROM events WHERE kind = $1", kind)
    return {(row["account_id"], row["job_id"], row["body"]["why"]) for row in rows}


async def count_transfers(pool: Pool, kind: str) -> int:
    async with pool.acquire() as conn:
        return await conn.fetchval("SELECT count(DISTINCT key) FROM ledger_transfers WHERE kind::text = $1", kind)


# Opening


async def test_a_submitter_freezes_pay_and_the_release_passes_it_by(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, 200)
    found = await doubt(pool, submitter, pay, index=1)
    assert (found.state, found.origin, found.reason) == (S.OPEN, DisputeOrigin.SUBMITTER, WHY)
    assert (found.attempt_id, found.slice_index, found.number) == (pay.attempt_ids[1], 1, 1)
    assert (found.charged_microcredits, found.earned_microcredits) == (200, 160)
    assert await list_states(pool, pay) == ["pending", "disputed"]
    assert (await releases.release_due(pool, limit=10)).microcredits == 80
    assert await list_states(pool, pay) == ["released", "disputed"]
    assert await get_balance(pool, owner_pending(owner)) == 160
    assert await list_events(pool, "dispute_opened") == {(submitter, pay.job_id, WHY), (owner, None, WHY)}
    async with pool.acquire() as conn:
        assert await store.sum_frozen(conn, owner) == 160
        assert await store.sum_frozen(conn, submitter) == 0
    assert await find_faults(pool) == []


async def test_asking_twice_gives_the_same_dispute_again(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, **LATER)
    first = await doubt(pool, submitter, pay)
    assert await doubt(pool, submitter, pay, why="and the other one too") == first
    assert len(await list_events(pool, "dispute_opened")) == 2


async def add_attempt(pool: Pool, pay: Pay, *, number: int, charged: int | None) -> AttemptId:
    """Another attempt of the first slice, as if it had been tried before or again."""
    id = AttemptId(entropy.new_id())
    async with pool.acquire() as conn:
        await conn.execute(
            """INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, expires_at, finished_at,
                                     cause, charged_microcredits, fee_microcredits, earning_state, release_at)
               SELECT $1, job_id, 0, $2, node_id, slot, 'failed', now(), now(), 'exit_code', $3::bigint, 0,
                      CASE WHEN $3::bigint > 0 THEN 'pending'::earning_state END,
                      CASE WHEN $3::bigint > 0 THEN release_at END
                 FROM attempts WHERE id = $4""",
            id,
            number,
            charged,
            pay.attempt_ids[0],
        )
    return id


async def test_the_newest_attempt_that_was_paid_is_meant_unless_another_is_named(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, **LATER)
    paid = await add_attempt(pool, pay, number=2, charged=50)
    await add_attempt(pool, pay, number=3, charged=None)
    assert (await doubt(pool, submitter, pay)).attempt_id == paid
    assert (await doubt(pool, submitter, pay, number=1)).attempt_id == pay.attempt_ids[0]
    with pytest.raises(DisputeRefused) as refusal:
        await doubt(pool, submitter, pay, number=3)
    assert refusal.value.details["reason"] == "unpaid"


async def test_only_the_jobs_own_submitter_may_doubt(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, **LATER)
    for stranger in (owner, operator.account_id):
        with pytest.raises(NotFound):
            await doubt(pool, stranger, pay)
    with pytest.raises(NotFound):
        await doubt(pool, submitter, pay, index=7)
    with pytest.raises(NotFound):
        await doubt(pool, submitter, Pay(JobId(entropy.new_id()), []))
    assert await list_states(pool, pay) == ["pending"]


@pytest.mark.parametrize("why", ["", "x" * 301, "two\nlines", "nul\0", "\x1b[2J"])
async def test_a_reason_that_nobody_can_read_is_refused(pool, why):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, **LATER)
    with pytest.raises(InvalidRequest, match="1 to 300 printable"):
        await doubt(pool, submitter, pay, why=why)


async def test_it_is_too_late_when_the_pay_is_released_and_the_words_say_who_can_help(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100)
    await releases.release_due(pool, limit=10)
    with pytest.raises(DisputeRefused, match=r"too late.*Tell the operator") as refusal:
        await doubt(pool, submitter, pay)
    assert refusal.value.details["reason"] == "released"
    assert await list_states(pool, pay) == ["released"]


async def test_what_was_decided_is_not_doubted_again(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, 100, **LATER)
    for index, (decision, reason) in enumerate([(S.DISMISSED, "decided"), (S.UPHELD, "reversed")]):
        await decide(pool, operator, (await doubt(pool, submitter, pay, index=index)).id, decision)
        with pytest.raises(DisputeRefused) as refusal:
            await doubt(pool, submitter, pay, index=index)
        assert refusal.value.details["reason"] == reason


async def test_pay_that_is_frozen_already_needs_no_second_dispute(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, receipt="refused")
    await releases.release_due(pool, limit=10)
    with pytest.raises(DisputeRefused) as refusal:
        await doubt(pool, submitter, pay)
    assert refusal.value.details["reason"] == "frozen"


async def test_an_account_has_so_many_open_and_no_more(pool, operator):
    submitter, [owner, other] = await make_people(pool, 2)
    with patch.object(rules, "OPEN_MAX", 2):
        pay = await earn(pool, owner, submitter, 100, 100, 100, **LATER)
        # What the hub has frozen does not count.
        await earn(pool, other, submitter, 100, receipt="refused")
        await releases.release_due(pool, limit=10)
        first = await doubt(pool, submitter, pay, index=0)
        await doubt(pool, submitter, pay, index=1)
        with pytest.raises(LimitExceeded, match="2 disputes"):
            await doubt(pool, submitter, pay, index=2)
        await decide(pool, operator, first.id, S.DISMISSED)
        await doubt(pool, submitter, pay, index=2)
    assert await list_states(pool, pay) == ["pending", "disputed", "disputed"]


# Deciding


async def test_upheld_everything_goes_back_the_fee_too(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, 500, **LATER)
    opened = await doubt(pool, submitter, pay)
    found = await decide(pool, operator, opened.id, S.UPHELD, "I looked at the picture: it is black")
    assert (found.state, found.decided_by) == (S.UPHELD, operator.account_id)
    assert await list_states(pool, pay) == ["reversed", "pending"]
    assert await get_balance(pool, submitter_available(submitter)) == RICH - 500
    assert await get_balance(pool, owner_pending(owner)) == 400
    assert await get_balance(pool, receivable(owner)) == 0
    words = "I looked at the picture: it is black"
    assert await list_events(pool, "dispute_upheld") == {(submitter, pay.job_id, words), (owner, None, words)}
    assert await find_faults(pool) == []


async def test_dismissed_the_release_goes_on(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000)
    opened = await doubt(pool, submitter, pay)
    found = await decide(pool, operator, opened.id, S.DISMISSED)
    assert found.state is S.DISMISSED
    assert await list_states(pool, pay) == ["pending"]
    assert (await releases.release_due(pool, limit=10)).microcredits == 800
    assert await get_balance(pool, owner_available(owner)) == 800
    assert await find_faults(pool) == []


async def test_a_receipt_that_does_not_hold_is_overruled_by_the_operator(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, receipt="refused")
    await releases.release_due(pool, limit=10)
    [found] = await disputes.list_disputes_in_state(pool, state=S.OPEN, after=FIRST, limit=10)
    assert (found.origin, found.opened_by) == (DisputeOrigin.RECEIPT, None)
    await decide(pool, operator, found.id, S.DISMISSED, "the node's clock was wrong")
    assert (await releases.release_due(pool, limit=10)).microcredits == 800
    assert await list_states(pool, pay) == ["released"]


async def test_a_submitters_dispute_that_was_dismissed_overrules_no_receipt(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, receipt="refused")
    await decide(pool, operator, (await doubt(pool, submitter, pay)).id, S.DISMISSED)
    assert (await releases.release_due(pool, limit=10)).microcredits == 0
    assert await list_states(pool, pay) == ["disputed"]


async def test_a_decision_stands_and_the_same_again_is_no_mistake(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, 100, **LATER)
    for index, (decision, other) in enumerate([(S.UPHELD, S.DISMISSED), (S.DISMISSED, S.UPHELD)]):
        opened = await doubt(pool, submitter, pay, index=index)
        first = await decide(pool, operator, opened.id, decision, "once")
        assert await decide(pool, operator, opened.id, decision, "again") == first
        with pytest.raises(DisputeRefused, match="that stands"):
            await decide(pool, operator, opened.id, other)
    assert await list_states(pool, pay) == ["reversed", "pending"]
    assert await count_transfers(pool, "reverse") == 1
    assert await find_faults(pool) == []


async def test_what_the_ledger_does_not_hold_cannot_be_taken_back_and_nothing_is_changed(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, settled=False)
    await releases.release_due(pool, limit=10)
    [found] = await disputes.list_disputes_in_state(pool, state=S.OPEN, after=FIRST, limit=10)
    assert found.origin is DisputeOrigin.BOOKS
    # What the books say of accounts is for the operator's log: both sides read this.
    assert str(owner) not in found.reason
    with pytest.raises(DisputeRefused, match="Nothing was changed") as refusal:
        await decide(pool, operator, found.id, S.UPHELD)
    assert refusal.value.details["reason"] == "books"
    assert await list_states(pool, pay) == ["disputed"]
    assert (await disputes.get_dispute(pool, to_caller(owner), found.id))[0].state is S.OPEN


async def test_a_dispute_that_is_none_is_not_decided(pool, operator):
    with pytest.raises(NotFound):
        await decide(pool, operator, entropy.new_id(), S.UPHELD)
    with pytest.raises(InvalidRequest):
        await decide(pool, operator, entropy.new_id(), S.UPHELD, note="")


# Taking back at once


@pytest.mark.parametrize("is_released", [False, True])
async def test_the_operator_takes_pay_back_wherever_it_is_and_the_reason_is_kept(pool, operator, is_released):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, 500, due_seconds_ago=60 if is_released else -60)
    await releases.release_due(pool, limit=10)
    found = await reverse(pool, operator, pay, reason="the same result for a thousand inputs")
    assert (found.state, found.origin, found.opened_by) == (S.UPHELD, DisputeOrigin.OPERATOR, operator.account_id)
    assert found.reason == "the same result for a thousand inputs"
    assert await list_states(pool, pay) == ["reversed", "released" if is_released else "pending"]
    assert await get_balance(pool, submitter_available(submitter)) == RICH - 500
    kept = owner_available(owner) if is_released else owner_pending(owner)
    assert await get_balance(pool, kept) == 400
    assert await find_faults(pool) == []


async def test_what_is_taken_back_once_is_not_taken_back_again(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000)
    first = await reverse(pool, operator, pay)
    assert await reverse(pool, operator, pay, reason="and again") == first
    assert await get_balance(pool, submitter_available(submitter)) == RICH
    assert await count_transfers(pool, "reverse") == 1
    assert await find_faults(pool) == []


async def test_a_reversal_upholds_the_dispute_that_is_open(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, **LATER)
    opened = await doubt(pool, submitter, pay)
    found = await reverse(pool, operator, pay)
    assert (found.id, found.state, found.origin, found.note) == (
        opened.id,
        S.UPHELD,
        DisputeOrigin.SUBMITTER,
        "made up",
    )
    assert await find_faults(pool) == []


async def test_what_was_never_paid_cannot_be_taken_back(pool, operator):
    with pytest.raises(DisputeRefused) as refusal:
        await disputes.reverse_earning(pool, operator, AttemptId(entropy.new_id()), reason="fraud")
    assert refusal.value.details["reason"] == "unpaid"


async def test_a_fee_too_small_to_give_back_its_part_refuses_and_changes_nothing(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, **LATER)
    async with pool.acquire() as conn:
        # As after bonuses that were paid out of the fee.
        await conn.execute("UPDATE ledger_accounts SET balance = 0 WHERE kind = 'fee'")
    with pytest.raises(DisputeRefused, match="less than needed"):
        await reverse(pool, operator, pay)
    assert await list_states(pool, pay) == ["pending"]
    assert await get_balance(pool, owner_pending(owner)) == 800


# Looking


async def test_both_sides_see_it_and_nobody_else(pool, operator):
    submitter, [owner, stranger] = await make_people(pool, 2)
    opened = await doubt(pool, submitter, await earn(pool, owner, submitter, 100, **LATER))
    for person, side in ((submitter, DisputeSide.SUBMITTER), (owner, DisputeSide.OWNER)):
        assert await disputes.get_dispute(pool, to_caller(person), opened.id) == (opened, side)
        assert await disputes.list_disputes(pool, to_caller(person), before=LAST, limit=10) == [(opened, side)]
    assert await disputes.list_disputes(pool, to_caller(stranger), before=LAST, limit=10) == []
    for nobody in (to_caller(stranger), operator):
        with pytest.raises(NotFound):
            await disputes.get_dispute(pool, nobody, opened.id)


async def test_pages_miss_nothing_newest_first_for_people_and_oldest_first_for_operators(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, *[100] * 5, **LATER)
    opened = [(await doubt(pool, submitter, pay, index=index)).id for index in range(5)]
    seen: list[Any] = []
    while page := await disputes.list_disputes(pool, to_caller(owner), before=seen[-1] if seen else LAST, limit=2):
        seen += [found.id for found, _ in page]
    assert seen == opened[::-1]
    seen = []
    while listed := await disputes.list_disputes_in_state(
        pool, state=S.OPEN, after=seen[-1] if seen else FIRST, limit=2
    ):
        seen += [found.id for found in listed]
    assert seen == opened
    assert await disputes.list_disputes_in_state(pool, state=S.UPHELD, after=FIRST, limit=10) == []


async def test_statements_tell_what_is_disputed_and_why(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, 200, 300, **LATER)
    await doubt(pool, submitter, pay, index=0)
    await decide(pool, operator, (await doubt(pool, submitter, pay, index=1)).id, S.UPHELD, "black indeed")
    found = await statements.get_job_statement(
        pool, to_caller(submitter), pay.job_id, Page(None, 10), by_attempt=True
    )
    told = [
        (line.dispute.state, line.dispute.reason, line.dispute.note) if line.dispute else None
        for line in found.charges
    ]
    assert told == [(S.OPEN, WHY, ""), (S.UPHELD, WHY, "black indeed"), None]
    assert (found.money.reversed, found.money.cost) == (200, 400)


async def test_a_reversal_is_sealed_like_every_transfer_and_the_books_add_up(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000)
    await releases.release_due(pool, limit=10)
    await reverse(pool, operator, pay)
    while await audit.seal_batch(pool):
        pass
    check, balances = await audit.check_batches(pool), await audit.check_balances(pool)
    assert (check.fault, balances.drifts, balances.unsealed_count) == (None, [], 0)
