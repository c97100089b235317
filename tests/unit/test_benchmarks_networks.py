"""The benchmark of networks gives every figure that has a target, null for what is not measured, and can fail."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks import networks
from benchmarks.networks import Survival, is_bit_equal, measure_bits, survive, to_figures
from benchmarks.networks_hubs import Foretold, Found, find_worst
from computepool.networks import local
from examples.networks.models import draw_digits, make_mlp, make_residual, read_text

TARGETS = Path(networks.__file__).with_name("targets.toml")
SPEEDS = {
    "one process, one thread": [100.0],
    "one process, two threads": [150.0],
    "two VNodes on one PNode": [95.0],
    "two PNodes, one thread each": [130.0],
    "one PNode, no checkpoints": [100.0],
    "one PNode, every 20 steps": [80.0],
}


FOUND = Found({"direct": [100.0, 50.0], "relay": [80.0, 45.0]}, [12.0, 14.0], [5.0], {})


def test_every_target_has_its_figure():
    figures = to_figures({("mlp", 2): True}, [Survival(True, [1.0])], SPEEDS, FOUND, 0.5, 0.1, {})
    assert figures.keys() == tomllib.loads(TARGETS.read_text())["networks"].keys()


def test_figures_are_ratios_of_what_was_measured():
    bits = {("mlp", 2): True, ("mlp", 3): False}
    survivals = [Survival(True, [1.0, 3.0]), Survival(False, [])]
    figures = to_figures(bits, survivals, SPEEDS, FOUND, 0.5, 0.1, {"honest_flagged": 0.0})
    assert (figures["bit_equal_configurations"], figures["bit_unequal_configurations"]) == (1, 1)
    assert figures["kills_bit_equal_share"] == 0.5
    assert figures["recovery_seconds_by_stream"] == 3.0
    assert figures["two_vnodes_one_pnode_vs_single"] == 0.95
    assert figures["two_pnodes_vs_single_one_core"] == 1.3
    assert figures["checkpoint_cost_ratio"] == pytest.approx(0.25)
    assert (figures["takeover_seconds"], figures["recovery_seconds_by_heartbeat"]) == (5.0, 14.0)
    assert figures["relay_vs_direct"] == pytest.approx(0.85), "turn by turn, whatever slowed the second one down"
    assert (figures["honest_flagged"], figures["corrupter_caught_share"]) == (0.0, None)


@pytest.mark.timeout(280)
def test_the_short_form_finds_equal_bits_through_a_kill_and_a_curve_that_is_not_equal(monkeypatch):
    with local(pnodes=3) as grid:
        network, data = make_residual()
        assert is_bit_equal(grid, network, data, steps=3, seats=3)
        survived = survive(grid, *make_mlp(), steps=40, kills=1, seed=3)
        assert survived.equal
        assert len(survived.recovery_seconds) == 1
        # The control: other data on one side.
        other = make_mlp()[0].reference(draw_digits(seed=2), 3)
        monkeypatch.setattr(networks, "MAKERS", {"mlp": make_mlp})
        monkeypatch.setattr("computepool.networks.network.Network.reference", lambda *_: other)
        sizes = networks.Sizes(1, 3, 0, 0, 0, ("mlp",), audit_trials=0)
        assert measure_bits(grid, sizes) == {("mlp", 2): False, ("mlp", 3): False}


def test_the_examples_data_follows_from_its_seed_and_from_the_projects_own_text():
    one, other = draw_digits(50), draw_digits(50)
    assert one.to_bytes() == other.to_bytes()
    assert one.to_bytes() != draw_digits(50, seed=2).to_bytes()
    text = read_text()
    assert text.tensors["x"][0, 1:].equal(text.tensors["y"][0, :-1]), "what comes next is what is wanted"


def test_a_plan_that_is_too_low_is_as_far_off_as_one_that_is_too_high():
    high, low = Foretold(planned=120.0, measured=100.0), Foretold(planned=80.0, measured=100.0)
    assert find_worst({"a": [high]}) == pytest.approx(1.2)
    assert find_worst({"a": [high], "b": [low]}) == pytest.approx(1.25)
    assert find_worst({"a": [high, high, low]}) == pytest.approx(1.2), "the median round counts"
    assert find_worst({}) is None
