"""When a slot is asked to show its speed again, and what becomes of one that does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from computepool.core.trust.challenge import Claim, ProofState, lapse, may_try
from computepool.core.trust.sittings import (
    ANSWER_WITHIN,
    MISSES_MAX,
    UNSURE_MAX,
    Sitting,
    Turn,
    conclude,
    plan_wait,
    take_turn,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEAN = timedelta(days=3)
DUE = Sitting(NOW - timedelta(seconds=1))
# As the hub draws it when nothing else is said.
DRAW = 0.5


def turn(sitting: Sitting, state: ProofState = ProofState.PROVEN, **changes: object) -> Turn:
    options: dict[str, object] = {"reachable": True, "now": NOW, "mean": MEAN, "draw": DRAW, **changes}
    return take_turn(sitting, state, **options)  # type: ignore[arg-type]


def end(sitting: Sitting, verdict: ProofState, before: ProofState = ProofState.PROVEN) -> tuple[Sitting, bool]:
    return conclude(sitting, verdict, before=before, now=NOW, mean=MEAN, draw=DRAW)


# When


def test_waits_are_three_days_on_average_and_having_waited_tells_nothing():
    random = Random(5)
    waits = [plan_wait(ProofState.PROVEN, mean=MEAN, draw=random.random()) / MEAN for _ in range(20_000)]
    assert sum(waits) / len(waits) == pytest.approx(1.0, rel=0.03)
    left = [wait - 2 for wait in waits if wait > 2]
    # Whoever was left alone for six days has to wait for as long as anybody else.
    assert sum(left) / len(left) == pytest.approx(1.0, rel=0.06)


def test_what_is_missing_is_asked_for_sooner():
    waits = {state: plan_wait(state, mean=MEAN, draw=DRAW) for state in ProofState}
    assert waits[ProofState.UNSURE] < waits[ProofState.UNPROVEN] < waits[ProofState.SLOWER] < waits[ProofState.PROVEN]


def test_nothing_happens_before_it_is_due_and_then_it_is_asked():
    early = Sitting(NOW + timedelta(seconds=1))
    assert turn(early) == Turn(early)
    assert turn(DUE) == Turn(replace(DUE, asked_at=NOW))


def test_a_node_that_is_away_is_asked_soon_after_it_is_back_but_not_at_once():
    after = turn(DUE, reachable=False).sitting
    assert after.asked_at is None
    assert NOW < after.due_at < NOW + timedelta(hours=1)


# Silence


def test_a_request_that_the_node_has_not_heard_of_cannot_be_missed():
    asked = replace(DUE, asked_at=NOW)
    assert turn(asked, now=NOW + timedelta(days=30)) == Turn(asked)


def test_a_slot_is_unproven_after_several_requests_that_it_did_not_answer():
    sitting, now, lost = DUE, NOW, []
    for _ in range(MISSES_MAX):
        now = max(now, sitting.due_at)
        told = replace(turn(sitting, now=now).sitting, told_at=now)
        assert turn(told, now=now + ANSWER_WITHIN - timedelta(seconds=1)) == Turn(told)
        now += ANSWER_WITHIN
        after = turn(told, now=now)
        sitting = after.sitting
        lost.append(after.loses_proof)
        assert sitting.asked_at is None
    assert lost == [False] * (MISSES_MAX - 1) + [True]
    assert sitting.missed_count == 0


@pytest.mark.parametrize("state", [state for state in ProofState if state is not ProofState.PROVEN])
def test_nobody_gets_rid_of_a_verdict_by_silence(state):
    told = Sitting(NOW, asked_at=NOW, told_at=NOW, missed_count=MISSES_MAX + 4)
    assert not turn(told, state, now=NOW + ANSWER_WITHIN).loses_proof


def test_a_lapsed_slot_counts_as_unknown_and_may_show_itself_at_once():
    verdict = lapse(Claim("rtx-4090", None, 8), asked_count=MISSES_MAX)
    assert (verdict.state, verdict.tier, verdict.tflops) == (ProofState.UNPROVEN, "unknown", None)
    assert may_try(verdict.state, decided_at=NOW, now=NOW)
    assert lapse(Claim("cpu", 1.0, 8), asked_count=MISSES_MAX).tier == "cpu"


# Verdicts


def test_an_answer_makes_up_for_requests_that_were_missed():
    after, stands = end(Sitting(NOW, asked_at=NOW, told_at=NOW, missed_count=2), ProofState.PROVEN)
    assert not stands
    assert (after.missed_count, after.asked_at, after.told_at) == (0, None, None)


def test_a_busy_machine_keeps_its_proof_and_is_asked_again_soon():
    after, stands = end(Sitting(NOW), ProofState.UNSURE)
    assert stands
    assert after.due_at < NOW + timedelta(hours=1)


def test_a_machine_that_is_busy_whenever_it_is_asked_is_not_believed_for_ever():
    sitting, stands = Sitting(NOW), []
    for _ in range(UNSURE_MAX):
        sitting, stood = end(sitting, ProofState.UNSURE)
        stands.append(stood)
    assert stands == [True] * (UNSURE_MAX - 1) + [False]


@pytest.mark.parametrize("verdict", [ProofState.SLOWER, ProofState.FORGED])
def test_a_slower_or_a_forged_sitting_counts_at_once(verdict):
    assert not end(Sitting(NOW), verdict)[1]


def test_a_slot_without_a_proof_has_none_to_keep():
    for before in ProofState:
        assert end(Sitting(NOW), ProofState.UNSURE, before)[1] == (before is ProofState.PROVEN)
