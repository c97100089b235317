"""The agent as a process: reads flags and environment once, sets up the log, runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

import computepool
from computepool.node import journal
from computepool.node.agent import ExitCode, run_agent
from computepool.node.config import LogLevel, Poll, load_config
from computepool.node.hardware.profiles import list_profiles
from computepool.settings import InvalidSettings


def main(arguments: Sequence[str] | None = None) -> int:
    options = vars(make_parser().parse_args(_without_word(sys.argv[1:] if arguments is None else arguments)))
    try:
        config = load_config(os.environ, **options)
    except InvalidSettings as error:
        print(error.message, file=sys.stderr)
        return ExitCode.SETTINGS
    journal.set_up(config.log_level.value)
    return asyncio.run(run_agent(config))


def make_parser() -> argparse.ArgumentParser:
    """Each flag stands for a setting of the same name and wins over the environment."""
    parser = argparse.ArgumentParser(
        prog="computepool-node",
        description="Lends this machine to a ComputePool hub.",
        epilog="Every setting can also be given as COMPUTEPOOL_NODE_<NAME>. The owner's API key is needed for the "
        "first start only and is read from COMPUTEPOOL_NODE_OWNER_KEY: flags show in the list of processes.",
    )
    parser.add_argument("--version", action="version", version=computepool.__version__)
    parser.add_argument("--hub-url", metavar="URL", help="the hub's address (or HUB_URL)")
    parser.add_argument("--name", help="the node's name in the owner's list; the machine's name if not given")
    parser.add_argument(
        "--state-dir", metavar="DIR", help="where the agent keeps its key, cache and running attempts"
    )
    parser.add_argument("--region", metavar="CC", help="country as ISO-2 code, for example IN or DE")
    parser.add_argument("--profile", help=f"play a machine for a demo: {', '.join(list_profiles())}, or a TOML file")
    parser.add_argument(
        "--cpu-slots", type=int, metavar="N", help="CPU jobs that may run at once, besides one per GPU"
    )
    parser.add_argument(
        "--floor-credits-per-hour", metavar="CREDITS", help="the least that one slot is lent for, for example 1.50"
    )
    parser.add_argument(
        "--poll", choices=[poll.value for poll in Poll], help="hold calls open (long) or ask now and then"
    )
    parser.add_argument(
        "--networks", action="store_true", default=None, help="host VNodes of networks; needs the extra `networks`"
    )
    parser.add_argument("--drain-seconds", type=float, metavar="S", help="how long running jobs may go on at the end")
    parser.add_argument("--log-level", choices=[level.value for level in LogLevel])
    return parser


def _without_word(arguments: Sequence[str]) -> list[str]:
    """`agent.pyz node --name attic` reads like `computepool node --name attic`; the word means nothing here."""
    return list(arguments[1:]) if arguments and arguments[0] == "node" else list(arguments)
