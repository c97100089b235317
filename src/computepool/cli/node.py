"""`computepool node`: runs the agent in this process, or speaks with the one that runs on this machine.

Only these commands import the agent, and only when called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from computepool.node.local_status import LocalAgent


@click.group("node", invoke_without_command=True)
@click.pass_context
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
@click.option("--key", metavar="KEY", help="The owner's key, for the first start. [else as signed in]")
@click.option("--name", help="The node's name in your list. [default: the machine's name]")
@click.option("--state-dir", metavar="DIR", help="Where the agent keeps its key, its cache and what it runs.")
@click.option("--region", metavar="XX", help="Your country, as IN or DE.")
@click.option("--cpu-slots", type=click.IntRange(0, 256), help="CPU jobs at once, besides one per GPU. [default: 1]")
@click.option(
    "--floor", "floor_credits_per_hour", metavar="CREDITS", help="The least that a slot is lent for, an hour."
)
@click.option("--profile", metavar="NAME", help="Play a machine, for demo hubs: rtx-4090, cpu-only, or a TOML file.")
@click.option("--networks", is_flag=True, default=None, help="Host VNodes of networks, too; needs PyTorch.")
@click.option("--poll", type=click.Choice(["long", "short"]), help="Hold calls open, or ask now and then.")
def command(
    ctx: click.Context,
    hub_url: str | None,
    key: str | None,
    name: str | None,
    state_dir: str | None,
    region: str | None,
    cpu_slots: int | None,
    floor_credits_per_hour: str | None,
    profile: str | None,
    networks: bool | None,
    poll: str | None,
) -> int:
    """Lend this machine to a hub until Ctrl-C, which lets running jobs finish; a second Ctrl-C does not.

    Jobs run in a sandbox; without one the agent takes none. Everything else is set by environment
    variables (COMPUTEPOOL_NODE_...). When it is lent, and when it is yours alone, is said in comfort.toml in the
    agent's folder, which `computepool node install` writes.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    import asyncio

    from computepool.node import journal
    from computepool.node.agent import run_agent
    from computepool.node.config import load_config
    from computepool.sdk import resolve_settings

    signed_in = resolve_settings(hub_url=hub_url)
    config = load_config(
        os.environ,
        hub_url=signed_in.hub_url,
        owner_key=key or os.environ.get("COMPUTEPOOL_NODE_OWNER_KEY") or signed_in.key,
        name=name,
        state_dir=state_dir,
        region=region.upper() if region else None,
        cpu_slots=cpu_slots,
        floor_credits_per_hour=floor_credits_per_hour,
        profile=profile,
        networks=networks,
        poll=poll,
    )
    journal.set_up(config.log_level.value)
    return int(asyncio.run(run_agent(config)))


def _folder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--name", help="Which agent, where several work on this machine.")(function)
    return click.option("--state-dir", metavar="DIR", help="The agent's folder, if you gave it one.")(function)


@command.command("status")
@_folder_options
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
def status(name: str | None, state_dir: str | None, as_json: bool) -> int:
    """Say how the agent on this machine stands: lent, yours, paused, and why. Needs no hub."""
    from computepool import clock
    from computepool.cli.terminal import print_json
    from computepool.cli.words import plain
    from computepool.node.local_status import describe

    agent = find_agent(name, state_dir)
    if as_json:
        print_json(agent.status if agent.is_alive else None)
    else:
        for line in describe(agent, now_seconds=clock.unix_seconds()):
            click.echo(plain(line))
    return 0 if agent.is_alive else 1


@command.command("pause")
@_folder_options
@click.option("--now", is_flag=True, help="Do not let running jobs finish: this machine is wanted at once.")
def pause(name: str | None, state_dir: str | None, now: bool) -> None:
    """Take nothing new until `resume`, over restarts too. What runs may finish, unless --now."""
    _wish(name, state_dir, pause=True, now=now)
    click.echo("Paused; computepool node resume takes it back." if not now else "Paused; running jobs end now.")


@command.command("resume")
@_folder_options
def resume(name: str | None, state_dir: str | None) -> None:
    """Take work again."""
    _wish(name, state_dir)
    click.echo("Resumed.")


