"""The two consoles and the look of tables. The only room that knows rich, imported when something is drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TextIO, TypeVar

import msgspec

from computepool.cli.words import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Found = TypeVar("Found")

# One table for the colour of every state; the word itself says it too, for terminals and eyes without colour.
_STYLES = {
    "queued": "yellow",
    "leased": "cyan",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "lost": "red",
    "active": "green",
    "online": "green",
    "offline": "red",
    "paused": "yellow",
    "closed": "yellow",
    "draining": "yellow",
    "removed": "dim",
}

# A pipe has no width; programs that read tables want lines that are not cut.
_PIPE_COLUMNS = 160


def screen() -> Console:
    return _console(sys.stdout)


def aside() -> Console:
    """Standard error: progress and remarks, so that standard output carries only what was asked for."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    wide = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=_PIPE_COLUMNS if wide else None)


def state_text(state: Enum | str) -> Text:
    from rich.text import Text

    word = str(state.value) if isinstance(state, Enum) else state
    return Text(word, style=_STYLES.get(word, ""))


def make_table(*columns: str, right: Sequence[str] = (), give: Sequence[str] = ()) -> Table:
    """Columns named in `right` hold numbers; those in `give` are the first to give way when room is short."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in give,
            overflow="fold" if column in give else "ellipsis",
        )
    return table


def cell(text: str, *, one_line: bool = False) -> Text:
    """A cell that shows a stranger's words as they are, brackets and all."""
    from rich.text import Text

    if one_line:
        return Text(" ".join(plain(text).split()), no_wrap=True, overflow="ellipsis")
    return Text(plain(text))


def show(found: Found, describe: Callable[[Found], Iterable[str]], *, as_json: bool) -> None:
    """For programs the message as it is, for people what it says."""
    if as_json:
        print_json(found)
        return
    for line in describe(found):
        sys.stdout.write(plain(line) + "\n")


def print_json(value: object) -> None:
    """For programs: the message as it crossed the wire, in one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
