"""A job while it runs: its log if it has one slice, a bar if it has many, plain lines where there is no terminal."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from computepool import clock
from computepool.cli.terminal import aside
from computepool.cli.words import format_seconds, plain, seconds_between, short_id
from computepool.core.jobs.state import JobState, SliceState

if TYPE_CHECKING:
    from rich.console import Console

    from computepool.sdk import JobHandle
    from computepool.wire.jobs import Job

_FAILURES_SHOWN = 5
_LOG_LINES_SHOWN = 15
# What is not taken by then is worth a word.
_GLANCE_SECONDS = 2.0
_LOOK_SECONDS = 0.2


def watch(handle: JobHandle, *, with_log: bool) -> None:
    """Return when the job has ended, with one line that says how."""
    console = aside()
    click.echo(f"Job {short_id(handle.id)} ({plain(handle.job.name)}) submitted.", err=True)
    _say_why_it_waits(handle)
    if handle.job.slice_count == 1 and with_log:
        _stream_log(handle, console)
        handle.wait()
    elif console.is_interactive:
        _show_bar(handle, console)
    else:
        handle.wait(on_change=_StateLines())
    click.echo(describe_end(handle.job), err=True)


def _say_why_it_waits(handle: JobHandle) -> None:
    """Who asked for what nobody has would look at a spinner for ever."""
    deadline = clock.seconds() + _GLANCE_SECONDS
    while handle.job.state is JobState.QUEUED and clock.seconds() < deadline:
        time.sleep(_LOOK_SECONDS)
        handle.refresh()
    waiting = handle.why().waiting if handle.job.state is JobState.QUEUED else None
    if waiting is not None:
        click.echo(f"It waits: {plain(waiting.words)} More: computepool why {short_id(handle.id)}", err=True)


def _stream_log(handle: JobHandle, console: Console) -> None:
    """A spinner until the first word comes; then the log has the screen to itself."""
    from computepool.cli.logs import write_log

    pieces = handle.logs(slice=0, follow=True)
    last = ""
    if console.is_interactive:
        with console.status("Waiting for a node, or for the first words"):
            last = next(pieces, "")
        write_log(last)
    for last in pieces:
        write_log(last)
    if last and not last.endswith("\n"):
        click.echo()


def _show_bar(handle: JobHandle, console: Console) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("", total=handle.job.slice_count, counts="")

        def move(job: Job) -> None:
            progress.update(line, completed=count_ended(job), counts=describe_progress(job))

        handle.wait(on_change=move)


class _StateLines:
    """Where lines stay for ever, only what is new is worth one: the state, and each tenth of the way."""

    def __init__(self) -> None:
        self._said: tuple[str, int] | None = None

    def __call__(self, job: Job) -> None:
        now = (job.state.value, 10 * count_ended(job) // job.slice_count)
        if now != self._said:
            self._said = now
            click.echo(f"{count_ended(job)}/{job.slice_count} {describe_progress(job)}", err=True)


def count_ended(job: Job) -> int:
    return job.counts.succeeded + job.counts.failed + job.counts.cancelled


def describe_progress(job: Job) -> str:
    running = job.counts.running + job.counts.leased
    parts = [(running, "running"), (job.counts.queued, "queued"), (job.counts.failed, "failed")]
    return ", ".join(f"{count} {word}" for count, word in parts if count) or job.state.value


def describe_end(job: Job) -> str:
    took = format_seconds(seconds_between(job.created_at, job.finished_at))
    text = f"Job {short_id(job.id)} {job.state.value} after {took}"
    if job.slice_count > 1 and job.state is not JobState.SUCCEEDED:
        text += f": {job.counts.succeeded} of {job.slice_count} slices succeeded, {job.counts.failed} failed"
    return text + "."


def explain_failures(handle: JobHandle) -> None:
    """The first few slices that failed, why, and the last words of the first of them."""
    from computepool.cli.jobs import explain_end

    failed = list(islice(handle.slices(state=SliceState.FAILED), _FAILURES_SHOWN))
    for part in failed:
        last = part.attempts[-1] if part.attempts else part
        click.echo(f"slice {part.index}: {plain(explain_end(last) or explain_end(part))}", err=True)
    if failed and handle.job.slice_count > 1:
        text = "".join(handle.logs(slice=failed[0].index, follow=False))
        if text.strip():
            click.echo(f"The last lines of slice {failed[0].index}:", err=True)
            for line in plain(text).splitlines()[-_LOG_LINES_SHOWN:]:
                click.echo(f"  {line}", err=True)
