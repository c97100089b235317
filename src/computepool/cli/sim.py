"""`computepool sim`: simulations that show what the rules of the grid are worth. They come with the source."""

from __future__ import annotations

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

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
    hostile_sim = _load("hostile")
    options = {"--nodes": nodes, "--hostile": hostile, "--seeds": seeds, "--results": results}
    words = [word for name, value in options.items() for word in (name, str(value))]
    hostile_sim.main([*words, "--strategy", strategy])


@command.command("market")
@click.option("--histories", type=click.IntRange(1, 100), default=4, show_default=True, help="Of each story.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="A folder to draw into.")
@click.option("--json", "as_json", is_flag=True, help="Nothing but the figures, as one JSON object.")
def market_command(histories: int, plots: Path | None, as_json: bool) -> None:
    """What the price does under stress: 400 nodes at once, a spike, a dark region, a whale, a cartel, low bids."""
    words = ["--histories", str(histories), *(["--no-plots"] if plots is None else ["--plots", str(plots)])]
    market_sim = _load("market")
    if not as_json:
        market_sim.main(words)
        return
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        market_sim.main(words)
    click.echo(said.getvalue().splitlines()[-1])


def _load(name: str) -> Any:
    try:
        return importlib.import_module(f"sims.{name}")
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"The simulations come with the source: use `make sim/{name}` in a checkout, or set PYTHONPATH=. there."
        ) from error
