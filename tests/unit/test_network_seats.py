"""The rules around a run's seats: what they are paid, how they end, which PNodes they go to, and why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, Refusal
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState, SliceState
from computepool.core.ledger.charging import ChargeRule, End, count_paid_seconds
from computepool.core.ledger.explain import Moved, PayFacts, PayMark, UnpaidReason, explain_pay
from computepool.core.networks.host_faults import FATAL, SEAT_FAULTS, HostFaultCode, advise
from computepool.core.networks.needs import list_needs
from computepool.core.networks.run import seat_id
from computepool.core.networks.seat_ends import decide_concluding, decide_vacating
from tests.support.builders import NOW, make_attempt, make_slice
from tests.support.networks import make_mlp

FIRST, SECOND = seat_id(0), seat_id(1)
HOUR = 3_600_000_000


# Pay


@pytest.mark.parametrize("cause", [None, *Cause])
@pytest.mark.parametrize("state", [AttemptState.LEASED, AttemptState.RUNNING, AttemptState.LOST])
def test_a_seat_is_paid_to_the_checkpoint_whatever_ended_it(cause, state):
    end = End(cause, state, metered_seconds=100, checkpoint_seconds=60, is_seat=True)
    assert count_paid_seconds(end) == 60
    assert count_paid_seconds(replace(end, checkpoint_seconds=0)) == 0
    # Nor for more than it can have had.
    assert count_paid_seconds(replace(end, checkpoint_seconds=1_000)) == 100


def test_control_an_ordinary_attempt_that_was_superseded_is_paid_nothing():
    assert count_paid_seconds(End(Cause.SUPERSEDED, AttemptState.RUNNING, 100, checkpoint_seconds=60)) == 0


def make_facts(**changes) -> PayFacts:
    values = {
        "state": AttemptState.LOST,
        "cause": Cause.NODE_VANISHED,
        "leased_at": NOW,
        "started_at": NOW,
        "finished_at": NOW + timedelta(seconds=500),
        "expires_at": NOW + timedelta(seconds=500),
        "run_seconds": None,
        "wall_seconds": 3_600,
        "is_own": False,
        "rate_microcredits_per_hour": HOUR,
        "fee_ppm": 200_000,
        "charged_microcredits": 60_000_000,
        "fee_microcredits": 12_000_000,
        "earning_state": None,
        "moved": Moved(48_000_000, 48_000_000, 48_000_000, 0),
        "checkpoint_seconds": 60,
        **changes,
    }
    return PayFacts(**values)


def test_the_pay_of_a_lost_seat_is_explained_by_its_checkpoint():
    told = explain_pay(make_facts())
    assert (told.mark, told.rule, told.due_microcredits) == (PayMark.PAID, ChargeRule.TO_CHECKPOINT, 60_000_000)


def test_a_seat_that_was_paid_beyond_its_checkpoint_is_noticed():
    told = explain_pay(make_facts(checkpoint_seconds=50))
    assert told.mark is PayMark.OVERPAID
    assert told.missing_microcredits == -8_000_000


def test_a_seat_without_a_checkpoint_is_due_nothing_and_says_so():
    nothing = {"charged_microcredits": None, "fee_microcredits": None, "moved": Moved(None, 0, 0, 0)}
    told = explain_pay(make_facts(checkpoint_seconds=0, **nothing))
    assert (told.mark, told.reason) == (PayMark.UNPAID, UnpaidReason.NO_CHECKPOINT)
    ordinary = explain_pay(make_facts(checkpoint_seconds=None, **nothing))
    assert ordinary.reason is UnpaidReason.NODE_FAULT


# Ends


@pytest.mark.parametrize("state", sorted(ATTEMPT_LIVE))
def test_a_seat_that_is_vacated_waits_for_another_and_counts_as_no_failure(state):
    slice_ = make_slice(state=SliceState(state.value), failure_count=1, killed_count=2)
    decision = decide_vacating(slice_, make_attempt(state=state), Cause.NETWORK_LOST)
    assert isinstance(decision, Decision)
    assert (decision.slice.state, decision.slice.failure_count, decision.slice.killed_count) == (
        SliceState.QUEUED,
        1,
        2,
    )
    [ended] = decision.attempts
    # Over, and not merely lost: its node is told to let go.
    assert (ended.state, ended.cause) == (AttemptState.CANCELLED, Cause.NETWORK_LOST)


@pytest.mark.parametrize("state", sorted(ATTEMPT_LIVE))
def test_a_seat_whose_run_has_reached_its_end_has_succeeded(state):
    decision = decide_concluding(make_slice(state=SliceState(state.value)), make_attempt(state=state))
    assert isinstance(decision, Decision)
    assert decision.slice.state is SliceState.SUCCEEDED
    assert decision.attempts[0].state is AttemptState.SUCCEEDED


@pytest.mark.parametrize("state", sorted(set(AttemptState) - ATTEMPT_LIVE))
def test_an_attempt_that_is_over_ends_no_second_time(state):
    slice_, attempt = make_slice(state=SliceState.QUEUED), make_attempt(state=state)
    assert isinstance(decide_vacating(slice_, attempt, Cause.NETWORK_LOST), Refusal)
    assert isinstance(decide_concluding(slice_, attempt), Refusal)


def test_needs_follow_the_network_replica_by_replica_and_hold_what_is_in_flight():
    needs = list_needs(make_mlp(replicas=2))
    assert [need.part for need in needs] == [
        (vnode_id, replica) for replica in (0, 1) for vnode_id in ("a", "b", "head", "loss")
    ]
    # As many as there are stages are in flight, so smaller ones take less.
    [coarse, *_] = list_needs(make_mlp(micro_batches=4))
    [fine, *_] = list_needs(make_mlp(micro_batches=8))
    assert coarse.memory_bytes > fine.memory_bytes > 0


def test_every_fault_that_ends_a_run_comes_with_advice():
    assert all(len(advise(code)) > 40 for code in FATAL)
    assert not FATAL & set(SEAT_FAULTS)
    assert {HostFaultCode.FRAME_REFUSED} == set(HostFaultCode) - FATAL - set(SEAT_FAULTS)
