"""`computepool profile`: what strangers see of you."""

from __future__ import annotations

import click

from computepool.cli.access import connect, hub_options


@click.command("profile")
@click.option("--pseudonym", metavar="NAME", help="3 to 30 letters and digits; empty: one is made for you.")
@click.option("--leaderboard/--no-leaderboard", "on_leaderboard", default=None, help="Be listed, or not.")
@click.option("--titles/--no-titles", "shows_titles", default=None, help="Let strangers read names of your jobs.")
@hub_options
def command(
    pseudonym: str | None,
    on_leaderboard: bool | None,
    shows_titles: bool | None,
    hub_url: str | None,
    key: str | None,
) -> None:
    """Show or change what strangers see of you: a pseudonym, a place on the leaderboard, names of jobs."""
    live = connect(hub_url, key).live
    if pseudonym is None and on_leaderboard is None and shows_titles is None:
        found = live.profile()
    else:
        found = live.change_profile(pseudonym=pseudonym, on_leaderboard=on_leaderboard, shows_titles=shows_titles)
    click.echo(f"pseudonym    {found.pseudonym}")
    click.echo(f"leaderboard  {'listed' if found.on_leaderboard else 'not listed'}")
    click.echo(f"job names    {'everybody reads them' if found.shows_titles else 'private'}")
