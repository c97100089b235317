"""When a checkpoint counts, what it is worth, and what becomes of an attempt that has one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.checkpoint import (
    Claim,
    Kept,
    Refusal,
    Saved,
    SavedFile,
    Standing,
    decide_checkpoint,
    find_fault,
    find_risk_seconds,
)
from computepool.core.jobs.checkpoint_limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_FILES_MAX
from computepool.core.jobs.lease import Decision, decide_last_loss, decide_loss, decide_report
from computepool.core.jobs.lease import Refusal as LeaseRefusal
from computepool.core.jobs.retry import HARMLESS_SECONDS, KILLS_MAX
from computepool.core.jobs.spec import list_faults
from computepool.core.jobs.state import AttemptState, SliceState
from tests.support.builders import NOW, make_attempt, make_file, make_report, make_slice, make_spec, node_number

FILE = SavedFile("state.json", "a" * 64, 10)
CLAIM = Claim(number=1, run_seconds=60.5, files=(FILE,))
STANDING = Standing(number=2, state=AttemptState.RUNNING, held_seconds=100.0, saved_seconds=0, kept=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": ()},
        {"files": (FILE, FILE)},
        {"files": (replace(FILE, path="../x"),)},
        {"files": (replace(FILE, path="/x"),)},
        {"files": (replace(FILE, path="a"), replace(FILE, path="a/b"))},
        {"files": (replace(FILE, sha256="A" * 64),)},
        {"files": (replace(FILE, size_bytes=-1),)},
        {"files": (replace(FILE, size_bytes=CHECKPOINT_BYTES_MAX + 1),)},
        {"files": tuple(replace(FILE, path=str(n)) for n in range(CHECKPOINT_FILES_MAX + 1))},
        {"number": 0},
        {"number": 1 << 40},
        {"run_seconds": -1.0},
        {"run_seconds": float("nan")},
        {"run_seconds": float("inf")},
        {"progress": 1.01},
        {"progress": float("nan")},
    ],
)
def test_a_claim_that_cannot_be_is_refused_whoever_makes_it(changes):
    assert find_fault(replace(CLAIM, **changes)) is not None
    assert find_fault(CLAIM) is None


def test_a_checkpoint_holds_the_whole_seconds_that_the_job_had_run():
    assert decide_checkpoint(STANDING, CLAIM) == Saved(60, is_news=True)


@pytest.mark.parametrize("state", sorted(set(AttemptState) - {AttemptState.LEASED, AttemptState.RUNNING}))
def test_only_a_live_attempt_may_save(state):
    decision = decide_checkpoint(replace(STANDING, state=state), CLAIM)
    assert isinstance(decision, Refusal)
    assert decision.is_stale


def test_an_older_attempt_never_overwrites_what_a_newer_one_has_saved():
    decision = decide_checkpoint(replace(STANDING, kept=Kept(3, 1, "b" * 64)), CLAIM)
    assert isinstance(decision, Refusal)
    assert decision.is_stale


def test_nobody_saves_more_seconds_than_the_lease_has_lasted():
    decision = decide_checkpoint(replace(STANDING, held_seconds=60.4), CLAIM)
    assert isinstance(decision, Refusal)
    assert not decision.is_stale


def test_the_same_files_again_hold_no_more_work_than_before():
    by_itself = replace(STANDING, saved_seconds=30, kept=Kept(2, 1, CLAIM.sha256))
    assert decide_checkpoint(by_itself, replace(CLAIM, number=2)) == Saved(30, is_news=False)
    # The files it began with, sent back as its own.
    restored = replace(STANDING, kept=Kept(1, 9, CLAIM.sha256))
    assert decide_checkpoint(restored, CLAIM) == Saved(0, is_news=False)


def test_numbers_only_grow_within_an_attempt():
    kept = replace(STANDING, kept=Kept(2, 5, "b" * 64))
    assert isinstance(decide_checkpoint(kept, replace(CLAIM, number=5)), Refusal)
    assert decide_checkpoint(kept, replace(CLAIM, number=6)) == Saved(60, is_news=True)
    assert decide_checkpoint(replace(kept, kept=Kept(1, 5, "b" * 64)), CLAIM) == Saved(60, is_news=True)


def test_saved_seconds_never_fall():
    assert decide_checkpoint(replace(STANDING, saved_seconds=90), CLAIM) == Saved(90, is_news=True)


def test_at_risk_is_what_was_done_since_the_last_checkpoint():
    times = {"leased_at": NOW, "started_at": NOW + timedelta(seconds=5), "saved_at": None}
    now = NOW + timedelta(seconds=65)
    assert find_risk_seconds(AttemptState.RUNNING, **times, now=now) == 60
    times["saved_at"] = NOW + timedelta(seconds=45)
    assert find_risk_seconds(AttemptState.RUNNING, **times, now=now) == 20
    assert find_risk_seconds(AttemptState.SUCCEEDED, **times, now=now) is None


# The loss of an attempt that has saved something


def test_a_silent_attempt_with_a_checkpoint_is_over_and_one_without_may_yet_deliver():
    plain = decide_loss(make_slice(), make_attempt(), Cause.NODE_VANISHED)
    saved = decide_loss(make_slice(), make_attempt(saved_seconds=60), Cause.NODE_VANISHED)
    assert isinstance(plain, Decision)
    assert isinstance(saved, Decision)
    assert plain.attempts[0].state is AttemptState.LOST
    assert saved.attempts[0].state is AttemptState.FAILED
    assert plain.slice.state is saved.slice.state is SliceState.QUEUED
    late = decide_report(saved.slice, saved.attempts[0], (), make_report())
    assert isinstance(late, LeaseRefusal)


def test_a_loss_without_money_for_another_try_ends_the_slice():
    lost = decide_last_loss(make_slice(), make_attempt(saved_seconds=60), Cause.NODE_VANISHED)
    assert isinstance(lost, Decision)
    assert lost.slice.state is SliceState.FAILED
    assert lost.slice.attempt_count == 1


def test_a_machine_that_went_down_after_long_work_that_was_saved_condemns_nobody():
    slice_ = make_slice(killed_count=KILLS_MAX - 1)
    attempt = make_attempt(node_id=node_number(9), saved_seconds=HARMLESS_SECONDS)
    saved = decide_loss(slice_, attempt, Cause.NODE_VANISHED)
    brief = decide_loss(slice_, replace(attempt, saved_seconds=HARMLESS_SECONDS - 1), Cause.NODE_VANISHED)
    assert isinstance(saved, Decision)
    assert isinstance(brief, Decision)
    assert saved.slice.state is SliceState.QUEUED
    assert (brief.slice.state, brief.slice.cause) == (SliceState.FAILED, Cause.POISONOUS)


def test_a_job_names_an_interval_that_can_be_kept_and_no_file_in_the_nodes_own_folder():
    assert list_faults(make_spec(checkpoint_seconds=1), now=NOW) == []
    assert len(list_faults(make_spec(checkpoint_seconds=0), now=NOW)) == 1
    assert len(list_faults(make_spec(checkpoint_seconds=86_401), now=NOW)) == 1
    [fault] = list_faults(make_spec(files=(make_file(path=".computepool/checkpoint/x"),)), now=NOW)
    assert "the node's own folder" in fault
