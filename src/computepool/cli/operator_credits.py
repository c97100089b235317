"""The operator's part of `computepool credits`: what people paid in, what goes out, and what was not believed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

import click

from computepool.cli.access import connect, hub_options
from computepool.core.errors import NotFound

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import Client
    from computepool.wire.credits import AccountPayout, AccountTopUp, CashRates, Freeze, Heard, ProviderEvent

# As the wire knows them; named here so that --help imports nothing. A test holds them together.
_PAYOUT_STATES = ("requested", "reserved", "approved", "sent", "unknown", "confirmed", "failed", "returned")
_TOP_UP_STATES = ("requested", "paid", "failed", "refunded", "charged_back", "paid_back_twice")
_KINDS = (
    *("top_up.opened", "top_up.paid", "top_up.failed", "top_up.refunded", "top_up.charged_back"),
    *("payout.accepted", "payout.confirmed", "payout.failed", "payout.returned"),
)
# How far a piece of an id is looked for; whoever means an older one gives its whole id.
_SEARCHED_MAX = 2_000
_SHOWN_MAX = 200
_CASH = re.compile(r"([A-Za-z]{3})\s*([0-9.]+)\Z", re.ASCII)

_as_json = click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")


@click.command("top-ups")
@click.option("--state", type=click.Choice(_TOP_UP_STATES), default="requested", show_default=True)
@_as_json
@hub_options
def list_top_ups(state: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """For operators: everybody's top-ups, newest first."""
    from computepool.cli.terminal import print_json, screen
    from computepool.core.payments.top_up import TopUpState

    client = connect(hub_url, key)
    found = list(islice(client.operator_credits.top_ups(state=TopUpState(state)), _SHOWN_MAX))
    print_json(found) if as_json else screen().print(top_ups_table(found))


