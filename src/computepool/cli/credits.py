"""`computepool credits`: what one has and earns, paying in and cashing out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options
from computepool.cli.disputes import dispute_commands, operator_dispute_commands
from computepool.cli.lazy import ListedGroup
from computepool.cli.operator_credits import operator_commands

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.wire.credits import Credits, Payout, PayoutDetails, TopUp

_HISTORY_LENGTH = 20
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")


def _check_amount(_: click.Context, __: click.Parameter, amount: str) -> str:
    """Before a hub is asked: a slip of the pen is told at once."""
    from computepool.sdk import parse_amount

    parse_amount(amount)
    return amount


amount_argument = click.argument("amount", callback=_check_amount)


@click.group("credits", cls=ListedGroup, invoke_without_command=True)
@as_json_option
@hub_options
@click.pass_context
def command(ctx: click.Context, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Show what you have and earn; or pay in, cash out, and look at what became of it.

    Amounts are in credits, with six decimals at most. 1 credit is 1 Indian rupee.
    """
    if ctx.invoked_subcommand is not None:
        return
    from computepool.cli.terminal import show

    found = connect(hub_url, key).credits.get()
    show(found, describe_credits, as_json=as_json)


@command.command("top-up")
@amount_argument
@click.option("--currency", metavar="XXX", help="Pay in this currency. [else that of your region]")
@as_json_option
@hub_options
def top_up(amount: str, currency: str | None, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Pay in for AMOUNT credits: says where and how to pay. They are yours when the payment has arrived."""
    from computepool.cli.terminal import show

    found = connect(hub_url, key).credits.top_up(credits=amount, currency=currency)
    show(found, describe_top_up, as_json=as_json)


@command.command("cash-out")
@amount_argument
@as_json_option
@hub_options
def cash_out(amount: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Have AMOUNT credits of what you earned paid out to where your payout details say."""
    from computepool.cli.terminal import show

    found = connect(hub_url, key).credits.cash_out(credits=amount)
    show(found, describe_payout, as_json=as_json)


@command.command("cancel")
@click.argument("payout")
@as_json_option
@hub_options
def cancel(payout: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Take PAYOUT back as long as it is not sent.

    PAYOUT is its id, or a piece of at least four characters from the id's beginning or end.
    """
    from computepool.cli.job_names import pick_id
    from computepool.cli.terminal import show

    client = connect(hub_url, key)
    open_ids = [each.id for each in client.credits.list_payouts().payouts if each.sent_at is None]
    found = client.credits.cancel_payout(payout_id=pick_id(payout, open_ids, what="payout that is not sent"))
    show(found, describe_payout, as_json=as_json)


@command.command("spend")
@amount_argument
@as_json_option
@hub_options
def spend(amount: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Turn AMOUNT credits of what you earned into credits for your own jobs."""
    from computepool.cli.terminal import show

    found = connect(hub_url, key).credits.spend_earnings(credits=amount)
    show(found, describe_credits, as_json=as_json)


@command.command("details")
@click.option("--region", metavar="XX", help="Your country, such as IN: it decides currency and minimum.")
@click.option("--to", "destination", metavar="WHERE", help="Bank account or address, as your hub's operator asks.")
@as_json_option
@hub_options
def details(region: str | None, destination: str | None, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Show where your payouts go; or say it, with --region and --to. A change stops payouts for a while."""
    from computepool.cli.terminal import show

    if (region is None) != (destination is None):
        raise click.UsageError("Give both: computepool credits details --region IN --to 'HDFC 0001234567'")
    client = connect(hub_url, key)
    if region is None or destination is None:
        found = client.credits.get_payout_details()
    else:
        found = client.credits.set_payout_details(region=region.upper(), destination=destination)
    show(found, _describe_details, as_json=as_json)


@command.command("history")
@click.option("--limit", type=click.IntRange(1, 500), default=_HISTORY_LENGTH, show_default=True)
@as_json_option
@hub_options
def history(limit: int, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """What you paid in and cashed out, newest first."""
    from computepool.cli.terminal import print_json, screen

    client = connect(hub_url, key)
    top_ups = client.credits.list_top_ups(limit=limit).top_ups
    payouts = client.credits.list_payouts(limit=limit).payouts
    if as_json:
        print_json({"top_ups": top_ups, "payouts": payouts})
    elif not top_ups and not payouts:
        click.echo("Nothing was paid in or out yet. Try: computepool credits top-up 500")
    else:
        screen().print(history_table(top_ups, payouts, limit=limit))


for each in (*dispute_commands, *operator_commands, *operator_dispute_commands):
    command.add_command(each)


def describe_credits(found: Credits) -> list[str]:
    """Numbers under each other, and what each is."""
    from computepool.core.placement.price import format_credits

    least = format_credits(found.terms.payout_microcredits_min)
    disputed = (
        [("disputed", found.disputed_microcredits, "of what is pending; see computepool credits disputes")]
        if found.disputed_microcredits
        else []
    )
    rows = [
        ("available", found.available_microcredits, "to spend on jobs"),
        ("held", found.held_microcredits, "set aside for jobs that are not finished"),
        ("pending", found.pending_microcredits, "earned, and held back for a while"),
        *disputed,
        ("earned", found.earned_microcredits, f"to cash out, from {least} credits on, or to spend"),
    ]
    if found.owed_microcredits:
        rows.append(("owed", found.owed_microcredits, "for money that was taken back after it was spent"))
    numbers = [format_credits(number) for _, number, _ in rows]
    width = max(map(len, numbers))
    lines = [f"{name:<10} {number:>{width}}  {words}" for (name, _, words), number in zip(rows, numbers, strict=True)]
    if found.frozen_at is not None:
        since = found.frozen_at.astimezone().strftime("%Y-%m-%d %H:%M")
        lines.append(f"Frozen since {since}: you can top up, but neither submit nor cash out. Ask the operator.")
    return lines


def describe_top_up(found: TopUp) -> list[str]:
    from computepool.cli.words import plain
    from computepool.core.payments.cash import say_cash
    from computepool.core.placement.price import format_credits

    rows = [
        ("top-up", str(found.id)),
        ("amount", f"{format_credits(found.amount_microcredits)} credits"),
        ("to pay", say_cash(found.currency, found.amount_minor)),
        ("state", found.state.value.replace("_", " ")),
    ]
    if found.pay_url:
        rows.append(("pay at", plain(found.pay_url)))
    rows += [("" if number else "how", plain(line)) for number, line in enumerate(found.instructions.splitlines())]
    return [f"{name:<10} {value}" for name, value in rows]


def describe_payout(found: Payout) -> list[str]:
    from computepool.cli.words import plain
    from computepool.core.payments.cash import say_cash
    from computepool.core.placement.price import format_credits

    rows = [
        ("payout", str(found.id)),
        ("amount", f"{format_credits(found.amount_microcredits)} credits"),
        ("paid out", say_cash(found.currency, found.amount_minor)),
        ("state", _WORDS_OF_PAYOUT.get(found.state.value, found.state.value)),
    ]
    if found.failure:
        rows.append(("why", plain(found.failure)))
    return [f"{name:<10} {value}" for name, value in rows]


# What a state means to the one who waits for the money.
_WORDS_OF_PAYOUT = {
    "reserved": "waits for the operator's approval",
    "approved": "approved; about to be sent",
    "sent": "on its way",
    "unknown": "handed out, and not heard of yet; it is asked for and never sent twice",
    "confirmed": "arrived",
    "failed": "failed; the credits are yours again",
    "returned": "sent back by the bank; the credits are yours again",
}


def history_table(top_ups: Iterable[TopUp], payouts: Iterable[Payout], *, limit: int) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.cli.words import short_id
    from computepool.core.payments.cash import say_cash
    from computepool.core.placement.price import format_credits

    table = make_table("WHEN", "WHAT", "ID", "CREDITS", "CASH", "STATE", "", right=("CREDITS", "CASH"), give=("",))
    moved: list[tuple[str, TopUp | Payout, int, str]] = [
        ("top-up", each, each.amount_microcredits, "") for each in top_ups
    ]
    moved += [("payout", each, -each.amount_microcredits, each.failure) for each in payouts]
    for what, each, microcredits, remark in sorted(moved, key=lambda row: row[1].created_at, reverse=True)[:limit]:
        table.add_row(
            each.created_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            what,
            short_id(each.id),
            format_credits(microcredits),
            say_cash(each.currency, each.amount_minor),
            each.state.value.replace("_", " "),
            cell(remark),
        )
    return table


def _describe_details(found: PayoutDetails) -> list[str]:
    from computepool.cli.words import plain

    rows = [
        ("region", plain(found.region)),
        ("currency", plain(found.currency)),
        ("to", plain(found.destination)),
        ("since", found.changed_at.astimezone().strftime("%Y-%m-%d %H:%M")),
    ]
    return [f"{name:<10} {value}" for name, value in rows]
