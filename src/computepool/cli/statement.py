"""`computepool statement`: what moved for one's account, what a job came to, what a node earned; also as CSV."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from uuid import UUID

    from computepool.sdk import Client
    from computepool.wire.statements import AccountStatement, ChargeLine, JobStatement, NodeStatement, TransferLine

_LINES_SHOWN = 50


@click.command("statement")
@click.option("--job", metavar="JOB", help="What this job came to.")
@click.option("--node", metavar="NODE", help="What this node of yours earned.")
@click.option("--attempts", "by_attempt", is_flag=True, help="With --job: its attempts instead of its transfers.")
@click.option("--from", "since", metavar="DAY", help="First day, such as 2026-11-01. [default: a month back]")
@click.option("--to", "until", metavar="DAY", help="The day after the last one. [default: up to now]")
@click.option("--csv", "as_csv", is_flag=True, help="The whole of it as CSV.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="With --csv: into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs: its first page.")
@hub_options
def command(
    job: str | None,
    node: str | None,
    by_attempt: bool,
    since: str | None,
    until: str | None,
    as_csv: bool,
    out: Path | None,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
) -> None:
    """Show what moved for your account; or with --job what a job came to, with --node what a machine earned.

    Days are days of UTC. Amounts are exact: credits with six decimals, and whole microcredits in the CSV.
    """
    if job is not None and node is not None:
        raise click.UsageError("Name a --job or a --node, not both.")
    if by_attempt and job is None:
        raise click.UsageError("--attempts goes with --job.")
    if job is not None and (since or until):
        raise click.UsageError("A job's statement is about all of it: --from and --to do not go with --job.")
    if out is not None and not as_csv:
        raise click.UsageError("--out goes with --csv.")
    client = connect(hub_url, key)
    if as_csv:
        _write(_list_pages(client, job, node, by_attempt, since, until), out)
        return
    _show(client, job, node, by_attempt, since, until, as_json=as_json)


def _show(
    client: Client,
    job: str | None,
    node: str | None,
    by_attempt: bool,
    since: str | None,
    until: str | None,
    *,
    as_json: bool,
) -> None:
    from computepool.cli.terminal import show
    from computepool.wire.statements import JobLines

    found: AccountStatement | JobStatement | NodeStatement
    if job is not None:
        lines = JobLines.ATTEMPTS if by_attempt else JobLines.TRANSFERS
        found = client.books.job_statement(job_id=_job_id(client, job), lines=lines)
        described = describe_job(found)
    elif node is not None:
        found = client.books.node_statement(node_id=_node_id(client, node), since=since, until=until)
        described = describe_node(found)
    else:
        found = client.books.statement(since=since, until=until)
        described = describe_account(found)
    show(found, lambda _: described, as_json=as_json)


def _list_pages(
    client: Client, job: str | None, node: str | None, by_attempt: bool, since: str | None, until: str | None
) -> Iterator[str]:
    from computepool.wire.statements import JobLines

    if job is not None:
        lines = JobLines.ATTEMPTS if by_attempt else JobLines.TRANSFERS
        return client.books.job_statement_csv(job_id=_job_id(client, job), lines=lines)
    if node is not None:
        return client.books.node_statement_csv(node_id=_node_id(client, node), since=since, until=until)
    return client.books.statement_csv(since=since, until=until)


def _write(pages: Iterator[str], out: Path | None) -> None:
    if out is None:
        for page in pages:
            sys.stdout.buffer.write(page.encode())
        sys.stdout.flush()
        return
    with out.open("w", encoding="utf-8", newline="") as file:
        for page in pages:
            file.write(page)
    click.echo(f"Written to {out}.")


def _job_id(client: Client, name: str) -> UUID:
    from computepool.cli.job_names import find_job

    return find_job(client, name).id


def _node_id(client: Client, name: str) -> UUID:
    from computepool.cli.pay import find_payee

    return find_payee(client, name)[0]


def describe_account(found: AccountStatement) -> list[str]:
    from computepool.cli.why import lay_out

    lines = [f"From {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M}, by UTC. In credits:"]
    sums = [(each.kind.value, each.opening_credits, each.closing_credits) for each in found.sums]
    lines += ["", *lay_out(("ACCOUNT", "BEFORE", "AFTER"), sums, right=(1, 2))] if sums else []
    return [*lines, "", *_describe_transfers(found.lines, is_more=found.cursor is not None)]


def describe_job(found: JobStatement) -> list[str]:
    from computepool.cli.why import lay_out
    from computepool.core.ledger.decimals import to_decimal

    rows = [
        ("held", found.held_microcredits),
        ("to owners", -found.earned_microcredits),
        ("fee", -found.fee_microcredits),
        ("refunded", -found.refunded_microcredits),
        ("held still", found.remaining_microcredits),
    ]
    lines = [f"Job {found.job_id} has cost {found.cost_credits} credits.", ""]
    lines += lay_out(("", "CREDITS"), [(name, to_decimal(amount)) for name, amount in rows], right=(1,))
    if found.reversed_microcredits:
        lines += ["", f"{to_decimal(found.reversed_microcredits)} credits came back after late fraud."]
    is_more = found.cursor is not None
    if found.attempts:
        return [*lines, "", *_describe_charges(found.attempts, is_more=is_more)]
    return [*lines, "", *_describe_transfers(found.transfers, is_more=is_more)]


def describe_node(found: NodeStatement) -> list[str]:
    from computepool.cli.why import lay_out

    lines = [f"From {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M}, by UTC. In credits:"]
    sums = [
        (each.earning_state.value if each.earning_state else "unpaid", f"{each.attempt_count:,}", each.earned_credits)
        for each in found.sums
    ]
    lines += ["", *lay_out(("PAY", "ATTEMPTS", "EARNED"), sums, right=(1, 2))] if sums else []
    return [*lines, "", *_describe_charges(found.attempts, is_more=found.cursor is not None)]


def _describe_transfers(found: list[TransferLine], *, is_more: bool) -> list[str]:
    from computepool.cli.why import lay_out

    if not found:
        return ["Nothing moved."]
    signs = {"in": "+", "out": "-", "within": " "}
    rows = [
        (
            f"{line.at:%Y-%m-%d %H:%M}",
            line.kind.value,
            f"{line.source.value} > {line.target.value}",
            signs[line.flow.value] + line.credits,
        )
        for line in found[:_LINES_SHOWN]
    ]
    return [*lay_out(("AT", "WHAT", "ACCOUNTS", "CREDITS"), rows, right=(3,)), *_say_cut(found, is_more)]


def _describe_charges(found: list[ChargeLine], *, is_more: bool) -> list[str]:
    from computepool.cli.why import lay_out, one_line, wrap
    from computepool.cli.words import short_id

    if not found:
        return ["No attempt ended."]
    rows = [
        (
            f"{line.finished_at:%m-%d %H:%M}" if line.finished_at else "",
            f"{short_id(line.job_id)}/{line.slice_index}",
            line.cause.value if line.cause else line.state.value,
            "" if line.metered_seconds is None else f"{line.metered_seconds:,}",
            line.charged_credits,
            line.earned_credits,
            line.earning_state.value if line.earning_state else "",
        )
        for line in found[:_LINES_SHOWN]
    ]
    heads = ("ENDED", "JOB/SLICE", "HOW", "SECONDS", "CHARGED", "EARNED", "PAY")
    lines = [*lay_out(heads, rows, right=(3, 4, 5)), *_say_cut(found, is_more)]
    for line in found[:_LINES_SHOWN]:
        if line.dispute_state is not None:
            why = one_line(line.dispute_note or line.dispute_reason)
            lines += wrap(f"{short_id(line.job_id)}/{line.slice_index} dispute {line.dispute_state.value}: {why}")
    return lines


def _say_cut(found: list[TransferLine] | list[ChargeLine], is_more: bool) -> list[str]:
    if not is_more and len(found) <= _LINES_SHOWN:
        return []
    return [f"  The first {_LINES_SHOWN}; --csv has all of them."]
