"""The simulation of a fleet that forges, in short: small fleets, and what is said when validation is off."""

from __future__ import annotations

import pytest

from computepool.core.trust import validation
from sims.forgers import Fleet
from sims.hostile import Setting, bound_wrong, find_overhead, find_profit, measure_tiers, run_one, tell

# Small enough for seconds; a share of one in five forges.
NODES, HOSTILE, RESULTS = 30, 6, 600


def make_setting(strategy: str, *, results: int = RESULTS, validates: bool = True) -> Setting:
    return Setting(NODES, HOSTILE, strategy, results, "short", validates)


@pytest.mark.parametrize("strategy", ["always", "sleeper"])
def test_plain_forgers_get_nothing_through_and_are_bugged(strategy):
    story = tell([make_setting(strategy)])
    [tally] = story.tallies
    assert tally.forged_finalised == 0
    assert tally.forgers_bugged >= HOSTILE
    assert tally.honest_bugged == 0
    assert find_profit(story, RESULTS) < 0


def test_control_without_validation_every_forgery_gets_through():
    tally, _ = run_one(make_setting("always", validates=False))
    assert tally.wrong_finalised / tally.finalised > 0.1
    assert tally.extra_runs == 0


def test_colluders_are_found_although_they_vouch_for_each_other():
    tally, _ = run_one(make_setting("collude"))
    assert tally.forgers_bugged >= HOSTILE // 2
    assert tally.honest_bugged == 0


def test_control_without_looking_back_sleepers_get_some_through(monkeypatch):
    monkeypatch.setattr(Fleet, "_look_back", lambda self, node: None)
    tally, _ = run_one(make_setting("sleeper"))
    assert tally.forged_finalised > 0


def test_new_names_bring_little(monkeypatch):
    tally, _ = run_one(make_setting("reenter"))
    monkeypatch.setattr("sims.forgers.find_identity_refusal", lambda **_: None)
    free, _ = run_one(make_setting("reenter"))
    assert free.identities > 2 * tally.identities
    assert free.extra_runs > tally.extra_runs


def test_an_honest_fleet_loses_nobody_and_pays_for_its_audits_only():
    tally, _ = run_one(make_setting("honest"))
    assert tally.honest_bugged == tally.forgers_bugged == 0
    assert validation.RATE_MIN < find_overhead([tally]) < 0.30


def test_the_same_seed_makes_the_same_history():
    settings = make_setting("trickle", results=150)
    assert run_one(settings) == run_one(settings)


def test_the_bound_is_above_the_mean_and_never_zero():
    quiet, _ = run_one(make_setting("honest", results=250))
    assert bound_wrong([quiet, quiet]) == pytest.approx(3 / (2 * quiet.finalised))


def test_slower_cards_are_caught_and_honest_ones_are_not():
    caught, rejected = measure_tiers(900)
    assert caught >= 0.99
    assert rejected <= 0.01
