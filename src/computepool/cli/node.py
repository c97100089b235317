"""`computepool node`: runs the agent in this process. Only this command imports the agent, and only when called."""

from __future__ import annotations

import os

import click


@click.command("node")
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
    variables (COMPUTEPOOL_NODE_...).
    """
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
