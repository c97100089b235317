"""`computepool receipts`: what nodes have signed for a job's results, as a file to keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.sdk import Client
    from computepool.wire.receipts import JobReceipts

_STDOUT = "-"


@click.command("receipts")
@click.argument("job")
@click.option("--out", metavar="FILE", help="Where they go; `-` prints them. [default: ./receipts-ID.json]")
@hub_options
def command(job: str, out: str | None, hub_url: str | None, key: str | None) -> None:
    """Keep the receipts of JOB: what nodes have signed for its results. JOB is an id, a piece of one, or `last`.

    The owner of a node that worked on somebody else's job gives its whole id, and gets what that node has signed.
    `computepool verify` checks the file without a hub.
    """
    import msgspec

    from computepool.cli.words import short_id

    signed = _fetch(connect(hub_url, key), job)
    text = msgspec.json.format(msgspec.json.encode(signed)).decode() + "\n"
    if out == _STDOUT:
        click.echo(text, nl=False)
        return
    path = Path(out or f"receipts-{short_id(signed.job_id)}.json")
    path.write_text(text, encoding="utf-8")
    click.echo(f"{len(signed.receipts):,} receipts for {len(signed.results):,} results in {path}", err=True)


def _fetch(client: Client, name: str) -> JobReceipts:
    from computepool.cli.job_names import find_job, to_uuid

    whole = to_uuid(name)
    # A job that is not one's own cannot be looked at, but for what one's nodes have signed.
    return client.get_receipts(job_id=whole) if whole is not None else find_job(client, name).receipts()
