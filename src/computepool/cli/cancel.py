"""`computepool cancel`: stops a job, queued or running."""

from __future__ import annotations

import click

from computepool.cli.access import connect, hub_options


@click.command("cancel")
@click.argument("job")
@hub_options
def command(job: str, hub_url: str | None, key: str | None) -> None:
    """Stop JOB, queued or running. JOB is an id, a piece of one, or `last`."""
    from computepool.cli.job_names import find_job
    from computepool.cli.words import short_id

    handle = find_job(connect(hub_url, key), job)
    if handle.is_finished:
        click.echo(f"Job {short_id(handle.id)} had ended before: {handle.state.value}.")
        return
    click.echo(f"Job {short_id(handle.id)} is {handle.cancel().state.value}.")
