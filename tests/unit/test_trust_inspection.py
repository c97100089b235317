"""What is done next about a result that is checked, and how it is said to people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from computepool.core.ids import AccountId
from computepool.core.ledger.charging import LeaseTerms
from computepool.core.trust.comparators.command import Needed
from computepool.core.trust.inspection import (
    BACKGROUND_WAIT,
    DECIDER_WAIT,
    QUORUM_WAIT,
    RUNS_MAX,
    Ask,
    CheckOutcome,
    CheckRun,
    Comparison,
    Facts,
    Rule,
    RunState,
    Wait,
    plan_comparison,
    plan_step,
)
from computepool.core.trust.release import PayWait
from computepool.core.trust.reputation import Integrity
from computepool.core.trust.standing import NodeTrust, Standing
from computepool.core.trust.validation import AUDITOR_WAIT, Runner, Verify
from computepool.core.trust.words import (
    count_missing,
    find_job_confidence,
    say_job,
    say_pay,
    say_pay_wait,
    say_standing,
)
from tests.support.builders import NOW, node_number


def run(number: int, state: RunState = RunState.DELIVERED, ended_at: datetime | None = NOW) -> CheckRun:
    runner = Runner(node_number(number), AccountId(UUID(int=number + 1)), f"net-{number}", is_trusted=True)
    return CheckRun(runner, state, ended_at if state is not RunState.UNDER_WAY else None)


def facts(*answers: int, mode: Verify = Verify.AUDIT, withheld: bool = True, dead: int = 0) -> Facts:
    runs = [run(number) for number in range(len(answers))]
    runs += [run(20 + number, RunState.DEAD) for number in range(dead)]
    return Facts(mode, withheld, NOW, tuple(runs), answers)


def test_one_auditor_is_asked_first():
    assert plan_step(facts(0), now=NOW) == Ask(1, decides=False, is_last=False)


def test_whoever_compares_is_waited_for_as_long_as_whoever_decides_from_the_last_run_on():
    pair, known = Needed(0, 1), facts(0, 1)
    assert plan_comparison(known, pair, now=NOW + DECIDER_WAIT * 0.99) == Comparison(pair, is_last=False)
    assert plan_comparison(known, pair, now=NOW + DECIDER_WAIT) == Comparison(pair, is_last=True)
    compared = replace(known, compared_at=NOW + timedelta(minutes=1))
    assert plan_comparison(compared, pair, now=NOW + DECIDER_WAIT) == Comparison(pair, is_last=False)
    assert plan_step(compared, now=NOW + DECIDER_WAIT) == Ask(2, decides=True, is_last=False)


def test_nothing_is_decided_while_a_run_is_under_way():
    waiting = replace(facts(0), runs=(run(0), run(1, RunState.UNDER_WAY)))
    assert plan_step(waiting, now=NOW + timedelta(days=1)) == Wait()


def test_agreement_rules_at_once():
    assert plan_step(facts(0, 0), now=NOW) == Rule(CheckOutcome.AGREED, (True, True))


def test_a_disagreement_is_left_to_two_who_decide():
    assert plan_step(facts(0, 1), now=NOW) == Ask(2, decides=True, is_last=False)
    assert plan_step(facts(0, 1, 1), now=NOW) == Ask(1, decides=True, is_last=False)


@pytest.mark.parametrize(
    ("answers", "ruled"),
    [
        ((0, 1, 1, 1), Rule(CheckOutcome.FOUND_WRONG, (False, True, True, True))),
        ((0, 1, 0, 0), Rule(CheckOutcome.AGREED, (True, False, True, True))),
        ((0, 1, 2, 2), Rule(CheckOutcome.FOUND_WRONG, (False, False, True, True))),
        ((0, 1, 0, 1), Rule(CheckOutcome.UNDECIDED, (None,) * 4)),
    ],
)
def test_who_is_right_is_what_the_two_say_and_if_they_differ_nobody_is_blamed(answers, ruled):
    assert plan_step(facts(*answers), now=NOW) == ruled


@pytest.mark.parametrize(
    ("known", "patience"),
    [
        (facts(0), AUDITOR_WAIT),
        (facts(0, withheld=False), BACKGROUND_WAIT),
        (facts(0, 1), DECIDER_WAIT),
        (facts(0, mode=Verify.QUORUM), QUORUM_WAIT),
    ],
    ids=["withheld", "in the background", "to decide", "quorum"],
)
def test_each_step_has_its_patience(known, patience):
    before, after = (plan_step(known, now=NOW + patience + timedelta(seconds=s)) for s in (-1, 0))
    assert isinstance(before, Ask)
    assert not before.is_last
    assert isinstance(after, Ask)
    assert after.is_last


def test_runs_that_came_to_nothing_are_replaced_but_not_for_ever():
    assert isinstance(plan_step(facts(0, dead=RUNS_MAX - 1), now=NOW), Ask)
    assert plan_step(facts(0, dead=RUNS_MAX), now=NOW) == Rule(CheckOutcome.NO_AUDITOR, (None,))


def test_a_quorum_is_two_strangers_who_agree():
    assert plan_step(facts(0, mode=Verify.QUORUM), now=NOW) == Ask(1, decides=False, is_last=False)
    assert plan_step(facts(0, 0, mode=Verify.QUORUM), now=NOW) == Rule(CheckOutcome.AGREED, (True, True))
    assert plan_step(facts(0, 1, mode=Verify.QUORUM), now=NOW) == Ask(1, decides=False, is_last=False)
    wrong = plan_step(facts(0, 1, 1, mode=Verify.QUORUM), now=NOW)
    assert wrong == Rule(CheckOutcome.FOUND_WRONG, (False, True, True))
    assert plan_step(facts(0, 1, 2, mode=Verify.QUORUM), now=NOW).outcome is CheckOutcome.UNDECIDED


# Words


@pytest.mark.parametrize(
    ("trust", "missing", "words"),
    [
        (NodeTrust(), 20, "20 right results to go"),
        (NodeTrust(is_vouched=True), 0, "vouches"),
        (NodeTrust(integrity=Integrity(right=50, validated_count=60, counted_at=NOW)), 0, "Trusted"),
        (NodeTrust(integrity=Integrity(right=20, wrong=9, validated_count=60, counted_at=NOW)), 0, "Not trusted"),
        (
            NodeTrust(integrity=Integrity(validated_count=40), standing=Standing.SUSPECT, wrong_at=(30,)),
            40,
            "40 further results",
        ),
        (NodeTrust(standing=Standing.BUGGED, since=NOW, bugged_count=1), 0, "work its way back"),
        (NodeTrust(standing=Standing.RETURNING, returning_left=7), 7, "7 slices to go"),
        (NodeTrust(standing=Standing.BARRED), 0, "Only the operator"),
    ],
)
def test_every_standing_says_what_it_means_and_what_leads_on(trust, missing, words):
    assert count_missing(trust) == missing
    assert words in say_standing(trust, now=NOW)


@pytest.mark.parametrize(
    ("trust", "bonus_ppm", "words"),
    [
        (NodeTrust(), 0, "until probation is passed (20 right results to go), but no more than 30 days"),
        (NodeTrust(is_vouched=True), 0, "Pay is held back for 72 h. From day 30"),
        (NodeTrust(integrity=Integrity(validated_count=60)), 12_345, "a bonus of 1.23 % of the price"),
        (NodeTrust(standing=Standing.SUSPECT, wrong_at=(30,)), 0, "when the suspicion has passed"),
        (NodeTrust(standing=Standing.RETURNING), 0, "earns nothing"),
    ],
)
def test_an_owner_is_told_how_soon_a_node_is_paid_and_what_pay_waits_for(trust, bonus_ppm, words):
    assert words in say_pay(trust, LeaseTerms(200_000 - bonus_ppm, 72 * 3_600), bonus_ppm=bonus_ppm)


def test_a_short_holdback_is_told_in_seconds():
    assert "for 30 seconds" in say_pay(NodeTrust(), LeaseTerms(0, 30), bonus_ppm=0)


def test_pay_that_waits_says_what_for_and_for_how_long_at_most():
    assert "19 right results to go), or 2026-" in say_pay_wait(
        NodeTrust(integrity=Integrity(validated_count=1)), PayWait(datetime(2026, 12, 1, tzinfo=UTC))
    )
    assert (
        say_pay_wait(NodeTrust(standing=Standing.BUGGED), PayWait(None)) == "Not released while its node is bugged."
    )


def test_a_job_is_as_sure_as_its_results():
    assert find_job_confidence([]) is None
    newcomer = find_job_confidence([(0.5, None, 4)])
    checked = find_job_confidence([(0.5, CheckOutcome.AGREED, 4)])
    mixed = find_job_confidence([(0.5, None, 2), (0.5, CheckOutcome.AGREED, 2)])
    assert newcomer == pytest.approx(0.5)
    assert checked == pytest.approx(0.99)
    assert mixed == pytest.approx((newcomer + checked) / 2)
    assert find_job_confidence([(0.5, CheckOutcome.FOUND_WRONG, 1)]) == pytest.approx(1 - 0.02**2)


def test_what_is_said_of_a_jobs_results():
    known = {"nondeterministic": False, "confidence": 0.9912, "check_count": 3, "replaced": 1}
    assert "--compare" in say_job(verify=None, **known)
    assert "nobody is to blame" in say_job(verify=Verify.AUDIT, **{**known, "nondeterministic": True})
    said = say_job(verify=Verify.AUDIT, **known)
    assert "3 further runs" in said
    assert "99.12 %" in said
    assert "1 wrong result replaced" in said
