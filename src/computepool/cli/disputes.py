"""The part of `computepool credits` that is about disputed pay: doubting it, and for operators deciding."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import Client
    from computepool.wire.disputes import AccountDispute, Dispute, OwnDispute

# As the wire knows them; named here so that --help imports nothing. A test holds them together.
_STATES = ("open", "upheld", "dismissed")
_SHOWN_MAX = 200
_SEARCHED_MAX = 2_000
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")


@click.command("dispute")
@click.argument("job")
@click.argument("reason")
@click.option("--slice", "index", type=click.IntRange(0), help="Which slice. [default: the only one]")
@click.option(
    "--attempt", "number", type=click.IntRange(1), help="Which attempt. [default: the newest that was paid]"
)
@_as_json
@hub_options
def dispute(
    job: str,
    reason: str,
    index: int | None,
    number: int | None,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
) -> None:
    """Doubt the pay for an attempt of your JOB while it is held back. The owner and the operator read REASON.

    The pay is frozen until the operator decides: you get everything back, or it is released.
    """
    from computepool.cli.job_names import find_job
    from computepool.cli.terminal import show

    client = connect(hub_url, key)
    handle = find_job(client, job)
    if index is None and handle.job.slice_count > 1:
        raise click.UsageError(f"This job has {handle.job.slice_count:,} slices: say which with --slice N.")
    found = client.disputes.open(job_id=handle.id, slice_index=index or 0, number=number, reason=reason)
    show(found, lambda own: describe_dispute(own.dispute), as_json=as_json)


@click.command("disputes")
@click.option("--all", "everybodys", is_flag=True, help="For operators: everybody's, oldest first.")
@click.option("--state", type=click.Choice(_STATES), help="With --all: those in this state. [default: open]")
@_as_json
@hub_options
def list_disputes(everybodys: bool, state: str | None, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Disputes over your jobs and over what your nodes earned, newest first."""
    from computepool.cli.terminal import print_json, screen
    from computepool.core.ledger.dispute import DisputeState

    if state is not None and not everybodys:
        raise click.UsageError("--state goes with --all.")
    client = connect(hub_url, key).disputes
    found: list[OwnDispute] | list[AccountDispute]
    if everybodys:
        found = list(islice(client.everybodys(state=DisputeState(state or "open")), _SHOWN_MAX))
    else:
        found = client.list().disputes
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No pay is in dispute." if everybodys and state in (None, "open") else "There are no disputes.")
    else:
        screen().print(disputes_table(found))


@click.command("uphold")
@click.argument("dispute_name", metavar="DISPUTE")
@click.argument("note")
@hub_options
def uphold(dispute_name: str, note: str, hub_url: str | None, key: str | None) -> None:
    """For operators: DISPUTE is right. Everything goes back to the submitter, the fee too; both sides read NOTE."""
    client = connect(hub_url, key)
    found = client.disputes.uphold(dispute_id=_find_dispute(client, dispute_name), note=note)
    click.echo(_say_back(found))


@click.command("dismiss")
@click.argument("dispute_name", metavar="DISPUTE")
@click.argument("note")
@hub_options
def dismiss(dispute_name: str, note: str, hub_url: str | None, key: str | None) -> None:
    """For operators: DISPUTE is wrong. The pay is released when its holdback is over; both sides read NOTE."""
    client = connect(hub_url, key)
    found = client.disputes.dismiss(dispute_id=_find_dispute(client, dispute_name), note=note)
    at = found.dispute.release_at.astimezone().strftime("%Y-%m-%d %H:%M")
    click.echo(f"Dispute {found.dispute.id} is dismissed; the pay is released from {at} on.")


@click.command("reverse")
@click.argument("attempt", type=click.UUID)
@click.argument("reason")
@hub_options
def reverse(attempt: UUID, reason: str, hub_url: str | None, key: str | None) -> None:
    """For operators: take the pay for ATTEMPT back, also when it was released or paid out. Both sides read REASON.

    ATTEMPT is the whole id, as statements and `computepool why --payment --all` show it. What the owner has cashed
    out already is owed, and taken from what they earn or pay in next.
    """
    click.echo(_say_back(connect(hub_url, key).disputes.reverse(attempt_id=attempt, reason=reason)))


dispute_commands = (dispute, list_disputes)
operator_dispute_commands = (uphold, dismiss, reverse)


def describe_dispute(found: Dispute) -> list[str]:
    from computepool.cli.words import plain
    from computepool.core.placement.price import format_credits

    rows = [
        ("dispute", str(found.id)),
        ("about", f"job {found.job_id} slice {found.slice_index}, attempt {found.number}"),
        ("charged", f"{format_credits(found.charged_microcredits)} credits"),
        ("state", _WORDS[found.state.value]),
        ("why", plain(found.reason)),
    ]
    if found.note:
        rows.append(("decided", plain(found.note)))
    return [f"{name:<10} {value}" for name, value in rows]


# What a state means to either side.
_WORDS = {
    "open": "open; the pay is frozen until the operator decides",
    "upheld": "upheld; everything went back to the submitter",
    "dismissed": "dismissed; the pay is the owner's",
}


def disputes_table(found: Iterable[OwnDispute] | Iterable[AccountDispute]) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.cli.words import short_id
    from computepool.core.placement.price import format_credits

    columns = ("DISPUTE", "OPENED", "JOB/SLICE", "ABOUT", "CREDITS", "STATE", "WHY", "DECIDED")
    table = make_table(*columns, right=("CREDITS",), give=("WHY", "DECIDED"))
    for each in found:
        about = each.dispute
        table.add_row(
            short_id(about.id),
            about.opened_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            f"{short_id(about.job_id)}/{about.slice_index}",
            _say_about(each),
            format_credits(about.charged_microcredits),
            about.state.value,
            cell(about.reason),
            cell(about.note),
        )
    return table


def _say_about(each: OwnDispute | AccountDispute) -> str:
    """Which side one is oneself; for an operator, whose node it was."""
    from computepool.cli.words import short_id
    from computepool.wire.disputes import OwnDispute

    if isinstance(each, OwnDispute):
        return "your job" if each.side.value == "submitter" else "your node"
    return f"owner {short_id(each.owner_id)}"


def _say_back(found: AccountDispute) -> str:
    from computepool.core.placement.price import format_credits

    amount = format_credits(found.dispute.charged_microcredits)
    return f"{amount} credits went back to the submitter. Dispute {found.dispute.id} is upheld."


def _find_dispute(client: Client, name: str) -> UUID:
    from computepool.cli.job_names import pick_id

    try:
        return UUID(name)
    except ValueError:
        ids = [each.dispute.id for each in islice(client.disputes.everybodys(), _SEARCHED_MAX)]
        return pick_id(name, ids, what="open dispute")
