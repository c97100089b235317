"""`computepool nodes`: the machines one lends, and the owner's word to one of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import Client
    from computepool.wire.nodes import Node, Offer
    from computepool.wire.trust import NodeTrust

_CHANGES = ("drain", "pause", "resume", "remove", "floor", "offer", "trust", "vouch", "unvouch")


@click.command("nodes")
@click.argument("node", required=False)
@click.argument("change", required=False, type=click.Choice(_CHANGES))
@click.argument("credits", required=False)
@click.option("--floor", metavar="CREDITS", help="With offer: the least that a slot is lent for, an hour.")
@click.option("--hours", metavar="HOURS", help='With offer: when it is lent, "mon-fri 19-7, sat-sun"; or always.')
@click.option("--zone", metavar="ZONE", help="With --hours: of which clock. [default: this machine's]")
@click.option("--min-seconds", type=int, metavar="N", help="With offer: take slices of so many seconds or more.")
@click.option("--kinds", metavar="KIND,...", help="With offer: take such jobs, as compute,ml; or all.")
@click.option("--pool", metavar="WHOM", help="With offer: lend it to anyone, own, or named:ACCOUNT,...")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    node: str | None,
    change: str | None,
    credits: str | None,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
    **terms: Any,
) -> None:
    """List your nodes; or show one NODE; or tell it to drain, pause, resume or remove; or set its terms.

    NODE is a name, an id, or a piece of at least four characters from an id's beginning or end.
    pause: finish what runs, take nothing new. drain: the same, then end the agent. remove: for good.
    trust: how far its results are relied on, and the way up. vouch, unvouch: by the operator; it may check others.
    floor CREDITS: the least that you lend a slot of it for, per hour; 0 for nothing.
    offer: change the terms that are given as options; the others stay as they are. What runs goes on.

    \b
        computepool nodes attic-pc offer --floor 8 --hours "mon-fri 19-7" --min-seconds 60
        computepool nodes attic-pc offer --kinds compute,ml --pool named:friend@example.org
        computepool nodes attic-pc offer --hours always --kinds all --pool anyone
    """
    from computepool.cli.terminal import print_json

    if (change == "floor") != (credits is not None):
        raise click.UsageError("CREDITS goes with floor: computepool nodes NODE floor 12")
    given = {name: value for name, value in terms.items() if value is not None}
    if (change == "offer") != bool(given):
        raise click.UsageError("Terms go with offer: computepool nodes NODE offer --floor 12 --hours 19-7")
    client = connect(hub_url, key)
    if node is None:
        nodes = list(client.nodes())
        print_json(nodes) if as_json else _show_list(nodes)
        return
    found = find_node(client, node)
    if change in ("trust", "vouch", "unvouch"):
        known = client.trust_node(node_id=found.id, vouched=None if change == "trust" else change == "vouch")
        print_json(known) if as_json else _show_trust(found, known)
        return
    if credits is not None:
        found = client.set_floor(node_id=found.id, credits_per_hour=credits)
    elif given:
        found = client.set_offer(node_id=found.id, **to_terms(given, zone=found.offer.zone))
    elif change is not None:
        from computepool.wire.nodes import NodeChange

        found = client.change_node(node_id=found.id, change=NodeChange(change))
    print_json(found) if as_json else _show_one(found)


def to_terms(given: dict[str, Any], *, zone: str | None) -> dict[str, Any]:
    """What `Client.set_offer` is told; `zone` is that of the hours which are set already."""
    terms = dict(given)
    if "kinds" in terms:
        terms["kinds"] = [] if terms["kinds"] == "all" else _split(terms["kinds"])
    if terms.get("pool", "").startswith("named:"):
        terms["pool"] = _split(terms["pool"].removeprefix("named:"))
    if terms.get("hours", "always") != "always" and not (terms.get("zone") or zone):
        terms["zone"] = find_local_zone()
    return terms


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def find_local_zone() -> str:
    """The name of this machine's time zone, where it has one."""
    import os

    place = os.environ.get("TZ", "").removeprefix(":") or os.path.realpath("/etc/localtime")
    name = place.partition("zoneinfo/")[2] or place
    if not name or name.startswith("/"):
        raise click.UsageError("This machine does not say in which time zone it is: add --zone, as Asia/Kolkata.")
    return name


