"""Validation: what is audited, who audits, who is blamed, and the way down and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.trust.confidence import LEVELS, count_runs, find_confidence, plan_level
from computepool.core.trust.identities import NEW_PER_NETWORK_MAX, Origin, find_identity_refusal
from computepool.core.trust.release import PROBATION_PAY_WAIT, PayWait, find_pay_wait
from computepool.core.trust.standing import (
    BUGGED_WINDOW,
    RETURNING_RESULTS,
    NodeTrust,
    Standing,
    TrustEffect,
    cool_off,
    is_paid,
    is_trusted,
    may_decide,
    may_lease,
    may_release_pay,
    readmit,
    record_bugged,
    record_validated,
)
from computepool.core.trust.validation import (
    RATE_MIN,
    MoreRuns,
    ResultState,
    Ruling,
    Runner,
    Verify,
    audit_rate,
    choose_auditors,
    choose_deciders,
    draw_audit,
    first_state,
    is_audited,
    judge_audit,
    judge_known_answer,
    judge_quorum,
    label_answers,
)
from tests.support.builders import NOW


def after(*events: bool, known: NodeTrust | None = None) -> NodeTrust:
    known = known or NodeTrust()
    for right in events:
        known, _ = record_validated(known, right=right, now=NOW)
    return known


def right(count: int) -> list[bool]:
    return [True] * count


def runner(number: int, *, owner: int | None = None, network: str | None = None, trusted: bool = True) -> Runner:
    owner_id = AccountId(UUID(int=number if owner is None else owner))
    return Runner(NodeId(UUID(int=number)), owner_id, network or f"net {number}", trusted)


# What is audited


def test_newcomers_are_always_audited_and_veterans_once_in_seven():
    rates = [audit_rate(after(*right(count)), now=NOW) for count in (0, 10, 19, 25, 50, 100, 1_000)]
    assert rates == pytest.approx([1, 1, 1, 0.4, 0.2, RATE_MIN, RATE_MIN])


def test_a_wrong_result_or_a_long_absence_brings_every_result_under_audit_again():
    veteran = after(*right(200))
    assert audit_rate(after(False, known=veteran), now=NOW) == 1.0
    assert audit_rate(veteran, now=NOW + timedelta(days=90)) == 1.0


def test_the_operator_vouches_for_a_node():
    assert is_trusted(NodeTrust(is_vouched=True), now=NOW)
    assert not is_trusted(after(False, known=NodeTrust(is_vouched=True)), now=NOW)


def test_results_of_untrusted_nodes_wait_and_those_without_a_comparator_are_unverified():
    new, veteran = NodeTrust(), after(*right(30))
    assert first_state(Verify.AUDIT, new, has_comparator=True, now=NOW) is ResultState.VERIFYING
    assert first_state(Verify.AUDIT, veteran, has_comparator=True, now=NOW) is ResultState.ACCEPTED
    assert first_state(Verify.QUORUM, veteran, has_comparator=True, now=NOW) is ResultState.VERIFYING
    assert first_state(Verify.AUDIT, veteran, has_comparator=False, now=NOW) is ResultState.UNVERIFIED
    assert first_state(Verify.NONE, veteran, has_comparator=True, now=NOW) is ResultState.UNVERIFIED


def test_audits_are_drawn_at_their_rate_and_follow_from_the_committed_result():
    draws = [draw_audit(b"key", AttemptId(UUID(int=number)), b"hash") for number in range(4_000)]
    assert sum(is_audited(0.15, draw) for draw in draws) / 4_000 == pytest.approx(0.15, abs=0.02)
    assert all(is_audited(1.0, draw) for draw in draws)
    assert not any(is_audited(0.0, draw) for draw in draws)
    first = AttemptId(UUID(int=0))
    assert draw_audit(b"key", first, b"hash") == draws[0]
    assert len({draws[0], draw_audit(b"key", first, b"other"), draw_audit(b"other", first, b"hash")}) == 3


# Who audits


def test_auditors_are_trusted_strangers_to_the_runner_and_to_each_other():
    ran = runner(1)
    candidates = [
        ran,
        runner(2, owner=1),
        runner(3, network="net 1"),
        runner(4, trusted=False),
        runner(5),
        runner(6, owner=5),
        runner(7),
    ]
    for draw in range(500):
        chosen = choose_auditors(candidates, [ran], count=2, draw=draw)
        assert {each.node_id.int for each in chosen} in ({5, 7}, {6, 7})
    assert choose_auditors(candidates[:4], [ran], count=2, draw=3) == []


def test_whoever_the_operator_vouches_for_decides_first():
    plain = [replace(runner(number), may_decide=True) for number in range(2, 8)]
    vouched = [replace(runner(number), may_decide=True, is_vouched=True) for number in (8, 9)]
    once_bugged = [runner(number) for number in (10, 11)]
    for draw in range(100):
        chosen = choose_deciders([*plain, *vouched, *once_bugged], [runner(0), runner(1)], count=2, draw=draw)
        assert set(chosen) == set(vouched)
        mixed = choose_deciders([*plain, *vouched, *once_bugged], [runner(0), runner(8)], count=2, draw=draw)
        assert vouched[1] in mixed
        assert set(mixed) & set(plain)


def test_every_auditor_is_drawn_equally_often():
    candidates = [runner(number) for number in range(1, 11)]
    drawn = [choose_auditors(candidates, [runner(0)], count=1, draw=draw)[0].node_id.int for draw in range(1_000)]
    assert {drawn.count(number) for number in range(1, 11)} == {100}


# Who is blamed


def test_agreement_counts_for_both():
    assert judge_audit([7, 7]) == Ruling((True, True))


def test_two_trusted_reruns_decide_a_disagreement():
    assert judge_audit([1, 2]) == MoreRuns(2)
    assert judge_audit([1, 2, 2]) == MoreRuns(1)
    assert judge_audit([1, 2, 2, 2]) == Ruling((False, True, True, True))
    assert judge_audit([1, 2, 1, 1]) == Ruling((True, False, True, True))
    assert judge_audit([1, 2, 3, 3]) == Ruling((False, False, True, True))


def test_when_the_reruns_differ_nobody_is_blamed():
    for answers in ([1, 2, 1, 2], [1, 2, 3, 4], [1, 2, 2, 3]):
        ruling = judge_audit(answers)
        assert ruling == Ruling((None,) * 4)
        assert ruling.is_nondeterministic


def test_known_answers_need_nobody_else():
    assert judge_known_answer(answer=3, expected=3) == Ruling((True,))
    assert judge_known_answer(answer=4, expected=3) == Ruling((False,))


def test_a_quorum_is_two_agreeing_strangers_and_a_third_breaks_ties():
    three = [runner(1), runner(2), runner(3)]
    assert judge_quorum([5], three[:1]) == MoreRuns(1)
    assert judge_quorum([5, 5], three[:2]) == Ruling((True, True))
    assert judge_quorum([5, 6], three[:2]) == MoreRuns(1)
    assert judge_quorum([5, 6, 5], three) == Ruling((True, False, True))
    assert judge_quorum([5, 6, 7], three) == Ruling((None, None, None))


def test_agreement_of_one_owner_or_one_network_with_itself_is_worth_nothing():
    for pair in ([runner(1), runner(2, owner=1)], [runner(1), runner(2, network="net 1")]):
        assert judge_quorum([5, 5], pair) == MoreRuns(1)
        assert judge_quorum([5, 5, 6], [*pair, runner(3)]) == Ruling((None, None, None))
        assert judge_quorum([5, 5, 5], [*pair, runner(3)]) == Ruling((True, True, True))


def test_answers_are_numbered_by_the_first_that_they_agree_with():
    assert label_answers([[], [True], [False, True], [False, False, False]]) == [0, 0, 0, 3]


# The way down and back


def test_one_wrong_result_makes_suspect_and_freezes_pay():
    known, effects = record_validated(after(*right(100)), right=False, now=NOW)
    assert known.standing is Standing.SUSPECT
    assert set(effects) == {TrustEffect.FREEZE_PAY, TrustEffect.RETRO_AUDIT}
    assert may_lease(known)
    assert is_paid(known)
    assert not may_release_pay(known)


def test_a_suspect_that_is_right_for_fifty_is_clear_again():
    suspect = after(*right(100), False)
    assert after(*right(BUGGED_WINDOW - 1), known=suspect).standing is Standing.SUSPECT
    known, effects = record_validated(after(*right(BUGGED_WINDOW - 1), known=suspect), right=True, now=NOW)
    assert known.standing is Standing.CLEAR
    assert effects == (TrustEffect.UNFREEZE_PAY,)


def test_a_suspect_is_not_cleared_by_looking_at_its_past():
    suspect = after(*right(100), False)
    same, effects = record_validated(suspect, right=True, now=NOW, is_retro=True)
    assert (same, effects) == (suspect, ())
    worse, _ = record_validated(suspect, right=False, now=NOW, is_retro=True)
    assert worse.standing is Standing.BUGGED


def test_two_wrong_in_fifty_are_bugged_and_two_in_more_are_not():
    close = after(*right(100), False, *right(BUGGED_WINDOW - 2), False)
    assert close.standing is Standing.BUGGED
    assert not may_lease(close)
    assert after(*right(100), False, *right(BUGGED_WINDOW), False).standing is Standing.SUSPECT


def test_the_bond_is_lost_with_the_second_wrong_result():
    _, effects = record_validated(after(*right(100), False), right=False, now=NOW)
    assert TrustEffect.FORFEIT_PAY in effects
    assert TrustEffect.STOP_LEASES in effects


def test_a_bugged_node_works_its_way_back_unpaid():
    bugged = after(*right(100), False, False)
    assert readmit(bugged, now=NOW + timedelta(hours=95)) == bugged
    back = readmit(bugged, now=NOW + timedelta(hours=96))
    assert back.standing is Standing.RETURNING
    assert may_lease(back)
    assert not is_paid(back)
    assert audit_rate(back, now=NOW) == 1.0
    assert after(*right(RETURNING_RESULTS - 1), known=back).standing is Standing.RETURNING
    clear = after(*right(RETURNING_RESULTS), known=back)
    assert clear.standing is Standing.CLEAR
    assert clear.bugged_count == 1
    veteran = after(*right(100), known=clear)
    assert is_trusted(veteran, now=NOW)
    assert audit_rate(veteran, now=NOW) == 2 * RATE_MIN
    assert not may_decide(veteran, now=NOW)
    assert may_decide(after(*right(120)), now=NOW)


def test_what_a_network_finds_leads_to_the_same_place_as_two_wrong_results():
    by_jobs = after(*right(100), False, False)
    by_network, effects = record_bugged(after(*right(100)), now=NOW)
    assert (by_network.standing, by_network.bugged_count) == (by_jobs.standing, by_jobs.bugged_count)
    assert by_network.since == by_network.serving_since == NOW
    newcomer, _ = record_bugged(NodeTrust(), now=NOW)
    assert newcomer.serving_since is None, "whoever has not passed probation has no tenure to begin anew"
    assert effects == (TrustEffect.STOP_LEASES, TrustEffect.RETRO_AUDIT, TrustEffect.FORFEIT_PAY)
    assert record_bugged(by_network, now=NOW + timedelta(hours=1)) == (by_network, ())
    assert readmit(by_network, now=NOW + timedelta(hours=96)).standing is Standing.RETURNING
    twice, _ = record_bugged(replace(by_network, standing=Standing.CLEAR, bugged_count=2), now=NOW)
    assert twice.standing is Standing.BARRED


def test_one_wrong_result_on_the_way_back_ends_it_and_the_third_time_is_the_last():
    known = after(*right(100), False, False)
    for times in (2, 3):
        known = readmit(known, now=NOW + cool_off(known.bugged_count))
        known = after(*right(RETURNING_RESULTS - 1), False, known=known)
        assert known.bugged_count == times
    assert known.standing is Standing.BARRED
    assert readmit(known, now=NOW + timedelta(days=10_000)) == known
    assert [cool_off(times) / timedelta(hours=1) for times in (1, 2, 3)] == [96, 384, 1_536]


def test_pay_is_not_released_before_probation_is_passed():
    assert not may_release_pay(after(*right(19)))
    assert may_release_pay(after(*right(20)))


def test_tenure_begins_with_passed_probation_and_anew_with_a_wrong_result():
    assert after(*right(19)).serving_since is None
    veteran = after(*right(20))
    assert veteran.serving_since == NOW
    later, _ = record_validated(veteran, right=False, now=NOW + timedelta(days=5))
    assert later.serving_since == NOW + timedelta(days=5)


def test_a_wrong_result_in_probation_begins_no_tenure():
    assert after(*right(5), False).serving_since is None


def test_passing_probation_frees_the_pay_that_waited_for_it_once():
    nearly = after(*right(19))
    passed, effects = record_validated(nearly, right=True, now=NOW)
    assert effects == (TrustEffect.UNFREEZE_PAY,)
    assert record_validated(passed, right=True, now=NOW)[1] == ()
    vouched = NodeTrust(integrity=nearly.integrity, is_vouched=True)
    assert record_validated(vouched, right=True, now=NOW)[1] == (), "nothing waited"


# Pay that waits


def find_wait(known: NodeTrust, *, days: float = 0, is_checked: bool = True) -> PayWait | None:
    return find_pay_wait(known, is_checked=is_checked, earned_at=NOW, now=NOW + timedelta(days=days))


def test_a_newcomers_pay_waits_for_probation_but_not_for_ever():
    newcomer = after(*right(19))
    assert find_wait(newcomer, days=29.9) == PayWait(NOW + PROBATION_PAY_WAIT)
    assert find_wait(newcomer, days=30) is None
    assert find_wait(after(*right(20))) is None
    assert find_wait(NodeTrust(is_vouched=True)) is None


def test_pay_for_what_nobody_checks_does_not_wait_for_probation():
    assert find_wait(NodeTrust(), is_checked=False) is None


def test_pay_of_a_node_that_is_not_clear_waits_whatever_it_is_for_and_however_long():
    for standing in set(Standing) - {Standing.CLEAR}:
        assert find_wait(NodeTrust(standing=standing), days=400, is_checked=False) == PayWait(None)


def test_the_days_count_from_when_the_node_was_clear():
    since = NodeTrust(since=NOW + timedelta(days=10))
    assert find_wait(since, days=39.9) is not None
    assert find_wait(since, days=40) is None


def test_what_waits_is_looked_at_once_a_day_and_when_its_time_has_come():
    late = NOW + PROBATION_PAY_WAIT - timedelta(hours=1)
    assert PayWait(None).next_look(NOW) == NOW + timedelta(days=1)
    assert PayWait(NOW + PROBATION_PAY_WAIT).next_look(NOW) == NOW + timedelta(days=1)
    assert PayWait(NOW + PROBATION_PAY_WAIT).next_look(late) == NOW + PROBATION_PAY_WAIT


# New names


def test_a_network_brings_only_so_many_new_nodes():
    few, many = Origin(NEW_PER_NETWORK_MAX - 1), Origin(NEW_PER_NETWORK_MAX)
    assert find_identity_refusal(owner=few, network=few, now=NOW) is None
    for owner, network in ((few, many), (many, few)):
        refusal = find_identity_refusal(owner=owner, network=network, now=NOW)
        assert refusal is not None
        assert refusal.reason == "too_many"
    raised = Origin(NEW_PER_NETWORK_MAX, limit=100)
    assert find_identity_refusal(owner=raised, network=raised, now=NOW) is None


def test_a_new_name_is_no_way_out_of_a_bad_one():
    bad = Origin(0, bugged_count=2, last_bugged_at=NOW - timedelta(hours=383))
    refusal = find_identity_refusal(owner=Origin(0), network=bad, now=NOW)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_at) == ("cooling_off", NOW + timedelta(hours=1))
    assert find_identity_refusal(owner=Origin(0), network=bad, now=NOW + timedelta(hours=1)) is None
    again = Origin(1, bugged_count=1, last_bugged_at=NOW - timedelta(days=2))
    assert find_identity_refusal(owner=Origin(0), network=again, now=NOW) is not None


# What certainty costs


def test_more_certainty_needs_more_runs_and_costs_more():
    levels = [plan_level(each) for each in LEVELS]
    assert [level.runs for level in levels] == [1, 2, 2]
    assert [level.surcharge_ppm for level in levels] == [150_000, 1_039_600, 1_039_600]
    assert count_runs(0.999, wrong_ratio=0.5) == 5


def test_strangers_who_agree_multiply_what_is_left_of_doubt():
    assert find_confidence([0.02]) == pytest.approx(0.98)
    assert find_confidence([0.5, 0.02]) == pytest.approx(0.99)
    assert find_confidence([0.02, 0.02]) == pytest.approx(0.9996)
    assert find_confidence([0.0]) == pytest.approx(0.999)
