"""`computepool sim`: simulations that show what the rules of the grid are worth. They come with the source."""

from __future__ import annotations

import importlib

import click

STRATEGIES = ("always", "trickle", "sleeper", "hit_and_run", "collude", "reenter", "tier_fraud")


@click.group("sim")
def command() -> None:
    """Simulations on the grid's own rules, in a checkout of its source."""


@command.command("hostile")
@click.option("--nodes", type=click.IntRange(20, 10_000), default=100, show_default=True)
@click.option("--hostile", type=click.IntRange(1), default=10, show_default=True, help="How many of them forge.")
@click.option("--strategy", type=click.Choice(STRATEGIES), required=True, help="How they do it.")
@click.option("--seeds", type=click.IntRange(2, 10_000), default=20, show_default=True, help="Histories.")
@click.option("--results", type=click.IntRange(1), default=1_500, show_default=True, help="Of each node.")
def hostile_command(nodes: int, hostile: int, strategy: str, seeds: int, results: int) -> None:
    """How many wrong results of forgers get through, what checking costs, and whether forging pays."""
    if hostile >= nodes - 10:
        raise click.UsageError("At least ten nodes more than --hostile are needed, to be honest.")
    try:
        hostile_sim = importlib.import_module("sims.hostile")
    except ModuleNotFoundError as error:
        raise click.UsageError(
            "The simulations come with the source: use `make sim/hostile` in a checkout, or set PYTHONPATH=. there."
        ) from error
    options = {"--nodes": nodes, "--hostile": hostile, "--seeds": seeds, "--results": results}
    words = [word for name, value in options.items() for word in (name, str(value))]
    hostile_sim.main([*words, "--strategy", strategy])
