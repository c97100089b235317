"""The rules around a run's seats: what they are paid, how they end, which PNodes they go to, and why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from uuid import UUID

import pytest

from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Decision, Refusal
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState, SliceState
from computepool.core.ledger.charging import ChargeRule, End, count_paid_seconds
from computepool.core.ledger.explain import Moved, PayFacts, PayMark, UnpaidReason, explain_pay
from computepool.core.networks.first_fit import Chosen, Need, PNode, Question, Unplaceable, choose_placement
from computepool.core.networks.host_faults import FATAL, SEAT_FAULTS, HostFaultCode, advise
from computepool.core.networks.needs import list_needs
from computepool.core.networks.run import seat_id
from computepool.core.networks.seat_ends import decide_concluding, decide_vacating
from computepool.core.networks.spec import Exactness
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


def test_control_an_ordinary_attempt_that_the_node_lost_is_paid_nothing():
    assert count_paid_seconds(End(Cause.NODE_VANISHED, AttemptState.RUNNING, 100, checkpoint_seconds=60)) == 0


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


# Placement


MB = 1_000_000


def make_pnode(number: int, *, memory: int = 100, kind: str = "avx2", **values) -> PNode:
    """`memory` in megabytes."""
    return PNode(NodeId(UUID(int=number)), SlotName("cpu:0"), memory * MB, kind, 1e9, **values)


NEEDS = tuple(Need((name, 0), memory * MB, float(memory)) for name, memory in (("a", 30), ("b", 30), ("c", 20)))


def ask(*, seats: int = 2, exact: Exactness = Exactness.REQUIRED, **values) -> Question:
    return Question(NEEDS, {seat_id(index): () for index in range(seats)}, exact, **values)


def chosen(answer: Chosen | Unplaceable) -> Chosen:
    assert isinstance(answer, Chosen), answer
    return answer


def refused(answer: Chosen | Unplaceable) -> str:
    assert isinstance(answer, Unplaceable), answer
    return "; ".join(answer.reasons)


def test_vnodes_go_to_seats_in_the_order_of_the_network_and_every_seat_gets_some():
    answer = chosen(choose_placement(ask(seats=3), [make_pnode(n) for n in range(3)]))
    assert answer.moves == {("a", 0): seat_id(0), ("b", 0): seat_id(1), ("c", 0): seat_id(2)}
    answer = chosen(choose_placement(ask(seats=2), [make_pnode(n) for n in range(2)]))
    assert set(answer.moves.values()) == {FIRST, SECOND}


def test_memory_is_a_hard_limit():
    answer = chosen(choose_placement(ask(seats=2), [make_pnode(1, memory=50), make_pnode(2, memory=50)]))
    for seat, pnode in answer.pnodes.items():
        used = sum(need.memory_bytes for need in NEEDS if answer.moves[need.part] == seat)
        assert used <= pnode.memory_bytes


def test_the_order_in_which_pnodes_are_listed_does_not_matter():
    pnodes = [make_pnode(1, memory=60), make_pnode(2, held_bytes=5), make_pnode(3, reachable=True)]
    answers = [chosen(choose_placement(ask(), order)) for order in permutations(pnodes)]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0].pnodes[FIRST].held_bytes == 5


def test_an_exact_run_is_never_spread_over_two_classes_and_another_may_be():
    mixed = [make_pnode(1, kind="avx2"), make_pnode(2, kind="cuda")]
    assert "only 1 PNodes are free" in refused(choose_placement(ask(), mixed))
    assert len(chosen(choose_placement(ask(exact=Exactness.PREFERRED), mixed)).pnodes) == 2


def test_why_nothing_fits_names_the_vnode_the_pnode_and_what_to_do():
    words = refused(choose_placement(ask(), [make_pnode(7, memory=10), make_pnode(8, memory=20)]))
    for said in ("VNode a needs 30 MB", str(UUID(int=8)), "20 MB", "smaller"):
        assert said in words
    assert "computepool node --networks" in refused(choose_placement(ask(), []))
    assert "more than fits on 1 seats" in refused(choose_placement(ask(seats=1), [make_pnode(1, memory=60)]))


def lost(*, survivors=None, kind: str = "avx2", exact: Exactness = Exactness.REQUIRED) -> Question:
    room = {seat: memory * MB for seat, memory in (survivors or {}).items()}
    return Question(NEEDS, {SECOND: [("b", 0), ("c", 0)]}, exact, kind, room)


def test_what_a_lost_seat_had_goes_to_one_spare_and_nothing_else_moves():
    answer = chosen(choose_placement(lost(survivors={FIRST: 1_000}), [make_pnode(1, memory=50)]))
    assert answer.moves == {("b", 0): SECOND, ("c", 0): SECOND}


def test_without_a_spare_it_goes_to_hosts_with_room_and_without_room_it_waits():
    answer = chosen(choose_placement(lost(survivors={FIRST: 30, seat_id(2): 20}), []))
    assert answer.moves == {("b", 0): FIRST, ("c", 0): seat_id(2)}
    assert answer.pnodes == {}
    assert "needs a PNode with 50 MB" in refused(choose_placement(lost(survivors={FIRST: 49}), []))


def test_a_spare_of_the_class_is_taken_before_another():
    spares = [make_pnode(1, kind="cuda", reachable=True), make_pnode(2, kind="avx2")]
    answer = chosen(choose_placement(lost(exact=Exactness.PREFERRED), spares))
    assert answer.pnodes[SECOND].numeric_class == "avx2"
    only_other = [make_pnode(1, kind="cuda")]
    assert "of numeric class avx2" in refused(choose_placement(lost(), only_other))
    assert chosen(choose_placement(lost(exact=Exactness.PREFERRED), only_other)).pnodes[SECOND].node_id


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
