"""`computepool debug`: what to send to whoever shall find out what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.group("debug")
def command() -> None:
    """Find out what is wrong with the agent on this machine."""


@command.command("bundle")
@click.option("--name", help="Which agent, where several work on this machine.")
@click.option("--state-dir", metavar="DIR", help="The agent's folder, if you gave it one.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="[default: computepool-debug.tar.gz]")
def bundle(name: str | None, state_dir: str | None, out: Path | None) -> None:
    """Pack the agent's log, its state, the doctor's findings and what the hub says of it into one file.

    Keys, tokens, secrets and the environments of jobs are removed; what jobs read, wrote or printed is not in it.
    """
    import asyncio
    import json

    import msgspec

    from computepool.cli.node import find_agent
    from computepool.node import files
    from computepool.node.config import PREFIX
    from computepool.node.debug_bundle import describe_settings, make_bundle
    from computepool.node.doctor import examine

    agent = find_agent(name, state_dir)
    hub_url = agent.status.hub_url if agent.status is not None else ""
    ca_file = os.environ.get(f"{PREFIX}HUB_CA_FILE", "")
    found = asyncio.run(examine(state_dir=agent.folder, hub_url=hub_url, ca_file=ca_file, measure=False))
    extra = {
        "doctor.json": msgspec.json.format(msgspec.json.encode(found)).decode(),
        "settings.json": json.dumps(describe_settings(os.environ, prefix=PREFIX), indent=1),
        "why.txt": _ask_why(agent.status.node_id if agent.status is not None else None),
    }
    secrets = [value for key, value in os.environ.items() if any(word in key for word in ("KEY", "SECRET", "TOKEN"))]
    path = out or Path("computepool-debug.tar.gz")
    files.write_whole(path.absolute(), make_bundle(agent.folder, extra=extra, secrets=secrets))
    click.echo(f"Written: {path}. Have a look at summary.txt in it before you send it to anyone.")


def _ask_why(node_id: object) -> str:
    """What the hub says, as `computepool why --node` does; or why it could not be asked."""
    from uuid import UUID

    from computepool.cli.access import connect
    from computepool.cli.why import describe_node
    from computepool.core.errors import ComputePoolError

    if not isinstance(node_id, UUID):
        return "This agent has not enrolled.\n"
    try:
        return "\n".join(describe_node(connect(None, None).why_node(node_id=node_id))) + "\n"
    except ComputePoolError as error:
        return f"The hub could not be asked: {error.message}\n"
