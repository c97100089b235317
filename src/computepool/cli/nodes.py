"""`computepool nodes`: the machines one lends, and the owner's word to one of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import Client
    from computepool.wire.nodes import Node

_CHANGES = ("drain", "pause", "resume", "remove", "floor")


@click.command("nodes")
@click.argument("node", required=False)
@click.argument("change", required=False, type=click.Choice(_CHANGES))
@click.argument("credits", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    node: str | None, change: str | None, credits: str | None, as_json: bool, hub_url: str | None, key: str | None
) -> None:
    """List your nodes; or show one NODE; or tell it to drain, pause, resume or remove; or set its floor.

    NODE is a name, an id, or a piece of at least four characters from an id's beginning or end.
    pause: finish what runs, take nothing new. drain: the same, then end the agent. remove: for good.
    floor CREDITS: the least that you lend a slot of it for, per hour; 0 for nothing.
    """
    from computepool.cli.terminal import print_json

    if (change == "floor") != (credits is not None):
        raise click.UsageError("CREDITS goes with floor: computepool nodes NODE floor 12")
    client = connect(hub_url, key)
    if node is None:
        nodes = list(client.nodes())
        print_json(nodes) if as_json else _show_list(nodes)
        return
    found = find_node(client, node)
    if credits is not None:
        found = client.set_floor(node_id=found.id, credits_per_hour=credits)
    elif change is not None:
        from computepool.wire.nodes import NodeChange

        found = client.change_node(node_id=found.id, change=NodeChange(change))
    print_json(found) if as_json else _show_one(found)


def find_node(client: Client, name: str) -> Node:
    from computepool.cli.job_names import pick_id

    nodes = [node for node in client.nodes() if node.state.value != "removed"]
    named = [node for node in nodes if node.name == name]
    if len(named) == 1:
        return named[0]
    chosen = pick_id(name, [node.id for node in nodes], what="node")
    return next(node for node in nodes if node.id == chosen)


def _show_list(nodes: list[Node]) -> None:
    from computepool import clock
    from computepool.cli.terminal import screen

    present = [node for node in nodes if node.state.value != "removed"]
    if not present:
        click.echo("You lend no machine yet. Try: computepool node")
        return
    screen().print(nodes_table(present, now=clock.now()))


def nodes_table(nodes: list[Node], *, now: datetime) -> Table:
    from computepool.cli.terminal import cell, make_table, state_text
    from computepool.cli.words import format_ago, short_id

    numbers = ("VRAM", "CORES", "RAM", "BUSY", "SEEN")
    table = make_table(
        "NODE", "NAME", "STATE", "TIER", "VRAM", "CORES", "RAM", "BUSY", "SEEN", right=numbers, give=("NAME",)
    )
    table.columns[1].max_width = 20
    for node in nodes:
        vram = [f"{gpu.vram_bytes / (1 << 30):.0f}G" for gpu in node.hardware.gpus]
        table.add_row(
            short_id(node.id),
            cell(node.name, one_line=True),
            state_text(word_for_state(node)),
            "+".join(list_tiers(node)),
            "+".join(vram) or "-",
            str(node.hardware.cores),
            f"{node.hardware.ram_bytes / (1 << 30):.0f}G",
            f"{sum(slot.busy for slot in node.slots)}/{len(node.slots)}",
            format_ago(node.last_seen_at, now),
        )
    return table


def word_for_state(node: Node) -> str:
    """What its owner wants to know first: whether it is there; and if so, whether it takes work."""
    if node.state.value == "removed":
        return "removed"
    if not node.online:
        return "offline"
    return "online" if node.state.value == "active" else node.state.value


def list_tiers(node: Node) -> list[str]:
    """The cards' tiers; a machine without a card has the tier of its CPU."""
    gpus = [slot.tier for slot in node.slots if slot.kind.value == "gpu"]
    return gpus or sorted({slot.tier for slot in node.slots})


def _show_one(node: Node) -> None:
    from computepool.cli.terminal import make_table, screen
    from computepool.cli.words import plain
    from computepool.core.placement.price import say_price
    from computepool.sdk import format_size

    rows = [
        ("node", str(node.id)),
        ("name", plain(node.name) + (" (synthetic)" if node.synthetic else "")),
        ("state", word_for_state(node)),
        ("region", node.region or "unknown"),
        ("isolation", node.isolation.value),
        ("cpu", plain(node.hardware.cpu_name) or "unknown"),
        *(("gpu", plain(gpu.name)) for gpu in node.hardware.gpus),
        ("floor", say_price(node.floor_microcredits_per_hour) + " for a slot"),
        ("agent", plain(node.agent_version) or "unknown"),
    ]
    for name, value in rows:
        click.echo(f"{name:<10} {value}")
    click.echo()
    table = make_table("SLOT", "TIER", "VRAM", "CORES", "RAM", "DISK", "", right=("VRAM", "CORES", "RAM", "DISK"))
    for slot in node.slots:
        vram = format_size(slot.vram_bytes) if slot.vram_bytes else "-"
        sizes = (format_size(slot.ram_bytes), format_size(slot.disk_bytes))
        table.add_row(slot.name, slot.tier, vram, str(slot.cores), *sizes, "busy" if slot.busy else "free")
    screen().print(table)
