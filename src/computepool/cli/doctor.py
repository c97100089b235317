"""`computepool doctor`: what this machine could lend, what is missing, and the fix. Works without a hub."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from computepool.node.doctor import Examination

_MARKS = {"fine": ("ok", "green"), "note": ("note", "yellow"), "trouble": ("trouble", "bold red")}


@click.command("doctor")
@click.option("--hub-url", metavar="URL", help="Also look at this hub. [else HUB_URL, else as signed in]")
@click.option("--state-dir", metavar="DIR", help="Where the agent would work. [default: as the agent]")
@click.option("--profile", metavar="NAME", help="Look at a played machine: rtx-4090, cpu-only, or a TOML file.")
@click.option("--fast", is_flag=True, help="Do not measure how fast the devices are.")
@click.option("--json", "as_json", is_flag=True, help="Print everything for programs.")
def command(hub_url: str | None, state_dir: str | None, profile: str | None, fast: bool, as_json: bool) -> int:
    """Say what of this machine could be lent, what is missing, and what to do about it.

    Looks at the processor, every graphics card and its driver, the disk, the sandbox, how fast it all is and, if
    one is known, at the hub. Ends with 0 when an agent here would take work, else with 1.
    """
    import asyncio
    from pathlib import Path

    from computepool.cli.terminal import print_json
    from computepool.node.config import find_state_home
    from computepool.node.doctor import examine
    from computepool.node.hardware.profiles import UnknownProfile, get_profile_path

    try:
        played = get_profile_path(profile) if profile else None
    except UnknownProfile as error:
        raise click.UsageError(str(error)) from None
    folder = Path(state_dir).expanduser().absolute() if state_dir else find_state_home(os.environ)
    found = asyncio.run(
        examine(
            state_dir=folder,
            hub_url=_find_hub(hub_url),
            ca_file=os.environ.get("COMPUTEPOOL_NODE_HUB_CA_FILE", ""),
            profile=played,
            measure=not fast,
        )
    )
    print_json(found) if as_json else _show(found)
    return 0 if found.ready else 1


def _find_hub(hub_url: str | None) -> str:
    """Empty: none is known, and none is needed."""
    from computepool.sdk import resolve_settings
    from computepool.settings import InvalidSettings

    if hub_url:
        return resolve_settings(hub_url=hub_url).hub_url
    try:
        return resolve_settings().hub_url
    except InvalidSettings:
        return ""


def _show(found: Examination) -> None:
    from rich.table import Table
    from rich.text import Text

    from computepool.cli.terminal import cell, screen

    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found.findings:
        word, style = _MARKS[each.grade.value]
        table.add_row(Text(word, style=style), Text(each.topic, style="bold"), cell(each.words))
        if each.fix:
            table.add_row("", "", cell(f"-> {each.fix}"))
    out = screen()
    out.print(table)
    out.print()
    if found.ready:
        out.print(Text("This machine is ready to be lent: computepool node", style="green"))
    else:
        out.print(Text("An agent here would take no work until these troubles are mended.", style="bold red"))
