"""`computepool demo`: the whole grid on one machine, with something to look at."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from computepool.cli.demo_chaos import Chaos
    from computepool.cli.demo_examples import NodeUse, Setting
    from computepool.cli.demo_grid import Grid
    from computepool.sdk import JobHandle
    from computepool.wire.jobs import Job

_JOBS_SECONDS_MAX = 90.0
_NETWORK_SECONDS_MAX = 600.0
_LOOK_SECONDS = 0.25
_WATCH_SECONDS = 1.0
_CURVE_COLUMNS = 40


@click.command("demo")
@click.option("--once", is_flag=True, help="Run the examples, check them, end. Exit code 0 only if all is well.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    envvar="PORT",
    help="The hub's port. [else PORT, else 8000, or the next free one]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address the hub listens on.")
@click.option("--chaos", is_flag=True, help="Pull plugs while jobs run and a network trains, and lose nothing.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Keeps the demo's database, logs and results.")
def command(once: bool, port: int | None, host: str, chaos: bool, folder: Path | None) -> int:
    """Start a hub and five synthetic nodes on this machine, run example jobs, and show what they made.

    Needs no GPU and no database. Ctrl-C ends everything.
    """
    from computepool.cli.demo_grid import DemoFailed, default_folder, run_grid
    from computepool.cli.demo_network import describe_missing, list_missing
    from computepool.cli.processes import signals_end_the_block
    from computepool.cli.terminal import aside

    chosen = (folder or default_folder(os.environ, is_root=hasattr(os, "geteuid") and os.geteuid() == 0)).absolute()
    console = aside()
    missing = list_missing() if chaos else []
    networks = chaos and not missing

    def say(text: str) -> None:
        console.print(f"{text} ...", style="dim")

    with signals_end_the_block():
        try:
            with run_grid(chosen, host=host, port=port, say=say, networks=networks) as grid:
                faults = _show_examples(grid, chosen, console)
                if missing:
                    click.echo(f"\n{describe_missing(missing)}")
                if not once:
                    _stay(grid, chosen, chaos=chaos, networks=networks)
                elif networks and not faults:
                    faults = _weather(grid)
        except DemoFailed as failure:
            faults = [str(failure)]
        except KeyboardInterrupt:
            return 130 if once else 0
    for fault in faults:
        click.echo(f"failed: {fault}", err=True)
    if faults:
        click.echo(f"The logs of hub and nodes are in {chosen}.", err=True)
    return 1 if faults else 0


def _show_examples(grid: Grid, folder: Path, console: Console) -> list[str]:
    from computepool.cli.demo_examples import count_use, list_faults, submit_examples
    from computepool.cli.demo_grid import make_links
    from computepool.cli.nodes import list_tiers
    from computepool.cli.terminal import screen

    links = make_links(grid)
    if links:
        click.echo(describe_links(links, has_site=grid.submitter.get_hub().site))
    # On the front page jobs have names then; nothing here is a secret.
    grid.submitter.live.change_profile(shows_titles=True)
    handles = submit_examples(grid.submitter)
    unfinished = _await_jobs(grid, handles, console)
    slices = {name: list(handle.slices()) for name, handle in handles.items()}
    nodes = grid.list_nodes()
    tiers = {node.id: "+".join(list_tiers(node)) for _, node in nodes}
    use = count_use(slices, [(node.name, node.id, owner, tiers[node.id]) for owner, node in nodes])
    out = screen()
    out.print()
    out.print(_nodes_table(use))
    out.print()
    out.print(_jobs_table([handle.job for handle in handles.values()]))
    faults = unfinished or list_faults({name: handle.state for name, handle in handles.items()}, slices, use, tiers)
    if not faults:
        _show_results(handles, folder / "results", out)
    return faults


def describe_links(links: Mapping[str, str], *, has_site: bool) -> str:
    page = "the dashboard" if has_site else "a plain page"
    lines = [f"Open {page}, signed in (a link works once):"]
    lines += [f"  as {name}: {link}" for name, link in links.items()]
    if has_site:
        return "\n".join(lines)
    return "\n".join(lines) + (
        "\nThis ComputePool came without its dashboard. Released wheels have it inside; in a checkout, "
        "make web builds it (Node 20.9 or newer, with npm)."
    )


def _await_jobs(grid: Grid, handles: Mapping[str, JobHandle], console: Console) -> list[str]:
    """What was not done in time, or who ended before it was; empty if all jobs have ended."""
    from rich.progress import BarColumn, Progress, TextColumn

    from computepool import clock
    from computepool.cli.demo_grid import describe_ended
    from computepool.cli.watch import count_ended, describe_progress

    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=28),
        TextColumn("{task.completed:>3}/{task.total:<3}"),
        TextColumn("{task.fields[counts]}"),
    )
    deadline = clock.seconds() + _JOBS_SECONDS_MAX
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as progress:
        lines = {name: progress.add_task(name, total=h.job.slice_count, counts="") for name, h in handles.items()}
        while clock.seconds() < deadline:
            ended = [child for child in (grid.hub, *grid.fleet) if child.exit_code is not None]
            if ended:
                return [describe_ended(child) for child in ended]
            for name, handle in handles.items():
                if not handle.is_finished:
                    job = handle.refresh()
                    progress.update(lines[name], completed=count_ended(job), counts=describe_progress(job))
            if all(handle.is_finished for handle in handles.values()):
                return []
            time.sleep(_LOOK_SECONDS)
    return [
        f"job {name} had only {count_ended(handle.job)} of {handle.job.slice_count} slices done "
        f"after {_JOBS_SECONDS_MAX:.0f} s ({describe_progress(handle.job)})"
        for name, handle in handles.items()
        if not handle.is_finished
    ]


def _nodes_table(use: Sequence[NodeUse]) -> Table:
    from computepool.cli.terminal import make_table

    table = make_table("NODE", "OWNER", "TIER", "SLICES", "BUSY", right=("SLICES", "BUSY"))
    for node in use:
        table.add_row(node.name, node.owner, node.tier, str(node.slice_count), f"{node.busy_seconds:.1f} s")
    return table


def _jobs_table(jobs: Sequence[Job]) -> Table:
    from computepool.cli.jobs import describe_requirements
    from computepool.cli.terminal import make_table, state_text
    from computepool.cli.words import seconds_between
    from computepool.core.placement.price import format_credits

    table = make_table("JOB", "NEEDS", "SLICES", "STATE", "TOOK", "COST", right=("SLICES", "TOOK", "COST"))
    for job in jobs:
        took = seconds_between(job.created_at, job.finished_at)
        needs = describe_requirements(job.requirements).split(",")[0]
        done = f"{job.counts.succeeded}/{job.slice_count}"
        table.add_row(
            job.name,
            needs,
            done,
            state_text(job.state),
            "-" if took is None else f"{took:.1f} s",
            f"{format_credits(job.charged_microcredits)} cr",
        )
    return table


def _show_results(handles: Mapping[str, JobHandle], folder: Path, out: Console) -> None:
    from computepool.cli.demo_examples import PICTURE, SWEEP, best_setting, read_sweep, stitch_picture
    from computepool.cli.words import sparkline

    for name, handle in handles.items():
        handle.download(folder / name)
    settings = read_sweep(folder / SWEEP)
    best = best_setting(settings)
    out.print()
    out.print("Share of unseen points right, by learning rate and width of the network:")
    out.print(sweep_table(settings))
    curve = sparkline(best.loss, width=_CURVE_COLUMNS, ascii_only=out.options.ascii_only)
    out.print(f"Best: rate {best.rate:g}, width {best.width}, {best.accuracy:.1%}   loss {curve}")
    out.print()
    out.print(f"Picture of 16 tiles: {stitch_picture(folder / PICTURE, folder / 'mandelbrot.png')}", soft_wrap=True)


def sweep_table(settings: Sequence[Setting]) -> Table:
    from rich.text import Text

    from computepool.cli.terminal import make_table

    rates = sorted({setting.rate for setting in settings})
    found = {(setting.width, setting.rate): setting.accuracy for setting in settings}
    top = max(found.values())
    headings = [f"{rate:g}" for rate in rates]
    table = make_table("WIDTH", *headings, right=("WIDTH", *headings))
    for width in sorted({setting.width for setting in settings}):
        row = [found[(width, rate)] for rate in rates]
        table.add_row(
            str(width), *(Text(f"{share:.0%}", style="bold green" if share == top else "") for share in row)
        )
    return table


def describe_path() -> str:
    """A line for those whose shell would not find the command: `make demo` runs it out of a virtual environment."""
    from computepool.cli.demo_grid import find_own_folder

    folder = find_own_folder()
    return "" if folder is None else f"  export PATH={folder}:$PATH\n"


def _weather(grid: Grid) -> list[str]:
    """One network to its end while plugs are pulled, and what was promised and not kept."""
    from computepool.cli.demo_chaos import Chaos, weather

    with Chaos(grid, click.echo) as storm:
        return weather(storm, seconds=_NETWORK_SECONDS_MAX)


def _stay(grid: Grid, folder: Path, *, chaos: bool, networks: bool) -> None:
    from computepool.cli.demo_chaos import Chaos
    from computepool.cli.demo_grid import SUBMITTER, make_links

    # The first ones have scrolled away, and may have been used.
    link = make_links(grid).get(SUBMITTER)
    if link is not None:
        click.echo(f"\n{describe_links({SUBMITTER: link}, has_site=True)}")
    click.echo(
        f"\nThe grid stays up. In another terminal, as {SUBMITTER}:\n"
        f"{describe_path()}"
        f"  export HUB_URL={grid.hub_url}\n"
        f"  export COMPUTEPOOL_KEY={grid.submitter_key}\n"
        "  computepool jobs\n"
        "  computepool run --slices 3 -- sh -c 'echo slice $COMPUTEPOOL_SLICE_INDEX runs'\n"
        f"Logs and results are in {folder}. Ctrl-C ends everything."
    )
    with ExitStack() as stack:
        storm = stack.enter_context(Chaos(grid, click.echo, networks=networks)) if chaos else None
        _attend(grid, storm)


def _attend(grid: Grid, storm: Chaos | None) -> None:
    """Until Ctrl-C, or until the hub has ended."""
    from computepool.cli.demo_grid import DemoFailed
    from computepool.cli.fleet import report_ended

    told: set[str] = set()
    while True:
        if storm is not None:
            storm.look()
        if grid.hub.exit_code is not None:
            report_ended([grid.hub])
            raise DemoFailed("the hub ended by itself")
        ended = [child for child in grid.fleet if child.exit_code is not None and child.name not in told]
        report_ended(ended)
        told |= {child.name for child in ended}
        time.sleep(_WATCH_SECONDS)
