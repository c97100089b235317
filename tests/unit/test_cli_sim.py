"""`computepool sim hostile`: runs in a checkout, and refuses fleets in which nobody is honest."""

from __future__ import annotations

import json

from computepool.cli.main import EXIT_REFUSED, run


def test_the_last_line_is_for_programs(capsys):
    assert run(["sim", "hostile", "--strategy", "tier_fraud", "--seeds", "2"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() == {"tier_fraud_caught", "tier_honest_rejected"}


def test_a_fleet_without_honest_nodes_is_refused(capsys):
    assert run(["sim", "hostile", "--nodes", "20", "--hostile", "15", "--strategy", "always"]) == EXIT_REFUSED
    assert "At least ten nodes more" in capsys.readouterr().err
