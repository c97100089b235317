"""`computepool audit`: whether the ledger is as it was sealed, and whether it adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options
from computepool.cli.lazy import ListedGroup

if TYPE_CHECKING:
    from computepool.wire.audit import AuditCheck, BalanceCheck, Proof

_EXIT_BAD = 1


@click.group("audit", cls=ListedGroup)
def command() -> None:
    """Check the books: for operators `verify`, for everyone `proof`."""


@command.command("verify")
@click.option(
    "--known", metavar="NUMBER:HASH", help="A batch and its hash that you have kept: all up to it must agree."
)
@click.option(
    "--from-start", is_flag=True, help="Count balances from the first transfer, not from the last checkpoint."
)
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answers for programs, one a line.")
@hub_options
def verify(known: str | None, from_start: bool, as_json: bool, hub_url: str | None, key: str | None) -> int:
    """For operators: recompute the chain and all balances from the transfers. Names the first bad batch and row.

    The chain is always recomputed as a whole; balances from the last checkpoint of the books on.
    Exit code 1 when anything is wrong.
    """
    from computepool.cli.terminal import print_json

    client = connect(hub_url, key)
    check = client.books.check_batches(known=known)
    balances = client.books.check_balances(from_start=from_start)
    if as_json:
        print_json(check)
        print_json(balances)
    else:
        for line in describe_check(check, balances):
            click.echo(line)
    return _EXIT_BAD if check.fault or _is_bad(balances) else 0


@command.command("proof")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
def proof(as_json: bool, hub_url: str | None) -> int:
    """Show that all accounts of the hub come to zero, and the newest sealed batch. Needs no key.

    Keep the last line: `audit verify --known` tells later whether anything before it was changed.
    """
    from computepool.cli.terminal import show
    from computepool.sdk import Client

    found = Client(hub_url).books.proof()
    show(found, describe_proof, as_json=as_json)
    return _EXIT_BAD if found.balance_sum_microcredits else 0


def describe_check(check: AuditCheck, balances: BalanceCheck) -> list[str]:
    from computepool.cli.why import wrap
    from computepool.cli.words import plain
    from computepool.core.ledger.decimals import say_credits

    sealed = f"{check.batch_count:,} batches with {check.row_count:,} transfers are as they were sealed"
    lines = wrap(f"{sealed}; {balances.unsealed_count:,} transfers are not sealed yet.")
    if check.fault is not None:
        lines += wrap(f"BAD: {check.fault.words} ({check.fault.kind.value})")
    for id in balances.stray_ids:
        lines += wrap(f"BAD: transfer {id} has an id that was never handed out.")
    for drift in balances.drifts:
        kept, counted = say_credits(drift.kept_microcredits), say_credits(drift.counted_microcredits)
        lines += wrap(f"BAD: {plain(drift.name)} stands at {kept}, by its transfers {counted}.")
    for words in balances.checkpoint_faults:
        lines += wrap(f"BAD: {plain(words)}. Every transfer was counted instead.")
    if not (check.fault or _is_bad(balances)):
        lines.append("Good: the chain holds, and all balances are what the transfers come to.")
    if check.last_batch is not None:
        lines.append(f"{check.last_batch.number}:{check.last_batch.sha256}")
    return lines


def _is_bad(balances: BalanceCheck) -> bool:
    return bool(balances.drifts or balances.stray_ids or balances.checkpoint_faults)


def describe_proof(found: Proof) -> list[str]:
    from computepool.cli.why import lay_out

    rows = [(each.kind.value, f"{each.account_count:,}", each.balance_credits) for each in found.totals]
    lines = lay_out(("KIND", "ACCOUNTS", "CREDITS"), rows, right=(1, 2))
    total = found.balance_sum_microcredits
    lines += [
        "",
        "All accounts come to zero." if total == 0 else f"BAD: all accounts come to {total:,} microcredits.",
    ]
    if found.last_batch is None:
        return [*lines, "Nothing is sealed yet."]
    at = found.last_batch.sealed_at.astimezone().strftime("%Y-%m-%d %H:%M")
    return [*lines, f"Sealed {at}:", f"{found.last_batch.number}:{found.last_batch.sha256}"]
