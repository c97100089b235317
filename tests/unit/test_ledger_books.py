"""The books in memory: all or nothing, once for ever, never past zero; and the audit that would notice otherwise."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    LedgerAccount,
    owner_pending,
    receivable,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import AMOUNT_MAX, BALANCE_MAX, Microcredits
from computepool.core.ledger.books import MemoryBooks, Outcome, list_faults, recompute
from computepool.core.ledger.charging import charge_attempt
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Leg, Posting, TransferKind
from tests.support.builders import NOW, account_number

SUBMITTER, OWNER = account_number(1), account_number(2)
JOB, OTHER_JOB, ATTEMPT = JobId(UUID(int=160)), JobId(UUID(int=161)), AttemptId(UUID(int=11))
WORLD = SHARDS[AccountKind.WORLD]


def top_up(number: int, amount: int) -> Posting:
    return verbs.top_up(top_up_id=UUID(int=number), account_id=SUBMITTER, amount=amount)


def hold(amount: int, job_id: JobId = JOB) -> Posting:
    made = verbs.hold(job_id=job_id, submitter_id=SUBMITTER, amount=amount)
    assert isinstance(made, Posting)
    return made


def settle(price: int, held: int = 10**15) -> Posting:
    charges = [charge_attempt(ATTEMPT, price, fee_ppm=200_000)]
    made = verbs.settle(job_id=JOB, submitter_id=SUBMITTER, owner_id=OWNER, charges=charges, held_remaining=held)
    assert isinstance(made, Posting)
    return made


def post(books: MemoryBooks, *postings: Posting) -> list[object]:
    return [o.code if isinstance(o, Refusal) else o for o in books.post(postings, at=NOW)]


@pytest.fixture
def books() -> MemoryBooks:
    """A submitter with 1,000, of which 300 are held for a job."""
    books = MemoryBooks()
    assert post(books, top_up(16, 1_000), hold(300)) == [Outcome.POSTED] * 2
    return books


def is_exact(books: MemoryBooks) -> bool:
    return books.list_faults({JOB: SUBMITTER, OTHER_JOB: SUBMITTER}) == []


def test_balances_and_holds_follow_what_was_posted(books):
    assert post(books, settle(100)) == [Outcome.POSTED]
    assert books.get_balance(submitter_available(SUBMITTER)) == 700
    assert books.get_balance(submitter_held(SUBMITTER)) == books.get_held_remaining(JOB) == 200
    assert books.get_balance(owner_pending(OWNER)) == 80
    assert books.get_balance(WORLD[0]) == -1_000
    assert is_exact(books)


def test_a_replay_changes_nothing_however_late_it_comes(books):
    before = dict(books.balances)
    assert post(books, top_up(16, 1_000), hold(300), hold(300)) == [Outcome.REPLAYED] * 3
    assert (books.balances, len(books.transfers)) == (before, 2)


def test_a_differing_replay_is_refused_and_changes_nothing(books):
    before = dict(books.balances)
    assert post(books, top_up(16, 1_001), hold(299)) == [RefusalCode.DIFFERING_REPLAY] * 2
    assert books.balances == before


def test_a_posting_that_was_refused_may_be_made_later(books):
    assert post(books, hold(701, OTHER_JOB)) == [RefusalCode.INSUFFICIENT_CREDITS]
    assert post(books, top_up(17, 1), hold(701, OTHER_JOB)) == [Outcome.POSTED] * 2


def test_each_posting_of_a_batch_sees_the_ones_before_it_and_a_refusal_spoils_none(books):
    answers = post(books, hold(701, OTHER_JOB), top_up(17, 1), hold(701, OTHER_JOB), hold(1, JobId(UUID(int=162))))
    assert answers == [
        RefusalCode.INSUFFICIENT_CREDITS,
        Outcome.POSTED,
        Outcome.POSTED,
        RefusalCode.INSUFFICIENT_CREDITS,
    ]
    assert is_exact(books)


def test_a_posting_counts_as_a_whole_or_not_at_all(books):
    """The owner's leg could be had alone; the fee's not."""
    before = dict(books.balances)
    legs = (
        Leg(submitter_held(SUBMITTER), owner_pending(OWNER), Microcredits(300)),
        Leg(submitter_held(SUBMITTER), SHARDS[AccountKind.FEE][0], Microcredits(1)),
    )
    assert post(books, Posting("torn", TransferKind.SETTLE, legs, job_id=JOB)) == [RefusalCode.INSUFFICIENT_CREDITS]
    assert books.balances == before


def test_a_job_never_takes_from_the_hold_of_another(books):
    assert post(books, hold(500, OTHER_JOB)) == [Outcome.POSTED]
    assert post(books, settle(301)) == [RefusalCode.HOLD_EXCEEDED]
    assert books.get_balance(submitter_held(SUBMITTER)) == 800


def test_nobody_gets_past_zero_from_either_side(books):
    # This shard of the world has given nothing: it cannot come to stand above zero.
    refund = verbs.top_up_refund(top_up_id=UUID(int=17), account_id=SUBMITTER, amount=10, world={WORLD[1]: -10})
    assert post(books, refund) == [RefusalCode.INSUFFICIENT_CREDITS]
    repaid = Posting(
        "r/repay", TransferKind.REPAY, (Leg(submitter_available(SUBMITTER), receivable(SUBMITTER), Microcredits(1)),)
    )
    assert post(books, repaid) == [RefusalCode.INSUFFICIENT_CREDITS]


def test_balances_stay_within_what_can_be_counted():
    books = MemoryBooks()
    count = BALANCE_MAX // AMOUNT_MAX
    # Spread over shards, so that it is the person's account that is full first.
    assert post(books, *(top_up(number, AMOUNT_MAX) for number in range(count))) == [Outcome.POSTED] * count
    assert post(books, top_up(count, 1)) == [RefusalCode.BALANCE_TOO_LARGE]
    assert books.get_balance(submitter_available(SUBMITTER)) == BALANCE_MAX
    assert is_exact(books)


# The audit, and what it notices


def find_faults(books: MemoryBooks) -> str:
    return "; ".join(books.list_faults({JOB: SUBMITTER, OTHER_JOB: SUBMITTER}))


def test_control_a_balance_that_was_changed_by_hand_is_noticed(books):
    books.balances[submitter_available(SUBMITTER)] += 1
    assert "come to 1 and not to zero" in find_faults(books)
    assert "stands at 701, by its transfers 700" in find_faults(books)


def test_control_two_changes_that_cancel_each_other_are_noticed(books):
    books.balances[submitter_available(SUBMITTER)] += 1
    books.balances[owner_pending(OWNER)] = -1
    assert "not to zero" not in find_faults(books)
    assert "wrong side of zero" in find_faults(books)
    assert "by its transfers" in find_faults(books)


def test_control_a_hold_that_was_forgotten_is_noticed(books):
    del books.held_remaining[JOB]
    assert f"{JOB} holds 0, by its transfers 300" in find_faults(books)
    assert "hold 0, their account 300" in find_faults(books)


def test_control_a_hold_below_zero_is_noticed(books):
    books.held_remaining[OTHER_JOB] = -5
    assert f"job {OTHER_JOB} holds -5" in find_faults(books)


def test_control_a_transfer_that_is_gone_is_noticed(books):
    books.transfers.pop()
    assert "by its transfers 0" in find_faults(books)


def test_control_a_transfer_that_was_altered_is_noticed(books):
    books.transfers[0] = replace(books.transfers[0], amount=Microcredits(999))
    assert "by its transfers" in find_faults(books)


def test_an_account_without_transfers_and_books_without_accounts_are_exact():
    assert list_faults({LedgerAccount(AccountKind.FEE): 0}, {}, {}, recompute([])) == []


def test_faults_are_told_up_to_a_limit():
    balances = {owner_pending(account_number(number)): 1 for number in range(100)}
    assert len(list_faults(balances, {}, {}, recompute([]))) == 20
