"""`computepool fleet`: machines that are only played, so that anyone sees the grid work without hardware.

Each is a real agent in a process of its own; only what it reports as its hardware comes from a profile.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool import clock
from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.cli.processes import Child, Children
    from computepool.sdk import Client

PROFILES = ("rtx-4090", "rtx-3090", "rtx-4070", "rtx-3060", "cpu-only")
# Played machines are played somewhere, so that a map has something to show and prices differ by region.
COUNTRIES = {"rtx-4090": "US", "rtx-3090": "DE", "rtx-4070": "IN", "rtx-3060": "BR", "cpu-only": "JP"}

_LOOK_SECONDS = 0.5
_ONLINE_SECONDS_MAX = 30.0
_LAST_LINES = 8
_LINES_WITHOUT_COMPLAINT = 3
_TIME = re.compile(r"^\d{4}-\d\d-\d\d[T ]\S+ ")
_REASON = re.compile(r'reason="(.*)"')
# Children get this long to finish or hand back what they run.
_GRACE_SECONDS = 15.0
DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """One machine of the fleet, and the key of the account that lends it."""

    name: str
    profile: str
    owner_key: str
    # Hosts VNodes of networks, too.
    networks: bool = False


@click.group("fleet")
def command() -> None:
    """Synthetic machines for a demo hub."""


@command.command("spawn")
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="Repeatable. [default: all five]")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Keeps keys and logs. [default: a new one]")
@hub_options
def spawn(profiles: tuple[str, ...], folder: Path | None, hub_url: str | None, key: str | None) -> int:
    """Start five agents that play an RTX 4090, 3090, 4070, 3060 and a machine without a GPU.

    A hub that is not a demo refuses them. Ctrl-C ends them all.
    """
    from computepool.cli.processes import Children, signals_end_the_block
    from computepool.sdk import resolve_settings

    client = connect(hub_url, key)
    owner_key = resolve_settings(hub_url=hub_url, key=key).key or ""
    folder = folder or Path(tempfile.mkdtemp(prefix="computepool-fleet-"))
    members = [
        Member(f"{profile}-{i}" if profiles.count(profile) > 1 else profile, profile, owner_key)
        for i, profile in enumerate(profiles or PROFILES)
    ]
    with signals_end_the_block(), Children(grace_seconds=_GRACE_SECONDS) as children:
        fleet = start_fleet(children, members, hub_url=client.hub_url, folder=folder)
        click.echo(f"Starting {len(fleet)} agents; their logs are in {folder}.")
        if not _come_online(client, fleet):
            return 1
        click.echo(f"{len(fleet)} nodes are online at {client.hub_url}. Ctrl-C ends them.")
        try:
            return _attend(fleet)
        except KeyboardInterrupt:
            click.echo("\nEnding the fleet.")
            return 0


def start_fleet(children: Children, members: Sequence[Member], *, hub_url: str, folder: Path) -> list[Child]:
    return [
        children.start(
            member.name,
            [sys.executable, "-m", "computepool.node"],
            env=agent_env(os.environ, member, hub_url=hub_url, state_dir=folder / member.name),
            log_path=folder / f"{member.name}.log",
        )
        for member in members
    ]


def agent_env(env: Mapping[str, str], member: Member, *, hub_url: str, state_dir: Path) -> dict[str, str]:
    """What the shell says of other agents must not reach these."""
    kept = {name: value for name, value in env.items() if not name.startswith("COMPUTEPOOL_")}
    if member.profile in COUNTRIES:
        kept["COMPUTEPOOL_NODE_REGION"] = COUNTRIES[member.profile]
    return kept | {
        "HUB_URL": hub_url,
        "COMPUTEPOOL_NODE_OWNER_KEY": member.owner_key,
        "COMPUTEPOOL_NODE_NAME": member.name,
        "COMPUTEPOOL_NODE_PROFILE": member.profile,
        **({"COMPUTEPOOL_NODE_REGION": country} if (country := COUNTRIES.get(member.profile)) else {}),
        # All on one machine: nobody else is to reach its hosts.
        **(
            {"COMPUTEPOOL_NODE_NETWORKS": "true", "COMPUTEPOOL_NODE_NETWORKS_LISTEN": "127.0.0.1:0"}
            if member.networks
            else {}
        ),
        "COMPUTEPOOL_NODE_STATE_DIR": str(state_dir),
        "COMPUTEPOOL_NODE_DRAIN_SECONDS": str(DRAIN_SECONDS),
        # Five agents that each try every engine would make a demo wait.
        "COMPUTEPOOL_NODE_SANDBOXES": "bubblewrap",
        "PYTHONUNBUFFERED": "1",
    }


def _come_online(client: Client, fleet: Sequence[Child]) -> bool:
    deadline = clock.seconds() + _ONLINE_SECONDS_MAX
    missing = {child.name for child in fleet}
    while missing and clock.seconds() < deadline:
        if any(child.exit_code is not None for child in fleet):
            report_ended([child for child in fleet if child.exit_code is not None])
            return False
        missing -= {node.name for node in client.nodes() if node.online}
        time.sleep(_LOOK_SECONDS)
    for child in fleet:
        if child.name in missing:
            click.echo(f"{child.name} is not online yet; see {child.log_path}", err=True)
    return not missing


def _attend(fleet: Sequence[Child]) -> int:
    """Until nobody is left; each end is told once."""
    told: set[str] = set()
    while len(told) < len(fleet):
        ended = [child for child in fleet if child.exit_code is not None and child.name not in told]
        report_ended(ended)
        told |= {child.name for child in ended}
        time.sleep(_LOOK_SECONDS)
    click.echo("No agent is left.", err=True)
    return 1


def report_ended(children: Sequence[Child]) -> None:
    """Each one's last words; what several say alike, such as a hub's refusal, is said once."""
    by_words: dict[tuple[str, ...], list[Child]] = {}
    for child in children:
        by_words.setdefault(tuple(find_last_words(child.last_lines(_LAST_LINES))), []).append(child)
    for words, group in by_words.items():
        names = ", ".join(child.name for child in group)
        codes = ", ".join(sorted({str(child.exit_code) for child in group}))
        click.echo(f"{names} ended with exit code {codes}:", err=True)
        for line in words:
            click.echo(f"  {line}", err=True)
        click.echo(f"  (log: {group[0].log_path})", err=True)


def find_last_words(lines: Sequence[str]) -> list[str]:
    """The complaint among the last lines of an agent's log, if there is one; else the lines, without their times."""
    from computepool.cli.words import plain

    told = [_TIME.sub("", plain(line)) for line in lines]
    complaints = [line for line in told if line.startswith("ERROR ")]
    reasons = [found[1] for line in complaints if (found := _REASON.search(line))]
    return reasons or complaints or told[-_LINES_WITHOUT_COMPLAINT:] or ["no words"]
