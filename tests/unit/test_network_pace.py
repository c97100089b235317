"""How fast runs went against their estimates: what tells, what does not, and how long it counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from computepool.core.networks import pace
from computepool.core.networks.pace import (
    LASTS,
    PACE_MAX,
    PACE_MIN,
    SECONDS_MIN,
    STEPS_MAX,
    STEPS_MIN,
    WARM_STEPS,
    measure_pace,
    mix_pace,
    recall_pace,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ENOUGH = WARM_STEPS + STEPS_MIN + 1


def list_ends(*took_seconds: float) -> list[datetime]:
    """When steps ended that took so long."""
    ends = [NOW]
    for each in took_seconds:
        ends.append(ends[-1] + timedelta(seconds=each))
    return ends


def test_a_run_that_takes_twice_as_long_as_planned_has_half_the_pace():
    assert measure_pace(list_ends(*[1.0] * ENOUGH), planned_seconds=0.5) == pytest.approx(0.5)


def test_stalls_are_part_of_the_pace():
    """Every fifth step waits for a line that stands still: a usual step, as by the median, would not show it."""
    ends = list_ends(*[1.0, 1.0, 1.0, 1.0, 2.0] * 20)
    assert measure_pace(ends, planned_seconds=1.0) == pytest.approx(1 / 1.2, rel=0.02)


def test_the_first_steps_of_an_epoch_do_not_count():
    ends = list_ends(*[60.0] * WARM_STEPS, *[1.0] * ENOUGH)
    assert measure_pace(ends, planned_seconds=1.0) == pytest.approx(1.0)


def test_control_a_pace_with_the_first_steps_is_found(monkeypatch):
    monkeypatch.setattr(pace, "WARM_STEPS", 0)
    with pytest.raises(AssertionError):
        test_the_first_steps_of_an_epoch_do_not_count()


def test_of_a_long_run_the_newest_steps_count():
    ends = list_ends(*[9.0] * 500, *[1.0] * STEPS_MAX)
    assert measure_pace(ends, planned_seconds=1.0) == pytest.approx(1.0)


def test_few_steps_or_a_short_time_tell_nothing():
    assert measure_pace([], planned_seconds=1.0) is None
    assert measure_pace(list_ends(*[9.0] * (ENOUGH - 2)), planned_seconds=1.0) is None
    short = 0.9 * SECONDS_MIN / STEPS_MIN
    assert measure_pace(list_ends(*[short] * (ENOUGH - 1)), planned_seconds=1.0) is None


def test_a_pace_stays_within_what_a_machine_can_have():
    ends = list_ends(*[1.0] * ENOUGH)
    assert measure_pace(ends, planned_seconds=1e-6) == PACE_MIN
    assert measure_pace(ends, planned_seconds=1e6) == PACE_MAX


def test_what_was_known_counts_for_half():
    assert mix_pace(None, 0.6) == 0.6
    assert mix_pace(1.0, 0.6) == pytest.approx(0.8)


def test_an_old_pace_is_forgotten():
    assert recall_pace(0.6, NOW, now=NOW + LASTS / 2) == 0.6
    assert recall_pace(0.6, NOW, now=NOW + LASTS) is None
    assert recall_pace(None, None, now=NOW) is None
