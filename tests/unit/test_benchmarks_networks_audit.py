"""The short form of the audits' benchmark: corrupters are found, honest PNodes are left alone, and what is planted
into the comparison shows."""

from __future__ import annotations

import pytest

from benchmarks import networks_audit
from benchmarks.networks_audit import KINDS, Play, Stage, Trial
from computepool.node.vnodes import engine

STEPS, SPAN, SHARE = 20, 4, 0.15


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage("mlp", steps=STEPS, span=SPAN)


def play(stage: Stage, *, kind: str, **options: object) -> list[Trial]:
    trials = [Play(stage, seed=seed, kind=kind, share=SHARE, **options).run(STEPS) for seed in range(4)]
    assert sum(trial.honest_flagged for trial in trials) == 0
    return trials


@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupter_loses_its_seat_and_nobody_else_is_blamed(stage: Stage, kind: str) -> None:
    trials = play(stage, kind=kind)
    assert all(trial.caught_at is not None for trial in trials)


def test_honest_seats_are_audited_and_never_flagged(stage: Stage) -> None:
    trial = Play(stage, seed=1, kind=KINDS[0], share=0.0).run(STEPS)
    assert (trial.caught_at, trial.honest_flagged) == (None, 0)
    # Every span of every newcomer.
    assert trial.audits == STEPS // SPAN * len(stage.seats)


@pytest.mark.parametrize("kind", KINDS)
def test_control_without_audits_nobody_is_caught(stage: Stage, kind: str) -> None:
    assert all(trial.caught_at is None for trial in play(stage, kind=kind, audited=False))


def test_control_a_comparison_that_ignores_what_is_in_the_frames_catches_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Digests of heads alone, and states that are taken for granted: as good as no audit."""
    monkeypatch.setattr(engine, "digest_tensor", lambda tensor: b"")
    monkeypatch.setattr(Stage, "tell", lambda self, work, seat: networks_audit.Told({}))
    blind = Stage("mlp", steps=STEPS, span=SPAN)
    assert all(trial.caught_at is None for trial in play(blind, kind=KINDS[0]))


def test_an_honest_replay_with_more_threads_is_within_what_a_numeric_class_explains(stage: Stage) -> None:
    deviations = [stage.measure_noise(stage.honest(0), seat, threads=2) for seat in stage.seats]
    assert max(deviations) < networks_audit.DEVIATION_MAX / 10


def test_the_figures_have_the_names_of_the_targets() -> None:
    found = networks_audit.measure(2, steps=8, span=4)
    assert {"corrupter_caught_share", "honest_flagged"} <= found.keys()
