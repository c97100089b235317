"""Postings: what may move where, what makes two the same, and what one does to balances and holds."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    owner_available,
    owner_pending,
    receivable,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import InvalidAmount, Microcredits
from computepool.core.ledger.transfer import (
    LEGS_MAX,
    ROUTES,
    Leg,
    Posting,
    TransferKind,
    from_transfers,
    held_delta,
    is_same,
    net_deltas,
    to_transfers,
)
from tests.support.builders import NOW, account_number

SUBMITTER, OWNER, OTHER = account_number(1), account_number(2), account_number(3)
JOB, ATTEMPT = JobId(UUID(int=10)), AttemptId(UUID(int=11))
FEE, WORLD = SHARDS[AccountKind.FEE], SHARDS[AccountKind.WORLD]


def leg(source, target, amount: int) -> Leg:
    return Leg(source, target, Microcredits(amount))


SETTLE = Posting(
    "key",
    TransferKind.SETTLE,
    (leg(submitter_held(SUBMITTER), owner_pending(OWNER), 8), leg(submitter_held(SUBMITTER), FEE[0], 2)),
    job_id=JOB,
    attempt_id=ATTEMPT,
)


@pytest.mark.parametrize("amount", [0, -1, 1.5, 10**15 + 1, True])
def test_a_leg_moves_an_amount_and_nothing_else(amount):
    with pytest.raises(InvalidAmount):
        replace(SETTLE, legs=(leg(submitter_held(SUBMITTER), FEE[0], amount),))


@pytest.mark.parametrize("key", ["", "x" * 201, "two\nlines", "naïve", "nul\0"])
def test_a_key_is_short_and_plain(key):
    with pytest.raises(ValueError, match="key"):
        replace(SETTLE, key=key)


@pytest.mark.parametrize("count", [0, LEGS_MAX + 1])
def test_a_posting_has_some_legs_and_not_too_many(count):
    with pytest.raises(ValueError, match="legs"):
        replace(SETTLE, legs=SETTLE.legs[:1] * count)


def test_every_kind_has_its_routes():
    assert set(ROUTES) == set(TransferKind)
    assert all(ROUTES.values())


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        # Nobody is paid out of thin air, and no pending pay leaves before it is released.
        (TransferKind.TOP_UP, WORLD[0], owner_available(OWNER)),
        (TransferKind.SETTLE, submitter_available(SUBMITTER), owner_pending(OWNER)),
        (TransferKind.SETTLE, submitter_held(SUBMITTER), owner_available(OWNER)),
        (TransferKind.PAYOUT_RESERVE, owner_pending(OWNER), SHARDS[AccountKind.PAYOUT_CLEARING][0]),
        (TransferKind.PAYOUT_CONFIRM, owner_available(OWNER), WORLD[0]),
        (TransferKind.REFUND, submitter_held(SUBMITTER), submitter_held(SUBMITTER)),
        (TransferKind.BONUS, WORLD[0], owner_available(OWNER)),
    ],
)
def test_credits_take_no_other_way_than_their_verbs(kind, source, target):
    with pytest.raises(ValueError, match="does not lead from"):
        Posting("key", kind, (leg(source, target, 1),), job_id=JOB)


def test_what_is_held_is_held_for_a_job():
    with pytest.raises(ValueError, match="for a job"):
        replace(SETTLE, job_id=None)


def test_a_posting_comes_back_from_its_rows():
    rows = to_transfers(SETTLE, NOW)
    assert [(row.key, row.leg, row.amount, row.at) for row in rows] == [("key", 0, 8, NOW), ("key", 1, 2, NOW)]
    assert from_transfers(rows[::-1]) == SETTLE


def test_deltas_come_to_zero_and_name_every_account():
    assert net_deltas(SETTLE.legs) == {submitter_held(SUBMITTER): -10, owner_pending(OWNER): 8, FEE[0]: 2}


def test_a_hold_and_what_is_taken_from_it_change_what_the_job_holds():
    hold = Posting(
        "hold",
        TransferKind.HOLD,
        (leg(submitter_available(SUBMITTER), submitter_held(SUBMITTER), 30),),
        job_id=JOB,
    )
    assert held_delta(hold) == 30
    assert held_delta(SETTLE) == -10


DIFFERENT = {
    "another amount": replace(SETTLE, legs=(SETTLE.legs[0], replace(SETTLE.legs[1], amount=Microcredits(3)))),
    "a leg less": replace(SETTLE, legs=SETTLE.legs[:1]),
    "a leg twice": replace(SETTLE, legs=(*SETTLE.legs, SETTLE.legs[0])),
    "another kind": replace(SETTLE, kind=TransferKind.PAY_TO),
    "another owner": replace(SETTLE, legs=(replace(SETTLE.legs[0], target=owner_pending(OTHER)), SETTLE.legs[1])),
    "another job": replace(SETTLE, job_id=JobId(UUID(int=99))),
    "another attempt": replace(SETTLE, attempt_id=AttemptId(UUID(int=99))),
    "no attempt": replace(SETTLE, attempt_id=None),
    "a payout": replace(SETTLE, payout_id=UUID(int=99)),
    "a top-up": replace(SETTLE, top_up_id=UUID(int=99)),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=list(DIFFERENT))
def test_a_posting_that_says_something_else_is_not_the_same(other):
    assert not is_same(SETTLE, other)
    assert not is_same(other, SETTLE)


def test_the_same_from_another_shard_or_in_another_order_is_the_same():
    moved = replace(SETTLE.legs[1], target=FEE[5])
    assert is_same(SETTLE, replace(SETTLE, legs=(moved, SETTLE.legs[0])))


def test_the_same_amount_out_of_other_accounts_of_the_same_person_is_the_same():
    def reverse(*parts: tuple[object, int]) -> Posting:
        legs = tuple(leg(source, submitter_available(SUBMITTER), amount) for source, amount in parts)
        return Posting("key", TransferKind.REVERSE, legs, job_id=JOB, attempt_id=ATTEMPT)

    early = reverse((owner_available(OWNER), 8), (FEE[0], 2))
    late = reverse((owner_available(OWNER), 1), (receivable(OWNER), 7), (FEE[1], 2))
    assert is_same(early, late)
    assert not is_same(early, reverse((owner_available(OWNER), 9), (FEE[0], 1)))
