"""Groups of commands. One imports a command only when it is called: `--help` must not wait for httpx and rich."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping

import click

# Longer than any: nothing is cut.
_SENTENCE_LENGTH_MAX = 1_000


class LazyGroup(click.Group):
    """`sections` map a command's name to its module and one line of help; `aliases` are other names for them."""

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, tuple[str, str]]],
        aliases: Mapping[str, str] | None = None,
        **attributes: object,
    ) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._sections = sections
        self._table = {name: line for section in sections.values() for name, line in section.items()}
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = self._aliases.get(name, name)
        if name not in self._table:
            return None
        command = importlib.import_module(self._table[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = difflib.get_close_matches(args[0], [*self._table, *self._aliases], n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, not from the commands: asking them would import them all."""
        # One column for all sections: their lines begin below each other.
        width = max(map(len, self._table))
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in section.items()])


class ListedGroup(click.Group):
    """Lists its commands in the order in which they were added, each with the whole of its first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: each.get_short_help_str(limit=_SENTENCE_LENGTH_MAX) for name, each in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(lines.items()))