@click.command("payouts")
@click.option("--state", type=click.Choice(_PAYOUT_STATES), default="reserved", show_default=True)
@_as_json
@hub_options
def list_payouts(state: str, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """For operators: everybody's payouts, oldest first, with where they go. `reserved` ones wait for you."""
    from computepool.cli.terminal import print_json, screen
    from computepool.core.payments.payout import PayoutState

    client = connect(hub_url, key)
    _warn_of_rates(client.operator_credits.cash_rates())
    found = list(islice(client.operator_credits.payouts(state=PayoutState(state)), _SHOWN_MAX))
    print_json(found) if as_json else screen().print(payouts_table(found))


@click.command("rates")
@_as_json
@hub_options
def show_rates(as_json: bool, hub_url: str | None, key: str | None) -> None:
    """For operators: what cash is worth here, and whether that can still be true."""
    from computepool.cli.terminal import print_json

    found = connect(hub_url, key).operator_credits.cash_rates()
    if as_json:
        print_json(found)
        return
    for line in describe_rates(found):
        click.echo(line)
    _warn_of_rates(found)


def describe_rates(found: CashRates) -> list[str]:
    from computepool.cli.why import lay_out
    from computepool.core.payments.cash import count_minor_digits
    from computepool.core.placement.price import format_credits

    rows = [
        (
            f"{rate.currency} 1",
            format_credits(rate.microcredits_per_minor_unit * 10 ** count_minor_digits(rate.currency)),
            "an example, set by nobody" if rate.is_example else "",
        )
        for rate in found.rates
    ]
    since = f"Set by the operator, as of {found.rates_on.isoformat()}." if found.rates_on else "No date is set."
    return [*lay_out(("CASH", "CREDITS", ""), rows, right=(1,)), "", since]


def _warn_of_rates(found: CashRates) -> None:
    """Beside the answer, so that programs can still read that."""
    for warning in found.warnings:
        click.secho(f"WARNING: {warning}", fg="yellow", err=True)


@click.command("approve")
@click.argument("payout")
@hub_options
def approve(payout: str, hub_url: str | None, key: str | None) -> None:
    """For operators: let PAYOUT go out."""
    client = connect(hub_url, key)
    _warn_of_rates(client.operator_credits.cash_rates())
    found = client.operator_credits.approve_payout(payout_id=_find_payout(client, payout, ("reserved", "approved")))
    click.echo(f"Payout {found.id} is {found.state.value}.")


@click.command("refuse")
@click.argument("payout")
@click.argument("why")
@hub_options
def refuse(payout: str, why: str, hub_url: str | None, key: str | None) -> None:
    """For operators: refuse PAYOUT; the credits go back to the owner, who reads WHY."""
    client = connect(hub_url, key)
    payout_id = _find_payout(client, payout, ("reserved", "approved"))
    found = client.operator_credits.refuse_payout(payout_id=payout_id, why=why)
    click.echo(f"Payout {found.id} is {found.state.value}; its credits are the owner's again.")


@click.command("confirm")
@click.argument("subject")
@click.argument("cash")
@click.argument("reference")
@hub_options
def confirm(subject: str, cash: str, reference: str, hub_url: str | None, key: str | None) -> None:
    """For operators: a top-up has arrived at the bank, or a payout has left it.

    SUBJECT is a top-up (its id, a piece of it, or the CP-... of the statement), or a payout that was sent. CASH
    is what the statement says, such as INR500.00, and REFERENCE the bank's own, which vouches for this once.
    """
    from computepool.core.payments.claim import ClaimKind

    currency, minor = parse_cash(cash)
    client = connect(hub_url, key)
    kind, subject_id = _find_subject(client, subject)
    heard = client.operator_credits.record_payment(
        kind=ClaimKind(kind), subject_id=subject_id, currency=currency, amount_minor=minor, reference=reference
    )
    click.echo(f"{kind} {subject_id}: {_say_heard(heard)}")


@click.command("record")
@click.argument("kind", type=click.Choice(_KINDS), metavar="WHAT")
@click.argument("subject", type=click.UUID)
@click.argument("cash")
@click.argument("reference")
@hub_options
def record(kind: str, subject: UUID, cash: str, reference: str, hub_url: str | None, key: str | None) -> None:
    """For operators: whatever else the bank's statement says, of the top-up or payout with the id SUBJECT.

    WHAT is one of

    \b
      top_up.opened  top_up.paid  top_up.failed
      top_up.refunded  top_up.charged_back
      payout.accepted  payout.confirmed  payout.failed  payout.returned

    CASH is what the statement says, such as INR500.00, and REFERENCE the bank's own, which vouches for this once.
    """
    from computepool.core.payments.claim import ClaimKind

    currency, minor = parse_cash(cash)
    heard = connect(hub_url, key).operator_credits.record_payment(
        kind=ClaimKind(kind), subject_id=subject, currency=currency, amount_minor=minor, reference=reference
    )
    click.echo(f"{kind} {subject}: {_say_heard(heard)}")


@click.command("refund")
@click.argument("top_up")
@hub_options
def refund(top_up: str, hub_url: str | None, key: str | None) -> None:
    """For operators: take the credits of TOP_UP back, if they are not spent. Send the cash back afterwards."""
    from computepool.cli.job_names import pick_id
    from computepool.core.payments.cash import say_cash
    from computepool.core.payments.top_up import TopUpState

    client = connect(hub_url, key)
    paid = islice(client.operator_credits.top_ups(state=TopUpState.PAID), _SEARCHED_MAX)
    top_up_id = _to_uuid(top_up) or pick_id(top_up, [each.top_up.id for each in paid], what="paid top-up")
    found = client.operator_credits.refund_top_up(top_up_id=top_up_id)
    click.echo(f"Top-up {found.id} is {found.state.value}: send {say_cash(found.currency, found.amount_minor)} back.")


@click.command("events")
@_as_json
@hub_options
def list_events(as_json: bool, hub_url: str | None, key: str | None) -> None:
    """For operators: what payment providers said and was not believed, oldest first."""
    from computepool.cli.terminal import print_json, screen

    found = connect(hub_url, key).operator_credits.list_refused_events()
    if as_json:
        print_json(found)
    elif not found:
        click.echo("Every word of a payment provider was believed or looked at.")
    else:
        screen().print(events_table(found))


@click.command("review")
@click.argument("provider")
@click.argument("event")
@click.argument("note", default="")
@hub_options
def review(provider: str, event: str, note: str, hub_url: str | None, key: str | None) -> None:
    """For operators: EVENT of PROVIDER was taken care of elsewhere; it is not listed any more."""
    connect(hub_url, key).operator_credits.review_event(provider=provider, event_id=event, note=note)
    click.echo("Done.")


@click.command("hear-again")
@click.argument("provider")
@click.argument("event")
@hub_options
def hear_again(provider: str, event: str, hub_url: str | None, key: str | None) -> None:
    """For operators: judge a refused EVENT anew, by what is known now."""
    heard = connect(hub_url, key).operator_credits.hear_event_again(provider=provider, event_id=event)
    click.echo(_say_heard(heard))


@click.command("freezes")
@_as_json
@hub_options
def list_freezes(as_json: bool, hub_url: str | None, key: str | None) -> None:
    """For operators: accounts that are frozen, and why."""
    from computepool.cli.terminal import print_json, screen

    found = list(islice(connect(hub_url, key).operator_credits.freezes(), _SHOWN_MAX))
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No account is frozen.")
    else:
        screen().print(freezes_table(found))


@click.command("unfreeze")
@click.argument("account")
@hub_options
def unfreeze(account: str, hub_url: str | None, key: str | None) -> None:
    """For operators: let ACCOUNT (e-mail address or id) submit and cash out again."""
    from computepool.cli.accounts import find_account

    client = connect(hub_url, key)
    found = find_account(client, account)
    client.operator_credits.lift_freeze(account_id=found.id)
    click.echo(f"{found.email} is not frozen any more.")


operator_commands = (
    *(list_top_ups, list_payouts, approve, refuse, confirm, record, refund),
    *(list_events, review, hear_again, list_freezes, unfreeze, show_rates),
)


def parse_cash(text: str) -> tuple[str, int]:
    """`INR500.00` or `INR 500`: currency and minor units."""
    from computepool.core.payments.cash import parse_minor

    match = _CASH.match(text.strip())
    if match is None:
        raise click.UsageError(f"{text!r} is no amount of cash: write the currency and the amount, such as INR500.00")
    currency = match[1].upper()
    try:
        return currency, parse_minor(match[2], currency)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _find_subject(client: Client, name: str) -> tuple[str, UUID]:
    """A top-up that is not paid yet, or a payout that was handed out."""
    from computepool.cli.job_names import pick_id
    from computepool.core.payments.payout import PayoutState
    from computepool.core.payments.top_up import TopUpState

    desk = client.operator_credits
    if name.upper().startswith("CP-"):
        for state in (TopUpState.REQUESTED, TopUpState.FAILED):
            for each in desk.top_ups(state=state, reference=name.upper()):
                return "top_up.paid", each.top_up.id
        raise NotFound(f"No top-up that waits for its payment is called {name.upper()}.")
    found = {
        each.top_up.id: "top_up.paid" for each in islice(desk.top_ups(state=TopUpState.REQUESTED), _SEARCHED_MAX)
    }
    for payout_state in (PayoutState.SENT, PayoutState.UNKNOWN):
        for payout in islice(desk.payouts(state=payout_state), _SEARCHED_MAX):
            found[payout.payout.id] = "payout.confirmed"
    chosen = pick_id(name, list(found), what="top-up or payout that waits for this")
    return found[chosen], chosen


def _find_payout(client: Client, name: str, states: Iterable[str]) -> UUID:
    from computepool.cli.job_names import pick_id
    from computepool.core.payments.payout import PayoutState

    whole = _to_uuid(name)
    if whole is not None:
        return whole
    ids = [
        each.payout.id
        for state in states
        for each in islice(client.operator_credits.payouts(state=PayoutState(state)), _SEARCHED_MAX)
    ]
    return pick_id(name, ids, what="payout that waits for this")


def _to_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _say_heard(heard: Heard) -> str:
    if heard.doubt is not None:
        return f"refused ({heard.doubt.value})."
    if heard.repeated:
        return "was said before; nothing was changed."
    return "in the books." if heard.verdict.value == "applied" else "known already; nothing was changed."


def top_ups_table(found: Iterable[AccountTopUp]) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.cli.words import short_id
    from computepool.core.payments.cash import say_cash
    from computepool.core.placement.price import format_credits

    table = make_table("TOP-UP", "WHEN", "ACCOUNT", "CREDITS", "CASH", "REFERENCE", "BY", right=("CREDITS", "CASH"))
    for each in found:
        top_up = each.top_up
        table.add_row(
            short_id(top_up.id),
            top_up.created_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            short_id(each.account_id),
            format_credits(top_up.amount_microcredits),
            say_cash(top_up.currency, top_up.amount_minor),
            cell(top_up.reference, one_line=True),
            cell(top_up.provider, one_line=True),
        )
    return table


def payouts_table(found: Iterable[AccountPayout]) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.cli.words import short_id
    from computepool.core.payments.cash import say_cash
    from computepool.core.placement.price import format_credits

    columns = ("PAYOUT", "WHEN", "ACCOUNT", "CREDITS", "CASH", "BY", "TO")
    table = make_table(*columns, right=("CREDITS", "CASH"), give=("TO",))
    for each in found:
        payout = each.payout
        table.add_row(
            short_id(payout.id),
            payout.created_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            short_id(each.account_id),
            format_credits(payout.amount_microcredits),
            say_cash(payout.currency, payout.amount_minor),
            cell(payout.provider, one_line=True),
            cell(f"{each.region} {each.destination}"),
        )
    return table


def events_table(found: Iterable[ProviderEvent]) -> Table:
    from computepool.cli.terminal import cell, make_table
    from computepool.core.payments.cash import say_cash

    table = make_table(
        *("WHEN", "PROVIDER", "EVENT", "SAYS", "OF", "CASH", "DOUBT"), right=("CASH",), give=("EVENT", "OF")
    )
    for event in found:
        table.add_row(
            event.received_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            cell(event.provider, one_line=True),
            cell(event.event_id),
            cell(event.kind, one_line=True),
            str(event.subject_id),
            say_cash(event.currency, event.amount_minor),
            event.doubt.value if event.doubt else "",
        )
    return table


def freezes_table(found: Iterable[Freeze]) -> Table:
    from computepool.cli.terminal import cell, make_table

    table = make_table("ACCOUNT", "SINCE", "WHY", give=("WHY",))
    for freeze in found:
        since = freeze.frozen_at.astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(str(freeze.account_id), since, cell(freeze.why))
    return table
