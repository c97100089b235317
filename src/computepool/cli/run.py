"""`computepool run`: submits, watches, fetches. The exit code is 0 only if the job succeeded."""

from __future__ import annotations

import contextlib
import os
import re
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computepool.cli.access import connect, hub_options
from computepool.core.jobs.state import JobState

if TYPE_CHECKING:
    from computepool.sdk import Client, JobHandle

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_SECOND_THOUGHT_SECONDS = 4.0
# As the wire knows them; named here so that --help imports nothing. A test holds them together.
_PREFERENCES = ("value", "cheapest", "fastest")
_CLASSES = ("low", "normal", "high")
_VERIFY = ("audit", "quorum", "none")


class _RunCommand(click.Command):
    """Remembers what stood behind `--`: with a script it is the script's arguments, without one the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        behind: list[str] = []
        if "--" in args:
            cut = args.index("--")
            args, behind = args[:cut], args[cut + 1 :]
        ctx.meta["computepool.behind"] = behind
        return super().parse_args(ctx, args)


@click.command("run", cls=_RunCommand, options_metavar="[OPTIONS]")
@click.argument("script", required=False, metavar="[SCRIPT] [-- ARGUMENT...]")
@click.option("--slices", type=int, default=1, show_default=True, help="Run it so many times, numbered from 0.")
@click.option("--gpu", is_flag=True, help="Any GPU.")
@click.option("--vram", default="0", metavar="SIZE", help="GPU memory, such as 16GB.")
@click.option("--ram", metavar="SIZE", help="Memory. [default: 512MB]")
@click.option("--cores", type=int, default=1, show_default=True, help="CPU cores.")
@click.option("--disk", metavar="SIZE", help="Disk space. [default: 1GB]")
@click.option("--tier", "tiers", multiple=True, metavar="NAME", help="Only such cards, e.g. rtx-4090. Repeatable.")
@click.option("--region", "regions", multiple=True, metavar="XX", help="Only such countries, e.g. IN. Repeatable.")
@click.option(
    "--requirements",
    "-r",
    metavar="FILE|LIST",
    help="Python packages: a requirements file, or numpy==2.1.0,pandas. Wheels alone.",
)
@click.option("--image", metavar="NAME@sha256:...", help="A container image by its digest.")
@click.option(
    "--egress", multiple=True, metavar="HOST:PORT", help="A host to reach, if the owner allows. Repeatable."
)
@click.option("--isolation", metavar="LEVEL", help="Least isolation: sandboxed, container or gvisor.")
@click.option(
    "--max-price",
    metavar="CREDITS",
    help="The most that an hour of a slot may cost. [default: half above the rate card]",
)
@click.option(
    "--price-per-slice",
    metavar="CREDITS",
    help="A fixed price for each slice, times tier and region of its slot; `card`: the rate card's.",
)
@click.option("--max-price-per-slice", metavar="CREDITS", help="With it: the most that a slice may cost.")
@click.option("--prefer", type=click.Choice(_PREFERENCES), default="value", show_default=True, help="Which slots.")
@click.option("--kind", default="compute", show_default=True, help="What it is, by the rate card: ml, gaming, ...")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="For the job. Repeatable.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=@FILE]",
    help="For the job alone: the variable NAME of yours, or what FILE holds. Repeatable.",
)
@click.option("--file", "-f", "files", multiple=True, metavar="PATH", help="File or folder to send. Repeatable.")
@click.option("--name", help="How the job is called. [default: the script's name]")
@click.option("--retries", type=int, default=2, show_default=True, help="How often a failed slice is tried again.")
@click.option("--wall", default="1h", show_default=True, metavar="TIME", help="Longest run of a slice: 90s, 15m, 2h.")
@click.option(
    "--checkpoint",
    default="5m",
    show_default=True,
    metavar="TIME",
    help="How often what it saves leaves the machine: 30s, 5m.",
)
@click.option(
    "--compare",
    metavar="HOW",
    help="When two results are the same, for others to check them: exact, exact:anywhere, numeric, numeric:1e-3, or "
    "'command:python3 same.py'.",
)
@click.option(
    "--verify",
    type=click.Choice(_VERIFY),
    default="audit",
    show_default=True,
    help="With --compare: check some results, have two strangers agree on each, or none.",
)
@click.option("--priority", type=int, default=0, show_default=True, help="Among your own slices: -10 to 10.")
@click.option(
    "--class",
    "priority_class",
    type=click.Choice(_CLASSES),
    default="normal",
    show_default=True,
    help="Among everybody's; high by the operator's grant.",
)
@click.option("--deadline", metavar="TIME", help="Wanted by then: 2h from now, or 2030-01-31T18:00.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where outputs go. [default: ./NAME-ID]"
)
@click.option("--detach", "-d", is_flag=True, help="Submit and leave; print the job's id.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for programs; no log.")
@hub_options
def command(
    script: str | None,
    variables: tuple[str, ...],
    secrets: tuple[str, ...],
    wall: str,
    checkpoint: str,
    deadline: str | None,
    isolation: str | None,
    requirements: str | None,
    out: Path | None,
    detach: bool,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
    **wanted: Any,
) -> int:
    """Run a Python SCRIPT on the grid, or any command behind `--`:

    \b
        computepool run train.py --vram 16GB --file data -- --epochs 10
        computepool run --slices 100 simulate.py
        computepool run --gpu --prefer cheapest --max-price 40 --deadline 2h render.py
        computepool run --slices 100 --wall 10m --price-per-slice 2.5 render.py
        computepool run --secret HF_TOKEN --egress huggingface.co:443 fetch.py
        computepool run -- sh -c 'nproc > $COMPUTEPOOL_OUTPUT_DIR/cores'

    Each slice finds its number in COMPUTEPOOL_SLICE_INDEX and leaves its results in COMPUTEPOOL_OUTPUT_DIR.
    What it keeps in COMPUTEPOOL_CHECKPOINT_DIR it finds there again if it has to go on elsewhere.
    """
    behind: list[str] = click.get_current_context().meta["computepool.behind"]
    program = choose_program(script, behind)
    if isolation is not None:
        wanted["isolation"] = isolation
    if requirements is not None:
        wanted["requirements"] = choose_requirements(requirements)
    wanted |= {
        "env": parse_variables(variables),
        "secrets": read_secrets(secrets),
        "wall_seconds": _parse_time("--wall", wall),
        "checkpoint_seconds": _parse_time("--checkpoint", checkpoint),
        "deadline_at": parse_deadline(deadline),
    }
    client = connect(hub_url, key, watching=not detach)
    handle = _submit(client, **program, **_join_files(program, wanted))
    if detach:
        return _leave(handle, as_json=as_json)
    return _attend(handle, out=out, as_json=as_json)


def choose_program(script: str | None, behind: list[str]) -> dict[str, Any]:
    """What `submit` is told to run: a script with its arguments, a program file, or a plain command."""
    from computepool.core.jobs.spec import SCRIPT_FILE_NAME

    if script is None and not behind:
        raise click.UsageError("There is nothing to run. Give a script, or a command behind `--`.")
    if script is None:
        return {"command": behind}
    if not Path(script).is_file():
        raise click.UsageError(f"There is no file {script!r}. A command stands behind `--`: run -- {script} ...")
    if Path(script).suffix == ".py":
        return {"script": Path(script), "command": ["python3", SCRIPT_FILE_NAME, *behind] if behind else []}
    # Anything else names its interpreter in its first line, or is a shell script.
    starts_itself = Path(script).read_bytes()[:2] == b"#!"
    path = Path(script).resolve()
    return {"files": [path], "command": [*([] if starts_itself else ["sh"]), f"./{path.name}", *behind]}


def choose_requirements(text: str) -> Path | list[str]:
    """A file if there is one of that name, else a list with commas; versions have commas too, before a sign."""
    if Path(text).is_file():
        return Path(text)
    if text.endswith(".txt") or "/" in text:
        raise click.UsageError(f"--requirements: there is no file {text!r}.")
    return [part.strip() for part in re.split(r",(?=\s*[A-Za-z])", text) if part.strip()]


def parse_variables(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--env {pair}: write it as NAME=VALUE.")
        found[name] = value
    return found


def read_secrets(words: tuple[str, ...]) -> dict[str, str]:
    """From variables or files, never from the command line: others on the machine see it, and shells remember it."""
    found = {}
    for word in words:
        name, equals, source = word.partition("=")
        if equals and not source.startswith("@"):
            raise click.UsageError(
                f"--secret {name}: a value has no place on a command line. Set the variable {name} and write "
                f"--secret {name}, or write --secret {name}=@FILE."
            )
        found[name] = _read_secret_file(name, source[1:]) if equals else _read_variable(name)
    return found


def _read_variable(name: str) -> str:
    if name not in os.environ:
        raise click.UsageError(
            f"--secret {name}: you have no variable {name}. Set it, or write --secret {name}=@FILE."
        )
    return os.environ[name]


def _read_secret_file(name: str, path: str) -> str:
    """Without the line break that editors leave at the end."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        raise click.UsageError(f"--secret {name}: the file {path!r} cannot be read as text.") from None


