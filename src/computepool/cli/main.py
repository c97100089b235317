"""The entry of `computepool`: picks the command, and turns every refusal into one clear line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

import computepool
from computepool.cli.lazy import LazyGroup
from computepool.core.errors import ComputePoolError, Unauthenticated

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130

# By what people come for, in the order in which they need it.
_SECTIONS = {
    "Run work": {
        "run": ("computepool.cli.run", "Run a script or a command on the grid and fetch what it makes."),
        "quote": ("computepool.cli.quote", "What a job would cost, hold and wait, before you submit it."),
        "jobs": ("computepool.cli.jobs", "List your jobs, or show one with its slices and attempts."),
        "logs": ("computepool.cli.logs", "Print what a job wrote; follow it while it runs."),
        "why": (
            "computepool.cli.why",
            "Say why a job waits or died, why a node is idle or was paid so; and what would help.",
        ),
        "cancel": ("computepool.cli.cancel", "Stop a job, queued or running."),
        "net": ("computepool.cli.net", "Neural networks over many machines: create, plan, train, watch, export."),
        "receipts": ("computepool.cli.receipts", "Keep what nodes have signed for the results of a job."),
        "verify": (
            "computepool.cli.verify",
            "Check without a hub that nodes signed for results, and that files are those.",
        ),
    },
    "Lend a machine": {
        "doctor": ("computepool.cli.doctor", "Say what of this machine could be lent, what is missing, and the fix."),
        "node": ("computepool.cli.node", "Lend this machine: run the agent; status, pause, resume, drain, install."),
        "nodes": ("computepool.cli.nodes", "List the machines you lend; drain, pause, resume, price or remove one."),
        "earnings": ("computepool.cli.earnings", "What a machine would earn if you lent it, and at which floor."),
        "debug": ("computepool.cli.debug", "Pack what tells what is wrong with the agent here, without secrets."),
    },
    "Money and market": {
        "credits": (
            "computepool.cli.credits",
            "What you have and earn; pay in, cash out. For operators: approve, confirm.",
        ),
        "statement": (
            "computepool.cli.statement",
            "What moved for you, what a job came to, what a node earned; as CSV.",
        ),
        "market": ("computepool.cli.market", "What an hour costs now and did before, and what was really paid."),
        "audit": ("computepool.cli.audit", "Check the books: the public proof; for operators the whole chain."),
        "leaderboard": ("computepool.cli.leaderboard", "Who lends the most to others."),
    },
    "Your account": {
        "sign-up": ("computepool.cli.sign_up", "Make an account at a hub."),
        "sign-in": ("computepool.cli.sign_in", "Remember a hub and a key on this machine."),
        "profile": ("computepool.cli.profile", "What strangers see of you: pseudonym, leaderboard, names of jobs."),
    },
    "Try it, or run a hub": {
        "demo": ("computepool.cli.demo", "See the whole grid at work on this machine."),
        "hub": ("computepool.cli.hub", "Run a hub."),
        "fleet": ("computepool.cli.fleet", "Start a synthetic fleet against a demo hub."),
        "sim": ("computepool.cli.sim", "Simulations on the grid's own rules, in a checkout of its source."),
    },
    "For operators": {
        "accounts": (
            "computepool.cli.accounts",
            "List accounts, grant one a class, a larger share or more machines.",
        ),
        "operator": ("computepool.cli.operator", "Block inputs, suspend accounts and stop their jobs."),
        "books": ("computepool.cli.books", "Close a day of the books."),
        "experiment": ("computepool.cli.experiment", "Compare two sets of placement weights."),
    },
}
_ALIASES = {"login": "sign-in"}


@click.command(
    cls=LazyGroup,
    sections=_SECTIONS,
    aliases=_ALIASES,
    help="""ComputePool: hand jobs to an open grid of computers, or lend yours to it.

    To see it all at work on this machine: computepool demo
    """,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(computepool.__version__, prog_name="computepool")
def cli() -> None:
    pass


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character of somebody's log shows a question mark and goes on.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 1 the job did not succeed, 2 refused or misused, 130 interrupted."""
    try:
        result = cli.main(args=list(arguments), prog_name="computepool", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as misuse:
        misuse.show()
        return misuse.exit_code
    except ComputePoolError as error:
        return _complain(error.message + _advise(error), str(error.details.get("code", error.code)))
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`): nobody is left to tell, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(str(error), str(getattr(error, "code", "os_error")))


def _advise(error: ComputePoolError) -> str:
    """What the hub cannot know: where the key came from, and what is typed here to get another."""
    if not isinstance(error, Unauthenticated) or "computepool " in error.message:
        return ""
    if os.environ.get("COMPUTEPOOL_KEY"):
        where = "Unless you gave --key, it is that of COMPUTEPOOL_KEY"
        return f" {where}: set another, or unset it and run: computepool sign-in"
    return " Run: computepool sign-in"


def _complain(message: str, code: str) -> int:
    from computepool.cli.words import plain

    click.echo(f"error: {plain(message)} ({code})", err=True)
    return EXIT_REFUSED
