"""Why an attempt was paid what it was paid: each disagreement of rules, row and books is marked, nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.jobs.cause import NODE_FAULTS, Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import (
    RULES,
    ChargeRule,
    End,
    FrozenPrice,
    PriceMode,
    meter_seconds,
    price_attempt,
)
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.explain import DIFFERS, Moved, PayFacts, PayMark, UnpaidReason, explain_pay
from computepool.core.ledger.fee import split_price
from tests.support.builders import NOW

CREDIT = 1_000_000
# One credit a second.
RATE = 3_600 * CREDIT
FEE_PPM = 200_000


def make_facts(*, held: float = 50.0, charged: int | None = None, **overrides: Any) -> PayFacts:
    """An attempt of 40 seconds, paid as agreed, unless told otherwise; the books follow from what it was charged."""
    cause = overrides.get("cause")
    state = AttemptState.SUCCEEDED if cause is None else AttemptState.FAILED
    fields: dict[str, Any] = {
        "state": state,
        "cause": None,
        "leased_at": NOW,
        "started_at": NOW + timedelta(seconds=1),
        "finished_at": NOW + timedelta(seconds=held),
        "expires_at": NOW + timedelta(hours=1),
        "run_seconds": 40.0,
        "wall_seconds": 3_600,
        "is_own": False,
        "rate_microcredits_per_hour": RATE,
        "fee_ppm": FEE_PPM,
        **overrides,
    }
    total = 40 * CREDIT if charged is None else charged
    owner, fee = split_price(total, fee_ppm=FEE_PPM)
    paid: dict[str, Any] = {
        "charged_microcredits": total or None,
        "fee_microcredits": fee if total else None,
        "earning_state": EarningState.PENDING if total else None,
        "moved": Moved(owner if total else None, owner, owner, 0),
    }
    return PayFacts(**{**paid, **fields})


def unpaid(**overrides: Any) -> PayFacts:
    return make_facts(charged=0, **overrides)


def test_an_attempt_that_was_paid_as_agreed_is_paid():
    found = explain_pay(make_facts())
    assert (found.mark, found.differences, found.rule) == (PayMark.PAID, (), ChargeRule.METERED)
    assert (found.metered_seconds, found.due_microcredits) == (40, 40 * CREDIT)
    assert found.due_to_owner_microcredits == found.earned_microcredits == found.moved_microcredits == 32 * CREDIT
    assert found.missing_microcredits == 0
    assert found.words == "32 credits, as agreed."


FIXED = {"rate_microcredits_per_hour": None, "slice_price_microcredits": 10 * CREDIT, "wall_seconds": 100}


def test_a_fixed_price_is_paid_whole_for_a_result_and_by_its_part_for_a_failure():
    found = explain_pay(make_facts(charged=10 * CREDIT, **FIXED))
    assert (found.mark, found.due_microcredits) == (PayMark.PAID, 10 * CREDIT)
    assert found.words == "8 credits, the owner's part of the fixed price of 10 credits, as agreed."
    found = explain_pay(make_facts(charged=4 * CREDIT, cause=Cause.EXIT_CODE, **FIXED))
    assert (found.mark, found.due_microcredits) == (PayMark.PAID, 4 * CREDIT)
    assert found.words == (
        "3.2 credits, the owner's part of 40/100 of the fixed price of 10 credits, for so much of its limit it ran, "
        "as agreed."
    )
    found = explain_pay(unpaid(cause=Cause.GPU_LOST, **FIXED))
    assert (found.mark, found.reason) == (PayMark.UNPAID, UnpaidReason.NODE_FAULT)


@pytest.mark.parametrize(
    ("charged", "cause", "mark"),
    [(4 * CREDIT, None, PayMark.UNDERPAID), (10 * CREDIT, Cause.EXIT_CODE, PayMark.OVERPAID)],
    ids=["charged by the second", "the whole price for a failure"],
)
def test_a_fixed_price_that_was_charged_otherwise_is_marked(charged, cause, mark):
    found = explain_pay(make_facts(charged=charged, cause=cause, **FIXED))
    assert (found.mark, len(found.differences)) == (mark, 1)


def test_one_that_runs_is_not_judged():
    found = explain_pay(
        unpaid(state=AttemptState.RUNNING, finished_at=None, run_seconds=None),
    )
    assert (found.mark, found.metered_seconds) == (PayMark.RUNNING, None)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"is_own": True}, UnpaidReason.OWN_JOB),
        ({"cause": Cause.SUPERSEDED, "state": AttemptState.CANCELLED}, UnpaidReason.SUPERSEDED),
        ({"cause": Cause.OWNER_RETURNED}, UnpaidReason.OWNER_RETURNED),
        ({"cause": Cause.INPUT_MISSING}, UnpaidReason.INPUT_MISSING),
        ({"cause": Cause.HUB_FAULT}, UnpaidReason.HUB_FAULT),
        ({"cause": Cause.NODE_VANISHED, "state": AttemptState.LOST}, UnpaidReason.NODE_FAULT),
        ({"cause": Cause.WRONG_RESULT, "checkpoint_seconds": 0}, UnpaidReason.NODE_FAULT),
        ({"cause": Cause.CANCELLED, "state": AttemptState.CANCELLED, "started_at": None}, UnpaidReason.NOT_STARTED),
        ({"cause": Cause.EXIT_CODE, "expires_at": NOW + timedelta(seconds=10)}, UnpaidReason.TOO_LATE),
        ({"rate_microcredits_per_hour": 0}, UnpaidReason.NO_PRICE),
        ({"rate_microcredits_per_hour": None, "fee_ppm": None}, UnpaidReason.NO_PRICE),
        ({"rate_microcredits_per_hour": 89}, UnpaidReason.NO_PRICE),
    ],
)
def test_where_nothing_is_due_the_reason_is_told(overrides, reason):
    found = explain_pay(unpaid(**overrides))
    assert (found.mark, found.reason, found.differences) == (PayMark.UNPAID, reason, ())
    assert found.words.startswith("Nothing is due: ")


@pytest.mark.parametrize("cause", sorted(NODE_FAULTS))
def test_every_fault_of_the_node_is_called_so(cause):
    assert explain_pay(unpaid(cause=cause)).reason is UnpaidReason.NODE_FAULT


def test_every_cause_has_a_mark_whether_it_pays_or_not():
    for cause, rule in RULES.items():
        found = explain_pay(make_facts(cause=cause) if rule.value.startswith("metered") else unpaid(cause=cause))
        assert found.differences == (), cause
        assert (found.mark is PayMark.UNPAID) == (found.reason is not None)


@pytest.mark.parametrize(
    ("state", "mark"), [(EarningState.DISPUTED, PayMark.DISPUTED), (EarningState.RELEASED, PayMark.PAID)]
)
def test_pay_in_dispute_is_marked_although_its_amount_is_right(state, mark):
    assert explain_pay(make_facts(earning_state=state)).mark is mark


def test_pay_that_was_taken_back_is_marked():
    moved = Moved(32 * CREDIT, 32 * CREDIT, 32 * CREDIT, 32 * CREDIT)
    found = explain_pay(make_facts(earning_state=EarningState.REVERSED, moved=moved))
    assert (found.mark, found.differences) == (PayMark.REVERSED, ())


# Differences: each is one planted lie


@pytest.mark.parametrize(
    ("facts", "mark", "words"),
    [
        (make_facts(charged=39 * CREDIT), PayMark.UNDERPAID, "charged 39 credits, by the rules 40 credits"),
        (make_facts(charged=41 * CREDIT), PayMark.OVERPAID, "charged 41 credits"),
        (unpaid(), PayMark.UNDERPAID, "charged 0 credits, by the rules 40 credits"),
        (make_facts(is_own=True), PayMark.OVERPAID, "by the rules 0 credits"),
        (make_facts(cause=Cause.GPU_LOST), PayMark.OVERPAID, "by the rules 0 credits"),
        (make_facts(fee_microcredits=9 * CREDIT), PayMark.UNDERPAID, "a fee of 9 credits was taken"),
        (make_facts(rate_microcredits_per_hour=2 * RATE), PayMark.UNDERPAID, "by the rules 80 credits"),
        (make_facts(run_seconds=41.0), PayMark.UNDERPAID, "by the rules 41 credits"),
        (
            make_facts(moved=Moved(31 * CREDIT, 32 * CREDIT, 31 * CREDIT, 0)),
            PayMark.UNDERPAID,
            "the ledger moved 31 credits to the owner, the attempt says 32 credits",
        ),
        (
            make_facts(moved=Moved(None, 64 * CREDIT, 60 * CREDIT, 0)),
            PayMark.UNDERPAID,
            "settlements to this owner come to 60 credits, its attempts to 64 credits",
        ),
        (make_facts(moved=Moved(None, 64 * CREDIT, 65 * CREDIT, 0)), PayMark.OVERPAID, "come to 65 credits"),
        (
            make_facts(moved=Moved(32 * CREDIT, 32 * CREDIT, 32 * CREDIT, 5)),
            PayMark.UNDERPAID,
            "0.000005 credits was taken back",
        ),
        (make_facts(earning_state=EarningState.REVERSED), PayMark.OVERPAID, "by its state 32 credits"),
    ],
)
def test_a_difference_is_marked_and_said(facts, mark, words):
    found = explain_pay(facts)
    assert found.mark is mark
    assert found.mark in DIFFERS
    assert words in found.words
    assert found.differences


def test_what_is_missing_is_told_to_the_microcredit():
    facts = make_facts(charged=40 * CREDIT - 1)
    assert explain_pay(facts).missing_microcredits == 1
    assert explain_pay(make_facts(charged=39 * CREDIT)).missing_microcredits == 800_000


def test_pay_that_is_part_of_a_sum_which_adds_up_is_what_the_attempt_says():
    found = explain_pay(make_facts(moved=Moved(None, 96 * CREDIT, 96 * CREDIT, 0)))
    assert (found.mark, found.moved_microcredits) == (PayMark.PAID, 32 * CREDIT)


def test_pay_in_a_sum_that_does_not_add_up_is_unclear():
    assert explain_pay(make_facts(moved=Moved(None, 96 * CREDIT, 95 * CREDIT, 0))).moved_microcredits is None


# What the row cannot tell exactly


@pytest.mark.parametrize(("charged_seconds", "agrees"), [(10, False), (11, True), (12, False)])
def test_without_a_claim_the_time_in_the_row_counts_to_the_second(charged_seconds, agrees):
    """Cancelled in its eleventh second: the row ends at the moment by which it was metered."""
    facts = make_facts(
        cause=Cause.CANCELLED,
        state=AttemptState.CANCELLED,
        run_seconds=None,
        held=10.2,
        charged=charged_seconds * CREDIT,
    )
    assert (explain_pay(facts).mark is PayMark.PAID) == agrees


def test_a_failure_after_the_leases_end_may_be_paid_or_not_but_nothing_between():
    late = {"cause": Cause.EXIT_CODE, "expires_at": NOW + timedelta(seconds=10)}
    assert explain_pay(make_facts(**late)).mark is PayMark.PAID
    assert explain_pay(unpaid(**late)).mark is PayMark.UNPAID
    assert explain_pay(make_facts(charged=20 * CREDIT, **late)).mark is PayMark.UNDERPAID


def test_a_failure_within_its_lease_that_was_not_paid_is_an_underpayment():
    assert explain_pay(unpaid(cause=Cause.EXIT_CODE)).mark is PayMark.UNDERPAID


# Whatever the hub's own rules charge is explained without a difference, and anything else with one


@given(
    cause=st.sampled_from([None, *Cause]),
    started=st.booleans(),
    is_own=st.booleans(),
    rate=st.integers(0, 10**12),
    fee_ppm=st.integers(0, 200_000),
    held=st.floats(0, 10_000),
    claimed=st.none() | st.floats(0, 10_000),
    wall=st.integers(1, 5_000),
    lie=st.integers(-3, 3),
)
def test_what_the_rules_charge_is_explained_and_a_lie_is_marked(
    cause, started, is_own, rate, fee_ppm, held, claimed, wall, lie
):
    facts = unpaid(
        cause=cause,
        held=held,
        started_at=NOW if started else None,
        is_own=is_own,
        rate_microcredits_per_hour=rate,
        fee_ppm=fee_ppm,
        run_seconds=claimed,
        wall_seconds=wall,
    )
    assert facts.finished_at is not None
    exactly_held = (facts.finished_at - facts.leased_at).total_seconds()
    seconds = meter_seconds(claimed_seconds=claimed, held_seconds=exactly_held, wall_seconds=wall)
    before = AttemptState.RUNNING if started else AttemptState.LEASED
    price = price_attempt(
        FrozenPrice(PriceMode.PER_SECOND, rate), End(cause, before, seconds), wall_seconds=wall, is_own=is_own
    )
    owner, fee = split_price(price, fee_ppm=fee_ppm)
    charged = replace(
        facts,
        charged_microcredits=price,
        fee_microcredits=fee,
        earning_state=EarningState.PENDING if price else None,
        moved=Moved(owner if price else None, owner, owner, 0),
    )
    found = explain_pay(charged)
    assert found.mark not in DIFFERS, found.words
    assert found.due_microcredits == price
    lied = replace(charged, moved=Moved(max(0, owner + lie), owner, max(0, owner + lie), 0))
    assert (explain_pay(lied).mark in DIFFERS) == (max(0, owner + lie) != owner)


BEATEN = {"cause": Cause.SUPERSEDED, "state": AttemptState.CANCELLED}
NO_PAY = Moved(None, 0, 0, 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "Its time is paid out of our fee, when the pay for what was delivered is released."),
        ({"made_good_microcredits": 0}, "an earlier attempt delivered first."),
        ({"started_at": None}, "an earlier attempt delivered first."),
        (
            {"made_good_microcredits": 8 * CREDIT, "moved": replace(NO_PAY, out_of_fee_microcredits=8 * CREDIT)},
            "8 credits for its time came out of our fee.",
        ),
    ],
)
def test_the_time_of_a_superseded_attempt_is_told(more, words):
    found = explain_pay(unpaid(**BEATEN, **more))
    assert (found.mark, found.reason, found.missing_microcredits) == (PayMark.UNPAID, UnpaidReason.SUPERSEDED, 0)
    assert found.words.endswith(words)


@pytest.mark.parametrize(
    ("said", "moved", "mark"), [(8, 5, PayMark.UNDERPAID), (0, 5, PayMark.OVERPAID), (8, 0, PayMark.UNDERPAID)]
)
def test_time_that_the_ledger_has_made_good_otherwise_is_marked(said, moved, mark):
    facts = unpaid(
        **BEATEN,
        made_good_microcredits=said * CREDIT,
        moved=replace(NO_PAY, out_of_fee_microcredits=moved * CREDIT),
    )
    found = explain_pay(facts)
    assert (found.mark, found.missing_microcredits) == (mark, (said - moved) * CREDIT)
    assert "out of the fee" in found.words
