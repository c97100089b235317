"""The simulation of a fleet that forges, in short: small fleets, and what is said when validation is off."""

from __future__ import annotations

import json
import random
from math import exp

import pytest

from computepool.core.trust import validation
from sims.forgers import Fleet, Tally
from sims.histories import Setting, Shelf
from sims.hostile import (
    EFFICIENCY_RANGE,
    bound_count,
    bound_wrong,
    find_overhead,
    find_profit,
    main,
    measure_tiers,
    run_many,
    run_one,
    tell,
)

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
    assert find_profit(story) <= 0


def test_control_without_validation_every_forgery_gets_through():
    tally, gain = run_one(make_setting("always", validates=False))
    assert tally.wrong_finalised / tally.finalised > 0.1
    assert tally.extra_runs == 0
    # All that it was paid, less the fee: 0.8 credits for every result.
    assert gain == RESULTS * 800_000


def test_colluders_are_found_although_they_vouch_for_each_other():
    tally, _ = run_one(make_setting("collude"))
    assert tally.forgers_bugged >= HOSTILE // 2
    assert tally.honest_bugged == 0


def test_control_forgers_who_decide_against_right_results_are_counted(monkeypatch):
    """As many colluders as honest ones, and nobody whose word comes first."""
    monkeypatch.setattr("sims.forgers.choose_deciders", validation.choose_auditors)
    setting = Setting(NODES, NODES // 2, "collude", RESULTS, "short")
    tally, _ = run_one(setting)
    assert 0 < tally.wrong_replacements < tally.wrong_finalised


def test_forging_less_pay_lost_is_what_it_brings():
    """Honest forgers gain nothing and lose nothing; those who forge are worse off."""
    assert run_one(make_setting("honest")).gain == 0
    assert run_one(make_setting("trickle")).gain < 0


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


def test_without_any_wrong_result_the_bound_is_three_over_all():
    quiet, _ = run_one(make_setting("honest", results=250))
    assert bound_wrong([quiet, quiet]) == pytest.approx(2.9957 / (2 * quiet.finalised), rel=1e-4)


@pytest.mark.parametrize(("seen", "at_most"), [(0, 2.9957), (1, 4.7439), (5, 10.5130), (100, 118.08)])
def test_a_count_is_bounded_as_tables_of_poisson_say(seen, at_most):
    assert bound_count(seen) == pytest.approx(at_most, rel=1e-3)


# Wrong results of one seed: one by one, or four at a time. How often the mean that they were drawn with is within.
@pytest.mark.parametrize(("bursts", "size"), [(3.0, 1), (0.5, 4), (2.0, 4)])
def test_nineteen_in_twenty_bounds_hold(bursts, size):
    rng = random.Random("bounds")
    held = naive = 0
    for _ in range(400):
        counts = [size * draw_poisson(bursts, rng) for _ in range(20)]
        bound = bound_wrong([Tally(finalised=1_000, wrong_finalised=count) for count in counts])
        held += bound >= bursts * size / 1_000
        naive += bound_count(sum(counts)) / 20 >= bursts * size
    assert held / 400 > 0.93
    # The control: as if wrong results knew nothing of each other.
    assert size == 1 or naive / 400 < 0.85


def draw_poisson(mean: float, rng: random.Random) -> int:
    number, left = 0, rng.random()
    while left > exp(-mean):
        number, left = number + 1, left * rng.random()
    return number


def test_slower_cards_are_caught_and_honest_ones_are_not():
    caught, rejected = measure_tiers(900)
    assert caught >= 0.99
    assert rejected <= 0.01
    # The control: at all that libraries reach, fraud and truth overlap.
    overlapping, _ = measure_tiers(900, efficiency=EFFICIENCY_RANGE)
    assert overlapping < 0.7


def test_a_run_that_was_stopped_goes_on_with_what_it_has_told(tmp_path, monkeypatch):
    settings = [Setting(NODES, HOSTILE, "trickle", 60, f"seed {number}") for number in range(3)]
    told = run_many(settings)
    run_many(settings[:2], shelf=Shelf(tmp_path))
    with (tmp_path / "histories.jsonl").open("a") as file:
        file.write('{"rules": "of a run that was sto')
    again = []
    monkeypatch.setattr("sims.hostile.run_one", lambda setting: (again.append(setting), run_one(setting))[1])
    assert run_many(settings, shelf=Shelf(tmp_path)) == told
    assert again == settings[2:]
    # What other rules have told counts for nothing.
    monkeypatch.setattr("sims.histories.fingerprint", lambda: "of tomorrow")
    run_many(settings, shelf=Shelf(tmp_path))
    assert again == [*settings[2:], *settings]


def test_two_processes_tell_the_same():
    settings = [Setting(NODES, HOSTILE, "collude", 60, f"seed {number}") for number in range(3)]
    assert run_many(settings, jobs=2) == run_many(settings)


def test_the_whole_set_ends_with_every_figure_that_is_promised(capsys):
    main(["--nodes", "20", "--hostile", "2", "--seeds", "2", "--results", "220", "--jobs", "1", "--no-plots"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() >= {
        *(f"wrong_accepted_at_{share}" for share in (5, 10, 20)),
        *(f"overhead_at_{share}" for share in (10, 20)),
        *("reenter_wrong", "reenter_overhead", "honest_banned", "attacker_profit_max"),
        *("tier_fraud_caught", "tier_honest_rejected", "control_wrong_without_validation"),
    }
    assert figures["control_wrong_without_validation"] > 0.05
    assert figures["honest_banned"] == 0
