"""Each verb: which credits it moves, under which key, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind
from computepool.core.ledger.amount import InvalidAmount
from computepool.core.ledger.charging import charge_attempt
from computepool.core.ledger.earning import Earning, EarningState, dismiss, dispute
from computepool.core.ledger.refusal import (
    InsufficientCredits,
    PostingMismatch,
    PostingRefused,
    Refusal,
    RefusalCode,
    to_error,
)
from computepool.core.ledger.transfer import Posting
from tests.support.builders import NOW, account_number

SUBMITTER, OWNER = account_number(1), account_number(2)
JOB, FIRST, SECOND = JobId(UUID(int=160)), AttemptId(UUID(int=11)), AttemptId(UUID(int=12))
SUBJECT = UUID(int=32)
SUBMITTER_ID, OWNER_ID = str(SUBMITTER), str(OWNER)


def moves(made: Posting | Refusal) -> list[tuple[str, str, int]]:
    """With people by their part: S for the submitter, O for the owner."""
    assert isinstance(made, Posting), made

    def name(id: str) -> str:
        return id.replace(SUBMITTER_ID, "S").replace(OWNER_ID, "O")

    return [(name(leg.source.id), name(leg.target.id), leg.amount) for leg in made.legs]


def code(made: Posting | Refusal) -> RefusalCode:
    assert isinstance(made, Refusal), made
    return made.code


def shards(kind: AccountKind, balances: dict[int, int]) -> dict:
    return {shard: balances.get(shard.shard, 0) for shard in SHARDS[kind]}


def make_earning(**overrides) -> Earning:
    values = {
        "attempt_id": FIRST,
        "job_id": JOB,
        "submitter_id": SUBMITTER,
        "owner_id": OWNER,
        "owner_microcredits": 80,
        "fee_microcredits": 20,
        "due_at": NOW,
        **overrides,
    }
    return Earning(**values)


# Money comes in


def test_a_top_up_comes_from_the_world():
    made = verbs.top_up(top_up_id=SUBJECT, account_id=SUBMITTER, amount=500)
    assert moves(made) == [("world/0", "submitter_available/S", 500)]
    assert (made.key, made.top_up_id) == (f"{SUBJECT}/top_up", SUBJECT)


def test_a_refunded_top_up_goes_back_to_the_world_over_as_many_shards_as_it_takes():
    world = shards(AccountKind.WORLD, {0: -100, 3: -700, 5: -900})
    made = verbs.top_up_refund(top_up_id=SUBJECT, account_id=SUBMITTER, amount=1_050, world=world)
    assert moves(made) == [
        ("submitter_available/S", "world/0", 100),
        ("submitter_available/S", "world/5", 900),
        ("submitter_available/S", "world/3", 50),
    ]


def test_a_chargeback_takes_what_is_there_and_the_rest_is_owed():
    world = shards(AccountKind.WORLD, {0: -30, 1: -1_000})
    made = verbs.chargeback(top_up_id=SUBJECT, account_id=SUBMITTER, amount=100, available=40, world=world)
    assert moves(made) == [
        ("submitter_available/S", "world/0", 30),
        ("submitter_available/S", "world/1", 10),
        ("receivable/S", "world/1", 60),
    ]


@pytest.mark.parametrize(("available", "count"), [(0, 1), (100, 1), (5_000, 1), (99, 2)])
def test_a_chargeback_comes_to_its_amount_whatever_is_there(available, count):
    world = shards(AccountKind.WORLD, {0: -100})
    made = verbs.chargeback(top_up_id=SUBJECT, account_id=SUBMITTER, amount=100, available=available, world=world)
    assert sum(amount for _, _, amount in moves(made)) == 100
    assert len(made.legs) == count


def test_more_cash_than_we_hold_cannot_go_back():
    world = shards(AccountKind.WORLD, {0: -99})
    made = verbs.chargeback(top_up_id=SUBJECT, account_id=SUBMITTER, amount=100, available=0, world=world)
    assert code(made) is RefusalCode.INSUFFICIENT_CREDITS


@pytest.mark.parametrize(
    ("owed", "available", "earned", "paid"),
    [
        (100, 500, 500, [("submitter_available/S", "receivable/S", 100)]),
        (
            100,
            30,
            500,
            [("submitter_available/S", "receivable/S", 30), ("owner_available/S", "receivable/S", 70)],
        ),
        (100, 0, 20, [("owner_available/S", "receivable/S", 20)]),
    ],
)
def test_a_debt_is_repaid_out_of_what_the_account_has(owed, available, earned, paid):
    made = verbs.repay(repay_id=SUBJECT, account_id=SUBMITTER, owed=owed, available=available, earned=earned)
    assert moves(made) == paid


@pytest.mark.parametrize(("owed", "available"), [(0, 500), (500, 0)])
def test_without_a_debt_or_without_means_nothing_is_repaid(owed, available):
    made = verbs.repay(repay_id=SUBJECT, account_id=SUBMITTER, owed=owed, available=available)
    assert code(made) is RefusalCode.NOTHING_TO_MOVE


# The life of a job's money


def test_a_hold_moves_from_available_to_held():
    made = verbs.hold(job_id=JOB, submitter_id=SUBMITTER, amount=300)
    assert moves(made) == [("submitter_available/S", "submitter_held/S", 300)]
    assert (made.key, made.job_id) == (f"{JOB}/hold", JOB)


def test_a_free_job_holds_nothing_and_a_frozen_account_may_not():
    assert code(verbs.hold(job_id=JOB, submitter_id=SUBMITTER, amount=0)) is RefusalCode.NOTHING_TO_MOVE
    assert code(verbs.hold(job_id=JOB, submitter_id=SUBMITTER, amount=1, frozen=True)) is RefusalCode.FROZEN


@pytest.mark.parametrize("amount", [-1, 0.0, 1.5, 10**15 + 1, False])
def test_a_hold_of_no_amount_is_an_error(amount):
    with pytest.raises(InvalidAmount):
        verbs.hold(job_id=JOB, submitter_id=SUBMITTER, amount=amount)


def settle(*prices: int, **overrides):
    attempts = [FIRST, SECOND][: len(prices)]
    values = {
        "job_id": JOB,
        "submitter_id": SUBMITTER,
        "owner_id": OWNER,
        "charges": [charge_attempt(id, price, fee_ppm=200_000) for id, price in zip(attempts, prices, strict=True)],
        "held_remaining": 1_000,
        **overrides,
    }
    return verbs.settle(**values)


def test_a_settlement_pays_the_owner_four_fifths_and_the_fee_the_rest():
    made = settle(100)
    assert moves(made) == [("submitter_held/S", "owner_pending/O", 80), ("submitter_held/S", "fee/0", 20)]
    assert (made.key, made.attempt_id) == (f"{JOB}/settle/{FIRST}/0", FIRST)


def test_attempts_that_ended_together_are_settled_in_one_with_each_rounded_for_itself():
    made = settle(6, 6)
    assert moves(made) == [("submitter_held/S", "owner_pending/O", 8), ("submitter_held/S", "fee/0", 4)]
    assert (made.job_id, made.attempt_id) == (JOB, None)


def test_the_order_of_attempts_does_not_change_the_key():
    charges = [charge_attempt(id, 10, fee_ppm=200_000) for id in (SECOND, FIRST)]
    assert settle(charges=charges).key == settle(charges=charges[::-1]).key


def test_a_price_too_small_to_share_goes_to_the_fee():
    assert moves(settle(1)) == [("submitter_held/S", "fee/0", 1)]


def test_fees_of_many_settlements_may_go_into_one_shard():
    assert moves(settle(100, fee_shard=9))[1] == ("submitter_held/S", "fee/9", 20)


@pytest.mark.parametrize("made", [settle(0), settle(), settle(100, owner_id=SUBMITTER)])
def test_what_costs_nothing_or_runs_on_ones_own_node_is_not_settled(made):
    assert code(made) is RefusalCode.NOTHING_TO_MOVE


def test_no_more_is_settled_than_is_held():
    assert isinstance(settle(1_000), Posting)
    assert code(settle(1_001)) is RefusalCode.HOLD_EXCEEDED
    assert code(settle(10**17, 10**17)) is RefusalCode.HOLD_EXCEEDED


def pay_to(total: int, paid: int, **overrides):
    values = {
        "job_id": JOB,
        "submitter_id": SUBMITTER,
        "owner_id": OWNER,
        "attempt_id": FIRST,
        "total": total,
        "paid": paid,
        "held_remaining": 1_000,
        "fee_ppm": 200_000,
        **overrides,
    }
    return verbs.pay_to(**values)


def test_progress_is_paid_by_the_difference():
    assert moves(pay_to(100, 0)) == [("submitter_held/S", "owner_pending/O", 80), ("submitter_held/S", "fee/0", 20)]
    assert moves(pay_to(150, 100)) == [("submitter_held/S", "owner_pending/O", 40), ("submitter_held/S", "fee/0", 10)]


def test_progress_in_parts_comes_to_the_same_as_at_once():
    parts = [move for step in range(33) for move in moves(pay_to(step + 1, step))]
    whole = moves(pay_to(33, 0))
    for target in ("owner_pending/O", "fee/0"):
        assert sum(n for _, to, n in parts if to == target) == sum(n for _, to, n in whole if to == target)


@pytest.mark.parametrize(("total", "paid"), [(100, 100), (99, 100), (0, 0)])
def test_progress_that_was_paid_is_not_paid_again(total, paid):
    assert code(pay_to(total, paid)) is RefusalCode.NOTHING_TO_MOVE


def test_progress_is_not_paid_beyond_the_hold():
    assert code(pay_to(1_101, 100)) is RefusalCode.HOLD_EXCEEDED


def test_two_payments_from_the_same_amount_have_the_same_key_and_so_has_a_settlement():
    assert pay_to(100, 0).key == pay_to(200, 0).key == settle(100).key
    assert pay_to(200, 100).key != pay_to(100, 0).key


def test_what_is_left_of_a_hold_goes_back_once():
    made = verbs.refund(job_id=JOB, submitter_id=SUBMITTER, held_remaining=123)
    assert moves(made) == [("submitter_held/S", "submitter_available/S", 123)]
    assert made.key == f"{JOB}/refund"
    assert code(verbs.refund(job_id=JOB, submitter_id=SUBMITTER, held_remaining=0)) is RefusalCode.NOTHING_TO_MOVE


# Holdback, dispute, fraud


def test_pay_is_released_when_its_holdback_is_over():
    earnings = [make_earning(attempt_id=SECOND), make_earning(owner_microcredits=5)]
    made = verbs.release(earnings=earnings, now=NOW)
    assert moves(made) == [("owner_pending/O", "owner_available/O", 85)]
    assert made.key == f"{JOB}/release/{FIRST}"


@pytest.mark.parametrize(
    ("earning", "refusal"),
    [
        (make_earning(due_at=NOW + timedelta(microseconds=1)), RefusalCode.NOT_DUE),
        (make_earning(state=EarningState.DISPUTED), RefusalCode.DISPUTED),
        (make_earning(state=EarningState.RELEASED), RefusalCode.NOT_PENDING),
        (make_earning(state=EarningState.REVERSED), RefusalCode.REVERSED),
        (make_earning(owner_microcredits=0), RefusalCode.NOTHING_TO_MOVE),
    ],
)
def test_pay_is_not_released_before(earning, refusal):
    assert code(verbs.release(earnings=[earning], now=NOW)) is refusal


def test_one_disputed_earning_holds_up_the_release_it_is_part_of():
    earnings = [make_earning(), make_earning(attempt_id=SECOND, state=EarningState.DISPUTED)]
    assert code(verbs.release(earnings=earnings, now=NOW)) is RefusalCode.DISPUTED


def test_a_release_is_for_one_job_and_one_owner():
    with pytest.raises(ValueError, match="one job and one owner"):
        verbs.release(earnings=[make_earning(), make_earning(owner_id=SUBMITTER)], now=NOW)


def test_a_dispute_freezes_and_its_dismissal_frees():
    disputed = dispute(make_earning())
    assert isinstance(disputed, Earning)
    assert disputed.state is EarningState.DISPUTED
    assert dispute(disputed) == disputed
    assert dismiss(disputed) == make_earning()


@pytest.mark.parametrize(
    ("state", "refusal"),
    [(EarningState.RELEASED, RefusalCode.NOT_PENDING), (EarningState.REVERSED, RefusalCode.REVERSED)],
)
def test_what_is_not_pending_cannot_be_disputed(state, refusal):
    assert dispute(make_earning(state=state)).code is refusal
    assert dismiss(make_earning(state=state)).code is refusal


FEES = shards(AccountKind.FEE, {0: 20})


@pytest.mark.parametrize("state", [EarningState.PENDING, EarningState.DISPUTED])
def test_pay_that_is_pending_is_taken_back_from_there(state):
    made = verbs.reverse(earning=make_earning(state=state), available=1_000, fees=FEES)
    assert moves(made) == [("owner_pending/O", "submitter_available/S", 80), ("fee/0", "submitter_available/S", 20)]
    assert made.key == f"{JOB}/reverse/{FIRST}"


@pytest.mark.parametrize(
    ("available", "taken"),
    [
        (1_000, [("owner_available/O", 80)]),
        (30, [("owner_available/O", 30), ("receivable/O", 50)]),
        (0, [("receivable/O", 80)]),
    ],
)
def test_pay_that_was_released_is_taken_back_or_owed(available, taken):
    made = verbs.reverse(earning=make_earning(state=EarningState.RELEASED), available=available, fees=FEES)
    assert [(source, amount) for source, _, amount in moves(made)[:-1]] == taken
    assert moves(made)[-1] == ("fee/0", "submitter_available/S", 20)


def test_a_fee_goes_back_in_full_from_other_shards_if_need_be():
    fees = shards(AccountKind.FEE, {0: 5, 2: 1, 7: 100})
    made = verbs.reverse(earning=make_earning(), available=0, fees=fees)
    assert [(source, amount) for source, _, amount in moves(made)[1:]] == [("fee/0", 5), ("fee/7", 15)]


def test_pay_is_taken_back_once():
    earning = make_earning(state=EarningState.REVERSED)
    assert code(verbs.reverse(earning=earning, available=1_000, fees=FEES)) is RefusalCode.REVERSED


def test_where_nothing_was_paid_nothing_is_taken_back():
    earning = make_earning(owner_microcredits=0, fee_microcredits=0)
    assert code(verbs.reverse(earning=earning, available=0, fees=FEES)) is RefusalCode.NOTHING_TO_MOVE


# Money goes out


def test_earnings_can_be_spent_on_jobs():
    made = verbs.spend_earnings(spend_id=SUBJECT, account_id=OWNER, amount=5)
    assert moves(made) == [("owner_available/O", "submitter_available/O", 5)]


def test_a_bonus_is_paid_out_of_the_fees():
    made = verbs.bonus(bonus_id=SUBJECT, owner_id=OWNER, amount=20, fees=FEES)
    assert moves(made) == [("fee/0", "owner_available/O", 20)]
    assert code(verbs.bonus(bonus_id=SUBJECT, owner_id=OWNER, amount=21, fees=FEES)) is (
        RefusalCode.INSUFFICIENT_CREDITS
    )


def test_time_is_made_good_out_of_the_fees_under_the_name_of_its_attempt():
    made = verbs.make_good(attempt_id=FIRST, job_id=JOB, owner_id=OWNER, amount=20, fees=FEES)
    assert moves(made) == [("fee/0", "owner_available/O", 20)]
    assert (made.key, made.attempt_id, made.job_id) == (f"{FIRST}/make_good", FIRST, None)
    more = verbs.make_good(attempt_id=FIRST, job_id=JOB, owner_id=OWNER, amount=21, fees=FEES)
    assert code(more) is RefusalCode.INSUFFICIENT_CREDITS
    none = verbs.make_good(attempt_id=FIRST, job_id=JOB, owner_id=OWNER, amount=0, fees=FEES)
    assert code(none) is RefusalCode.NOTHING_TO_MOVE


def test_a_payout_waits_in_clearing_until_its_end():
    reserved = verbs.payout_reserve(payout_id=SUBJECT, account_id=OWNER, amount=60)
    assert moves(reserved) == [("owner_available/O", "payout_clearing/0", 60)]
    confirmed = verbs.payout_confirm(payout_id=SUBJECT, amount=60, world=shards(AccountKind.WORLD, {4: -60}))
    assert moves(confirmed) == [("payout_clearing/0", "world/4", 60)]
    failed = verbs.payout_fail(payout_id=SUBJECT, account_id=OWNER, amount=60)
    assert moves(failed) == [("payout_clearing/0", "owner_available/O", 60)]
    assert confirmed.key == failed.key, "it is confirmed or it fails, never both"


def test_a_payout_may_be_returned_after_it_was_confirmed():
    made = verbs.payout_return(payout_id=SUBJECT, account_id=OWNER, amount=60)
    assert moves(made) == [("world/0", "owner_available/O", 60)]
    assert made.key == f"{SUBJECT}/payout_return"


def test_a_frozen_account_neither_spends_nor_cashes_out():
    assert code(verbs.spend_earnings(spend_id=SUBJECT, account_id=OWNER, amount=5, frozen=True)) is RefusalCode.FROZEN
    assert code(verbs.payout_reserve(payout_id=SUBJECT, account_id=OWNER, amount=5, frozen=True)) is (
        RefusalCode.FROZEN
    )


@pytest.mark.parametrize("amount", [0, -1, 1.5, 10**15 + 1, True, "5"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda amount: verbs.top_up(top_up_id=SUBJECT, account_id=OWNER, amount=amount),
        lambda amount: verbs.top_up_refund(top_up_id=SUBJECT, account_id=OWNER, amount=amount, world={}),
        lambda amount: verbs.chargeback(top_up_id=SUBJECT, account_id=OWNER, amount=amount, available=0, world={}),
        lambda amount: verbs.spend_earnings(spend_id=SUBJECT, account_id=OWNER, amount=amount),
        lambda amount: verbs.bonus(bonus_id=SUBJECT, owner_id=OWNER, amount=amount, fees={}),
        lambda amount: verbs.payout_reserve(payout_id=SUBJECT, account_id=OWNER, amount=amount),
        lambda amount: verbs.payout_confirm(payout_id=SUBJECT, amount=amount, world={}),
        lambda amount: verbs.payout_fail(payout_id=SUBJECT, account_id=OWNER, amount=amount),
        lambda amount: verbs.payout_return(payout_id=SUBJECT, account_id=OWNER, amount=amount),
    ],
)
def test_amounts_that_people_give_are_checked(verb, amount):
    with pytest.raises(InvalidAmount):
        verb(amount)


# At the edge


@pytest.mark.parametrize("refusal", list(RefusalCode))
def test_a_refusal_becomes_an_error_with_a_stable_code(refusal):
    error = to_error(Refusal(refusal, "words"))
    expected = {
        RefusalCode.INSUFFICIENT_CREDITS: (InsufficientCredits, {}),
        RefusalCode.DIFFERING_REPLAY: (PostingMismatch, {}),
    }.get(refusal, (PostingRefused, {"reason": refusal.value}))
    assert (type(error), error.details, error.message) == (*expected, "words")


def test_an_earning_changes_only_its_state():
    earning = make_earning()
    assert dispute(earning) == replace(earning, state=EarningState.DISPUTED)
