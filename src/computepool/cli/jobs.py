"""`computepool jobs`: the list, and one job with its slices and attempts."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options
from computepool.core.jobs.state import JOB_TERMINAL, JobState
from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.placement.price import format_credits

if TYPE_CHECKING:
    from rich.table import Table

    from computepool.sdk import JobHandle
    from computepool.wire.jobs import Attempt, Job, Requirements, Slice

_SLICES_SHOWN = 50


@click.command("jobs")
@click.argument("job", required=False)
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="How many to list.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    job: str | None, state: str | None, limit: int, as_json: bool, hub_url: str | None, key: str | None
) -> None:
    """List your jobs, newest first; or show one JOB with its slices and attempts.

    JOB is an id, a piece of at least four characters from its beginning or end, or `last`.
    """
    client = connect(hub_url, key)
    if job is None:
        page = client.list_jobs(limit=limit, state=JobState(state) if state else None)
        _show_list(page.jobs, as_json=as_json, more=page.cursor is not None)
    else:
        from computepool.cli.job_names import find_job

        _show_one(find_job(client, job), as_json=as_json)


def _show_list(jobs: list[Job], *, as_json: bool, more: bool) -> None:
    from computepool import clock
    from computepool.cli.terminal import print_json, screen

    if as_json:
        print_json(jobs)
    elif not jobs:
        click.echo("No jobs yet. Try: computepool run SCRIPT")
    else:
        screen().print(jobs_table(jobs, now=clock.now()))
        if more:
            click.echo("There are older ones; see them with --limit.", err=True)


def jobs_table(jobs: list[Job], *, now: datetime) -> Table:
    from computepool.cli.terminal import cell, make_table, state_text
    from computepool.cli.words import format_ago, format_seconds, seconds_between, short_id

    table = make_table(
        "JOB",
        "NAME",
        "STATE",
        "DONE",
        "RUNNING",
        "AGE",
        "TOOK",
        "COST",
        right=("DONE", "RUNNING", "AGE", "TOOK", "COST"),
        give=("NAME",),
    )
    table.columns[1].max_width = 28
    for job in jobs:
        took = seconds_between(job.started_at, job.finished_at if job.state in JOB_TERMINAL else now)
        running = job.counts.running + job.counts.leased
        table.add_row(
            short_id(job.id),
            cell(job.name, one_line=True),
            state_text(job.state),
            f"{job.counts.succeeded}/{job.slice_count}",
            str(running) if running else "",
            format_ago(job.created_at, now),
            format_seconds(took),
            f"{format_credits(job.charged_microcredits)} cr" if job.charged_microcredits else "",
        )
    return table


def _show_one(handle: JobHandle, *, as_json: bool) -> None:
    from itertools import islice

    from computepool import clock
    from computepool.cli.terminal import print_json, screen

    if as_json:
        print_json({"job": handle.job, "slices": list(handle.slices())})
        return
    shown = list(islice(handle.slices(), _SLICES_SHOWN))
    for line in describe_job(handle.job, now=clock.now()):
        click.echo(line)
    click.echo()
    screen().print(slices_table(shown))
    if handle.job.slice_count > len(shown):
        click.echo(f"The first {len(shown)} of {handle.job.slice_count:,} slices; --json prints all.", err=True)


def describe_job(job: Job, *, now: datetime) -> list[str]:
    from computepool.cli.words import format_seconds, plain, seconds_between

    rows = [
        ("job", str(job.id)),
        ("name", plain(job.name)),
        ("state", job.state.value),
        ("slices", describe_counts(job)),
        ("needs", describe_requirements(job.requirements)),
        *([] if job.kind == DEFAULT_KIND else [("kind", plain(job.kind))]),
        ("wants", describe_wishes(job)),
        ("submitted", _to_text(job.created_at)),
    ]
    if job.started_at is not None:
        waited = seconds_between(job.created_at, job.started_at)
        rows.append(("started", f"{_to_text(job.started_at)}, after {format_seconds(waited)}"))
    if job.finished_at is not None:
        took = seconds_between(job.started_at, job.finished_at)
        rows.append(("finished", _to_text(job.finished_at) + (f", after {format_seconds(took)}" if took else "")))
    if job.at_risk_since is not None:
        rows.append(("at risk", f"{format_seconds(seconds_between(job.at_risk_since, now))} of work at most"))
    if job.deadline_at is not None:
        rows.append(("deadline", _to_text(job.deadline_at)))
    if job.price is not None:
        base, most = job.price.microcredits_per_slice or 0, job.price.ceiling_microcredits_per_slice or 0
        rows.append(
            ("price", f"{format_credits(base)} credits a slice x tier x region, at most {format_credits(most)}")
        )
    if job.charged_microcredits or job.held_microcredits:
        held = f", {format_credits(job.held_microcredits)} set aside" if job.held_microcredits else ""
        rows.append(("cost", f"{format_credits(job.charged_microcredits)} credits{held}"))
    if job.expires_at is not None:
        rows.append(("expires", _to_text(job.expires_at)))
    return [f"{name:<10} {value}" for name, value in rows]


def describe_counts(job: Job) -> str:
    named = ("queued", "leased", "running", "succeeded", "failed", "cancelled")
    parts = [f"{getattr(job.counts, name)} {name}" for name in named if getattr(job.counts, name)]
    return f"{job.slice_count} ({', '.join(parts)})" if parts else str(job.slice_count)


def describe_requirements(need: Requirements) -> str:
    from computepool.core.placement.price import say_price
    from computepool.sdk import format_size

    parts = []
    if need.vram_bytes:
        parts.append(f"{format_size(need.vram_bytes)} VRAM")
    elif need.gpu:
        parts.append("a GPU")
    parts.append(f"{need.cores} core{'s' if need.cores > 1 else ''}")
    parts.append(f"{format_size(need.ram_bytes)} RAM")
    parts.append(f"{format_size(need.disk_bytes)} disk")
    if need.tiers:
        parts.append("tier " + " or ".join(need.tiers))
    if need.regions:
        parts.append("region " + " or ".join(need.regions))
    if need.ceiling_microcredits_per_hour is not None:
        parts.append(f"at most {say_price(need.ceiling_microcredits_per_hour)}")
    return ", ".join([*parts, need.isolation.value])


def describe_wishes(job: Job) -> str:
    """What it would rather have, once its needs are met."""
    slot = {"value": "the best value", "cheapest": "the cheapest slot", "fastest": "the fastest slot"}
    priority = f", priority {job.priority}" if job.priority else ""
    return f"{slot[job.prefer.value]}, class {job.priority_class.value}{priority}"


def slices_table(slices: list[Slice]) -> Table:
    from computepool.cli.terminal import cell, make_table, state_text
    from computepool.cli.words import format_seconds, short_id

    table = make_table(
        "SLICE",
        "ATTEMPT",
        "STATE",
        "NODE",
        "SLOT",
        "RAN",
        "WHAT HAPPENED",
        right=("SLICE", "ATTEMPT", "RAN"),
        give=("WHAT HAPPENED",),
    )
    for part in slices:
        if not part.attempts:
            table.add_row(str(part.index), "", state_text(part.state), "", "", "", cell(explain_end(part)))
        for i, attempt in enumerate(part.attempts):
            table.add_row(
                str(part.index) if i == 0 else "",
                str(attempt.number),
                state_text(attempt.state),
                short_id(attempt.node_id),
                attempt.slot,
                format_seconds(attempt.run_seconds),
                cell(explain_end(attempt) or _describe_outputs(part, attempt) or describe_risk(part, attempt)),
            )
    return table


def explain_end(ended: Slice | Attempt) -> str:
    """Why it did not deliver, in plain words; empty if it did or still may."""
    from computepool.core.jobs.cause import PLAIN_WORDS, Cause
    from computepool.wire.jobs import Attempt

    if ended.cause is None:
        return ended.message or ""
    if isinstance(ended, Attempt) and ended.cause is Cause.EXIT_CODE and ended.exit_code is not None:
        return f"the program ended with exit code {ended.exit_code}"
    words = PLAIN_WORDS[ended.cause]
    return f"{words}: {ended.message}" if ended.message else words


def describe_risk(part: Slice, attempt: Attempt) -> str:
    """Of one that runs: what would have to be done again if its machine went now."""
    from computepool.cli.words import format_seconds

    if attempt.at_risk_seconds is None:
        return ""
    done = "" if part.progress is None else f"{part.progress:.0%} done, "
    since = "no checkpoint yet" if attempt.saved_at is None else f"{format_seconds(attempt.saved_seconds)} saved"
    return f"{done}{since}, {format_seconds(attempt.at_risk_seconds)} at risk"


def _describe_outputs(part: Slice, attempt: Attempt) -> str:
    from computepool.sdk import format_size

    if attempt.state.value != "succeeded" or not part.outputs:
        return ""
    total = format_size(sum(output.size_bytes for output in part.outputs))
    if len(part.outputs) == 1:
        return f"{part.outputs[0].path} ({total})"
    return f"{len(part.outputs)} files ({total})"


def _to_text(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