def find_node(client: Client, name: str) -> Node:
    from computepool.cli.job_names import pick_id

    nodes = [node for node in client.nodes() if node.state.value != "removed"]
    named = [node for node in nodes if node.name == name]
    if len(named) == 1:
        return named[0]
    chosen = pick_id(name, [node.id for node in nodes], what="node")
    return next(node for node in nodes if node.id == chosen)


def _show_trust(node: Node, known: NodeTrust) -> None:
    from computepool.cli.why import one_line, wrap
    from computepool.core.ledger.decimals import say_credits
    from computepool.core.words import say_count

    for line in wrap(f"{one_line(node.name)}: {known.standing.value}. {known.words}"):
        click.echo(line)
    click.echo(
        f"Results validated: {known.validated_count:,}; at least {known.integrity:.0%} right (95 % confidence); "
        f"{known.audit_rate:.0%} are checked."
    )
    served = f"Serving cleanly since {known.serving_since:%Y-%m-%d}. " if known.serving_since else ""
    for line in wrap(served + known.pay_words):
        click.echo(line)
    if known.pay_waiting_count:
        count = say_count(known.pay_waiting_count, "attempt")
        click.echo(f"Waiting beyond its holdback: {say_credits(known.pay_waiting_microcredits)}, for {count}.")


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
    if node.state.value != "active":
        return node.state.value
    return "online" if node.offer.opens_at is None else "closed"


def list_tiers(node: Node) -> list[str]:
    """The cards' tiers; a machine without a card has the tier of its CPU."""
    gpus = [slot.tier for slot in node.slots if slot.kind.value == "gpu"]
    return gpus or sorted({slot.tier for slot in node.slots})


def _show_one(node: Node) -> None:
    from computepool.cli.terminal import make_table, screen
    from computepool.cli.words import plain
    from computepool.sdk import format_size

    rows = [
        ("node", str(node.id)),
        ("name", plain(node.name) + (" (synthetic)" if node.synthetic else "")),
        ("state", word_for_state(node)),
        ("region", node.region or "unknown"),
        ("isolation", node.isolation.value),
        ("cpu", plain(node.hardware.cpu_name) or "unknown"),
        *(("gpu", plain(gpu.name)) for gpu in node.hardware.gpus),
        *_list_proofs(node),
        *_list_terms(node.offer),
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


def _list_proofs(node: Node) -> list[tuple[str, str]]:
    """What the owner should know of each device's tier: shown, refused with the reason, or not shown yet."""
    from computepool.cli.words import plain

    rows = []
    for slot in node.slots:
        proof = slot.proof
        if proof is None or (slot.kind.value == "cpu" and slot.name != "cpu:0"):
            continue
        if proof.state.value == "unproven":
            words = (
                "not shown yet" if proof.claimed_tier == slot.tier else f"claims {proof.claimed_tier}, not shown yet"
            )
        elif proof.tier == proof.claimed_tier or proof.claimed_tier == "unknown":
            words = f"{proof.state.value}. {plain(proof.reason)}"
        else:
            words = f"{proof.state.value}: claims {plain(proof.claimed_tier)}. {plain(proof.reason)}"
        rows.append(("proof", f"{slot.name} {words}"))
    return rows


def _list_terms(offer: Offer) -> list[tuple[str, str]]:
    """The floor always, the rest where something is asked for."""
    from computepool.cli.words import plain
    from computepool.core.placement.price import say_price
    from computepool.core.words import say_count, say_seconds

    rows = [("floor", say_price(offer.floor_microcredits_per_hour) + " for a slot")]
    if offer.hours is not None:
        opens = f"; closed, opens {offer.opens_at.astimezone():%a %H:%M}" if offer.opens_at else ""
        rows.append(("hours", f"{plain(offer.hours)} ({plain(offer.zone or '')}){opens}"))
    if offer.seconds_min:
        rows.append(("slices", f"of {say_seconds(offer.seconds_min)} or more"))
    if offer.kinds:
        rows.append(("kinds", plain(", ".join(offer.kinds))))
    if offer.audience.value == "own":
        rows.append(("pool", "yourself alone"))
    if offer.accounts:
        named = ", ".join(map(str, offer.accounts))
        rows.append(("pool", f"yourself and {say_count(len(offer.accounts), 'account')}: {named}"))
    return rows
