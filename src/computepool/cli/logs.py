"""`computepool logs`: what one slice of a job wrote."""

from __future__ import annotations

import sys

import click

from computepool.cli.access import connect, hub_options


@click.command("logs")
@click.argument("job")
@click.option("--slice", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Which slice.")
@click.option("--attempt", type=click.IntRange(min=1), help="Which attempt. [default: the newest]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the slice has ended.")
@hub_options
def command(job: str, index: int, attempt: int | None, follow: bool, hub_url: str | None, key: str | None) -> None:
    """Print the log of one slice of JOB. JOB is an id, a piece of one, or `last`."""
    from computepool.cli.job_names import find_job

    handle = find_job(connect(hub_url, key, watching=follow), job)
    for text in handle.logs(slice=index, follow=follow, attempt=attempt):
        write_log(text)


def write_log(text: str) -> None:
    """A terminal gets a tamed text, a file or a pipe every character."""
    from computepool.cli.words import tame

    sys.stdout.write(tame(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