def _parse_time(option: str, text: str) -> int:
    from computepool.cli.words import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}.") from None


def parse_deadline(text: str | None) -> datetime | None:
    """A time from now, or a moment: without a time zone that of this machine."""
    from computepool import clock
    from computepool.cli.words import parse_seconds

    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return clock.now() + timedelta(seconds=parse_seconds(text))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(
            f"--deadline {text}: write 90s, 15m, 2h, 1d, or a moment like 2030-01-31T18:00."
        ) from None


def _join_files(program: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {**wanted, "files": [*program.pop("files", []), *wanted["files"]]}


def _submit(client: Client, **wanted: Any) -> JobHandle:
    from computepool.cli.terminal import aside

    console = aside()
    if console.is_interactive:
        with console.status("Submitting"):
            return client.submit(**wanted)
    return client.submit(**wanted)


def _leave(handle: JobHandle, *, as_json: bool) -> int:
    from computepool.cli.terminal import print_json
    from computepool.cli.words import short_id

    if as_json:
        print_json({"job": handle.job, "files": []})
        return 0
    click.echo(str(handle.id))
    click.echo(f"Follow it with: computepool logs {short_id(handle.id)} --follow", err=True)
    return 0


def _attend(handle: JobHandle, *, out: Path | None, as_json: bool) -> int:
    from computepool.cli.terminal import print_json
    from computepool.cli.watch import explain_failures, watch

    try:
        watch(handle, with_log=not as_json)
        files = _fetch(handle, out)
    except KeyboardInterrupt:
        return _think_twice(handle)
    if as_json:
        print_json({"job": handle.job, "files": [str(file) for file in files]})
    if handle.state is not JobState.SUCCEEDED:
        explain_failures(handle)
        return EXIT_FAILED
    return 0


def _fetch(handle: JobHandle, out: Path | None) -> list[Path]:
    from computepool.cli.words import short_id

    folder = out or Path(f"{to_folder_name(handle.job.name)}-{short_id(handle.id)}")
    files = handle.download(folder)
    if files:
        click.echo(f"{len(files)} file{'s' if len(files) > 1 else ''} in {folder}", err=True)
    return files


def to_folder_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name).strip(".")[:60] or "job"


def _think_twice(handle: JobHandle) -> int:
    """The first Ctrl-C lets go of the job; only a second one, soon after, takes it down."""
    from computepool.cli.words import short_id

    name = short_id(handle.id)
    try:
        click.echo(f"\nJob {name} goes on without you. Press Ctrl-C again now to cancel it.", err=True)
        time.sleep(_SECOND_THOUGHT_SECONDS)
    except KeyboardInterrupt:
        click.echo("\nCancelling.", err=True)
        click.echo(f"Job {name} is {handle.cancel().state.value}.", err=True)
        return EXIT_INTERRUPTED
    click.echo(f"See it with:  computepool jobs {name}\nStop it with: computepool cancel {name}", err=True)
    return EXIT_INTERRUPTED
