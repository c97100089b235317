"""`computepool verify`: whether nodes have signed for results, and whether files are those. Asks no hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

if TYPE_CHECKING:
    from computepool.sdk.receipts import Finding
    from computepool.wire.receipts import JobReceipts

_EXIT_BAD = 1
_File = click.Path(path_type=Path, exists=True, dir_okay=False)
_Folder = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("verify")
@click.argument("receipts", nargs=-1, required=True, type=_File)
@click.option(
    "--files", type=_Folder, help="The folder of the job's download: its files must be what was signed for."
)
@click.option("--hub-id", type=click.UUID, help="The hub that it was signed for. [default: as RECEIPTS say]")
@click.option("--json", "as_json", is_flag=True, help="Print what was found for programs.")
def command(receipts: tuple[Path, ...], files: Path | None, hub_id: UUID | None, as_json: bool) -> int:
    """Check RECEIPTS, files of `computepool receipts`, without a hub.

    \b
        computepool receipts last --out receipts.json
        computepool verify receipts.json --files results

    Says of each slice's result whether its node has signed for it, and what does not hold. Exit code 1 when anything
    does not. Which key is which node's, and which hub it was, are taken from the file: keep it as you got it.
    """
    from computepool.cli.terminal import print_json
    from computepool.cli.words import plain
    from computepool.sdk.receipts import read_receipts, verify_receipts

    jobs = [read_receipts(path) for path in receipts]
    if files is not None and len({signed.job_id for signed in jobs}) > 1:
        raise click.UsageError("--files is the folder of one job; these are receipts of several.")
    found = [(signed, verify_receipts(signed, files=files, hub_id=hub_id, ignoring=receipts)) for signed in jobs]
    if as_json:
        print_json([{"job_id": signed.job_id, "findings": findings} for signed, findings in found])
    else:
        for line in (line for signed, findings in found for line in describe_findings(signed, findings)):
            click.echo(plain(line))
    return _conclude([finding for _, findings in found for finding in findings])


def _conclude(findings: Sequence[Finding]) -> int:
    """The last word is for people and programs alike: a code that never changes."""
    bad = sum(bool(finding.faults) for finding in findings)
    if not findings:
        click.echo("error: There are no results in these receipts. (receipts_missing)", err=True)
    elif bad:
        click.echo(f"error: {bad:,} of {len(findings):,} results do not hold. (receipts_refused)", err=True)
    return _EXIT_BAD if bad or not findings else 0


def describe_findings(signed: JobReceipts, findings: Sequence[Finding]) -> list[str]:
    lines = [f"Job {signed.job_id}, hub {signed.hub_id}"]
    for finding in findings:
        lines += _describe(finding)
    delivered = {finding.slice_index for finding in findings if finding.result is not None}
    if len(delivered) < signed.slice_count:
        lines.append(f"{len(delivered):,} of {signed.slice_count:,} slices have a result here.")
    return lines


def _describe(finding: Finding) -> list[str]:
    result = finding.result
    name = f"slice {finding.slice_index}" + (f", attempt {result.number}" if result is not None else "")
    if finding.faults or result is None:
        return [f"{name}: BAD: {fault.words} ({fault.code.value})" for fault in finding.faults]
    count = len(result.outputs)
    return [f"{name}: good: node {finding.node_id} signed for {count} file{'' if count == 1 else 's'}"]
