"""`computepool leaderboard`: who lends the most to others; and what strangers see of you."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from computepool.core.live.leaderboard import Measure, Period

if TYPE_CHECKING:
    from computepool.wire.leaderboard import Leaderboard

_HEADS = {
    Measure.EARNED: "CREDITS EARNED",
    Measure.HOURS: "HOURS",
    Measure.VERIFIED_SLICES: "VERIFIED SLICES",
    Measure.RELIABILITY: "RELIABILITY",
}


@click.command("leaderboard")
@click.option(
    "--by", type=click.Choice([each.value for each in Measure]), default=Measure.EARNED.value, show_default=True
)
@click.option(
    "--period", type=click.Choice([each.value for each in Period]), default=Period.MONTH.value, show_default=True
)
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
def command(by: str, period: str, limit: int, as_json: bool, hub_url: str | None) -> None:
    """Who lends the most, under pseudonyms. Work for oneself does not count. Needs no key."""
    from computepool.cli.terminal import print_json
    from computepool.sdk import Client

    found = Client(hub_url).live.leaderboard(by=Measure(by), period=Period(period), limit=limit)
    if as_json:
        print_json(found)
        return
    for line in describe_leaders(found):
        click.echo(line)


def describe_leaders(found: Leaderboard) -> list[str]:
    from computepool.cli.why import lay_out, wrap

    if not found.rows:
        return wrap("Nobody has worked for others in this time yet.")
    rows = [(str(row.rank), row.pseudonym, _say_value(found.by, row.value)) for row in found.rows]
    return lay_out(("RANK", "NAME", _HEADS[found.by]), rows)


def _say_value(by: Measure, value: int) -> str:
    if by is Measure.EARNED:
        return f"{value // 1_000_000:,}.{value % 1_000_000 // 10_000:02d}"
    if by is Measure.HOURS:
        return f"{value / 3_600:,.1f}"
    return f"{value / 1e6:.1%}" if by is Measure.RELIABILITY else f"{value:,}"
