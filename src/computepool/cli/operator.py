"""`computepool operator`: the operator's word against an input or an account, and nodes that are not trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options
from computepool.cli.lazy import ListedGroup
from computepool.core.words import say_count

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.wire.blocked_inputs import BlockedInput
    from computepool.wire.trust import DistrustedNode

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

_as_json = click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")


@click.group("operator", cls=ListedGroup)
def command() -> None:
    """For operators: block what must not run, suspend who must not submit."""


@command.command("block-input")
@click.argument("what", metavar="FILE|SHA256")
@click.option("--why", required=True, help="For other operators; submitters are not told.")
@_as_json
@hub_options
def block_input(what: str, why: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Refuse every job that names this file or script, and stop those that are open.

    It is known by its content: give the file, or its SHA-256.
    """
    from computepool.cli.terminal import show

    blocked = connect(hub_url, key).operator.block_input(sha256=hash_of(what), why=why)
    show(blocked, lambda found: [f"{found.sha256} is blocked at every hub within seconds."], as_json=as_json)


@command.command("unblock-input")
@click.argument("what", metavar="FILE|SHA256")
@hub_options
def unblock_input(what: str, hub_url: str | None, key: str | None) -> None:
    """Let jobs name it again. What was stopped stays stopped."""
    sha256 = hash_of(what)
    connect(hub_url, key).operator.unblock_input(sha256=sha256)
    click.echo(f"{sha256} may be used again.")


@command.command("blocked-inputs")
@_as_json
@hub_options
def list_blocked_inputs(as_json: bool, hub_url: str | None, key: str | None) -> None:
    """List what is blocked, and why."""
    from computepool.cli.terminal import print_json, screen

    found = list(connect(hub_url, key).operator.blocked_inputs())
    print_json(found) if as_json else screen().print(blocked_table(found))


@command.command("distrusted-nodes")
@_as_json
@hub_options
def list_distrusted_nodes(as_json: bool, hub_url: str | None, key: str | None) -> None:
    """List nodes whose results were wrong, what was found, and their way back."""
    from computepool.cli.terminal import print_json, screen

    found = list(connect(hub_url, key).operator.distrusted_nodes())
    print_json(found) if as_json else screen().print(distrusted_table(found))


@command.command("suspend")
@click.argument("account")
@hub_options
def suspend(account: str, hub_url: str | None, key: str | None) -> None:
    """Refuse everything that an account asks for, and stop its open jobs. ACCOUNT is an e-mail address or an id."""
    from computepool.cli.accounts import find_account

    client = connect(hub_url, key)
    one = client.operator.suspend(account_id=find_account(client, account).id)
    click.echo(f"{one.email} is suspended, and its jobs are stopped.")


@command.command("resume")
@click.argument("account")
@hub_options
def resume(account: str, hub_url: str | None, key: str | None) -> None:
    """Lift a suspension. Jobs that were stopped stay stopped."""
    from computepool.cli.accounts import find_account

    client = connect(hub_url, key)
    one = client.operator.resume(account_id=find_account(client, account).id)
    click.echo(f"{one.email} may use the hub again.")


def hash_of(what: str) -> str:
    """Of a file, or as it was given."""
    if _SHA256.match(what):
        return what
    path = Path(what)
    if not path.is_file():
        raise click.UsageError(f"{what!r} is neither a file nor a SHA-256 of 64 lower-case hex digits.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def blocked_table(found: Iterable[BlockedInput]) -> Table:
    from computepool.cli.terminal import cell, make_table

    table = make_table("SHA256", "SINCE", "WHY", give=("WHY",))
    for each in found:
        table.add_row(each.sha256, f"{each.blocked_at:%Y-%m-%d %H:%M}", cell(each.why, one_line=True))
    return table


def distrusted_table(found: Iterable[DistrustedNode]) -> Table:
    from computepool.cli.terminal import cell, make_table

    table = make_table("NODE", "ID", "STANDING", "SINCE", "WRONG", "WHAT IT MEANS", give=("WHAT IT MEANS",))
    for each in found:
        wrong = f"{each.wrong_count} of {each.checked_count}"
        if each.wrong_spans:
            wrong += f", {say_count(len(each.wrong_spans), 'span')} of networks"
        since = f"{each.since:%Y-%m-%d %H:%M}" if each.since else ""
        name = cell(each.node_name, one_line=True)
        table.add_row(name, str(each.node_id), each.standing.value, since, wrong, cell(each.words, one_line=True))
    return table
