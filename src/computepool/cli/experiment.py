"""`computepool experiment`: which of two sets of placement weights serves jobs better."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.wire.placement import Experiment, Interval, SetOutcome, Summary


@click.command("experiment")
@click.option("--days", type=float, default=7.0, show_default=True, help="Jobs submitted within so many days.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(days: float, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Compare the two sets of placement weights that jobs are split over, by what became of the jobs.

    The sets and the split stand in the file that COMPUTEPOOL_HUB_PLACEMENT_FILE names.
    """
    from computepool.cli.terminal import print_json

    found = connect(hub_url, key).get_experiment(days=days)
    if as_json:
        print_json(found)
        return
    for line in describe_experiment(found):
        click.echo(line)


def describe_experiment(found: Experiment) -> list[str]:
    from computepool.cli.why import lay_out, wrap

    since = found.since.astimezone().strftime("%Y-%m-%d %H:%M")
    looked = f"{'the newest ' if found.is_cut else ''}{found.job_count:,} job{'s' if found.job_count != 1 else ''}"
    sides = (found.first, found.second)
    rows = [(name, *(value(side) for side in sides)) for name, value in _ROWS]
    lines = [f"Looked at {looked} submitted since {since}. New jobs are split so:"]
    for side in sides:
        lines += wrap(f"{side.name}: {side.share * 100:g} %, placed by {_weights(side)}", indent="  ")
    lines.append("")
    lines += lay_out(("", found.first.name, found.second.name), rows, right=(1, 2))
    lines += ["", *_describe_intervals(found), *wrap(found.words)]
    return lines


def _describe_intervals(found: Experiment) -> list[str]:
    if found.turnaround_ratio is None and found.fault_share is None:
        return []
    rows = []
    if found.turnaround_ratio is not None:
        rows.append(("time from first lease to end", *_say_interval(found.turnaround_ratio, _ratio)))
    if found.fault_share is not None:
        rows.append(("jobs that met a node's fault", *_say_interval(found.fault_share, _points)))
    from computepool.cli.why import lay_out

    heads = (f"{found.second.name} against {found.first.name}", "SEEN", "95 % SURE")
    return [*lay_out(heads, rows, right=(1, 2)), ""]


def _say_interval(found: Interval, say: Callable[[float], str]) -> tuple[str, str]:
    return say(found.estimate), f"{say(found.low)} to {say(found.high)}"


def _ratio(value: float) -> str:
    return f"x {value:.3g}"


def _points(value: float) -> str:
    return f"{value * 100:+.2f} in 100"


def _seconds(summary: Summary | None) -> str:
    from computepool.cli.words import format_seconds

    return "-" if summary is None else f"{format_seconds(summary.median)} / {format_seconds(summary.mean)}"


def _price(side: SetOutcome) -> str:
    if side.price_microcredits_per_hour is None:
        return "-"
    return f"{side.price_microcredits_per_hour / 1_000_000:.4g}"


def _share(count: int, total: int) -> str:
    return f"{count:,} of {total:,}"


def _weights(side: SetOutcome) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in side.weights.items()) or "no weights"


_ROWS: tuple[tuple[str, Callable[[SetOutcome], str]], ...] = (
    ("jobs (slices)", lambda side: f"{side.job_count:,} ({side.slice_count:,})"),
    ("finished, succeeded", lambda side: f"{side.finished_count:,}, {side.succeeded_count:,}"),
    ("queue wait, median / mean", lambda side: _seconds(side.wait_seconds)),
    ("first lease to end, median / mean", lambda side: _seconds(side.turnaround_seconds)),
    ("run of a slice, median / mean", lambda side: _seconds(side.run_seconds)),
    ("credits per slot and hour", _price),
    ("attempts failed by the node", lambda side: _share(side.fault_count, side.attempt_count)),
    ("jobs that met such", lambda side: _share(side.faulty_job_count, side.finished_count)),
)
