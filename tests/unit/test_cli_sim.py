"""`computepool sim`: runs in a checkout, ends with figures for programs, and refuses what would show nothing."""

from __future__ import annotations

import json
import sys

import pytest

from computepool.cli.main import EXIT_REFUSED, run


def test_the_last_line_is_for_programs(capsys):
    assert run(["sim", "hostile", "--strategy", "tier_fraud", "--seeds", "2"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() >= {"tier_fraud_caught", "tier_honest_rejected"}


def test_a_fleet_without_honest_nodes_is_refused(capsys):
    assert run(["sim", "hostile", "--nodes", "20", "--hostile", "15", "--strategy", "always"]) == EXIT_REFUSED
    assert "At least ten nodes more" in capsys.readouterr().err


class Played:
    """In place of the simulation, which takes minutes: what it was told, and something to print."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def main(self, words: list[str]) -> None:
        self.told = words
        print('a table\n\n{"settle_ticks": 8}')


@pytest.mark.parametrize(
    ("options", "words", "printed"),
    [
        ([], ["--histories", "4", "--no-plots"], 'a table\n\n{"settle_ticks": 8}\n'),
        (
            ["--histories", "2", "--plots", "here", "--json"],
            ["--histories", "2", "--plots", "here"],
            '{"settle_ticks": 8}\n',
        ),
    ],
)
def test_the_market_is_told_what_to_play_and_json_is_all_that_is_printed(
    monkeypatch, capsys, options, words, printed
):
    played = Played()
    monkeypatch.setitem(sys.modules, "sims.market", played)
    assert run(["sim", "market", *options]) == 0
    assert (played.told, capsys.readouterr().out) == (words, printed)


def test_without_the_source_one_is_told_where_it_is(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sims.market", None)
    assert run(["sim", "market"]) == EXIT_REFUSED
    assert "make sim/market" in capsys.readouterr().err
