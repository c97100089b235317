"""`computepool accounts`: whom the operator's hub serves, and what each is granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import Client
    from computepool.wire.accounts import Account

# As the wire knows them; named here so that --help imports nothing. A test holds them together.
_CLASSES = ("low", "normal", "high")
_ACCOUNTS_SHOWN = 200


@click.command("accounts")
@click.argument("account", required=False)
@click.option(
    "--class", "priority_class_max", type=click.Choice(_CLASSES), help="Highest class its jobs may ask for."
)
@click.option(
    "--weight", type=float, help="Its part of the fleet while others wait too, against theirs: 0.01 to 100."
)
@click.option("--new-nodes", type=click.IntRange(min=0), help="How many new machines it may bring in 30 days.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    account: str | None,
    priority_class_max: str | None,
    weight: float | None,
    new_nodes: int | None,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
) -> None:
    """List the accounts of your hub; or show one ACCOUNT; or grant it a priority class, a weight or more machines.

    ACCOUNT is an e-mail address, an id, or a piece of at least four characters from an id's beginning or end.
    """
    from itertools import islice

    from computepool.cli.terminal import print_json, screen

    changed = any(grant is not None for grant in (priority_class_max, weight, new_nodes))
    if account is None and changed:
        raise click.UsageError("Name the ACCOUNT that --class, --weight or --new-nodes is for.")
    client = connect(hub_url, key)
    if account is None:
        found = list(islice(client.accounts(), _ACCOUNTS_SHOWN + 1))
        print_json(found) if as_json else screen().print(accounts_table(found[:_ACCOUNTS_SHOWN]))
        if len(found) > _ACCOUNTS_SHOWN:
            click.echo(f"The first {_ACCOUNTS_SHOWN}; name one to see it.", err=True)
        return
    one = find_account(client, account)
    if changed:
        one = client.change_account(
            account_id=one.id, fair_weight=weight, priority_class_max=priority_class_max, new_nodes_max=new_nodes
        )
    print_json(one) if as_json else _show_one(one)


def find_account(client: Client, name: str) -> Account:
    from computepool.cli.job_names import pick_id

    accounts = list(client.accounts())
    named = [account for account in accounts if account.email == name.lower()]
    if named:
        return named[0]
    chosen = pick_id(name, [account.id for account in accounts], what="account")
    return next(account for account in accounts if account.id == chosen)


def accounts_table(accounts: Iterable[Account]) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.cli.words import short_id

    table = make_table("ACCOUNT", "E-MAIL", "ROLES", "CLASS", "WEIGHT", "", right=("WEIGHT",), give=("E-MAIL",))
    for account in accounts:
        table.add_row(
            short_id(account.id),
            cell(account.email, one_line=True),
            "+".join(role.value for role in account.roles),
            account.priority_class_max.value,
            f"{account.fair_weight:g}",
            "suspended" if account.suspended_at else "",
        )
    return table


def _show_one(account: Account) -> None:
    from computepool.cli.words import plain
    from computepool.sdk import format_size

    limits = account.limits
    rows = [
        ("account", str(account.id)),
        ("e-mail", plain(account.email)),
        ("name", plain(account.name)),
        ("roles", ", ".join(role.value for role in account.roles)),
        ("class", f"{account.priority_class_max.value} at most"),
        ("weight", f"{account.fair_weight:g} in the fair share"),
        ("slices", f"{limits.queued_slices_max:,} unfinished at most"),
        ("stored", f"{format_size(account.stored_bytes)} of {format_size(limits.stored_bytes_max)}"),
        ("calls", f"{limits.calls_per_minute_max:,} a minute at most"),
    ]
    if limits.new_nodes_max is not None:
        rows.append(("new nodes", f"{limits.new_nodes_max:,} in 30 days at most"))
    for name, value in rows:
        click.echo(f"{name:<10} {value}")
    if account.suspended_at is not None:
        click.echo("suspended")
