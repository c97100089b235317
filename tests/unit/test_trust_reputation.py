"""Reliability: what finished and failed attempts make of a node's bound."""

from __future__ import annotations

from datetime import timedelta

import pytest

from computepool.core.trust.reputation import (
    IDLE_HALF_LIFE_DAYS,
    Integrity,
    Reliability,
    beta_quantile,
    beta_share_below,
    expected_wrong_ratio,
    fade,
    fade_integrity,
    integrity_bound,
    record_fault,
    record_finished,
    record_right,
    record_wrong,
    reliability_bound,
)
from tests.support.builders import NOW


def after(finished: int, faults: int = 0) -> Reliability:
    known = Reliability()
    for _ in range(finished):
        known = record_finished(known, now=NOW)
    for _ in range(faults):
        known = record_fault(known, now=NOW)
    return known


def bound(known: Reliability) -> float:
    return reliability_bound(known, now=NOW)


# The same figures as in the study behind the design; rounding evidence against the node costs a little.
@pytest.mark.parametrize(
    ("finished", "bounds"),
    [(0, [0.050]), (10, [0.744, 0.635, 0.500, 0.354]), (50, [0.913, 0.865, 0.791, 0.683]), (200, [0.942, 0.909])],
)
def test_the_bound_falls_faster_with_every_fault_in_a_row(finished, bounds):
    found = [bound(after(finished, faults)) for faults in range(len(bounds))]
    assert found == pytest.approx(bounds, abs=0.004)


def test_a_success_never_lowers_and_a_fault_never_raises_the_bound():
    histories = [(0, 0), (1, 0), (60, 0), (500, 0), (0, 60), (5, 30), (50, 1), (200, 9)]
    for known in [after(*each) for each in histories] + [record_finished(after(0, 60), now=NOW)]:
        assert bound(record_finished(known, now=NOW)) >= bound(known)
        assert bound(record_fault(known, now=NOW)) <= bound(known)


def test_a_success_ends_the_row_of_faults():
    row = after(50, 3)
    assert row.faults_running == 3
    assert record_finished(row, now=NOW).faults_running == 0


def test_the_third_and_later_faults_weigh_alike():
    steps = [after(0, n + 1).failed - 0.98 * after(0, n).failed for n in range(5)]
    assert steps == pytest.approx([1, 2, 4, 4, 4])


def test_without_events_a_node_drifts_back_to_a_newcomer():
    later = NOW + timedelta(days=IDLE_HALF_LIFE_DAYS)
    good, bad = after(50), after(0, 10)
    assert fade(good, now=later).finished == pytest.approx(good.finished / 2)
    newcomer = bound(Reliability())
    assert newcomer < reliability_bound(good, now=later) < bound(good)
    assert bound(bad) < reliability_bound(bad, now=later) < newcomer
    assert reliability_bound(good, now=NOW + timedelta(days=3_650)) == pytest.approx(newcomer, abs=0.001)


def test_fading_twice_is_fading_once():
    middle, end = NOW + timedelta(days=3), NOW + timedelta(days=10)
    once, twice = fade(after(20, 1), now=end), fade(fade(after(20, 1), now=middle), now=end)
    assert (once.finished, once.failed) == pytest.approx((twice.finished, twice.failed))


def test_an_event_that_arrives_late_turns_no_clock_back():
    known = after(5)
    assert fade(known, now=NOW - timedelta(hours=1)) == known


def test_the_bound_stays_between_nothing_and_certainty():
    for known in (after(5_000), after(0, 5_000), after(5_000, 5_000)):
        assert 0.0 <= bound(known) < 1.0


@pytest.mark.parametrize(
    ("p", "a", "b", "x"),
    # Beta(a, 1) and Beta(1, b) have quantiles in closed form; Beta(2, 2) is a cubic; symmetric ones have a middle.
    [
        (0.05, 1.0, 1.0, 0.05),
        (0.05, 51.0, 1.0, 0.05 ** (1 / 51)),
        (0.05, 1.0, 201.0, 1 - 0.95 ** (1 / 201)),
        (0.5, 7.5, 7.5, 0.5),
        (0.104, 2.0, 2.0, 0.2),
    ],
)
def test_quantiles_are_those_of_the_textbook(p, a, b, x):
    assert beta_quantile(p, a, b) == pytest.approx(x, abs=1e-9)


def test_a_quantile_is_the_inverse_of_the_share_below():
    for a in (1.0, 1.5, 10.0, 51.0):
        for b in (1.0, 1.25, 4.0, 60.0, 201.0):
            assert beta_share_below(beta_quantile(0.05, a, b), a, b) == pytest.approx(0.05, abs=1e-8)


def test_nothing_lies_below_zero_and_everything_below_one():
    assert beta_share_below(0.0, 2.0, 3.0) == 0.0
    assert beta_share_below(1.0, 2.0, 3.0) == 1.0


def test_three_faults_in_a_row_hurt_a_veteran_and_eighty_successes_heal_it():
    veteran = after(200)
    assert bound(veteran) == pytest.approx(0.94, abs=0.005)
    hurt = after(200, 3)
    assert bound(hurt) == pytest.approx(0.77, abs=0.005)
    healed = hurt
    for _ in range(80):
        healed = record_finished(healed, now=NOW)
    assert bound(healed) == pytest.approx(0.90, abs=0.005)


def validated(right: int, wrong: int = 0) -> Integrity:
    known = Integrity()
    for _ in range(right):
        known = record_right(known, now=NOW)
    for _ in range(wrong):
        known = record_wrong(known, now=NOW)
    return known


def test_one_wrong_result_weighs_as_much_as_the_third_fault_in_a_row():
    assert integrity_bound(validated(200), now=NOW) == pytest.approx(0.942, abs=0.004)
    assert integrity_bound(validated(200, 1), now=NOW) < bound(after(200, 2))
    assert 0.67 <= integrity_bound(validated(200, 2), now=NOW) <= 0.77


def test_a_right_result_never_lowers_and_a_wrong_one_never_raises_integrity():
    for known in (validated(*each) for each in [(0, 0), (1, 0), (300, 0), (0, 30), (40, 2), (200, 9)]):
        assert integrity_bound(record_right(known, now=NOW), now=NOW) >= integrity_bound(known, now=NOW)
        assert integrity_bound(record_wrong(known, now=NOW), now=NOW) <= integrity_bound(known, now=NOW)
        assert record_wrong(known, now=NOW).validated_count == known.validated_count + 1


def test_integrity_fades_without_events_but_its_count_does_not():
    later = NOW + timedelta(days=IDLE_HALF_LIFE_DAYS)
    faded = fade_integrity(validated(50), now=later)
    assert faded.right == pytest.approx(validated(50).right / 2)
    assert faded.validated_count == 50
    assert integrity_bound(validated(50), now=later) < integrity_bound(validated(50), now=NOW)


def test_a_newcomer_is_wrong_as_often_as_right_for_all_that_is_known():
    assert expected_wrong_ratio(Integrity(), now=NOW) == 0.5
    assert expected_wrong_ratio(validated(200), now=NOW) == pytest.approx(0.02, abs=0.001)
