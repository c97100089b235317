"""What the record refuses every time is left alone for longer and longer, and what it grants is as any other."""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest

from computepool import clock
from computepool.core.ids import JobId
from computepool.hub.dispatch import stubborn
from computepool.hub.dispatch.stubborn import ASIDE_SECONDS_MAX, NAMED_AFTER, REFUSALS_MAX, Stubborn

ODD, OTHER = (JobId(uuid4()), 0), (JobId(uuid4()), 0)


class Time:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_000.0
        monkeypatch.setattr(clock, "seconds", lambda: self.seconds)

    def measure_aside(self, kept: Stubborn) -> int:
        """How many seconds from now on it is left alone; time has gone on by as much."""
        begun = self.seconds
        while kept.is_aside(ODD):
            self.seconds += 1
        return int(self.seconds - begun)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_it_is_left_alone_from_the_third_refusal_on_for_longer_each_time(time):
    kept, found = Stubborn(), []
    for _ in range(11):
        kept.note_refused(ODD)
        found.append(time.measure_aside(kept))
    assert found == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert found[-1] == ASIDE_SECONDS_MAX
    assert not kept.is_aside(OTHER)


def test_a_slice_that_is_granted_after_all_begins_anew(time):
    kept = Stubborn()
    for _ in range(REFUSALS_MAX):
        kept.note_refused(ODD)
    kept.note_granted(ODD)
    assert not kept.is_aside(ODD)
    kept.note_refused(ODD)
    assert not kept.is_aside(ODD)


def test_the_operator_reads_of_it_only_when_it_cannot_be_bad_luck(time, caplog):
    kept = Stubborn()
    with caplog.at_level(logging.ERROR, logger="computepool.dispatch"):
        for _ in range(NAMED_AFTER - 1):
            kept.note_refused(ODD)
        assert caplog.messages == []
        kept.note_refused(ODD)
    assert caplog.messages == [f"slice_cannot_be_leased job_id={ODD[0]} slice=0 refusals={NAMED_AFTER}"]


def test_only_so_many_are_remembered(time, monkeypatch):
    monkeypatch.setattr(stubborn, "REMEMBERED_MAX", 3)
    kept = Stubborn()
    for _ in range(REFUSALS_MAX):
        kept.note_refused(ODD)
    for _ in range(3):
        kept.note_refused((JobId(uuid4()), 0))
    assert not kept.is_aside(ODD)
