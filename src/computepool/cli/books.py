"""`computepool books`: the close of a day, for operators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options
from computepool.cli.lazy import ListedGroup

if TYPE_CHECKING:
    from computepool.wire.books import ClosedBooks, ProviderMovement

_EXIT_DIFFERS = 1
_PROVIDER_HEADS = ["id", "currency", "amount_minor"]


@click.group("books", cls=ListedGroup)
def command() -> None:
    """The operator's books."""


@command.command("close")
@click.option("--day", required=True, metavar="YYYY-MM-DD", help="A day of UTC that is over.")
@click.option(
    "--provider-books",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The payment provider's own list of that day: CSV with id, currency, amount_minor (out: below 0).",
)
@click.option("--payouts", type=click.Path(path_type=Path, dir_okay=False), help="Write the day's payout file here.")
@click.option("--from-start", is_flag=True, help="Count every transfer, not only those since the last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def close(
    day: str,
    provider_books: Path | None,
    payouts: Path | None,
    from_start: bool,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
) -> int:
    """Close a day: trial balance, payout file, and everything that does not agree. Closed again, it is the same.

    Exit code 1 when something does not agree.
    """
    from computepool.cli.terminal import show
    from computepool.core.ledger.period import read_day

    wanted = read_day(day)
    movements = None if provider_books is None else read_provider_books(provider_books)
    books = connect(hub_url, key).books
    closed = books.close(day=wanted, provider_movements=movements, from_start=from_start)
    if payouts is not None:
        _write_private(payouts, books.payout_file(day=wanted))
    show(closed, lambda found: describe_close(found, payouts), as_json=as_json)
    return _EXIT_DIFFERS if closed.differences else 0


def read_provider_books(path: Path) -> list[ProviderMovement]:
    import csv
    from uuid import UUID

    from computepool.core.errors import InvalidRequest
    from computepool.wire.books import ProviderMovement

    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        missing = set(_PROVIDER_HEADS) - set(reader.fieldnames or ())
        if missing:
            raise InvalidRequest(f"{path} has no column {', '.join(sorted(missing))}.")
        found = []
        for row in reader:
            try:
                id, amount = UUID(row["id"]), int(row["amount_minor"])
            except (ValueError, TypeError):
                raise InvalidRequest(f"{path}, line {reader.line_num}: no id, or no whole amount.") from None
            found.append(ProviderMovement(id=id, currency=row["currency"] or "", amount_minor=amount))
    return found


def _write_private(path: Path, text: str) -> None:
    """It says where people's money goes: for the operator's eyes only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        os.chmod(path, 0o600)
        file.write(text)


def describe_close(closed: ClosedBooks, payouts: Path | None) -> list[str]:
    from computepool.cli.why import lay_out, wrap
    from computepool.core.ledger.decimals import to_decimal

    rows = [
        (
            line.kind.value,
            to_decimal(line.opening_microcredits),
            to_decimal(line.gained_microcredits),
            to_decimal(-line.lost_microcredits),
            to_decimal(line.closing_microcredits),
        )
        for line in closed.trial
    ]
    heads = ("ACCOUNTS", "BEFORE", "IN", "OUT", "AFTER")
    lines = [f"{closed.day} (UTC), closed at {closed.closed_at:%Y-%m-%d %H:%M} UTC. In credits:", ""]
    total = ("sum", *(to_decimal(amount) for amount in _sum_trial(closed)))
    lines += lay_out(heads, [*rows, total], right=(1, 2, 3, 4))
    moved = [
        (each.kind.value, f"{each.transfer_count:,}", to_decimal(each.amount_microcredits)) for each in closed.moved
    ]
    lines += (
        ["", *lay_out(("MOVED", "TRANSFERS", "CREDITS"), moved, right=(1, 2))] if moved else ["", "Nothing moved."]
    )
    where = f", written to {payouts}" if payouts else "; --payouts FILE writes them down"
    lines += ["", *wrap(f"{closed.payout_count:,} payouts were handed out{where}.")]
    if closed.counted_from_batch is not None:
        lines += wrap(f"Counted from batch {closed.counted_from_batch:,} on; --from-start counts every transfer.")
    if not closed.compared_with_provider:
        lines += wrap("The payment provider's own books were not compared: --provider-books FILE does.")
    if not closed.differences:
        return [*lines, "Everything agrees."]
    lines += ["", "What does not agree:"]
    for each in closed.differences:
        lines += wrap(f"{each.kind.value}: {each.words}", indent="  ")
    return [*lines, "  and more"] if closed.differences_is_cut else lines


def _sum_trial(closed: ClosedBooks) -> tuple[int, int, int, int]:
    trial = closed.trial
    return (
        sum(line.opening_microcredits for line in trial),
        sum(line.gained_microcredits for line in trial),
        -sum(line.lost_microcredits for line in trial),
        sum(line.closing_microcredits for line in trial),
    )