@command.command("drain")
@_folder_options
def drain(name: str | None, state_dir: str | None) -> None:
    """Finish what runs, then end the agent."""
    _wish(name, state_dir, drain=True)
    click.echo("The agent ends when what runs has finished.")


@command.command("install")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
@click.option("--name", help="The node's name in your list. [default: the machine's name]")
@click.option("--idle-minutes", type=click.FloatRange(0, 1440), help="Lend after so many minutes without input.")
def install_command(hub_url: str | None, name: str | None, idle_minutes: float | None) -> int:
    """Start the agent now and with this machine, as a service of yours (systemd, launchd, Windows tasks).

    Sign in first: the service uses that key to enrol. Writes comfort.toml with your rules if there is none.
    """
    import sys

    from computepool.node.comfort.readers import AUTO, get_reader
    from computepool.node.comfort.rules import render_rules
    from computepool.node.config import PREFIX, find_state_dir, load_config
    from computepool.node.files import make_private
    from computepool.node.installing import find_place, install
    from computepool.node.service import Service
    from computepool.sdk import resolve_settings

    config = load_config(os.environ, hub_url=resolve_settings(hub_url=hub_url).hub_url, name=name)
    folder = make_private(find_state_dir(config, os.environ))
    rules = folder / "comfort.toml"
    if not rules.exists():
        seen = get_reader(AUTO, os.environ).look_at_seat()
        minutes = idle_minutes if idle_minutes is not None else (5.0 if seen.idle_seconds is not None else 0.0)
        rules.write_text(render_rules(idle_minutes=minutes), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if key.startswith(PREFIX) and "KEY" not in key}
    arguments = ["--hub-url", config.hub_url, *(["--name", config.name] if config.name else [])]
    service = Service(
        [sys.executable, "-m", "computepool", "node", *arguments], {**kept, f"{PREFIX}STATE_DIR": str(folder)}
    )
    done = install(find_place(os.environ), service)
    click.echo(f"Written: {done.path}\nYour rules: {rules}")
    for trouble in done.troubles:
        click.echo(f"Not done: {trouble}", err=True)
    if done.troubles:
        click.echo(
            "The file is in place, but nothing was started: do these by hand, or run: computepool node", err=True
        )
        return 1
    click.echo("The agent runs, and starts with this machine: computepool node status")
    return 0


@command.command("uninstall")
def uninstall_command() -> int:
    """Take the service away. The node's key, rules and log stay in its folder."""
    from computepool.node.installing import find_place, uninstall

    place = find_place(os.environ)
    done = uninstall(place)
    if done is None:
        click.echo(f"There is no service: {place.path} does not exist.")
        return 0
    for trouble in done.troubles:
        click.echo(f"Not done: {trouble}", err=True)
    click.echo(f"Removed: {done.path}")
    return 1 if done.troubles else 0


def _wish(name: str | None, state_dir: str | None, **wish: bool) -> None:
    from computepool.node.wishes import Wish, record_wish

    agent = find_agent(name, state_dir)
    if wish.get("drain") and not agent.is_alive:
        raise click.UsageError("No agent is running there: nothing to drain.")
    record_wish(agent.folder / "wish.json", Wish(**wish))


def find_agent(name: str | None, state_dir: str | None) -> LocalAgent:
    """The one that is meant; the only one, or the only one that lives."""
    from computepool.node.config import find_state_home
    from computepool.node.local_status import list_agents, look_at

    folder = state_dir or os.environ.get("COMPUTEPOOL_NODE_STATE_DIR")
    if folder:
        return look_at(Path(folder).expanduser().absolute())
    home = find_state_home(os.environ)
    found = [agent for agent in list_agents(home) if name in (None, agent.name)]
    living = [agent for agent in found if agent.is_alive] or found
    if not living:
        raise click.UsageError(f"No agent has worked in {home} yet; name its folder with --state-dir.")
    if len(living) > 1:
        names = ", ".join(f"{agent.name} ({agent.folder})" for agent in living)
        raise click.UsageError(f"Several agents work here; choose one with --name or --state-dir: {names}")
    return living[0]
